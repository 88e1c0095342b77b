"""What makes two programs the same: their text, trees, types, places, options and versions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jaxlib.version

from nitro_cli.text import path_text

__all__ = ["Identity", "identify"]

_CALLBACK = re.compile(r"custom_call\s+@\"?\w*(callback|CustomSPMDPartitioning)|is_host_transfer\s*=\s*true", re.I)
# Settings of JAX that change what is compiled without a trace in the text.
_SETTINGS = (
    "jax_default_device",
    "jax_disable_most_optimizations",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_compiler_enable_remat_pass",
)


@dataclass(frozen=True)
class Identity:
    """A program's identity.

    Attributes:
        key: sha256 over all of it, in hexadecimal.
        in_tree, out_tree: the tree structures of arguments and results.
        has_callback: the program calls back into Python, which is not in the text.
    """

    key: str
    in_tree: Any
    out_tree: Any
    has_callback: bool


def identify(
    traced: jax.stages.Traced,
    lowered: jax.stages.Lowered,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    static: str = "",
) -> Identity:
    """Identify a lowered program.

    Args:
        traced, lowered: the stages of one `jax.jit` of the function.
        args: the arguments it was traced with: arrays, or `jax.ShapeDtypeStruct`s.
        options: XLA compile options.
        static: further text that tells programs apart.
    """
    text = lowered.as_text()
    avals = traced.jaxpr.in_avals
    flat = jax.tree_util.tree_flatten_with_path(args)[0]
    parts = [
        hashlib.sha256(text.encode()).hexdigest(),
        static,
        str(lowered.in_tree),
        str(lowered.out_tree),
        *(f"{path_text(path)}={_argument(leaf, aval)}" for (path, leaf), aval in zip(flat, avals, strict=True)),
        *(_kind(aval) for aval in traced.jaxpr.out_avals),
        *(f"{name}={value!r}" for name, value in sorted(options.items())),
        *_platform(flat),
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Identity(key, lowered.in_tree, lowered.out_tree, _CALLBACK.search(text) is not None)


def _argument(leaf: Any, aval: Any) -> str:
    """The type of an argument, and where it lies if that is fixed."""
    place = _place(leaf)
    return f"{_kind(aval)} on {place}" if place else _kind(aval)


def _kind(aval: Any) -> str:
    shape = ",".join(str(size) for size in getattr(aval, "shape", ()))
    weak = " weak" if getattr(aval, "weak_type", False) else ""
    return f"{getattr(aval, 'dtype', aval)}[{shape}]{weak}"


def _place(leaf: Any) -> str:
    """Where a leaf is bound to lie; empty for host values and arrays that may be moved."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or not getattr(leaf, "committed", True):
        return ""
    devices = ",".join(str(device.id) for device in _devices(sharding))
    return f"{sharding} devices {devices}"


def _devices(sharding: Any) -> list[Any]:
    assignment = getattr(sharding, "_device_assignment", None)
    return list(assignment) if assignment is not None else sorted(sharding.device_set, key=lambda device: device.id)


def _platform(flat: list[Any]) -> tuple[str, ...]:
    device = next((_devices(leaf.sharding)[0] for _, leaf in flat if _place(leaf)), None) or jax.devices()[0]
    settings = (f"{name}={getattr(jax.config, name, None)}" for name in _SETTINGS)
    return (
        f"device {device.device_kind}",
        f"platform {device.platform}",
        f"jax {jax.__version__}",
        f"jaxlib {jaxlib.version.__version__}",
        *settings,
    )
