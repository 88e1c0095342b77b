"""What the compiler says a program costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax

__all__ = ["Cost", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """Cost and memory figures of one compiled program, per call; None where the backend gives none.

    Attributes:
        flops: floating-point operations.
        transcendentals: exponentials, logarithms, and their kin.
        bytes_accessed: bytes read and written by the operations.
        peak_bytes: highest device memory during a call, arguments and results included.
        argument_bytes: size of the arguments.
        output_bytes: size of the results.
        alias_bytes: part of the results that reuses donated arguments.
        temp_bytes: scratch memory.
        code_bytes: size of the program itself.
    """

    flops: float | None = None
    transcendentals: float | None = None
    bytes_accessed: float | None = None
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None
    code_bytes: int | None = None

    def as_dict(self) -> dict[str, float | int]:
        """The figures there are, for a record or a logger."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def cost_of(compiled: jax.stages.Compiled) -> Cost:
    """Read the figures off a compiled program; a backend without them gives `Cost()`."""
    analysis = _asked(compiled.cost_analysis)
    if isinstance(analysis, (list, tuple)):
        analysis = analysis[0] if analysis else None
    memory = _asked(compiled.memory_analysis)
    sizes = {name: _size(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "alias", "temp")}
    return Cost(
        flops=_figure(analysis, "flops"),
        transcendentals=_figure(analysis, "transcendentals"),
        bytes_accessed=_figure(analysis, "bytes accessed"),
        peak_bytes=_peak(memory, sizes),
        argument_bytes=sizes["argument"],
        output_bytes=sizes["output"],
        alias_bytes=sizes["alias"],
        temp_bytes=sizes["temp"],
        code_bytes=_size(memory, "generated_code_size_in_bytes"),
    )


def _asked(analysis: Any) -> Any:
    try:
        return analysis()
    except (NotImplementedError, RuntimeError):  # a backend that cannot say
        return None


def _figure(analysis: Any, name: str) -> float | None:
    value = analysis.get(name) if isinstance(analysis, Mapping) else None
    # XLA writes -1 for "not known".
    return float(value) if value is not None and math.isfinite(value) and value >= 0 else None


def _size(memory: Any, name: str) -> int | None:
    value = getattr(memory, name, None)
    return int(value) if value is not None and value >= 0 else None


def _peak(memory: Any, sizes: Mapping[str, int | None]) -> int | None:
    """XLA's own figure, which leaves out the arguments on some backends, or the sum of the parts if that is more."""
    stated = _size(memory, "peak_memory_in_bytes") or 0
    parts = [size for size in sizes.values() if size is not None]
    if not parts:
        return stated or None
    total = (sizes["argument"] or 0) + (sizes["output"] or 0) + (sizes["temp"] or 0) - (sizes["alias"] or 0)
    return max(stated, total)
