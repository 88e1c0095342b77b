"""Where a handle's weights come from: a checkpoint, an average of several, a live handle; and exact resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import jax

from nitro_cli import checkpoints
from nitro_cli.checkpoints import (
    AverageRef,
    CheckpointRecord,
    CheckpointRef,
    named_pair,
    resolve_resume,
    resolve_source,
    run_in_use,
    run_is_locked,
)
from nitro_cli.errors import CheckpointNotFoundError, ConfigError, IncompatibleError, warn
from nitro_cli.experiment import NO_DEFAULT, Criterion, Experiment, config_metadata, content_digest, graphconst_value
from nitro_cli.optim import accumulator_dtype
from nitro_cli.run.epoch_totals import EpochTotals
from nitro_cli.run.position import Position
from nitro_cli.run.snapshot import named_leaves, unflatten
from nitro_cli.run.user_checkpointer import load_own

if TYPE_CHECKING:
    from nitro_cli.checkpoints import AveragedFrom, ResumeMeta
    from nitro_cli.experiment import CheckpointStore
    from nitro_cli.programs import TrainState
    from nitro_cli.run.devices import Placement

__all__ = ["Source", "checksum_problem", "load_source", "position_of", "restore_tree", "restored", "with_weights"]

_LOOKS = 10


@dataclass(frozen=True)
class Source:
    """A resolved source of weights.

    Attributes:
        kind: `weights` (a record's), `handle` (a live handle's), or `resume` (exact continuation).
        record: metadata and arrays; for a live handle its parameters and state as arrays.
        text: what to call it in messages.
        path: the record's directory; None for averages and handles.
        ref: where the record stands in its run, for a resume.
        run: with a checkpointer of one's own, the run whose latest record it is.
        derived: what `derive` returned where the weights were trained; None where that is not known.
        run_path: the directory of the run, which holds what it keeps; None where there is none.
        kept: what a live handle's run keeps, by name.
    """

    kind: str
    record: CheckpointRecord
    text: str
    path: Path | None = None
    ref: CheckpointRef | None = None
    run: str | None = None
    derived: Mapping[str, Any] | None = None
    averaged_from: AveragedFrom | None = None
    run_path: Path | None = None
    kept: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def resumed(self) -> ResumeMeta | None:
        """What training goes on from; None where weights alone are taken."""
        return cast("ResumeMeta", self.record.meta) if self.kind == "resume" else None

    def moved(self, prefix: str, tree: Any, put: Callable[[Any], Any]) -> Any:
        """A tree of the record's arrays on the device; the source forgets them, so that memory holds each once.

        Args:
            prefix: the part of the record that it was made of.
            tree: nobody else holds it.
            put: moves an array.
        """
        for name in [name for name in self.record.arrays if name == prefix or name.startswith(f"{prefix}/")]:
            del self.record.arrays[name]
        leaves, structure = jax.tree.flatten(tree)
        del tree
        leaves.reverse()
        return jax.tree.unflatten(structure, [put(leaves.pop()) for _ in range(len(leaves))])

    def without_arrays(self) -> Source:
        """The same without what it takes the memory of a checkpoint to hold."""
        return replace(self, record=replace(self.record, arrays={}))


def load_source(
    weights: Any,
    resume: Any,
    *,
    root: Path,
    selection: Criterion | None,
    store: CheckpointStore | None = None,
    load_ema: bool = False,
) -> Source | None:
    """Find and read what `weights` or `resume` names; None when neither is given.

    Args:
        weights, resume: the words of `Nitro`, but for live handles.
        root: the directory of runs.
        selection: what the checkpointer ranks by, which is what `best` means; None goes by the newest score.
        store: the experiment's own checkpointer, which answers in the place of the directory.
        load_ema: average the EMAs.

    Raises:
        ConfigError: both are given, or the form is none that is accepted.
        NotFoundError: there is no such run or checkpoint.
        IntegrityError: no checkpoint of the run verifies.
        LockedError: what `resume` names was deleted by another process that is training the run.
    """
    if weights is not None and resume not in (None, False):
        raise ConfigError(
            "weights and resume were both given",
            why="a resume restores the weights of its own record",
            fix="give resume alone to continue, or weights alone to start a new run from them",
        )
    what: Literal["weights", "resume"] = "resume" if weights is None else "weights"
    spec = resume if weights is None else weights
    if spec is None or spec is False:
        return None
    auto = what == "resume" and isinstance(spec, str) and spec == "auto"
    pair = None if auto else named_pair(spec, what)
    if store is not None and (auto or pair is not None):
        return _from_store(store, pair, what)
    if what == "resume":
        return _resumed(spec, root, selection)
    metric, mode = selection or (None, None)
    for look in range(_LOOKS, 0, -1):
        found = resolve_source(spec, root, metric=metric, mode=mode, what="weights")
        try:
            return _weights_of(found, load_ema)
        except CheckpointNotFoundError:
            # A run at work may have a better one by now, and no longer keep this one.
            if look == 1 or found.root is None or found.run is None or not run_is_locked(found.root / found.run):
                raise
    raise AssertionError("unreachable")


def _from_store(store: CheckpointStore, pair: tuple[str, Any] | None, what: str) -> Source | None:
    """What the experiment's own checkpointer gives for a pair, or for `resume="auto"`, which has none."""
    try:
        record, text = load_own(store, *(pair or ("latest", "latest")))
    except CheckpointNotFoundError as error:
        if pair is not None:
            raise
        warn(f'resume="auto": {error.what}, starting fresh')
        return None
    record = replace(record, arrays=dict(record.arrays))  # the store may go on using its own
    if what == "weights":
        return Source("weights", record, text, derived=_derived(record))
    continued = record.meta.run if pair is None or pair[1] == "latest" else None
    record = replace(record, meta=checkpoints.resume_meta(record.meta, text))
    return Source("resume", record, text, run=continued)


def _resumed(spec: Any, root: Path, selection: Criterion | None) -> Source | None:
    metric, mode = selection or (None, None)
    ref = resolve_resume(spec, root, metric=metric, mode=mode)
    if ref is None:
        return None
    try:
        record, used, _ = checkpoints.load_with_fallback(ref)
    except CheckpointNotFoundError as error:
        if ref.root is None or ref.run is None or not run_is_locked(ref.root / ref.run):
            raise
        # Whoever trains the run rotates its checkpoints away while they are read.
        raise run_in_use(ref.root / ref.run) from error
    record = replace(record, meta=checkpoints.resume_meta(record.meta, used.path))
    return Source("resume", record, str(used.path), used.path, used, run_path=used.run_path)


def _weights_of(found: CheckpointRef | AverageRef, load_ema: bool) -> Source:
    if isinstance(found, AverageRef):
        record = checkpoints.average(found, ema=load_ema)
        words: dict[str, Any] = {"averaged_from": record.meta.averaged_from, "run_path": found.root / found.run}
        return Source("weights", record, str(found), derived=_derived(record), **words)
    record, used, _ = checkpoints.load_with_fallback(found)
    return Source("weights", record, str(used.path), used.path, used, derived=_derived(record), run_path=used.run_path)


def _derived(record: CheckpointRecord) -> dict[str, Any] | None:
    values = record.meta.derived
    if values is None:
        return None
    arrays = record.arrays
    return {name: arrays[f"extra/derived/{name}"] if value is None else value for name, value in values.items()}


def restored(
    e: Experiment, source: Source, fresh: tuple[Any, Any], placement: Placement, *, load_ema: bool
) -> tuple[Any, Any]:
    """The source's parameters and layer state on the device, in the place of the fresh ones.

    Args:
        e: the experiment.
        source: where they come from.
        fresh: parameters and layer state as `build_model` gave them.
        placement: the devices.
        load_ema: take the average in the place of the weights.

    Raises:
        IncompatibleError: they do not fit, or were trained under other GraphConst fields and are resumed.
    """
    arrays = source.record.arrays
    _check_fields(e, source)
    prefix = "params"
    if load_ema and source.kind == "weights" and source.averaged_from is None:
        prefix = "ema"
        if not any(name.startswith("ema/") for name in arrays):
            raise IncompatibleError(
                "load_ema, but the checkpoint holds no EMA",
                where=source.text,
                fix="drop load_ema, or choose a run with `ema`",
            )
    if prefix == "ema":
        averages = {"params/" + n[4:]: a for n, a in arrays.items() if n.startswith("ema/")}
        # An average is kept in float32; weights have the precision of the model.
        arrays = {**arrays, **{n: a.astype(arrays[n].dtype) if n in arrays else a for n, a in averages.items()}}
    params = unflatten("params", fresh[0], arrays, source=source.text, what="parameters")
    state = unflatten("state", fresh[1], arrays, source=source.text, what="layer state")
    del arrays
    return source.moved("params", params, placement.put_parameters), source.moved("state", state, placement.put)


def position_of(source: Source | None) -> Position:
    """Where a run stands that begins with a source: of a resume where its record was written, else at the start."""
    if source is None:
        return Position()
    meta = source.resumed
    if meta is None:
        return Position(weights_step=source.record.meta.step or 0)
    summed = meta.epoch_totals
    return Position(
        step=meta.step,
        epoch=meta.epoch,
        batch=meta.position,
        closed=meta.epoch_closed,
        totals=EpochTotals(meta.epoch_loss.sum, meta.epoch_loss.count, summed.terms, summed.metrics, summed.skipped),
        updates=meta.step if meta.updates is None else meta.updates,
        failed=meta.failed,
        stream_state=meta.stream_state,
        steps_per_dispatch=meta.steps_per_dispatch,
    )


def _check_fields(e: Experiment, source: Source) -> None:
    """Compare GraphConst fields: a resume refuses a difference, a weights load warns."""
    held = source.record.meta.graphconst
    if held is None:
        return
    digests = source.record.meta.graphconst_sha256
    defaults = {name: meta.default for name, meta in config_metadata(type(e)).items()}
    now = e.graphconst_items()
    diff: list[str] = []
    for name, value in now.items():
        if name not in held:
            default = defaults[name]
            same = default is not NO_DEFAULT and content_digest(graphconst_value(default)) == content_digest(value)
        elif name in digests:
            # The text of an array is cut, that of a set has another order in every process.
            same = digests[name] == content_digest(value)
        else:
            same = held[name] == repr(value)
        if not same:
            diff.append(f"{name}: {value!r} here, {held.get(name, 'unknown to')} in the checkpoint")
    diff += [f"{name}: gone here, {value} in the checkpoint" for name, value in held.items() if name not in now]
    if not diff:
        return
    if source.kind == "resume":
        raise IncompatibleError(
            "the checkpoint was written under other GraphConst fields",
            where=source.text,
            why="\n    ".join(diff),
            fix="resume with the checkpoint's values, or load it with weights= to start a new run",
        )
    warn(f"{source.text} was written under other GraphConst fields: {'; '.join(diff)}")


def with_weights(train: TrainState, source: Source, placement: Placement) -> TrainState:
    """`train` holding the source's parameters and layer state, and its EMA where both have one."""
    arrays = source.record.arrays
    held_trees: dict[str, Any] = {}
    for name, what in (("params", "parameters"), ("state", "layer state"), ("ema", "EMA")):
        template = getattr(train, name)
        if name == "ema" and (template is None or source.averaged_from is not None):
            held_trees[name] = None
            continue
        put = placement.put if name == "state" else placement.put_parameters
        held = arrays if name != "ema" else _in_accumulators(name, template, source, what)
        held_trees[name] = put(unflatten(name, template, held, source=source.text, what=what))
    return train._replace(**held_trees)


def restore_tree(prefix: str, make: Any, args: tuple[Any, ...], source: Source, placement: Placement, what: str) -> Any:
    """Accumulators shaped as `make(*args)` would give, the source's on the device; `make` is only traced."""
    template = jax.eval_shape(make, *args)
    held = _in_accumulators(prefix, template, source, what)
    tree = unflatten(prefix, template, held, source=source.text, what=what)
    del held
    return source.moved(prefix, tree, placement.put_parameters)


def _in_accumulators(prefix: str, template: Any, source: Source, what: str) -> Mapping[str, Any]:
    """The source's arrays, those of a tree widened that an earlier version kept in the parameters' half precision."""
    arrays = source.record.arrays
    narrow = {
        name: arrays[name]
        for name, leaf in named_leaves(prefix, template).items()
        if name in arrays and arrays[name].dtype != leaf.dtype and accumulator_dtype(arrays[name].dtype) == leaf.dtype
    }
    if not narrow:
        return arrays
    dtypes = " and ".join(sorted({str(array.dtype) for array in narrow.values()}))
    warn(f"{source.text} holds its {what} in {dtypes}: from here on they are kept in float32")
    return {**arrays, **{name: array.astype(accumulator_dtype(array.dtype)) for name, array in narrow.items()}}


def checksum_problem(held: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Which groups' anchors differ, or None."""
    names = sorted(name for name in held.keys() | now.keys() if held.get(name) != now.get(name))
    return ", ".join(names) or None
