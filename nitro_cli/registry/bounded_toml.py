"""TOML with a bound on its depth: what is deeper costs the parser minutes, and every later reader its stack."""

from __future__ import annotations

import re
import tomllib
from typing import Any

__all__ = ["DEEPEST", "loads"]

DEEPEST = 64
"""How many tables and lists may stand inside each other."""

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*+"|\'[^\'\n]*+\'|#[^\n]*+', re.DOTALL
)
_LONG_KEY = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{DEEPEST}}}")


def loads(text: str) -> dict[str, Any]:
    """Parse TOML text.

    Raises:
        tomllib.TOMLDecodeError: it is not TOML, or something in it is nested more than `DEEPEST` deep.
    """
    # The parser's time grows with the square of a dotted key's length, so that is looked at before.
    bare = _STRINGS_AND_COMMENTS.sub(_blanked, text) if text.count(".") >= DEEPEST else ""
    if long := _LONG_KEY.search(bare):
        line = bare.count("\n", 0, long.start()) + 1
        raise tomllib.TOMLDecodeError(f"a key has more than {DEEPEST} parts (at line {line}, column 1)")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as problem:  # a number of more digits than Python reads
        raise tomllib.TOMLDecodeError(f"{problem} (at end of document)") from None
    except RecursionError:
        raise _too_deep() from None
    if _depth(data) > DEEPEST:
        raise _too_deep()
    return data


def _blanked(found: re.Match[str]) -> str:
    """A string as one short word, so that a key of quoted parts counts its parts; line numbers stay."""
    text = found[0]
    return ("" if text.startswith("#") else "q") + "\n" * text.count("\n")


def _too_deep() -> tomllib.TOMLDecodeError:
    return tomllib.TOMLDecodeError(f"tables and lists are nested more than {DEEPEST} deep (at end of document)")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        inner = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
        level = [item for item in inner if isinstance(item, dict | list)]
        depth += 1
    return depth
