"""What an average of checkpoints names: those that its selector picks from one run, all of them there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nitro_cli.errors import CheckpointNotFoundError, warn

from .entries import Manifest, ManifestEntry
from .references import AverageRef, CheckpointRef
from .retention import warn_about_mixed
from .summaries import best_entry

if TYPE_CHECKING:
    from nitro_cli.experiment import Average, Selector

__all__ = ["average_source"]

_SHOWN_EPOCHS = 8


def average_source(
    average: Average,
    run: str,
    entries: Sequence[ManifestEntry],
    root: Path,
    metric: str | None,
    mode: str | None,
    manifest: Manifest,
) -> AverageRef:
    """The checkpoints that `average` picks.

    Args:
        average: the selector, and where the layer state comes from.
        run: the whole id.
        entries: what the manifest lists of the run.
        root: the directory of runs.
        metric, mode: what the selector ranks by; None takes the pair of the newest scored entry.
        manifest: the whole of it.

    Returns:
        The reference, its average under the number of checkpoints that it is of.

    Raises:
        CheckpointNotFoundError: it picks none, names some that are not there, or its layer state would come from none.

    Warns:
        NitroWarning: the run keeps fewer than `last(n)` or `best(k)` asks for.
    """
    regular = [e for e in entries if not e.resume_point]
    if metric is None:
        ranked = best_entry(regular)
        metric, mode = (ranked.metric, ranked.mode) if ranked else (None, None)
    pool = [e for e in regular if e.scored_under(metric, mode)] if average.selector.ranks else regular
    picked = average.selector.select(pool, mode)  # type: ignore[arg-type]
    if not picked:
        held = ", ".join(str(e.epoch) for e in regular) or "none"
        raise CheckpointNotFoundError(
            f"{average.selector} picks no checkpoint of the run {run}",
            where=str(root),
            why=f"the run keeps the epochs: {held}",
            fix="keep more checkpoints while training, such as keep=(Best(3), Last(10))",
        )
    _check_all_there(average, run, regular, root)
    if average.selector.ranks:
        warn_about_mixed(entries, metric, mode, root)
    average = _as_picked(average, run, picked)
    picked = sorted(picked, key=lambda e: (e.step, e.epoch))
    base = picked[-1]
    if average.state_from == "best":
        best = best_entry(picked, metric, mode)
        if best is None:
            raise CheckpointNotFoundError(
                f"the layer state of {average} would come from the best checkpoint, and none has a finite score",
                where=str(root / run),
                fix='use Average(..., state="latest")',
            )
        base = best
    return AverageRef(
        root=root,
        run=run,
        average=average,
        refs=tuple(CheckpointRef.of_entry(root, e, "path", manifest) for e in picked),
        state=CheckpointRef.of_entry(root, base, "path", manifest),
    )


def _check_all_there(average: Average, run: str, held: Sequence[ManifestEntry], root: Path) -> None:
    """Refuse an average that names epochs which the run does not keep: it would be another one under the same name."""
    kept = sorted({entry.epoch for entry in held})
    named = _named_epochs(average.selector, kept)
    gone = list(itertools.islice((epoch for epoch in named if epoch not in kept), _SHOWN_EPOCHS))
    if not gone:
        return
    listed = ", ".join(map(str, gone)) + (", ..." if len(gone) == _SHOWN_EPOCHS else "")
    raise CheckpointNotFoundError(
        f"{average} names checkpoints that the run {run} does not keep: epoch{'s' * (len(gone) > 1)} {listed}",
        where=str(root / run),
        why=f"the run keeps the epochs: {', '.join(map(str, kept))}",
        fix="name those that are there, or keep the others while training, such as keep=('every(1)',)",
    )


def _named_epochs(selector: Selector, kept: Sequence[int]) -> Iterator[int]:
    """The epochs that a selector names, whether or not the run keeps them; none for one that only ranks or counts."""
    from nitro_cli.experiment import Best, Epochs, Every

    if isinstance(selector, Epochs):
        for first, last in selector.spans:
            yield from range(first, last + 1)
    elif isinstance(selector, Every):
        # From the first one kept: a run that branched off another begins in the middle.
        yield from range(-(-kept[0] // selector.n) * selector.n, kept[-1] + 1, selector.n)
    elif isinstance(selector, Best) and selector.among is not None:
        yield from _named_epochs(selector.among, kept)


def _as_picked(average: Average, run: str, picked: Sequence[ManifestEntry]) -> Average:
    """The average under the number that it is of: where a run keeps fewer than were asked for, that is said."""
    from nitro_cli.experiment import Best, Last

    selector = average.selector
    asked = selector.n if isinstance(selector, Last) else selector.k if isinstance(selector, Best) else len(picked)
    if asked == len(picked):
        return average
    fewer = replace(selector, **{"n" if isinstance(selector, Last) else "k": len(picked)})  # type: ignore[type-var]
    warn(f"{selector} finds {len(picked)} checkpoint{'s' * (len(picked) > 1)} of the run {run}: it is {fewer}")
    return replace(average, selector=fewer)
