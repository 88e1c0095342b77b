"""The files of calibrators and policies: canonical JSON, written whole, read strictly."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

from nitro_cli.errors import ConfigError, IntegrityError, NotFoundError, StorageError, nearest
from nitro_cli.text import parse_json, read_regular, user_path, write_atomically
from nitro_cli.text.canonical import canonical, canonical_digest
from nitro_cli.text.documents import Document, check_document

__all__ = ["Artefact", "newest_artefact", "save_text"]

_LARGEST = 1 << 28


class Artefact(Document):
    """A frozen value that is kept as a file of its own."""

    artefact: ClassVar[str]
    """What it is called in errors."""

    command: ClassVar[str]
    """The command that makes it."""

    @cached_property
    def id(self) -> str:
        """The digest of its canonical JSON."""
        return canonical_digest(self.model_dump())

    def text(self) -> str:
        """Its canonical JSON, as a file holds it."""
        return canonical(self.model_dump()).decode() + "\n"

    def save(self, path: Path | str) -> Path:
        """Write it as canonical JSON, whole or not at all.

        Raises:
            StorageError: the file cannot be written; one that is there stays.
        """
        place = user_path(path)
        _save(place, self.text().encode())
        return place

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read one.

        Raises:
            NotFoundError: there is no such file.
            ConfigError: it is an artefact of the other sort.
            IntegrityError: it is malformed, or of a later nitro.
        """
        place, what = user_path(path), cls.artefact
        try:
            value = parse_json(read_regular(place, limit=_LARGEST))
        except (FileNotFoundError, NotADirectoryError):
            beside = [p.name for p in place.parent.glob("*.json")] if place.parent.is_dir() else []
            raise NotFoundError(
                f"there is no {what} {place}",
                nearest=nearest(place.name, beside),
                fix=f"give a file that `nitro {cls.command}` wrote, or `latest`, the newest of the run",
            ) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise IntegrityError(f"the {what} cannot be read", where=str(place)[:300], why=why) from error
        held = set(value) if isinstance(value, dict) else set()
        for other in Artefact.__subclasses__():
            if other is not cls and held and held == set(other.model_fields):
                raise ConfigError(
                    f"this is a {other.artefact}, and a {what} was asked for",
                    where=str(place),
                    fix=f"give a file that `nitro {cls.command}` wrote",
                )
        return check_document(cls, value, place, what=f"the {what} is malformed", fix="fit it again")


def save_text(path: Path, text: str) -> None:
    """Write a report, whole or not at all.

    Raises:
        StorageError: the file cannot be written; one that is there stays.
    """
    _save(path, text.encode("utf-8", "backslashreplace"))


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
