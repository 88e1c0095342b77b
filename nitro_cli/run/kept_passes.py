"""Passes over a split whose arrays lie where the device reads them: several batches a call, whose sums come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from nitro_cli.data import Split
from nitro_cli.experiment import VALID
from nitro_cli.programs import (
    MOST_STEPS,
    REAL,
    PackedSums,
    Program,
    build_repeated_sums,
    build_sums,
    fresh_trace,
    loop_obstacle,
)
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.dispatch import Burst
from nitro_cli.run.evaluation_totals import EvaluationTotals
from nitro_cli.run.plan import Plan

__all__ = ["KeptPasses"]


class _Kept(NamedTuple):
    """A split on the device, and the program over it."""

    inputs: dict[str, Any]
    packed: PackedSums
    program: Program


class KeptPasses:
    """The passes of one run over splits that it keeps.

    Only where the device is the host, whose arrays the source shares: elsewhere they would take the device's memory
    beside those that training keeps there.

    Args:
        plan: of the run.
        compiler: of the run.
    """

    def __init__(self, plan: Plan, compiler: Compiler) -> None:
        self._plan = plan
        self._compiler = compiler
        self._kept: dict[str, _Kept | None] = {}

    def batches(
        self, split: Split, totals: EvaluationTotals, params: Any, state: Any, device: Any
    ) -> Iterator[int] | None:
        """Take a pass over a split; yields how many batches were read each time. None where it goes batch by batch.

        Args:
            split: that is evaluated.
            totals: get the sums of each batch.
            params, state, device: what the programs are called with.
        """
        if not totals.sums_alone or split.resident is None or not self._plan.placement.on_host:
            return None
        if split.name not in self._kept:
            self._kept[split.name] = self._keep(split, totals, params, state, device)
        kept = self._kept[split.name]
        return None if kept is None else self._pass(kept, split.batches, totals, (params, state), device)

    def _pass(
        self, kept: _Kept, batches: int, totals: EvaluationTotals, weights: tuple[Any, Any], device: Any
    ) -> Iterator[int]:
        burst, first = Burst(MOST_STEPS), 0
        late: Callable[[], int] | None = None
        while first < batches:
            count = min(burst.size, batches - first)
            vectors = kept.program(*weights, np.int32(first), np.int32(count), kept.inputs, device)

            def read(vectors: Any = vectors, count: int = count) -> int:
                rows = {name: np.asarray(vector) for name, vector in vectors.items()}
                burst.finished(count)
                for index in range(count):
                    totals.add_sums(kept.packed, {name: row[index] for name, row in rows.items()})
                return count

            if late is not None:
                yield late()
            late, first = read, first + count
        if late is not None:
            yield late()

    def _keep(self, split: Split, totals: EvaluationTotals, params: Any, state: Any, device: Any) -> _Kept | None:
        plan, resident = self._plan, split.resident
        assert resident is not None
        function = build_sums(plan.evaluated(), totals.on_device)
        fields = plan.hooks.routed.device_fields
        rows = {
            name: jax.ShapeDtypeStruct(
                (resident.batch_size, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype)
            )
            for name, array in resident.arrays.items()
            if name in fields
        }
        rows[VALID] = jax.ShapeDtypeStruct((resident.batch_size,), bool)
        with fresh_trace():
            jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(params, state, rows, device)
        packed = None if "loss" in shapes.get("loss", ()) else PackedSums.of(shapes)
        if packed is None or loop_obstacle(jaxpr, plan.placement.devices[0].platform) is not None:
            return None
        full = sum(size == resident.batch_size for size in resident.sizes)
        rest = resident.sizes[full] if full < len(resident.sizes) else 0
        inputs = {
            "arrays": plan.placement.put_resident(resident, fields),
            "order": plan.placement.put(resident.indices(0, plan.settings.seed)),
            REAL: plan.placement.put(np.asarray((full, rest), np.int32)),
        }
        args = (params, state, np.int32(0), np.int32(1), inputs, device)
        return _Kept(inputs, packed, self._compiler.compile("eval", build_repeated_sums(function, packed), args))
