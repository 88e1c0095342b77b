"""Prediction files: what `nitro predict` writes and `nitro analyze` reads, an `.npz` with a JSON text `meta` in it.

The arrays are `ids`, `target` where there is one, the outputs by their path (`outputs` where a forward returns one
array), `probabilities`, `decoded`, and further values per sample. Every array has one entry per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from nitro_cli.analysis.identity import data_identity
from nitro_cli.analysis.prediction import Prediction, PredictionOrigin, concatenate
from nitro_cli.analysis.probabilities import Probabilities
from nitro_cli.errors import ConfigError, DataError, IncompatibleError, IntegrityError, NitroError, nearest
from nitro_cli.text import parse_json, user_path
from nitro_cli.text.array_files import ArrayFile
from nitro_cli.text.canonical import canonical
from nitro_cli.text.documents import Digest, Document, Name, Names, check_document

__all__ = ["FILE_NAMES", "META", "PredictionMeta", "TaskMeta", "check_file_name", "load_predictions", "meta_array"]

META = "meta"
FILE_NAMES = ("ids", "target", "probabilities", "decoded", META, "calibrated_probabilities", "score", "accepted")
"""Names that an output or a further value of a prediction file cannot have."""

_MOST_TEXT = 1 << 24


class TaskMeta(Document):
    """How the outputs are read.

    Attributes:
        kind: `categorical`, `bernoulli` or `continuous`.
        output: the path of the output.
        class_axis: the axis of its classes.
        ignore_index: the target of what is not judged.
    """

    kind: Literal["categorical", "bernoulli", "continuous"]
    output: Name
    class_axis: Annotated[int, Field(ge=-64, le=64)] = -1
    ignore_index: Annotated[int, Field(gt=-(2**63), lt=2**63)] | None = None


class PredictionMeta(Document):
    """What a prediction file says of itself.

    Attributes:
        format: 1.
        experiment, run, checkpoint: where the weights come from.
        model_id: the digest of the weights that were read.
        split: the split's name.
        data: the digest of its data.
        task: how the outputs are read; None where nothing told.
        labels: the names of the classes.
        ids: the field that the ids come from; None where they are positions.
        calibrator, policy: the ids of what was applied.
    """

    format: Annotated[int, Field(ge=1, le=1)] = 1
    experiment: Name | None = None
    run: Name | None = None
    checkpoint: Name | None = None
    model_id: Digest | None = None
    split: Name | None = None
    data: Digest | None = None
    task: TaskMeta | None = None
    labels: Names | None = None
    ids: Name | None = None
    calibrator: Digest | None = None
    policy: Digest | None = None


def check_file_name(name: str, where: str) -> None:
    """Check that an output or a further value may have a name.

    Raises:
        ConfigError: it is one that a prediction file itself uses.
    """
    if name in FILE_NAMES:
        raise ConfigError(
            f"{name} is a name that a prediction file itself uses",
            where=where,
            why=f"its own names are {', '.join(FILE_NAMES)}",
            fix="the target is written by itself" if name == "target" else "give it another name",
        )


def meta_array(meta: PredictionMeta) -> np.ndarray:
    """The meta of a file as the array that holds it: canonical JSON, one text."""
    return np.array(canonical(meta.model_dump()).decode("utf-8"))


def load_predictions(
    *files: Path | str,
    spec: Probabilities | None = None,
    output: str | None = None,
    target: str | None = None,
    ids: str | None = None,
    ignore_index: int | None = None,
    repeats: bool = False,
) -> Prediction:
    """Read one or several prediction files as one set.

    Args:
        files: `.npz` files that `nitro predict` wrote, or of that form.
        spec: what the outputs mean, over what the file says.
        output: the array of the outputs, where the file does not say it.
        target: the array of the targets; `target` by default.
        ids: the array of the ids; `ids` by default, positions where there are none.
        ignore_index: the target that marks what is not judged, over what the file says.
        repeats: whether an id may be there several times.

    Returns:
        The predictions, in the order of the files.

    Raises:
        NotFoundError, DataError, IntegrityError: a file is missing or cannot be read.
        ConfigError: nothing says what the outputs mean.
        IncompatibleError: the files are of several models, tasks or splits.
    """
    if not files:
        raise ConfigError("no prediction file is named")
    parts = [_read(user_path(file), _Declared(spec, output, target, ids, ignore_index)) for file in files]
    first = parts[0]
    for path, part in zip(files[1:], parts[1:], strict=True):
        _check_same(first, part, f"{files[0]} and {path}")
    whole = first
    if len(parts) > 1:
        data = _joined_data(parts)
        fields = set.intersection(*(set(part.fields) for part in parts))
        alike = replace(first.origin, data=data)
        whole = concatenate(_trimmed(part, alike, fields) for part in parts)
    if not repeats:
        _check_ids(whole, files)
    return whole


def _trimmed(part: Prediction, origin: PredictionOrigin, fields: set[str]) -> Prediction:
    return replace(part, origin=origin, fields={name: part.fields[name] for name in sorted(fields)})


def _joined_data(parts: Sequence[Prediction]) -> str | None:
    """The data of several files: the one that all name, else the digest of the predictions themselves."""
    named = {part.origin.data for part in parts}
    if len(named) == 1:
        return parts[0].origin.data
    return data_identity({f"{i}/outputs": part.outputs for i, part in enumerate(parts)})


@dataclass(frozen=True)
class _Declared:
    """What the caller says over the file."""

    spec: Probabilities | None
    output: str | None
    target: str | None
    ids: str | None
    ignore_index: int | None


def _read(path: Path, declared: _Declared) -> Prediction:
    file = ArrayFile(path)
    if file.single:
        raise DataError(
            f"{path.name} holds one array without a name", where=str(path), fix="give an .npz with outputs and target"
        )
    meta = _read_meta(file)
    task, spec = meta.task, declared.spec
    if spec is None:
        if task is None:
            raise ConfigError(
                "nothing says what the outputs mean",
                where=str(path),
                why="the file names no task",
                fix="declare it: --kind categorical (or bernoulli, continuous), in Python spec=Probabilities(kind)",
            )
        spec = _spec_of(task, meta.labels, path)
    elif spec.labels is None and meta.labels is not None:
        spec = replace(spec, labels=_spec_of(None, meta.labels, path).labels)
    name = _output_name(file, declared.output, task, path)
    arrays = {held: file.array(held) for held in dict.fromkeys(file.names) if held != META}
    outputs = arrays.pop(name)
    wanted_target = _wanted(arrays, declared.target, "target", path)
    wanted_ids = _wanted(arrays, declared.ids, "ids", path)
    decided = arrays.pop("decoded", None) if task is not None and spec.kind == task.kind else None
    arrays.pop("probabilities", None)
    arrays.pop("decoded", None)
    origin = PredictionOrigin(
        meta.experiment,
        meta.run,
        meta.checkpoint,
        meta.model_id,
        meta.split,
        meta.data or data_identity({"outputs": outputs} | ({} if wanted_target is None else {"target": wanted_target})),
        meta.ids if declared.ids is None else declared.ids,
        declared.ignore_index
        if declared.ignore_index is not None
        else (task.ignore_index if task is not None else None),
        {"kind": spec.kind, "output": name, "class_axis": spec.class_axis},
    )
    fields = {key: value for key, value in arrays.items() if value.shape[:1] == outputs.shape[:1]}
    try:
        return spec.predict(
            outputs, ids=wanted_ids, target=wanted_target, decoded=decided, fields=fields, origin=origin
        )
    except NitroError as error:
        error.where = error.where or str(path)
        raise


def _spec_of(task: TaskMeta | None, labels: tuple[str, ...] | None, path: Path) -> Probabilities:
    try:
        if task is None:
            return Probabilities("categorical", labels=labels)
        return Probabilities(task.kind, task.class_axis, labels)
    except ConfigError as error:
        raise IntegrityError("the meta of the predictions is damaged", where=str(path), why=str(error.what)) from error


def _read_meta(file: ArrayFile) -> PredictionMeta:
    if META not in file.names:
        return PredictionMeta()
    where = f"{file.path}: {META}"
    shape, dtype = file.shape_and_dtype(META)
    if dtype.kind != "U" or shape != () or dtype.itemsize > _MOST_TEXT:
        why = f"it is {dtype.str[:20]}{list(shape)[:8]}"
        raise IntegrityError("the meta of the predictions is damaged", where=where, why=why, fix="predict again")
    try:
        value = parse_json(str(file.array(META)[()]))
    except (ValueError, OverflowError) as error:  # numpy's word for code points beyond Unicode is a ValueError
        raise IntegrityError("the meta of the predictions is damaged", where=where, why=str(error)) from error
    return check_document(
        PredictionMeta, value, where, what="the meta of the predictions is damaged", fix="predict again"
    )


def _output_name(file: ArrayFile, output: str | None, task: TaskMeta | None, path: Path) -> str:
    name = output if output is not None else (task.output if task is not None else "outputs")
    if name in file.names and name not in (META, "ids"):
        return name
    others = [held for held in file.names if held not in FILE_NAMES]
    raise DataError(
        f"there is no array {name}",
        where=str(path),
        why=f"the file holds {', '.join(file.names) or 'nothing'}",
        nearest=nearest(name, others),
        fix="name the logits: --logits NAME",
    )


def _wanted(arrays: dict[str, np.ndarray], given: str | None, usual: str, path: Path) -> np.ndarray | None:
    """Take the array that is named, or the usual one where it is there."""
    if given is None or given == usual:
        if given is None or usual in arrays:
            return arrays.pop(usual, None)
    elif given in arrays:
        arrays.pop(usual, None)
        return arrays[given]
    held = ", ".join(arrays) or "nothing else"
    raise DataError(
        f"there is no array {given}", where=str(path), why=f"the file holds {held}", nearest=nearest(given, arrays)
    )


def _check_same(first: Prediction, other: Prediction, where: str) -> None:
    sides = {
        "experiments": (first.origin.experiment, other.origin.experiment),
        "models": (first.origin.model_id, other.origin.model_id),
        "splits": (first.origin.split, other.origin.split),
        "tasks": (_task_text(first), _task_text(other)),
        "labels": (first.labels, other.labels),
    }
    for what, (one, two) in sides.items():
        if one != two:
            raise IncompatibleError(
                f"the files are of two {what}", where=where, why=f"{one} and {two}", fix="analyze them one by one"
            )


def _task_text(prediction: Prediction) -> str:
    return f"{prediction.kind} of {dict(prediction.origin.task or {})}, ids from {prediction.origin.ids or 'positions'}"


def _check_ids(prediction: Prediction, files: Sequence[Path | str]) -> None:
    values, counts = np.unique(prediction.ids, return_counts=True)
    if len(values) == len(prediction):
        return
    twice = values[counts > 1]
    raise DataError(
        f"the id {twice[0]} is there {counts[counts > 1][0]} times",
        where=", ".join(map(str, files[:3])),
        why=f"{len(twice)} ids repeat, and a sample that counts twice moves every figure",
        fix="--repeats accepts it (in Python repeats=True)",
    )
