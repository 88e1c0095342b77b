"""Reading TOML so that every problem can be told with its file and line."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, IntegrityError
from nitro_cli.registry import bounded_toml
from nitro_cli.text import IrregularFileError, read_regular

__all__ = ["KeyPath", "KeyPosition", "TomlDocument", "format_key_path", "key_positions", "read_toml", "split_key_path"]

KeyPath = tuple["str | int", ...]

_LARGEST = 16 * 2**20
_LONGEST_SHOWN = 200
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_AT_POSITION = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
_AT_END = re.compile(r"\s*\(at end of document\)$")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


@dataclass(frozen=True)
class KeyPosition:
    """Where a key stands in a file; both numbers count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class TomlDocument:
    """A parsed TOML file together with the position of each of its keys."""

    path: Path
    data: dict[str, Any]
    positions: Mapping[KeyPath, KeyPosition]

    def line(self, key_path: Sequence[str | int]) -> int | None:
        """The line of `key_path`, or of its nearest written ancestor; None when nothing of it is written."""
        path = tuple(key_path)
        for length in range(len(path), 0, -1):
            found = self.positions.get(path[:length])
            if found is not None:
                return found.line
        return None


def read_toml(path: Path, error: type[ConfigError] = ConfigError, *, follow: bool = True) -> TomlDocument:
    """Read a TOML file.

    Args:
        path: the file.
        error: the class to raise when the file cannot be used.
        follow: whether the file may be a link; False for those that nitro writes.

    Returns:
        The document with the position of every key.

    Raises:
        IntegrityError: a file that nitro writes is a link or no regular file.
        ConfigError: (as `error`) the file cannot be read, is no regular file, or is not TOML; the line and column are
            given.
    """
    try:
        raw = read_regular(path, limit=_LARGEST, follow=follow)
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        if not follow and isinstance(problem, IrregularFileError):
            raise IntegrityError(
                f"{path} is no plain file of a run",
                where=str(path),
                why=why,
                fix="do not use this directory unless you know who made it; else put a plain file in its place",
            ) from problem
        raise error(f"cannot read {path}", where=str(path), why=why) from problem
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise error(
            f"{path} is not UTF-8 text",
            where=f"{path}:{line}",
            why=f"byte 0x{raw[problem.start]:02x} at offset {problem.start}: {problem.reason}",
            fix="save the file as UTF-8; TOML allows no other encoding",
        ) from problem
    try:
        data = bounded_toml.loads(text)
    except tomllib.TOMLDecodeError as problem:
        message, line, column = _decode_place(str(problem), text)
        raise error(
            f"{path} is not valid TOML",
            where=f"{path}:{line}:{column}",
            why=f"line {line}, column {column}: {message}",
            fix=_likely_fix(text, line),
        ) from problem
    return TomlDocument(path=path, data=data, positions=key_positions(text))


def _decode_place(message: str, text: str) -> tuple[str, int, int]:
    found = _AT_POSITION.search(message)
    if found:
        return message[: found.start()], int(found[1]), int(found[2])
    lines = text.split("\n")
    return _AT_END.sub("", message) + " (the file ends too early)", len(lines), len(lines[-1]) + 1


def _likely_fix(text: str, line: int) -> str | None:
    lines = text.splitlines()
    source = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    shown = source if len(source) <= _LONGEST_SHOWN else source[:_LONGEST_SHOWN] + "..."
    return f"the line reads: {shown}" if shown else None


def format_key_path(key_path: Sequence[str | int]) -> str:
    """Write a key path as TOML does: segments joined by dots, quoted where needed, list indices in brackets."""
    text = ""
    for segment in key_path:
        if isinstance(segment, int):
            text += f"[{segment}]"
            continue
        text += ("." if text else "") + _quoted(segment)
    return text


def _quoted(segment: str) -> str:
    if _BARE.fullmatch(segment):
        return segment
    body = "".join(_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c) for c in segment)
    return f'"{body}"'


def split_key_path(text: str) -> tuple[tuple[str, ...], str]:
    """Split the dotted key that `text` starts with from what follows it.

    Returns:
        The segments, and the rest of the text, which is empty or starts with the first character after the key.

    Raises:
        ValueError: the text does not start with a TOML key.
    """
    scanner = _Scanner(text)
    scanner.blanks()
    segments = scanner.key()
    if len(segments) > bounded_toml.DEEPEST:
        raise ValueError(f"the key has {len(segments)} parts, more than {bounded_toml.DEEPEST}")
    scanner.blanks()
    return segments, text[scanner.at :]


def key_positions(text: str) -> dict[KeyPath, KeyPosition]:
    """Find where each key of a valid TOML document is written, elements of lists included.

    Keys in `[table]` headers, dotted keys, quoted keys and inline tables are all found; of a table opened more than
    once the first place counts.
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.positions


class _Scanner:
    """Walks text that tomllib has accepted; it finds places and leaves values to tomllib."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.positions: dict[KeyPath, KeyPosition] = {}
        self._starts = [0] + [i + 1 for i, c in enumerate(text) if c == "\n"]
        self._list_lengths: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip_to_content():
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text[self.at] == "[":
                table = self._header(1)
            else:
                self._entry(table)

    def _header(self, brackets: int) -> KeyPath:
        start = self.at
        self.at += brackets
        self.blanks()
        segments = self.key()
        self.blanks()
        self.at += brackets
        path: KeyPath = ()
        for position, segment in enumerate(segments):
            path += (segment,)
            self._note(path, start)
            last = position == len(segments) - 1
            if last and brackets == 2:
                self._list_lengths[path] = self._list_lengths.get(path, 0) + 1
            if path in self._list_lengths:
                path += (self._list_lengths[path] - 1,)
                self._note(path, start)
        return path

    def _entry(self, table: KeyPath) -> None:
        start = self.at
        path = table
        for segment in self.key():
            path += (segment,)
            self._note(path, start)
        self.blanks()
        self.at += 1
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self.blanks()
        opening = self.text[self.at : self.at + 1]
        if opening == "[":
            self._list(path)
        elif opening == "{":
            self._inline_table(path)
        elif opening in ('"', "'"):
            self._string(opening)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _list(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self._skip_to_content() and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._skip_to_content() and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._entry(path)
        self.at += 1

    def _string(self, quote: str) -> None:
        triple = quote * 3
        if self.text.startswith(triple, self.at):
            self.at += 3
            while self.at < len(self.text) and not self.text.startswith(triple, self.at):
                self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
            self.at += 3
            while self.text[self.at : self.at + 1] == quote:  # TOML lets a string end in one or two quotes
                self.at += 1
            return
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += 1

    def key(self) -> tuple[str, ...]:
        segments = [self._segment()]
        while True:
            mark = self.at
            self.blanks()
            if self.text[self.at : self.at + 1] != ".":
                self.at = mark
                return tuple(segments)
            self.at += 1
            self.blanks()
            segments.append(self._segment())

    def _segment(self) -> str:
        start = self.at
        if self.text[start : start + 1] in ('"', "'"):
            self._string(self.text[start])
            try:
                return str(tomllib.loads(f"k = {self.text[start : self.at]}")["k"])
            except tomllib.TOMLDecodeError:
                raise ValueError(f"a quoted key is not closed: {self.text[start:]}") from None
        found = _BARE.match(self.text, start)
        if found is None:
            raise ValueError(f"expected a key at {self.text[start:]!r}")
        self.at = found.end()
        return found[0]

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def _skip_to_content(self) -> bool:
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in " \t\r\n":
                self.at += 1
            else:
                return True
        return False

    def _note(self, path: KeyPath, offset: int) -> None:
        if path not in self.positions:
            line = bisect_right(self._starts, offset)
            self.positions[path] = KeyPosition(line=line, column=offset - self._starts[line - 1] + 1)
