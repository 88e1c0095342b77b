"""Saying what differs between two programs, for a recompile that nobody expected."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from nitro_cli.programs.identity import Identity

__all__ = ["explain"]

_LISTED = 4
_LINE = 160


def explain(old: Identity, new: Identity) -> str:
    """Name what differs: arguments by path, structure, results, options, platform, else the first differing line."""
    found = [
        *_of_mappings("argument", old.leaves, new.leaves),
        *_of_mappings("compile option", old.options, new.options),
        *(
            f"{after} (was {before})"
            for before, after in zip(old.platform, new.platform, strict=False)
            if before != after
        ),
    ]
    if not found and old.in_tree != new.in_tree:
        found.append("the structure of the arguments")
    found += _of_results(old, new)
    if found:
        more = len(found) - _LISTED
        return "; ".join(found[:_LISTED]) + (f"; and {more} more" if more > 0 else "")
    if old.text_digest != new.text_digest:
        return _of_texts(old.text(), new.text())
    if old.has_callback or new.has_callback:
        return "nothing differs, but the program calls back into Python and is compiled anew for each handle"
    return "nothing differs"


def _of_mappings(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"{what} {name} is gone (was {old[name]})"
        elif name not in old:
            yield f"{what} {name} is new ({new[name]})"
        elif old[name] != new[name]:
            yield f"{what} {name} is {new[name]} (was {old[name]})"


def _of_results(old: Identity, new: Identity) -> Iterator[str]:
    if old.out_tree != new.out_tree:
        yield "the structure of the results"
    elif old.results != new.results:
        changed = next((i for i, pair in enumerate(zip(old.results, new.results, strict=True)) if pair[0] != pair[1]))
        yield f"result {changed} is {new.results[changed]} (was {old.results[changed]})"


def _of_texts(old: str, new: str) -> str:
    lines = itertools.zip_longest(old.splitlines(), new.splitlines(), fillvalue="(nothing)")
    for number, (before, after) in enumerate(lines, start=1):
        if before != after:
            return f"line {number} of the program is `{_short(after)}` (was `{_short(before)}`)"
    return "the program's text, beyond the part that is kept"


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LINE else line[:_LINE] + "..."
