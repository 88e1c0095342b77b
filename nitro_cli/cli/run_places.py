"""From what a user writes to a run on disk: a directory, a run's own directory, an id, or nothing."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nitro_cli.errors import ConfigError, NitroWarning, RunNotFoundError, nearest, warn
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.checkpoints import RunSummary

__all__ = [
    "HOME",
    "FoundRun",
    "check_manifest_lost",
    "choose_run",
    "find_run",
    "is_run_directory",
    "is_run_root",
    "run_roots",
    "summaries",
]

HOME = Path("runs")
_DEEPEST = 4
_SHOWN = 5
_SKEW = 5.0


@dataclass(frozen=True)
class FoundRun:
    """One run.

    Args:
        root: the run directory that it shares with others.
        id: its id.
        chosen: whether the user named it, rather than its being the newest.
    """

    root: Path
    id: str
    chosen: bool = True

    @property
    def path(self) -> Path:
        """The run's own directory."""
        return self.root / self.id

    @property
    def config(self) -> Path:
        """Its configuration."""
        return self.path / "config.toml"

    @property
    def has_config(self) -> bool:
        """Whether there is anything of that name; what is no plain file is refused when it is read."""
        return os.path.lexists(self.config)


@dataclass(frozen=True)
class _Need:
    """What a run must hold for a command to read it."""

    what: str
    has: Callable[[RunSummary], bool]


def _has_history(summary: RunSummary) -> bool:
    try:
        return (summary.path / "history.jsonl").stat().st_size > 0
    except OSError:
        return False


_CHECKPOINT = _Need("checkpoint", lambda summary: bool(summary.checkpoints))
_HISTORY = _Need("history", _has_history)


def is_run_root(path: Path) -> bool:
    """Whether a directory holds runs."""
    return (path / "manifest.json").is_file()


def is_run_directory(path: Path) -> bool:
    """Whether a directory is one run."""
    return (path / "run.json").is_file() or ((path / "config.toml").is_file() and is_run_root(path.parent))


def run_roots(home: Path = HOME) -> Iterator[Path]:
    """The run directories at and below `home`, sorted."""
    if not home.is_dir():
        return
    base = len(home.parts)
    for folder, inner, files in os.walk(home):
        path = Path(folder)
        if "manifest.json" in files:
            yield path
            inner.clear()
        elif len(path.parts) - base >= _DEEPEST:
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))


def check_run_dir(path: Path) -> None:
    """Refuse a directory of runs that cannot be made, before anything is built.

    Raises:
        ConfigError: it, or what it would be in, is a file; or the system takes no such name.
    """
    from nitro_cli.checkpoints import check_run_dir_name

    check_run_dir_name(path)
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(
                    f"the run directory {path} cannot be made",
                    where="run_dir",
                    why=f"{place} is a file",
                    fix="choose another --run-dir",
                )
            return


def find_run(
    text: str | None, run: str | None = None, *, with_checkpoints: bool = False, with_history: bool = False
) -> FoundRun:
    """Find the run that `text` names; a newer one that holds nothing to read is passed over, said.

    Args:
        text: a run directory, a run's own directory, an id or unique prefix of a run under `runs/`, or None for the
            newest run under `runs/`.
        run: with a run directory, the id or unique prefix of one of its runs; the newest by default.
        with_checkpoints: whether the newest is the newest that has a checkpoint, where one has.
        with_history: likewise, that has a row of history.

    Raises:
        RunNotFoundError: there is no such run; the directories searched and the nearest ids are named.
    """
    need = _HISTORY if with_history else _CHECKPOINT if with_checkpoints else None
    if text is None:
        return _by_id(run) if run is not None else _newest_of_all(need)
    path = user_path(text)
    if is_run_root(path):
        return _choose(path, run, need)
    if is_run_directory(path):
        return FoundRun(path.parent, path.name)
    if path.is_dir():
        roots = list(run_roots(path))
        if len(roots) == 1:
            return _choose(roots[0], run, need)
        if not roots:
            check_manifest_lost(path)
        raise RunNotFoundError(
            f"{path} is no run directory",
            where=str(path),
            why=f"it holds {len(roots)} of them" if roots else "it holds no manifest.json and no run",
            nearest=[str(root) for root in roots[:3]],
            fix="name a run directory, such as runs/MnistMLP; `nitro runs DIR --rescan` rebuilds a lost manifest",
        )
    if os.sep in text:
        siblings = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        close = nearest(str(path), siblings)
        raise RunNotFoundError(f"there is no directory {path}", nearest=close, fix="`nitro runs` lists all")
    return _by_id(text)


def check_manifest_lost(path: Path) -> None:
    """Check that there are no runs in a directory, or one inside it, that was found to hold no manifest.

    Raises:
        RunNotFoundError: there are; the command that takes them in is named.
    """
    from nitro_cli.checkpoints import unlisted_runs

    inner = sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []
    for folder in (path, *inner):
        lost = unlisted_runs(folder, ())
        if lost:
            raise RunNotFoundError(
                f"{folder} has lost its manifest.json",
                where=str(folder),
                why=f"runs that lie there: {', '.join(lost[:8])}{', ...' if len(lost) > 8 else ''}",
                fix=f"`nitro runs {folder} --rescan` rebuilds it from them",
            )


def choose_run(root: Path, run: str | None) -> FoundRun:
    """One run of a directory: by id or unique prefix, else the newest.

    Raises:
        RunNotFoundError: there is none; those there are are named.
    """
    return _choose(root, run, None)


def _choose(root: Path, run: str | None, need: _Need | None) -> FoundRun:
    held = summaries(root)
    if run is None or run == "latest":
        if not held:
            raise RunNotFoundError(f"{root} holds no run", where=str(root), fix="`nitro train EXP` makes one")
        newest = _first_with(need, [(root, summary) for summary in held])
        return FoundRun(root, held[0].id if newest is None else newest[1].id, chosen=run is not None)
    found = [summary.id for summary in held if summary.id.startswith(run)]
    if len(found) == 1:
        return FoundRun(root, found[0])
    raise _no_such(run, found, [summary.id for summary in held], str(root))


def summaries(root: Path) -> list[RunSummary]:
    """The runs of a directory, newest first, without the warning about checkpoints that are gone."""
    from nitro_cli.checkpoints import runs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        return runs(root)


def _by_id(text: str) -> FoundRun:
    known = {summary.id: root for root in run_roots() for summary in summaries(root)}
    found = [name for name in known if name.startswith(text)]
    if len(found) == 1:
        return FoundRun(known[found[0]], found[0])
    raise _no_such(text, found, list(known), str(HOME))


def _no_such(text: str, found: list[str], known: list[str], where: str) -> RunNotFoundError:
    if found:
        return RunNotFoundError(
            f"{len(found)} runs begin with {text}", where=where, nearest=found[:5], fix="give more of the id"
        )
    held = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return RunNotFoundError(
        f"there is no run {text}",
        where=where,
        why=f"the runs there: {held}" if known else "there are no runs",
        nearest=nearest(text, known),
        fix="`nitro runs` lists all runs under runs/",
    )


def _newest_of_all(need: _Need | None) -> FoundRun:
    held: list[tuple[Path, RunSummary]] = []
    moments: dict[str, tuple[bool, float]] = {}
    for root in run_roots():
        runs_there = summaries(root)
        moments |= _moments(runs_there)
        held += [(root, summary) for summary in runs_there]
    held.sort(key=lambda item: moments[item[1].id], reverse=True)
    found = _first_with(need, held)
    if found is None:
        raise RunNotFoundError(
            "there is no run under runs/" + ("" if need is None else f" that has a {need.what}"),
            where=str(HOME.absolute()),
            fix="train one with `nitro train EXP`, or name a run directory",
        )
    root, summary = found
    return FoundRun(root, summary.id, chosen=False)


def _moments(newest_first: Sequence[RunSummary]) -> dict[str, tuple[bool, float]]:
    """When each run of a directory last wrote, to be compared with those of others, by id.

    A run wrote before those that come after it, whatever its clock said; and a time that is still to come is none.
    """
    latest, now = math.inf, time.time()
    moments = {}
    for summary in newest_first:
        latest = min(latest, summary.written)
        moments[summary.id] = (latest <= now + _SKEW, latest)
    return moments


def _first_with(need: _Need | None, held: list[tuple[Path, RunSummary]]) -> tuple[Path, RunSummary] | None:
    """The first that has what is needed; those before it are told."""
    for number, (root, summary) in enumerate(held):
        if need is None or need.has(summary):
            if need is not None and number:
                passed = ", ".join(f"{other.id} ({other.status})" for _, other in held[:number][:_SHOWN])
                more = f" and {number - _SHOWN} more" if number > _SHOWN else ""
                verb = "has" if number == 1 else "have"
                warn(
                    f"{passed}{more} {verb} no {need.what} and {'is' if number == 1 else 'are'} passed over: "
                    f"taking run {summary.id} of {root}"
                )
            return root, summary
    return None
