"""The mean of the weights of several checkpoints of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import CheckpointNotFoundError, ConfigError, IncompatibleError
from nitro_cli.text import user_path

from .leaf_differences import tree_difference
from .leaves import LeafSpec, dtype_of
from .locks import run_is_locked
from .record import CheckpointRecord, read_record, write_record
from .record_meta import AveragedFrom
from .record_metadata import record_info
from .references import AverageRef
from .sources import resolve_source

if TYPE_CHECKING:
    import numpy as np

    from nitro_cli.experiment import Average

__all__ = ["average", "average_checkpoints"]

_LOOKS = 10
_SHOWN_LEAVES = 5


def average(refs: AverageRef, *, ema: bool = False) -> CheckpointRecord:
    """Average the weights of the checkpoints that `refs` names.

    The sum is kept in float64 (complex128 for complex leaves) on the host, one checkpoint in memory at a time, and
    the mean is cast back to the dtype of each weight. Leaves that are not floating-point must be the same in all.

    Args:
        refs: from `resolve_source`.
        ema: average the EMAs of the weights in place of the weights.

    Returns:
        A record with the averaged `params/...`, and `state/...`, `extra/...` and metadata of the checkpoint that
        `refs.state` names; `meta.averaged_from` says what was averaged. It has no optimizer state.

    Raises:
        IncompatibleError: the trees differ; the first leaves are named with both sides. Or `ema`, and a checkpoint
            has no EMA.
        IntegrityError, CheckpointNotFoundError, StorageError: a checkpoint cannot be loaded.
    """
    prefix = "ema/" if ema else "params/"
    _check_trees([ref.path for ref in refs.refs], prefix)
    sums: dict[str, Any] = {}
    for ref in refs.refs:
        _add(sums, read_record(ref.path, prefixes=(prefix,)).arrays, str(ref.path))
    base = read_record(refs.state.path, prefixes=("state/", "extra/"))
    dtypes = {path: spec.dtype for path, spec in record_info(refs.refs[0].path).leaves.items()}
    # The mean of EMAs, which are kept in float32, are weights of the model's precision.
    weights = {path: "params/" + path.removeprefix(prefix) for path in sums}
    params = {name: _mean(sums[path], len(refs.refs), dtypes.get(name, dtypes[path])) for path, name in weights.items()}
    averaged_from = AveragedFrom(
        spec=str(refs.average),
        run=refs.run,
        directory=refs.root.absolute().name,
        files=[ref.entry.path if ref.entry else ref.path.name for ref in refs.refs],
        epochs=[ref.epoch for ref in refs.refs],
        steps=[ref.step for ref in refs.refs],
        state=refs.state.entry.path if refs.state.entry else refs.state.path.name,
        weights="ema" if ema else "raw",
    )
    # Nobody has evaluated the mean.
    meta = base.meta.model_copy(update={"metrics": {}, "averaged_from": averaged_from})
    return CheckpointRecord(meta, {**params, **base.arrays})


def _check_trees(paths: Sequence[Path], prefix: str) -> None:
    """Compare the leaves of all checkpoints from their metadata, before any array is read."""
    first: dict[str, LeafSpec] | None = None
    for path in paths:
        leaves = {leaf: spec for leaf, spec in record_info(path).leaves.items() if leaf.startswith(prefix)}
        if not leaves:
            what = "EMA" if prefix == "ema/" else "weights"
            raise IncompatibleError(
                f"the checkpoint {path.name} has no {what} to average",
                where=str(path),
                fix="average the raw weights, without `load_ema`" if prefix == "ema/" else None,
            )
        if first is None:
            first = leaves
        lines = tree_difference(first, leaves)
        if lines:
            more = f"; and {len(lines) - _SHOWN_LEAVES} more" if len(lines) > _SHOWN_LEAVES else ""
            raise IncompatibleError(
                "checkpoints with different trees cannot be averaged",
                where=f"{paths[0].name} and {path.name}",
                why="; ".join(lines[:_SHOWN_LEAVES]) + more,
            )


def _accumulator(leaf: Any) -> np.dtype[Any] | None:
    """The dtype that a leaf is summed in; None for one that is not floating-point."""
    import numpy as np

    if not isinstance(leaf, np.ndarray):
        return None
    if leaf.dtype.kind == "c":
        return np.dtype(np.complex128)
    # ml_dtypes' floats (bfloat16, float8) are of kind "V".
    if leaf.dtype.kind == "f" or (leaf.dtype.kind == "V" and "float" in leaf.dtype.name):
        return np.dtype(np.float64)
    return None


def _add(sums: dict[str, Any], leaves: dict[str, Any], where: str) -> None:
    import numpy as np

    for path, leaf in leaves.items():
        wide = _accumulator(leaf)
        if path not in sums:
            sums[path] = leaf if wide is None else leaf.astype(wide)
        elif wide is not None:
            sums[path] += leaf.astype(wide)
        elif not np.array_equal(sums[path], leaf):
            raise IncompatibleError(
                f"the leaf {path!r} cannot be averaged",
                where=where,
                why="it is not floating-point, and differs between the checkpoints",
            )


def _mean(total: Any, count: int, dtype: str) -> Any:
    if _accumulator(total) is None:
        return total
    return (total / count).astype(dtype_of(dtype))


def average_checkpoints(
    directory: Path | str,
    run: str,
    average_of: Average,
    *,
    save: Path | str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    ema: bool = False,
) -> CheckpointRecord:
    """Average checkpoints of a run, and write the result as an ordinary record when asked.

    Args:
        directory: the directory of runs.
        run: `latest`, or an id or a unique prefix of one.
        average_of: which checkpoints, such as `Average(Last(10))`.
        save: where to write it: a new directory. It is not added to the manifest.
        metric, mode: what a selector that ranks ranks by; None takes the pair of the run's newest scored checkpoint.
        ema: average the EMAs in place of the weights.

    Returns:
        As `average`.

    Raises:
        ConfigError: something exists at `save`, or `average_of` is no Average.
        RunNotFoundError, CheckpointNotFoundError: nothing to average. A run that trains meanwhile may delete what was
            picked: then what it keeps by now is picked, and the error comes after ten times.
        IncompatibleError, IntegrityError, StorageError: as `average` and `write_record`.

    Example:
        >>> average_checkpoints("runs/MnistMLP", "latest", Average(Last(10)), save="averaged")  # doctest: +SKIP
    """
    if save is not None and user_path(save).exists():
        raise ConfigError(
            "the averaged checkpoint would overwrite what is there", where=str(save), fix="choose another path"
        )
    record = _averaged(directory, run, average_of, metric, mode, ema)
    if save is not None:
        write_record(save, record.meta, record.arrays)
    return record


def _averaged(
    directory: Path | str, run: str, average_of: Average, metric: str | None, mode: str | None, ema: bool
) -> CheckpointRecord:
    """The average of what the run keeps when it is read, which a run at work may change meanwhile."""
    for look in range(_LOOKS, 0, -1):
        refs = resolve_source((run, average_of), directory, metric=metric, mode=mode)
        if not isinstance(refs, AverageRef):
            raise ConfigError(f"{average_of!r} is no Average", fix="write it as Average(Last(10))")
        try:
            return average(refs, ema=ema)
        except CheckpointNotFoundError as error:
            if not run_is_locked(refs.root / refs.run):
                raise
            if look == 1:
                raise CheckpointNotFoundError(
                    f"{average_of} of the run {refs.run} could not be read whole",
                    where=error.where,
                    why="the run is being trained, and deletes its older checkpoints faster than they are read",
                    fix="average when it has ended, or train with a `keep` that holds more, such as last(10)",
                ) from error
    raise AssertionError("unreachable")
