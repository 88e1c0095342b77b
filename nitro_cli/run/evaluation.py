"""One pass over a split without training: forward, metrics, the loss where asked for; and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from nitro_cli.data import Split, batch_length, pad_batch
from nitro_cli.errors import DataError, NitroError, NotFoundError, RoutingError, nearest
from nitro_cli.experiment import VALID, Routing, resolve_routing
from nitro_cli.programs import (
    PackedSums,
    Program,
    build_eval_loss,
    build_forward,
    build_metrics,
    build_packed,
    build_sums,
    fresh_trace,
)
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.evaluation_totals import EvaluationTotals, real_rows
from nitro_cli.run.kept_passes import KeptPasses
from nitro_cli.run.output_shapes import check_outputs
from nitro_cli.run.own_evaluation import own_evaluation
from nitro_cli.run.plan import Plan
from nitro_cli.run.prediction_inputs import prediction_batch, unlike_training
from nitro_cli.run.progress import Progress
from nitro_cli.run.state import RunState, eval_params
from nitro_cli.run.stoppable_data import until_stopped
from nitro_cli.run.stopping import StopRequest
from nitro_cli.text import exception_text

__all__ = ["Evaluator"]

PATIENCE = 10.0
"""Seconds that a batch of a validation pass may still take once the run was asked to stop."""


class Evaluator:
    """The evaluation programs of one run, and the passes that use them.

    Args:
        plan: of the run.
        compiler: of the run.
    """

    def __init__(self, plan: Plan, compiler: Compiler) -> None:
        self._plan = plan
        self._compiler = compiler
        self._programs: dict[Any, Program] = {}
        self._sums: dict[Any, tuple[PackedSums, Program] | None] = {}
        self._kept = KeptPasses(plan, compiler)
        self._routing = plan.hooks.routing
        self._width: int | None = None
        # Setup looked at the outputs already where it had a split to evaluate.
        self._outputs_checked = any(name != "train" for name in plan.splits)

    def evaluate(
        self,
        split_name: str,
        run: RunState,
        *,
        stop: StopRequest | None = None,
        observe: Callable[[Mapping[str, np.ndarray], Any], object] | None = None,
    ) -> dict[str, Any]:
        """Metrics of one split.

        Args:
            split_name: the split.
            run: what to evaluate.
            stop: in training, the requests to stop; the pass is finished nevertheless, unless its data ends with one.
            observe: called with each batch on the host and the outputs of its rows.

        Raises:
            DataStopped: the data ended with the stop.
            NotFoundError: no split of that name; those there are are listed.
            MetricError: the loss and the experiment's metrics report the same name, or `evaluate_split` what is no
                number.
        """
        split, plan = self._split(split_name), self._plan
        own = own_evaluation(plan, run, self.predict, split_name)
        if own is not None and observe is None:
            return own
        accumulators = EvaluationTotals(plan, split)
        given = _Given.of(plan, run)
        host_view = run.host_view()
        kept = self._kept.batches(split, accumulators, *given) if observe is None else None
        if kept is not None:
            return self._kept_pass(split, kept, accumulators, run)
        Progress.call("begin", split_name, split.batches, run.position.epoch, plan.experiment.max_epochs)
        results: dict[str, Any] | None = None
        try:
            with (
                split.stream(
                    epoch=0,
                    seed=plan.settings.seed,
                    prepare=self._prepare(split.batch_size),
                    device_fields=plan.hooks.routed.device_fields,
                    ahead=not plan.placement.on_host,
                ) as stream,
                until_stopped(stream, stop, split_name, patience=PATIENCE) as items,
            ):
                late: Callable[[], None] | None = None
                for item in items:
                    begun = None if observe is not None else self._begin_sums(accumulators, item.device, given)
                    if begun is None:
                        outputs = self._forward(given, item.device)
                        real = batch_length(item.host)
                        extra = self._on_device(accumulators, outputs, item.device, given, real, split.batch_size)
                        if observe is not None:
                            observe(item.host, real_rows(outputs, real))
                        begun = partial(accumulators.add, item.index, item.host, outputs, real, extra, view=host_view)
                    if late is not None:
                        late()
                        Progress.units(1)
                    late = begun
                if late is not None:
                    late()
                    Progress.units(1)
            results = accumulators.results(host_view)
        finally:
            Progress.call("end", results)
        return results if own is None else own

    def _kept_pass(
        self, split: Split, batches: Iterator[int], accumulators: EvaluationTotals, run: RunState
    ) -> dict[str, Any]:
        Progress.call("begin", split.name, split.batches, run.position.epoch, self._plan.experiment.max_epochs)
        results: dict[str, Any] | None = None
        try:
            for count in batches:
                Progress.units(count)
            results = accumulators.results(run.host_view())
        finally:
            Progress.call("end", results)
        return results

    def try_first_batch(self, split_name: str, run: RunState) -> dict[str, Any] | None:
        """Compile what a pass over a split needs, by taking its first batch through it.

        A last batch that is shorter than the others costs programs for device metrics and loss that are not made here.

        Returns:
            What is reported of that batch alone; None where `finalize_metrics` makes nothing of so little, which it
            need not: whatever is wrong with it shows at the first whole pass.
        """
        split, plan = self._split(split_name), self._plan
        item = self._prepare(split.batch_size)(0, split.example)
        given, view = _Given.of(plan, run), run.host_view()
        outputs = self._forward(given, item)
        real = batch_length(split.example)
        accumulators = EvaluationTotals(plan, split)
        extra = self._on_device(accumulators, outputs, item, given, real, split.batch_size)
        accumulators.add(0, split.example, outputs, real, extra, view=view)
        try:
            return accumulators.results(view)
        except NitroError:
            raise
        except Exception:  # a metric of whole splits need not make sense of one batch; the first whole pass raises it
            if plan.settings.hooks.has("finalize_metrics"):
                return None
            raise

    def predict(self, data: Any, run: RunState, *, widen: bool = True) -> Any:
        """Outputs of one batch as host arrays, or lazily of each batch of an iterable.

        Args:
            data: a batch, or an iterable of such.
            run: what to predict with.
            widen: a first batch fixes the size that is compiled, where no split does.

        Raises:
            RoutingError: a bare array; the fields that `forward` declares are named.
            DataError: the batch is wider than the compiled size, both named; or a field holds what the model was not
                trained with or the device cannot hold, or has samples of another shape and forward fails.
            HookError: an output leaf's first axis is not the batch.
        """
        given = _Given.of(self._plan, run)
        if isinstance(data, Mapping):
            return self._predict_batch(data, given, "predict", widen=widen)
        if isinstance(data, np.ndarray | jax.Array) or not isinstance(data, Iterable):
            fields = ", ".join(f"{name}=..." for name in self._plan.forward_fields)
            raise RoutingError(
                f"predict takes a batch (a mapping of fields) or an iterable of batches, not {type(data).__name__}",
                fix=f"predict(dict({fields}))",
            )
        return (self._predict_batch(batch, given, f"predict, batch {i}", widen=widen) for i, batch in enumerate(data))

    def _predict_batch(self, batch: Mapping[str, Any], given: _Given, where: str, *, widen: bool) -> Any:
        placement = self._plan.placement
        if not isinstance(batch, Mapping):
            raise DataError(
                f"a batch is a {type(batch).__name__}, not a mapping", where=where, fix="yield a mapping of fields"
            )
        odd = next((name for name in batch if not isinstance(name, str)), None)
        if odd is not None:
            raise DataError(f"a field of the batch is named {odd!r:.60}", where=where, fix="name every field by text")
        routing = self._routed_for(batch)
        routed = prediction_batch(batch, routing.fields_for("forward"), self._plan.data.dtypes, where)
        real = batch_length(routed)
        width = self._prediction_width(real, widen)
        if real > width:
            raise DataError(
                f"a batch of {real} samples is wider than the compiled size {width}",
                where=where,
                fix=f"predict in batches of at most {width}",
            )
        padded = pad_batch(routed, width)
        if "forward" in routing.padded:
            padded[VALID] = np.arange(width) < real
        device_batch = placement.put_batch(padded)
        try:
            outputs = self._forward(given, (_signature(device_batch), device_batch))
        except NitroError:
            raise
        except Exception as error:
            unlike = unlike_training(self._plan.data.batch_fields, routed)
            if not unlike:
                raise
            reason = exception_text(error).partition("\n")[0]
            raise DataError("; ".join(unlike), where=where, why=f"forward fails: {reason}") from error
        Progress.units(1)
        return real_rows(outputs, real)

    def _routed_for(self, batch: Mapping[str, Any]) -> Routing:
        """Check that the batch has what `forward` needs; without any split this is where routing is resolved."""
        if self._routing is None:
            self._routing = resolve_routing(self._plan.settings.hooks, tuple(batch), traced=("forward",))
        else:
            self._routing.signatures["forward"].fields_for(tuple(batch), "the batch to predict")
        return self._routing

    def _prediction_width(self, real: int, widen: bool) -> int:
        """The compiled batch size: that of the splits, or of the first batch ever predicted."""
        if self._width is not None:
            return self._width
        splits = self._plan.splits
        sizes = [split.batch_size for name, split in splits.items() if name != "train"]
        sizes = sizes or [split.batch_size for split in splits.values()]
        width = max(sizes) if sizes else self._plan.placement.width(real)
        if widen:
            self._width = width
        return width

    def _split(self, name: str) -> Split:
        """The split, with whole batches in every process."""
        splits = self._plan.splits
        if not isinstance(name, str) or name not in splits:
            held = ", ".join(sorted(splits)) or "none"
            raise NotFoundError(
                f"there is no split {name!r}", why=f"build_data returned: {held}", nearest=nearest(name, splits)
            )
        return splits[name].whole()

    def _prepare(self, width: int) -> Callable[[int, Mapping[str, np.ndarray]], Any]:
        placement, fields = self._plan.placement, self._plan.hooks.routed.device_fields
        told = bool(self._plan.hooks.routed.padded)

        def prepare(index: int, batch: Mapping[str, np.ndarray]) -> Any:
            padded = pad_batch({k: v for k, v in batch.items() if k in fields}, width)
            if told:
                padded[VALID] = np.arange(width) < batch_length(batch)
            device_batch = placement.put_batch(padded)
            return _signature(device_batch), device_batch

        return prepare

    def _forward(self, given: _Given, prepared: Any) -> Any:
        signature, batch = prepared
        assert self._routing is not None
        batch = self._routing.taken("forward", batch)
        args = (given.params, given.state, batch, given.device)
        key = ("eval", signature)
        if key not in self._programs:
            plan = self._plan.evaluated(self._routing)
            if not self._outputs_checked:
                samples = {name: (array.shape[1:], array.dtype) for name, array in batch.items() if name != VALID}
                size = next((len(array) for array in batch.values()), 1)
                check_outputs(plan, given.params, given.state, given.device, samples, size)
                self._outputs_checked = True
            self._programs[key] = self._compiler.compile("eval", build_forward(plan), args)
        return self._programs[key](*args)

    def _begin_sums(self, accumulators: EvaluationTotals, prepared: Any, given: _Given) -> Callable[[], None] | None:
        """Dispatch forward and sums of a batch as one program, and give what reads them.

        None where outputs are wanted on the host, or a hook does not know padding.
        """
        if not accumulators.sums_alone:
            return None
        signature, batch = prepared
        args = (given.params, given.state, batch, given.device)
        if signature not in self._sums:
            plan = self._plan.evaluated()
            function = build_sums(plan, accumulators.on_device)
            with fresh_trace():
                shapes = jax.eval_shape(function, *args)
            packed = None if "loss" in shapes.get("loss", ()) else PackedSums.of(shapes)
            self._sums[signature] = None
            if packed is not None:
                self._sums[signature] = packed, self._compiler.compile("eval", build_packed(function, packed), args)
        found = self._sums[signature]
        if found is None:
            return None
        return partial(accumulators.add_sums, found[0], found[1](*args))

    def _on_device(
        self, accumulators: EvaluationTotals, outputs: Any, prepared: Any, given: _Given, real: int, width: int
    ) -> tuple[Any, Any]:
        """Device metrics and the evaluation loss of one batch: of its real samples."""
        signature, batch = prepared
        found: list[Any] = [None, None]
        builders = (("metrics", build_metrics), ("loss", build_eval_loss))
        for slot, (hook, build) in enumerate(builders):
            if hook not in accumulators.on_device:
                continue
            routing = self._plan.hooks.routed
            args = (outputs, routing.taken(hook, batch), given.device)
            # A hook that knows which rows are padding takes them all.
            cut = None if real == width or hook in routing.padded else real
            key = (hook, signature, cut)
            if key not in self._programs:
                purpose = "metrics" if hook == "metrics" else "eval loss"
                self._programs[key] = self._compiler.compile(purpose, build(self._plan.evaluated(), cut), args)
            found[slot] = self._programs[key](*args)
        return found[0], found[1]


class _Given(NamedTuple):
    """What evaluation programs are called with beside a batch."""

    params: Any
    state: Any
    device: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan, run: RunState) -> _Given:
        """The parameters that evaluation reads, the layer state, the Device fields."""
        return cls(eval_params(plan.experiment, run.train), run.train.state, dict(run.device_now()))


def _signature(batch: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, array.shape, str(array.dtype)) for name, array in sorted(batch.items()))
