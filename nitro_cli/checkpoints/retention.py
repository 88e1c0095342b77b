"""Which checkpoints a run keeps: the union of what its selectors pick, and what is never deleted whatever they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nitro_cli.errors import warn

from .entries import ManifestEntry, latest_entry

if TYPE_CHECKING:
    from nitro_cli.experiment import Checkpointer, Selector

__all__ = ["Retention", "warn_about_mixed", "warn_about_others"]


_ENOUGH = 4000
"""Of the epochs of a longer run so many first and last ones are put to the selectors."""


def _never_live(run: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule of one run.

    Attributes:
        keep: the selectors, from `Checkpointer(keep=...)`.
        metric, mode: the score it ranks by; None for a run without scores.
        scope: "run", or "dir" to rank across all runs of the directory.
    """

    keep: tuple[Selector, ...]
    metric: str | None = None
    mode: str | None = None
    scope: str = "run"

    @classmethod
    def of(cls, checkpointer: Checkpointer, metric: str | None = None, mode: str | None = None) -> Retention:
        """The rule that a `Checkpointer` describes; `metric` and `mode` stand in where it follows the monitor."""
        if checkpointer.metric is not None:
            metric, mode = checkpointer.metric, checkpointer.mode
        return cls(tuple(checkpointer.keep), metric, mode, checkpointer.scope)

    def _comparable(self, entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
        return [e for e in entries if not e.resume_point and e.scored_under(self.metric, self.mode)]

    def admits(self, entries: Sequence[ManifestEntry], entry: ManifestEntry) -> bool:
        """Whether some selector would keep `entry`, which is not written yet.

        Args:
            entries: what the directory holds.
            entry: the new one; a resume point is always admitted.
        """
        if entry.resume_point:
            return True
        comparable = self._comparable(entries)
        own = [e for e in comparable if e.run == entry.run]
        for selector in self.keep:
            pool = comparable if self.scope == "dir" and _ranks(selector) else own
            if selector.admits(pool, entry):
                return True
        return False

    def displaced(
        self, entries: Sequence[ManifestEntry], run: str, *, live: Callable[[str], bool] = _never_live
    ) -> list[ManifestEntry]:
        """The entries to delete, after `run` has committed its newest.

        Never among them: entries scored under another metric or mode; the newest entry with a finite score; the
        newest resume point, while nothing later is committed; entries of other runs, unless `scope="dir"` ranks
        them, and then none of a run at work.

        Args:
            entries: all of the directory, the newest commit of `run` included, in the order they were committed.
            run: the run that has just committed.
            live: whether another run is at work.
        """
        own = [e for e in entries if e.run == run]
        comparable = self._comparable(entries)
        mine = [e for e in comparable if e.run == run]
        kept: set[str] = set()
        for selector in self.keep:
            pool = comparable if self.scope == "dir" and _ranks(selector) else mine
            kept.update(e.path for e in selector.select(pool, self.mode))  # type: ignore[arg-type]
        finite = latest_entry([e for e in mine if e.finite])
        if finite is not None:
            kept.add(finite.path)
        candidates = list(mine)
        if self.scope == "dir":
            working: dict[str, bool] = {}
            for entry in comparable:
                if entry.run != run and entry.score is not None:
                    if entry.run not in working:
                        working[entry.run] = live(entry.run)
                    if not working[entry.run]:
                        candidates.append(entry)
        return [e for e in candidates if e.path not in kept] + _passed_resume_points(own)

    def others_at_risk(self, entries: Sequence[ManifestEntry], run: str) -> list[ManifestEntry]:
        """Checkpoints of other runs that `scope="dir"` may delete: setup warns about them."""
        if self.scope != "dir":
            return []
        return [e for e in self._comparable(entries) if e.run != run and e.score is not None]

    def holds(self, selector: Selector, max_epochs: int) -> bool:
        """Whether a run of `max_epochs` still has all that `selector` picks at its end, whatever its scores will be.

        Epochs that get better, worse and both in turn are put to the selectors; without a metric none has a score.
        """
        epochs = [e for e in range(1, max_epochs + 1) if e <= _ENOUGH or e > max_epochs - _ENOUGH]
        orders: list[Callable[[int], float | None]] = [float, lambda epoch: -epoch, lambda epoch: epoch * 7919 % 10007]
        for score in orders if self.metric is not None else [lambda epoch: None]:
            entries = [ManifestEntry("", "", e, e, score(e), self.metric, self.mode, written=float(e)) for e in epochs]
            kept = {e.epoch for rule in self.keep for e in rule.select(entries, self.mode)}  # type: ignore[arg-type]
            picked = {e.epoch for e in selector.select(entries, self.mode)}  # type: ignore[arg-type]
            if not picked or not picked <= kept:
                return False
        return True

    def capacity(self, max_epochs: int | None) -> int | None:
        """How many checkpoints it can hold at once, one being written and one resume point included; None: unknown.

        Args:
            max_epochs: epochs of the run, for selectors that keep without a bound.
        """
        from nitro_cli.experiment import Best, Epochs, Every, Last

        total = 0
        for selector in self.keep:
            if isinstance(selector, Best):
                held: int | None = selector.k
            elif isinstance(selector, Last):
                held = selector.n
            elif isinstance(selector, Epochs):
                held = sum(last - first + 1 for first, last in selector.spans)
            elif isinstance(selector, Every):
                held = None if max_epochs is None else max_epochs // selector.n
            else:
                held = max_epochs
            if held is None:
                return None
            total += held
        return (total if max_epochs is None else min(total, max_epochs)) + 2


def warn_about_others(entries: Sequence[ManifestEntry], retention: Retention, run: str, root: object) -> None:
    """Say which checkpoints `scope="dir"` may delete, and which are scored under another metric or mode."""
    at_risk = retention.others_at_risk(entries, run)
    if at_risk:
        runs = sorted({entry.run for entry in at_risk})
        warn(f'scope="dir" ranks all runs of {root}: {len(at_risk)} checkpoint(s) of {", ".join(runs)} may be deleted')
    decided_over = [e for e in entries if retention.scope == "dir" or e.run == run]
    warn_about_mixed(decided_over, retention.metric, retention.mode, root)


def warn_about_mixed(entries: Iterable[ManifestEntry], metric: str | None, mode: str | None, root: object) -> None:
    """Say which entries are scored under another metric or mode, so that they are neither ranked nor deleted."""
    pairs = Counter(
        f"{e.metric} ({e.mode})" for e in entries if e.score is not None and not e.scored_under(metric, mode)
    )
    if pairs:
        shown = ", ".join(f"{count} under {pair}" for pair, count in pairs.items())
        now = "nothing is scored now" if metric is None else f"the score now is {metric} ({mode})"
        warn(f"{root}: {now}; checkpoints scored otherwise are neither ranked nor deleted: {shown}")


def _ranks(selector: Selector) -> bool:
    return bool(getattr(selector, "ranks", False))


def _passed_resume_points(own: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    """Resume points of one run with a later commit behind them."""
    newest = latest_entry(list(own))
    return [e for e in own if e.resume_point and e is not newest]
