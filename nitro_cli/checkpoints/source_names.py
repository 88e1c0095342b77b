"""How a checkpoint is named: a path, `run:checkpoint`, `dir:run:checkpoint`, a pair, an average."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nitro_cli.errors import ConfigError, RunNotFoundError, nearest
from nitro_cli.text import user_path

from .names import RUN_ID

__all__ = ["PlacedPair", "What", "check_path", "named_pair", "placed_pair"]

What = Literal["weights", "resume"]
_RUN = r"latest|all|[0-9a-fA-F]{1,8}"
_CHECKPOINT = r"[^:()/\\]+|\w+\(.*\)"
_PAIR = re.compile(rf"({_RUN}):({_CHECKPOINT})", re.DOTALL)
_PLACED = re.compile(rf"(.+):({_CHECKPOINT})", re.DOTALL)
_RUN_OF_PLACE = re.compile(rf"(.+):({_RUN})", re.DOTALL)
_PREFIX = re.compile(r"[0-9a-f]{1,8}")


@dataclass(frozen=True)
class PlacedPair:
    """A run and a checkpoint of it, named with the directory of runs that they lie in."""

    root: Path
    run: str
    checkpoint: Any


def named_pair(spec: Any, what: What = "weights") -> tuple[str, Any] | None:
    """The run and the checkpoint (`latest`, `best`, a name or an `Average`) that a value names without a directory.

    None for a path, and for what says its directory.

    Raises:
        ConfigError: the value has no such form; the form to use instead is named.
    """
    if isinstance(spec, (str, os.PathLike)):
        matched = _PAIR.fullmatch(spec) if isinstance(spec, str) else None
        if matched is None:
            return None
        spec = (matched[1], matched[2])
    if not (isinstance(spec, (tuple, list)) and len(spec) == 2):
        raise _no_form(spec, what)
    return _checked_pair(spec[0], spec[1], what)


def placed_pair(spec: Any, what: What = "weights") -> PlacedPair | None:
    """What `dir:run:checkpoint`, `dir:checkpoint` or `run directory:checkpoint` names; None for a path.

    Raises:
        ConfigError: as `named_pair`.
        RunNotFoundError: there is no such directory.
    """
    if not isinstance(spec, str) or os.path.lexists(os.path.expanduser(spec)):
        return None
    matched = _PLACED.fullmatch(spec)
    if matched is None:
        return None
    place, checkpoint = user_path(matched[1]), matched[2]
    if place.is_dir():
        own = RUN_ID.fullmatch(place.name) is not None and not os.path.lexists(place / "manifest.json")
        root, run = (place.parent, place.name) if own else (place, "latest")
        return PlacedPair(root, *_checked_pair(run, checkpoint, what))
    with_run = _RUN_OF_PLACE.fullmatch(matched[1])
    if with_run is None and not re.search(r"[/\\]", matched[1]):
        return None
    root = place if with_run is None else user_path(with_run[1])
    if not root.is_dir():
        raise RunNotFoundError(f"{what}={spec!r} names no checkpoint", why=f"there is no directory {root}")
    assert with_run is not None
    return PlacedPair(root, *_checked_pair(with_run[2], checkpoint, what))


def check_path(spec: Any, what: What) -> None:
    """Refuse a text that is no path and looks like a part of a pair, naming the whole of it.

    Raises:
        ConfigError: it is one.
    """
    if not isinstance(spec, str) or os.path.lexists(os.path.expanduser(spec)):
        return
    if spec in ("best", "latest", "all"):
        pair = "latest:latest" if spec == "latest" else f"{'all' if spec == 'all' else 'latest'}:best"
        raise _no_form(spec, what, "it does not say of which run", f"use `{pair}`, or a run's id before the colon")
    if _PREFIX.fullmatch(spec):
        raise _no_form(spec, what, "it does not say which checkpoint", f"use `{spec}:best` or `{spec}:latest`")
    run, colon, checkpoint = spec.partition(":")
    if colon and not re.search(r"[/\\]", run) and len(run) > 1:
        _checked_pair(run, checkpoint, what)
    if spec.startswith("average("):
        raise _no_form(spec, what, "it does not say of which run", f"use `latest:{spec}`")


def _no_form(spec: Any, what: What, why: str | None = None, fix: str | None = None) -> ConfigError:
    form = "a path, `run:checkpoint` such as `latest:best`, or a pair such as ('latest', 'best')"
    return ConfigError(
        f"{what}={spec!r} names no checkpoint", where=what, why=why or f"it is not {form}", fix=fix or f"use {form}"
    )


def _checked_pair(run: Any, checkpoint: Any, what: What) -> tuple[str, Any]:
    """Check the form of a pair; return the run and "latest", "best", the name of a checkpoint, or an Average."""
    from nitro_cli.experiment import Average, Best, Last

    given = (run, checkpoint)
    if not isinstance(run, str) or not (run in ("latest", "all") or _PREFIX.fullmatch(run.lower())):
        raise _no_form(given, what, f"{run!r} is not `latest`, `all` or the id of a run")
    if isinstance(checkpoint, str) and "(" in checkpoint:
        checkpoint = _selector(checkpoint, given, what)
    if checkpoint == Best(1):
        checkpoint = "best"
    elif checkpoint == Last(1):
        checkpoint = "latest"
    if checkpoint == "latest" and run == "all":
        raise _no_form(given, what, "the newest of all runs is that of the latest run", "use `latest:latest`")
    if isinstance(checkpoint, Average):
        if what == "resume":
            why = "an average has no optimizer state and no position to continue from"
            raise _no_form(given, what, why, f"use weights=({run!r}, Average(...)) and start a new run from it")
        if run == "all":
            raise _no_form(given, what, "an average is over one run", f"use `latest:{checkpoint}`, or a run's id")
    elif not isinstance(checkpoint, str):
        raise _no_value(run, checkpoint, what)
    return run.lower(), checkpoint


def _selector(text: str, given: tuple[Any, Any], what: What) -> Any:
    from nitro_cli.experiment import parse_selector

    try:
        return parse_selector(text)
    except ConfigError as error:
        raise ConfigError(
            f"{what}={given!r} names no checkpoint",
            where=what,
            why=f"{text!r} is not `average(<selector>)`: {error.what}",
            nearest=nearest(text, ("latest", "best", "average(last(10))")),
        ) from error


def _no_value(run: str, checkpoint: Any, what: What) -> ConfigError:
    from nitro_cli.experiment import Selector

    if isinstance(checkpoint, Selector):
        fix = f"average what it picks: ({run!r}, Average({checkpoint!r})), as text `{run}:average({checkpoint})`"
        return _no_form((run, checkpoint), what, "a selector may pick several checkpoints", fix)
    return _no_form((run, checkpoint), what, f"{checkpoint!r} is not `latest`, `best`, a name or an Average")
