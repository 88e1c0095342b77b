"""What analyze, calibrate and abstain work on: prediction files, or a run whose predictions are made first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nitro_cli.cli.declared_outputs import DeclaredOutputs
from nitro_cli.cli.output import Output
from nitro_cli.errors import ConfigError
from nitro_cli.text import user_path

if TYPE_CHECKING:
    from nitro_cli.analysis import AbstentionPolicy, Calibrator, Prediction
    from nitro_cli.cli.targets import Overrides, Target

__all__ = [
    "PredictionSubject",
    "RunWords",
    "artefact_place",
    "load_calibrator",
    "load_policy",
    "open_subject",
    "place_of",
]


class PredictionSubject(Protocol):
    """Where predictions come from."""

    folder: Path | None
    """The run's `analysis`; None of files."""

    def main(self) -> Prediction:
        """The predictions that the command is about."""
        ...

    def other(self, text: str) -> Prediction:
        """Those of another split of the run, or of another file."""
        ...


@dataclass(frozen=True)
class RunWords:
    """What the command line says of a run.

    Args:
        overrides: preset, fields, code.
        weights: the weights of a bare experiment.
        run: which run of a directory.
        checkpoint: which checkpoint of it.
    """

    overrides: Overrides
    weights: str | None = None
    run: str | None = None
    checkpoint: str | None = None


@dataclass
class FileSubject:
    """Prediction files, read as one set."""

    files: tuple[Path, ...]
    declared: DeclaredOutputs
    repeats: bool = False
    folder: Path | None = None

    def main(self) -> Prediction:
        return self._read(*self.files)

    def other(self, text: str) -> Prediction:
        return self._read(user_path(text))

    def _read(self, *files: Path) -> Prediction:
        from nitro_cli.analysis import load_predictions

        declared = self.declared
        return load_predictions(
            *files,
            spec=declared.spec(),
            output=declared.logits,
            target=declared.target_field,
            ids=declared.id_field,
            ignore_index=declared.ignore_index,
            repeats=self.repeats,
        )


@dataclass
class RunSubject:
    """A run; its handle is built once, when a split is first asked for."""

    output: Output
    target: Target
    declared: DeclaredOutputs
    split: str
    fields: tuple[str, ...]
    folder: Path | None
    _nitro: Any = field(default=None, repr=False)

    def main(self) -> Prediction:
        return self.other(self.split)

    def other(self, text: str) -> Prediction:
        from nitro_cli.cli.evaluation import open_handle
        from nitro_cli.cli.predicting import predict_split

        if self._nitro is None:
            self.declared.needed(self.target.resolved.experiment)
            self._nitro = open_handle(self.output, self.target)
        return predict_split(self._nitro, text, self.declared, self.fields)


def open_subject(
    output: Output,
    words: Sequence[str],
    declared: DeclaredOutputs,
    choice: RunWords,
    *,
    split: str | None,
    default_split: str,
    fields: Sequence[str] = (),
    repeats: bool = False,
) -> PredictionSubject:
    """Take the arguments of a command as prediction files, or as the one target that they name.

    Args:
        output: told what was chosen.
        words: files that end in `.npz`; or a run, a checkpoint or an experiment; nothing for the newest run.
        declared: what the outputs mean.
        choice: what the command line says of a run.
        split: the split of a run.
        default_split: the one that is meant without a word.
        fields: fields of the batches that are sliced by.
        repeats: whether an id may be there several times.

    Raises:
        ConfigError: words of both kinds, or words that files do not take.
        NotFoundError: nothing of that name.
    """
    files = [word for word in words if word.endswith((".npz", ".npy"))]
    if not files:
        from nitro_cli.cli.targets import resolve_target

        if len(words) > 1:
            raise ConfigError("one run at a time", where=", ".join(words), fix="several arguments are prediction files")
        target = resolve_target(
            words[0] if words else None,
            choice.overrides,
            weights=choice.weights,
            run=choice.run,
            checkpoint=choice.checkpoint,
        )
        return RunSubject(output, target, declared, split or default_split, tuple(fields), analysis_folder(target))
    if len(files) < len(words):
        other = next(word for word in words if word not in files)
        raise ConfigError(f"{other} is no prediction file", why="the others are", fix="give files, or one run")
    if split is not None:
        raise ConfigError("--split is of a run", why="a prediction file is of the split it was made of")
    return FileSubject(tuple(user_path(file) for file in files), declared, repeats)


def place_of(prediction: Prediction, folder: Path | None, name: str) -> Path | None:
    """Where an artefact of a run's predictions is kept: `analysis/<split>-<checkpoint>/<name>`; None of files."""
    if folder is None:
        return None
    from nitro_cli.checkpoints import contained_path

    origin = prediction.origin
    inner = f"{origin.split or 'rows'}-{Path(origin.checkpoint or 'weights').name}"
    run = folder.parent
    return contained_path(run.parent, f"{run.name}/analysis/{inner}/{name}", folder)


def artefact_place(prediction: Prediction | None, folder: Path | None, name: str, out: str | None, force: bool) -> Path:
    """Where a calibrator or a policy is written: `--out`, in the run's analysis, or in the working directory.

    Raises:
        ConfigError: a file is there that is not the run's own, and `force` is False.
    """
    own = None if prediction is None or out is not None else place_of(prediction, folder, name)
    if own is not None:
        return own
    place = user_path(out if out is not None else name)
    if place.suffix != ".json":
        raise ConfigError(f"an artefact is a .json file, not {place.name}", where="--out", fix=f"--out {name}")
    if place.exists() and not (force and place.is_file()):
        raise ConfigError(f"{place} exists", where="--out", fix="choose another name, or overwrite it with --force")
    return place


def load_calibrator(text: str | None, folder: Path | None) -> Calibrator | None:
    """The calibrator that a word names: a path, or `latest` of the run."""
    if text is None:
        return None
    from nitro_cli.analysis import Calibrator

    return Calibrator.load(_named(text, folder, "calibrator"))


def load_policy(text: str | None, folder: Path | None) -> AbstentionPolicy | None:
    """The policy that a word names: a path, or `latest` of the run."""
    if text is None:
        return None
    from nitro_cli.analysis import AbstentionPolicy

    return AbstentionPolicy.load(_named(text, folder, "policy"))


def _named(text: str, folder: Path | None, what: str) -> Path:
    if text != "latest":
        return user_path(text)
    if folder is None:
        raise ConfigError(
            f"--{what} latest is of a run", why="no run is given", fix=f"name the file: --{what} {what}.json"
        )
    from nitro_cli.analysis import newest_artefact

    return newest_artefact(folder, f"{what}.json")


def analysis_folder(target: Target) -> Path | None:
    """The run's folder of analyses, where the target is a run or a checkpoint inside one."""
    if target.run is None or target.checkpoint is None:
        return None
    for folder in target.checkpoint.parents:
        if folder.name == target.run:
            return folder / "analysis"
    return None
