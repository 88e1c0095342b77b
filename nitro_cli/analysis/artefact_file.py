"""The files of calibrators and policies: canonical JSON, written whole, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from nitro_cli.errors import IntegrityError, NotFoundError, StorageError, nearest
from nitro_cli.text import parse_json, read_regular, user_path, write_atomically
from nitro_cli.text.canonical import canonical
from nitro_cli.text.documents import Document, check_document

__all__ = ["load_artefact", "newest_artefact", "save_artefact", "save_text"]

_T = TypeVar("_T", bound=Document)
_LARGEST = 1 << 28


def save_artefact(artefact: Document, path: Path | str) -> Path:
    """Write an artefact as canonical JSON.

    Raises:
        StorageError: the file cannot be written; one that is there stays.
    """
    place = user_path(path)
    _save(place, canonical(artefact.model_dump()) + b"\n")
    return place


def save_text(path: Path, text: str) -> None:
    """Write a report, whole or not at all.

    Raises:
        StorageError: the file cannot be written; one that is there stays.
    """
    _save(path, text.encode("utf-8", "backslashreplace"))


def load_artefact(kind: type[_T], path: Path | str, what: str) -> _T:
    """Read an artefact.

    Args:
        kind: its schema.
        path: the file.
        what: its name in errors.

    Raises:
        NotFoundError: there is no such file.
        IntegrityError: it is malformed.
    """
    place = user_path(path)
    try:
        value = parse_json(read_regular(place, limit=_LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        beside = [p.name for p in place.parent.glob("*.json")] if place.parent.is_dir() else []
        raise NotFoundError(f"there is no {what} {place}", nearest=nearest(place.name, beside)) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise IntegrityError(f"the {what} cannot be read", where=str(place)[:300], why=why) from error
    return check_document(kind, value, place, what=f"the {what} is malformed", fix="fit it again")


def newest_artefact(folder: Path, name: str) -> Path:
    """The newest file of a name in the folders of a run's analysis.

    Args:
        folder: the run's `analysis`.
        name: `calibrator.json` or `policy.json`.

    Raises:
        NotFoundError: there is none.
    """
    found = [path for path in folder.glob(f"*/{name}") if path.is_file()] if folder.is_dir() else []
    if not found:
        command = "calibrate" if name.startswith("calibrator") else "abstain"
        raise NotFoundError(
            f"the run has no {name.removesuffix('.json')}", where=str(folder), fix=f"`nitro {command}` makes one"
        )
    return max(found, key=lambda path: (path.stat().st_mtime_ns, str(path)))


def _save(place: Path, content: bytes) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    except OSError as error:
        raise StorageError(
            f"cannot write {place}", where=str(error.filename or place), why=error.strerror or str(error)
        ) from error
