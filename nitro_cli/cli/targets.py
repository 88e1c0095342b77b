"""From TARGET to an experiment and the weights to use it with."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.run_places import HOME, FoundRun, find_run, is_run_directory, is_run_root, summaries
from nitro_cli.errors import (
    CheckpointNotFoundError,
    ConfigError,
    ExperimentNotFoundError,
    IntegrityError,
    NotFoundError,
    RunNotFoundError,
)
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.checkpoints import AverageRef, CheckpointRef, RunSummary
    from nitro_cli.registry import Resolved

__all__ = ["Overrides", "Target", "checkpoint_of", "find_weights", "named_checkpoint", "resolve_target", "run_root"]

RECORD = "record.json"


@dataclass(frozen=True)
class Overrides:
    """What the command line says over the target's own configuration."""

    preset: str | None = None
    sets: Sequence[str] = ()
    unsets: Sequence[str] = ()
    flags: Mapping[str, Any] | None = None
    experiment: str | None = None
    """What names the code of a run, a checkpoint or a bundle, instead of the name recorded in it."""


@dataclass(frozen=True)
class Target:
    """What TARGET means.

    Args:
        resolved: the experiment with its values.
        weights: what to give `Nitro(weights=...)`; None for fresh ones.
        run: id of the run, when it is one.
        checkpoint: the checkpoint, when it is one.
        said: what was chosen where the user left it open; empty when nothing was.
    """

    resolved: Resolved
    weights: str | None
    run: str | None = None
    checkpoint: Path | None = None
    said: str = ""


def resolve_target(
    text: str | None,
    overrides: Overrides,
    *,
    weights: str | None = None,
    run: str | None = None,
    checkpoint: str | None = None,
    needs_weights: bool = True,
) -> Target:
    """Find what TARGET names.

    Args:
        text: an experiment's name, a run directory, a run's own directory, a run id, a checkpoint as `--weights` names
            one, or None for the newest run under `runs/`.
        overrides: preset, `--set`, `--unset` and flags.
        weights: the `--weights` of a bare experiment.
        run: which run of a run directory.
        checkpoint: `best`, `latest`, or the name of one; the best, or else the latest, by default.
        needs_weights: a bare experiment without weights is refused; otherwise it keeps its fresh ones.

    Raises:
        NotFoundError: nothing of that name, the nearest names given.
        ConfigError: words that do not go together, or a bare experiment without weights.
    """
    if text is not None and (path := _record(user_path(text))) is not None:
        _refuse(overrides.preset, "--preset", "a checkpoint")
        _refuse(weights, "--weights", "a checkpoint")
        _refuse(checkpoint, "--checkpoint", "a checkpoint")
        return _from_checkpoint(path, overrides)
    place, named = _run_of(text, run)
    if place is not None:
        what = "a run" if named is None else "a checkpoint"
        _refuse(overrides.preset, "--preset", what)
        _refuse(weights, "--weights", what)
        if named is not None:
            _refuse(run, "--run", what)
            _refuse(checkpoint, "--checkpoint", what)
        return _from_run(place, overrides, named or checkpoint)
    assert text is not None
    _refuse(overrides.experiment, "--experiment", "an experiment")
    return _from_experiment(text, overrides, weights, run, checkpoint, needs_weights)


def named_checkpoint(text: str) -> tuple[FoundRun, str] | None:
    """The run and the word for its checkpoint that `run:checkpoint` or `dir:run:checkpoint` names; None for others.

    Without a directory the run is one of those under `runs/`.

    Raises:
        ConfigError, RunNotFoundError: it has the form, and names none.
    """
    from nitro_cli.checkpoints import named_pair, placed_pair

    pair = named_pair(text)
    if pair is not None:
        if pair[0] == "all":
            raise ConfigError(f"{text} is of no one run", fix="name a run: `latest`, or an id")
        return find_run(None, None if pair[0] == "latest" else pair[0], with_checkpoints=True), str(pair[1])
    placed = placed_pair(text)
    if placed is None:
        return None
    run = None if placed.run == "latest" else placed.run
    return find_run(str(placed.root), run, with_checkpoints=True), str(placed.checkpoint)


def _record(path: Path) -> Path | None:
    if path.name == RECORD and path.is_file():
        return path.parent
    return path if (path / RECORD).is_file() else None


def _run_of(text: str | None, run: str | None) -> tuple[FoundRun | None, str | None]:
    """The run, and the checkpoint where it says one, that the text names; (None, None) for an experiment's name."""
    if text is None:
        return find_run(None, run, with_checkpoints=True), None
    path = user_path(text)
    if is_run_root(path) or is_run_directory(path):
        return find_run(text, run, with_checkpoints=True), None
    from nitro_cli.registry import find_experiment

    try:
        find_experiment(text)
    except ExperimentNotFoundError as error:
        try:
            return named_checkpoint(text) or (find_run(text, run, with_checkpoints=True), None)
        except RunNotFoundError as missing:
            if path.is_dir():
                raise missing from None
            raise _nothing(text, error) from None
    return None, None


def _nothing(text: str, error: ExperimentNotFoundError) -> NotFoundError:
    return ExperimentNotFoundError(
        f"{text} is no experiment, run or checkpoint",
        where=error.where,
        why=error.why,
        nearest=error.nearest,
        fix="`nitro list` shows the experiments, `nitro runs` the runs",
    )


def _refuse(value: str | None, option: str, what: str) -> None:
    if value is not None:
        raise ConfigError(
            f"{option} does not go with {what}",
            where=f"{option} {value}",
            why=f"{what} has a configuration and weights of its own"
            if option != "--experiment"
            else f"{value} names the code of a run or a checkpoint",
            fix="use --set for single fields, or name the experiment instead"
            if option != "--experiment"
            else f"name it alone: {value}",
        )


def _from_experiment(
    text: str, overrides: Overrides, weights: str | None, run: str | None, checkpoint: str | None, needs_weights: bool
) -> Target:
    from nitro_cli.registry import resolve

    resolved = resolve(text, overrides.preset, overrides.sets, overrides.unsets, overrides.flags)
    for value, option in ((run, "--run"), (checkpoint, "--checkpoint")):
        if value is not None:
            raise ConfigError(
                f"{option} goes with a run directory, and {text} is an experiment",
                where=f"{option} {value}",
                fix=f"--weights {run or 'latest'}:{checkpoint or 'best'}",
            )
    if weights is None and not needs_weights:
        return Target(resolved, None)
    if weights is None:
        raise ConfigError(
            f"{text} is an experiment, which has no trained weights",
            fix=f"say which: `{text} --weights latest:best`, or name a run directory, such as {run_root(resolved)}",
        )
    ref = find_weights(resolved, weights)
    found = getattr(ref, "path", None)
    return Target(resolved, weights, getattr(ref, "run", None), found, f"weights {ref or weights}")


def run_root(resolved: Resolved) -> Path:
    """The directory that the runs of an experiment share."""
    return Path(resolved.experiment.run_dir or HOME / resolved.cls.__name__)


def find_weights(resolved: Resolved, weights: str) -> CheckpointRef | AverageRef | None:
    """The checkpoint, or the average of several, that a `--weights` names.

    None where the experiment's own checkpointer knows it.
    """
    from nitro_cli.checkpoints import named_pair, resolve_source
    from nitro_cli.experiment import own_store, selection_of

    if own_store(resolved.experiment.checkpointer) is not None and named_pair(weights) is not None:
        return None
    metric, mode = selection_of(resolved.experiment) or (None, None)
    return resolve_source(weights, run_root(resolved), metric=metric, mode=mode)


def _from_run(place: FoundRun, overrides: Overrides, checkpoint: str | None) -> Target:
    weights, path, which = checkpoint_of(place, checkpoint)
    from nitro_cli.registry import read_config

    flags = {"run_dir": str(place.root), **(overrides.flags or {})}
    resolved = read_config(place.config, overrides.sets, overrides.unsets, flags, experiment=overrides.experiment)
    return Target(resolved, weights, place.id, path, f"run {place.id} of {place.root}, {which}")


def checkpoint_of(place: FoundRun, checkpoint: str | None) -> tuple[str, Path | None, str]:
    """Choose a checkpoint of a run.

    Args:
        place: the run.
        checkpoint: as after the colon of `run:checkpoint`; None is the best, or else the latest.

    Returns:
        The word for `Nitro(weights=)`, the checkpoint's path (None for an average), and how it was chosen.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        IntegrityError: the run has none but damaged ones.
    """
    summary = next((s for s in summaries(place.root) if s.id == place.id), None)
    if summary is None or not summary.checkpoints:
        _check_damage(place)
        raise CheckpointNotFoundError(
            f"the run {place.id} has no checkpoint",
            where=str(place.path),
            why=None if summary is None else f"its status is {summary.status}",
            fix="choose another run with --run, or train one",
        )
    return _chosen(place, summary, checkpoint)


def _check_damage(place: FoundRun) -> None:
    from nitro_cli.checkpoints import quarantined_records

    aside = [path.name for path in quarantined_records(place.path)]
    if aside:
        raise IntegrityError(
            f"no checkpoint of the run {place.id} is whole",
            where=str(place.path),
            why=f"set aside as damaged: {', '.join(aside[:5])}{', ...' if len(aside) > 5 else ''}",
            fix=f"restore them from a copy, then `nitro runs {place.root} --rescan`; or choose another run with --run",
        )


def _chosen(place: FoundRun, summary: RunSummary, checkpoint: str | None) -> tuple[str, Path | None, str]:
    from nitro_cli.checkpoints import CheckpointRef, resolve_source

    which = checkpoint or ("latest" if summary.best is None else "best")
    found = resolve_source((place.id, which), place.root)
    if not isinstance(found, CheckpointRef):
        return f"{place.root}:{found}", None, str(found)
    if which not in ("best", "latest"):
        return str(found.path), found.path, f"checkpoint {found.path.name}"
    why = " (nothing is scored)" if checkpoint is None and which == "latest" else ""
    return f"{place.id}:{which}", found.path, f"{which} checkpoint {found.path.name}{why}"


def _from_checkpoint(path: Path, overrides: Overrides) -> Target:
    from nitro_cli.registry import read_config

    around = (FoundRun(folder.parent, folder.name) for folder in path.resolve().parents[:3] if is_run_directory(folder))
    place = next((place for place in around if place.has_config), None)
    if place is not None:
        resolved = read_config(
            place.config, overrides.sets, overrides.unsets, overrides.flags, experiment=overrides.experiment
        )
        return Target(resolved, str(path), place.id, path)
    return Target(_from_record(path, overrides), str(path), None, path)


def _from_record(path: Path, overrides: Overrides) -> Resolved:
    """The experiment of a record that lies outside its run: from the configuration inside it."""
    from nitro_cli.checkpoints import record_info
    from nitro_cli.registry import read_config

    meta = record_info(path).meta
    if meta.config is None:
        name = meta.experiment.name or "EXP"
        raise ConfigError(
            f"the checkpoint {path.name} lies outside its run and holds no configuration",
            where=str(path),
            fix=f"name the experiment: `{name} --weights {path}`",
        )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(meta.config, encoding="utf-8")
        return read_config(config, overrides.sets, overrides.unsets, overrides.flags, experiment=overrides.experiment)
