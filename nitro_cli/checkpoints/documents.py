"""What the JSON documents of a run directory may hold: one strict schema each, in front of every reader.

A value that does not fit is an IntegrityError that names the file and the place, whoever wrote the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from nitro_cli.experiment import Mode
from nitro_cli.text.documents import Count, Document, Name, Number

from .entries import Manifest, ManifestEntry, RunInfo
from .json_text import decode_value
from .names import RUN_ID, place_problem, relative_problem

__all__ = [
    "EntryDocument",
    "LeafDocument",
    "ManifestDocument",
    "RecordDocument",
    "RecordEntry",
    "RunDocument",
    "RunFacts",
]

_STORE = re.compile(r"arrays(-[0-9]{1,6})?")
_KEY = re.compile(r"[0-9]{1,12}")
_DTYPE = re.compile(
    r"bool|u?int(2|4|8|16|32|64)|float(16|32|64|96|128)|complex(64|128|192|256)|bfloat16|float[468]_e\wm\w{1,12}|"
    r"void[0-9]{1,9}|[<>=|]?[biufcmMV][0-9]{1,9}(\[[0-9]{0,9}\w{1,12}\])?"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VALUES = {"bool": bool, "int": int, "float": float, "str": str, "None": type(None)}
_ITEM_BYTES = 16
_MOST_AXES = 64


def _wrong(why: str) -> PydanticCustomError:
    return PydanticCustomError("place", "{why}", {"why": why})


def _path(problem_of: Callable[[str], str | None]) -> AfterValidator:
    def check(text: str) -> str:
        problem = problem_of(text)
        if problem is not None:
            raise _wrong(f"The path {problem}")
        return text

    return AfterValidator(check)


def _like(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise _wrong(f"Input should be {what}")
        return text

    return AfterValidator(check)


def _is_shape(shape: list[int]) -> list[int]:
    # What numpy can address; a size of zero still has the others.
    if math.prod(max(length, 1) for length in shape) * _ITEM_BYTES >= 2**63:
        raise _wrong("No array has this shape")
    return shape


Place = Annotated[Name, _path(place_problem)]
"""Where a checkpoint lies in a directory of runs: `<run>/checkpoints/<name>`."""

RunId = Annotated[str, _like(RUN_ID, "the id of a run")]
Time = Annotated[float, Field(ge=0, lt=253402300800)]
"""Seconds since 1970, before the year 10000: what a calendar can show."""

Shape = Annotated[list[Count], Field(max_length=_MOST_AXES), AfterValidator(_is_shape)]
Nonfinite = Literal["nan", "inf", "-inf"]


class _Reason(Document):
    score: Nonfinite


class EntryDocument(Document):
    """One checkpoint as manifest.json and its record.json say it; `ManifestEntry` explains the keys."""

    run: RunId
    epoch: Count
    step: Count
    score: Number | None = None
    nonfinite: _Reason | None = None
    metric: Name | None = None
    mode: Mode | None = None
    written: Time = 0.0
    sequence: Count = 0
    resume_point: bool = False
    stop_reason: Name | None = None
    parent: Name | None = None

    def entry(self, path: str) -> ManifestEntry:
        """The entry of a checkpoint that lies at `path`."""
        known = {key: getattr(self, key) for key in ENTRY_KEYS}
        if self.nonfinite is not None:
            known["score"] = float(self.nonfinite.score)
        return ManifestEntry(path=path, **known)


ENTRY_KEYS = tuple(EntryDocument.model_fields.keys() - {"nonfinite"})


class _ListedEntry(EntryDocument):
    path: Place


class RecordEntry(EntryDocument):
    """One checkpoint as its record.json says it, beside what the record says of its run."""

    experiment: Name | None = None
    preset: Name | None = None
    seed: Count | None = None


class RunFacts(Document):
    """One run as manifest.json says it; `RunInfo` explains the keys."""

    experiment: Name | None = None
    preset: Name | None = None
    status: Name | None = None
    parent: Name | None = None
    seed: Count | None = None
    created: Time | None = None
    written: Time | None = None
    sequence: Count = 0
    displaced: list[Place] | None = None

    def info(self, run: str) -> RunInfo:
        """The run of this id."""
        return RunInfo(
            id=run,
            experiment=self.experiment or "",
            preset=self.preset,
            status=self.status or "interrupted",
            parent=self.parent,
            seed=self.seed,
            created=self.created or 0.0,
            written=self.written or 0.0,
            displaced=tuple(self.displaced or ()),
            sequence=self.sequence,
        )


class ManifestDocument(Document):
    """manifest.json."""

    sequence: Count = 0
    runs: dict[RunId, RunFacts]
    entries: list[_ListedEntry]

    def manifest(self, *, sealed: bool) -> Manifest:
        """What it says."""
        runs = {run: facts.info(run) for run, facts in self.runs.items()}
        return Manifest(runs, tuple(entry.entry(entry.path) for entry in self.entries), self.sequence, sealed)

    def model_post_init(self, context: Any, /) -> None:
        """Check that no checkpoint is listed twice or under another run than it lies in."""
        paths = {entry.path for entry in self.entries}
        if len(paths) != len(self.entries):
            raise _wrong("A checkpoint is listed twice")
        for entry in self.entries:
            if entry.path.split("/", 1)[0] != entry.run:
                raise _wrong(f"A checkpoint of the run {entry.run} is listed in the directory of another")


class RunDocument(Document):
    """run.json: what the house reads of it; the rest is for people."""

    model_config = ConfigDict(extra="allow")

    experiment: Name | None = None
    preset: Name | None = None
    status: Name | None = None
    parent: Name | None = None
    seed: Count | None = None
    created: Time | None = None
    stop_cause: Name | None = None


class _PieceDocument(Document):
    store: Annotated[str, _like(_STORE, "an array store of the record")]
    start: Annotated[list[Count], Field(max_length=_MOST_AXES)]
    shape: Shape
    kind: Literal["array", "bytes"]
    key: Annotated[str, _like(_KEY, "the number of an array")]


class LeafDocument(Document):
    """One leaf of a record; `LeafSpec` explains the keys."""

    dtype: str
    shape: Shape
    kind: Literal["array", "bytes", "pieces", "empty", "value"]
    key: Annotated[str, _like(_KEY, "the number of an array")] | None = None
    value: Any = None
    pieces: list[_PieceDocument] = Field(default_factory=list)

    def model_post_init(self, context: Any, /) -> None:
        """Check what one key says of another."""
        if self.kind == "value":
            try:
                value = decode_value(self.value)
            except ValueError as error:
                raise _wrong(str(error)) from None
            if type(value) is not _VALUES.get(self.dtype):
                raise _wrong("The value of a leaf is not of its dtype")
        elif not _DTYPE.fullmatch(self.dtype):
            raise _wrong("Its dtype is that of no array")
        elif (self.kind in ("array", "bytes")) != (self.key is not None):
            raise _wrong("An array that is stored has a number, others have none")
        elif self.kind == "empty" and 0 not in self.shape:
            raise _wrong("An empty array has no elements")


class _FileDocument(Document):
    size: Count
    sha256: Annotated[str, _like(_SHA256, "a SHA-256")]


class RecordDocument(Document):
    """record.json. `meta` has its own schema, `RecordMeta`: it is checked once its numbers are decoded."""

    framework: Name
    versions: dict[Name, Name]
    written: Time
    entry: dict[Name, Any]
    meta: Any
    leaves: dict[Name, LeafDocument]
    files: dict[Annotated[Name, _path(relative_problem)], _FileDocument]
