"""Patterns of paths: `*` and `?` stay within a level, `**` crosses levels, `[ab]` is a set."""

from __future__ import annotations

import functools
import re

__all__ = ["path_matches"]


def path_matches(pattern: str, path: str) -> bool:
    """Whether a pattern means a leaf: it matches its path, or that of a tree above it.

    Args:
        pattern: such as `encoder`, `head/**` or `**/bias`; `**` stands for any number of levels, also for none.
        path: the keys of the leaf, joined by `/`.
    """
    return _compiled(pattern).fullmatch(path) is not None


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    *above, last = pattern.split("/")
    levels = ["(?:[^/]+/)*" if level == "**" else f"{_level(level)}/" for level in above]
    end = ".+" if last == "**" else _level(last)
    return re.compile(f"{''.join(levels)}{end}(?:/.*)?", re.DOTALL)


def _level(text: str) -> str:
    """The expression for one level of a pattern."""
    found, at = [], 0
    while at < len(text):
        end = text.find("]", at + 2) if text[at] == "[" else -1
        if end > 0:
            negated = text[at + 1] == "!"
            letters = re.sub(r"([\\\[^])", r"\\\1", text[at + 1 + negated : end])
            found.append(f"[{'^' * negated}{letters}]")
            at = end
        else:
            found.append({"*": "[^/]*", "?": "[^/]"}.get(text[at]) or re.escape(text[at]))
        at += 1
    return "".join(found)
