"""Documents: texts from files, and those that Python brings along."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nitro_cli.errors import DataError, NotFoundError
from nitro_cli.text import read_regular
from nitro_cli.text.canonical import canonical

__all__ = [
    "DocumentUnit",
    "TextDocument",
    "content_of_documents",
    "pydoc_documents",
    "read_documents",
    "without_doubles",
]

DocumentUnit = Literal["file", "paragraph"]
"""What of a text file is one document."""

_BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class TextDocument:
    """A text; with a `prompt`, what stands before it and is not scored."""

    text: str
    prompt: str | None = None

    @property
    def whole(self) -> str:
        """Prompt and text."""
        return (self.prompt or "") + self.text


def read_documents(globs: Sequence[str], unit: DocumentUnit = "file") -> list[TextDocument]:
    """The documents of files, glob by glob, files in the order of their names; what is blank is left out.

    Args:
        globs: such as `notes/*.md`; `**` is any folders.
        unit: of `.txt` and `.md`, whether a document is the file or a paragraph, which blank lines end. A line of
            `.jsonl` is a document.

    Raises:
        NotFoundError: a glob matches no file.
        DataError: a file is of another kind, is no UTF-8, or a line is no document.
    """
    found: dict[Path, None] = {}
    for pattern in globs:
        paths = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())
        if not paths:
            raise NotFoundError(f"no file is called like {pattern!r}", where="files", fix="write a path or a glob")
        found |= dict.fromkeys(paths)
    held = (document for path in found for document in _of_file(path, unit))
    return [document for document in held if document.whole.strip()]


def pydoc_documents() -> list[TextDocument]:
    """The paragraphs of Python's own reference, which every Python has with it, topics in the order of their names."""
    from pydoc_data.topics import topics

    paragraphs = (text for name in sorted(topics) for text in _BLANK_LINES.split(topics[name]))
    return [TextDocument(text) for text in paragraphs if text.strip()]


def without_doubles(documents: Iterable[TextDocument]) -> list[TextDocument]:
    """Each document once, where it stands first."""
    return list(dict.fromkeys(documents))


def content_of_documents(documents: Iterable[TextDocument]) -> str:
    """`sha256:<hex>` over documents in their order."""
    total = hashlib.sha256()
    for document in documents:
        total.update(canonical([document.prompt, document.text]) + b"\n")
    return f"sha256:{total.hexdigest()}"


def _of_file(path: Path, unit: DocumentUnit) -> Iterator[TextDocument]:
    kind = path.suffix.lower()
    if kind not in (".txt", ".md", ".jsonl"):
        raise DataError(
            f"{path.name} is no kind of text file that is read",
            where=str(path),
            why="documents come from .txt, .md and .jsonl",
            fix="write the glob so that it leaves the file out, such as docs/*.md",
        )
    text = _decoded(path)
    if kind == ".jsonl":
        # Not splitlines: a text in JSON may hold other ends of lines as they are.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _of_line(line, f"{path}, line {number}")
    elif unit == "paragraph":
        yield from map(TextDocument, _BLANK_LINES.split(text))
    else:
        yield TextDocument(text)


def _decoded(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} is no UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}",
            where=f"{path}, offset {error.start}",
            why=error.reason,
            fix="save it as UTF-8, or leave it out of the glob",
        ) from error
    except OSError as error:
        raise DataError(f"{path.name} cannot be read", where=str(path), why=str(error)) from error


def _of_line(line: str, where: str) -> TextDocument:
    try:
        held: Any = json.loads(line)
    except ValueError as error:
        raise DataError("the line is no JSON", where=where, why=str(error)) from error
    keys = held.keys() & {"text", "prompt", "response"} if isinstance(held, dict) else set()
    if keys not in ({"text"}, {"prompt", "response"}) or not all(isinstance(held[key], str) for key in keys):
        raise DataError(
            "the line is no document",
            where=where,
            why="it needs text under `text`, or under `prompt` and `response`",
            fix='write {"text": "..."} or {"prompt": "...", "response": "..."}',
        )
    document = TextDocument(held["text"]) if "text" in keys else TextDocument(held["response"], held["prompt"])
    try:
        document.whole.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError("the line holds half a surrogate pair", where=where, why=error.reason) from error
    return document
