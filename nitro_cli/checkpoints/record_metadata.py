"""What a checkpoint says of itself: record.json, read without an array, checked against its schema."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import CheckpointNotFoundError, IntegrityError, nearest
from nitro_cli.text import IrregularFileError, read_regular, user_path

from . import migrations
from .entries import ManifestEntry
from .json_text import decode_value, load_sealed
from .leaves import ARRAYS, LeafSpec
from .names import CHECKPOINTS
from .transient import storage_error, with_retry

if TYPE_CHECKING:
    from .documents import RecordEntry
    from .record_meta import RecordMeta, ResumeMeta

__all__ = [
    "MOST_BYTES",
    "RECORD_FILE",
    "RecordInfo",
    "check_stop_counters",
    "checkpoint_info",
    "damaged",
    "no_checkpoint",
    "record_entry",
    "record_info",
    "record_meta",
    "resume_meta",
]

RECORD_FILE = "record.json"
MOST_BYTES = 1 << 30
_FIX = "use another checkpoint of the run; `nitro checkpoint verify` lists which are whole"


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """What record.json says, read without opening an array.

    Attributes:
        path: the checkpoint's directory.
        format: the format number it was written in.
        framework: the version of nitro that wrote it.
        versions: versions of jax, orbax, optax and numpy at the time.
        written: when, in seconds since 1970.
        entry: the facts the manifest holds of it (epoch, step, score, ...); empty outside a run.
        meta: what it says beside its arrays.
        leaves: path text to dtype, shape and kind.
        files: relative POSIX path to (size in bytes, SHA-256 hex).
    """

    path: Path
    format: int
    framework: str
    versions: dict[str, str]
    written: float
    entry: dict[str, Any]
    meta: RecordMeta
    leaves: dict[str, LeafSpec]
    files: dict[str, tuple[int, str]]

    @property
    def size(self) -> int:
        """Bytes on disk of the listed files."""
        return sum(size for size, _ in self.files.values())

    @property
    def parameters(self) -> int:
        """How many numbers the leaves below `params/` hold."""
        total = 0
        for path, spec in self.leaves.items():
            if path.startswith("params/") and spec.kind != "value":
                count = 1
                for length in spec.shape:
                    count *= length
                total += count
        return total


def record_info(path: Path | str) -> RecordInfo:
    """Read a checkpoint's metadata without its arrays; cheap, and needs neither JAX nor orbax.

    Args:
        path: the checkpoint's directory, or its record.json.

    Raises:
        CheckpointNotFoundError: there is no checkpoint at `path`.
        IntegrityError: record.json is missing or damaged, or does not fit its schema.
        IncompatibleError: a newer nitro wrote it.
        StorageError: it cannot be read.
    """
    directory, file, document, written_format = _read_document(path)
    entry = _decoded(document, "entry", file)
    from .documents import RecordDocument, RecordEntry

    _check(RecordDocument, document, file)
    if entry:
        _check(RecordEntry, entry, file, "entry")
    return RecordInfo(
        path=directory,
        format=written_format,
        framework=document["framework"],
        versions=document["versions"],
        written=document["written"],
        entry=entry,
        meta=record_meta(document, file),
        leaves={leaf: LeafSpec.from_json(spec) for leaf, spec in document["leaves"].items()},
        files={name: (facts["size"], facts["sha256"]) for name, facts in document["files"].items()},
    )


def _decoded(document: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    try:
        value = decode_value(document.get(key))
    except ValueError as error:
        raise damaged(file, f"{key}: {error}") from error
    if not isinstance(value, dict):
        raise damaged(file, f"`{key}` is not a JSON object")
    return value


def record_entry(path: Path, run: str) -> tuple[ManifestEntry, RecordEntry] | None:
    """What the record of a run says of its own place and score; None if no run wrote it. Much of it is not looked at.

    Args:
        path: the checkpoint's directory, in the `checkpoints/` of the run.
        run: id of the run.

    Raises:
        As `record_info`.
    """
    _, file, document, _ = _read_document(path)
    facts = _decoded(document, "entry", file)
    if not facts:
        return None
    from .documents import RecordEntry

    checked: RecordEntry = _check(RecordEntry, facts, file, "entry")
    entry = checked.entry(f"{run}/{CHECKPOINTS}/{path.name}")
    written = entry.written or document.get("written")
    return replace(entry, run=run, written=written if isinstance(written, (int, float)) else 0.0), checked


def record_meta(document: Mapping[str, Any], file: Path) -> RecordMeta:
    """What a record.json of the current format says beside its arrays.

    Raises:
        IntegrityError: it does not fit.
    """
    from .record_meta import RecordMeta

    meta: RecordMeta = _check(RecordMeta, _decoded(document, "meta", file), file, "meta")
    return meta


def resume_meta(meta: RecordMeta, path: Path | str) -> ResumeMeta:
    """What a record says, if training can go on from it.

    Raises:
        IntegrityError: what a resume needs is missing.
    """
    from .record_meta import ResumeMeta

    checked: ResumeMeta = _check(ResumeMeta, meta.as_json(), Path(path) / RECORD_FILE, "meta")
    return checked


def check_stop_counters(state: Any, path: Path | str) -> None:
    """Check the counters of nitro's own early stopping in a record.

    Raises:
        IntegrityError: they are none.
    """
    from .record_meta import StopCounters

    _check(StopCounters, state, Path(path) / RECORD_FILE, "meta.rules.early_stop")


def _read_document(path: Path | str) -> tuple[Path, Path, dict[str, Any], int]:
    """The checkpoint's directory, its record.json, what that holds in the current format, and the format it is in."""
    directory = user_path(path)
    if directory.name == RECORD_FILE:
        directory = directory.parent
    file = directory / RECORD_FILE
    if not os.path.isdir(directory):
        raise no_checkpoint(directory, "there is no such directory")
    try:
        read = functools.partial(read_regular, file, limit=MOST_BYTES, follow=False)
        content = with_retry(read, f"reading {file}")
    except FileNotFoundError as error:
        if (directory / ARRAYS).exists() or directory.parent.name == CHECKPOINTS:
            raise damaged(file, "the file is missing") from error
        raise no_checkpoint(directory, f"the directory has no {RECORD_FILE}") from error
    except IrregularFileError as error:
        raise damaged(file, str(error.strerror)) from error
    except OSError as error:
        raise storage_error(error, "the checkpoint could not be read", file) from error
    try:
        document = load_sealed(content)
    except ValueError as error:
        raise damaged(file, str(error)) from error
    written_format = document.get("format", 0)
    document = migrations.migrated(document, migrations.RECORD_FORMAT, migrations.RECORD_MIGRATIONS, file)
    return directory, file, document, written_format


def _check(model: Any, value: Any, file: Path, place: str = "") -> Any:
    # Schemas cost a start that reads no record; whoever reads one has them built then.
    from nitro_cli.text.documents import check_document

    what, fix = f"the checkpoint {file.parent.name} is damaged", _FIX
    return check_document(model, value, file, what=what, fix=fix, place=place)


checkpoint_info = record_info
"""Its name outside this room."""


def damaged(file: Path, why: str) -> IntegrityError:
    """The error for a checkpoint of which `file` is not what nitro wrote."""
    return IntegrityError(
        f"the checkpoint {file.parent.name} is damaged",
        where=str(file),
        why=why,
        fix=_FIX,
    )


def no_checkpoint(directory: Path, why: str) -> CheckpointNotFoundError:
    """The error for a path that is no checkpoint; what it is, or what lies beside it, is named."""
    fix = None
    if os.path.exists(directory / "manifest.json"):
        fix = f"this is a directory of runs: name a checkpoint in it, such as `{directory}:latest:best`"
    elif os.path.isdir(directory / CHECKPOINTS):
        fix = f"this is a run: name it with a checkpoint, `{directory}:best` or `{directory}:latest`"
    siblings = (
        [p.name for p in directory.parent.iterdir() if p.is_dir() and p.name != directory.name]
        if os.path.isdir(directory.parent)
        else []
    )
    return CheckpointNotFoundError(
        "there is no checkpoint at this path",
        where=str(directory),
        why=why,
        fix=fix,
        nearest=nearest(directory.name, siblings),
    )
