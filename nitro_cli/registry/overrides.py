"""The grammar of `--set key.path=value` and `--unset key.path`."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nitro_cli.errors import ConfigError
from nitro_cli.registry import bounded_toml
from nitro_cli.registry.toml_text import format_key_path, split_key_path

__all__ = ["Override", "as_text", "ordered", "parse_set", "parse_unset", "parse_value"]

_OPENERS = ('"', "'", "[", "{")


@dataclass(frozen=True)
class Override:
    """One `--set` or `--unset`.

    Attributes:
        path: the segments of the dotted key.
        value: the TOML value; None for an unset.
        text: the words of the command line, for messages and origins.
    """

    path: tuple[str, ...]
    value: Any
    text: str

    @property
    def removes(self) -> bool:
        """Whether this is an `--unset`."""
        return self.value is None


def parse_value(text: str, where: str) -> Any:
    """Read one value: TOML where it is TOML, a string where it is a bare word.

    `3e-4`, `true`, `"a b"`, `[1, 2]`, `{ patience = 5 }` and dates are TOML; `best(3)`, `yes` and `runs/x` are
    strings. Text that opens a string, list or table must close it.

    Args:
        text: the value as written.
        where: the option or variable, for messages.

    Raises:
        ConfigError: the value is empty, or an opened string, list or table is not valid TOML.
    """
    word = text.strip()
    if not word:
        raise ConfigError(f"{where} has no value", where=where, fix='write "" for an empty string, --unset for none')
    try:
        value = bounded_toml.loads(f"value = {word}")["value"]
        # In brackets neither a trailing comment nor a second statement parses: such text is a bare word.
        bounded_toml.loads(f"value = [{word}]")
        return value
    except tomllib.TOMLDecodeError as problem:
        if word.startswith(_OPENERS):
            raise ConfigError(
                f"the value of {where} is not valid TOML",
                where=where,
                why=str(problem).split(" (at ")[0],
                fix=f"close what is opened, with nothing after it; as text it is {as_text(where, word)}",
            ) from problem
    return word


def as_text(written: str, word: str) -> str:
    """How a shell is told that a value is text, also where it reads as another TOML value: `--set 'tag="1e5"'`.

    Args:
        written: the option or variable with its value, or the variable alone.
        word: the value as it was written.
    """
    option, space, assignment = written.partition(" ")
    key = (assignment if space else option).partition("=")[0]
    string = json.dumps(word, ensure_ascii=False)
    return f"{option} {shlex.quote(f'{key}={string}')}" if space else f"{key}={shlex.quote(string)}"


def parse_set(text: str) -> Override:
    """Parse the words after `--set`: `width=256`, `early_stop.patience=3`, `schedules.learning_rate.peak=3e-4`.

    Raises:
        ConfigError: there is no `=`, the key is not a dotted TOML key, or the value is not one.
    """
    option = f"--set {text}"
    try:
        path, rest = split_key_path(text)
    except ValueError as problem:
        raise ConfigError(
            f"{option} is not key=value", where=option, why=str(problem), fix="write --set key=value or --set a.b=value"
        ) from None
    if not rest.startswith("="):
        fix = f"write --set {format_key_path(path)}=VALUE; none is --unset {format_key_path(path)}"
        raise ConfigError(f"{option} is not key=value", where=option, why="there is no = after the key", fix=fix)
    return Override(path=path, value=parse_value(rest[1:], option), text=option)


def parse_unset(text: str, option: str = "--unset") -> Override:
    """Parse the words after `--unset`: one dotted key.

    Raises:
        ConfigError: the text is not a dotted TOML key.
    """
    shown = f"{option} {text}"
    try:
        path, rest = split_key_path(text)
    except ValueError as problem:
        raise ConfigError(
            f"{shown} is not a key", where=shown, why=str(problem), fix="write a key, as in a.b"
        ) from None
    if rest:
        raise ConfigError(f"{shown} is not a key", where=shown, why=f"{rest!r} follows it", fix="give the key alone")
    return Override(path=path, value=None, text=shown)


def ordered(sets: Iterable[str], unsets: Iterable[str]) -> list[Override]:
    """Put the overrides of one command line in the order in which they apply.

    `--set` applies in the order written, a later one winning. An `--unset` comes last, except before a `--set` of
    something inside it, so that `--unset a --set a.b=1` starts `a` from its defaults.

    Raises:
        ConfigError: a word does not parse, or one key is both set and unset.
    """
    setting = [parse_set(text) for text in sets]
    removing = [parse_unset(text) for text in unsets]
    written = {override.path: override for override in setting}
    before: list[Override] = []
    after: list[Override] = []
    for override in removing:
        if override.path in written:
            raise ConfigError(
                f"{format_key_path(override.path)} is both set and unset",
                where=f"{written[override.path].text}, {override.text}",
                fix="keep one of the two",
            )
        inside = any(path[: len(override.path)] == override.path for path in written)
        (before if inside else after).append(override)
    return [*before, *setting, *after]
