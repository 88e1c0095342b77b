"""What the source of an experiment says: where it is, and the documentation strings and lines of its fields."""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["FieldSource", "field_sources", "source_facts"]


@dataclass(frozen=True)
class FieldSource:
    """Where a field is written (line, from 1) and the string under it."""

    line: int
    doc: str | None


def field_sources(filename: str, line: int, qualname: str) -> dict[str, FieldSource]:
    """The fields that a class statement writes.

    Args:
        filename: the file of the class statement, as its code object names it; also a notebook cell.
        line: the line of the class statement, which tells classes of one name apart.
        qualname: the class's qualified name.

    Returns:
        Name to source; empty when the source is not available or no longer holds the class.
    """
    # checkcache forgets a file that changed since; linecache also holds notebook cells.
    linecache.checkcache(filename)
    return _parsed("".join(linecache.getlines(filename)), line, qualname.rsplit(".", 1)[-1])


@lru_cache(maxsize=256)
def _parsed(text: str, line: int, name: str) -> dict[str, FieldSource]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    if not named:
        return {}
    # Where the file was edited after its import, the class of this name nearest to the old line is the best guess.
    found = min(named, key=lambda node: min(abs(line - first) for first in (node.lineno, _first_line(node))))
    return _fields(found)


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _fields(node: ast.ClassDef) -> dict[str, FieldSource]:
    found: dict[str, FieldSource] = {}
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        elif isinstance(statement, ast.Assign):
            names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
        else:
            continue
        doc = None
        if (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            doc = inspect.cleandoc(following.value.value)
        for name in names:
            found[name] = FieldSource(statement.lineno, doc)
    return found


def source_facts(cls: type[Any]) -> dict[str, Any]:
    """Where a class was defined and the digest of that text.

    Returns:
        `file` and `sha256`. A class of a notebook cell, a prompt, `python -c` or `exec` has no file: `file` is None,
        `why` says so, and `sha256` is that of the cell's text where Python keeps it, else None.
    """
    written, line = cls.__nitro_source__
    if not written.startswith("<"):
        for file in (written, getattr(sys.modules.get(cls.__module__), "__file__", None)):
            if file and Path(file).is_file():
                return {
                    "file": str(Path(file).resolve()),
                    "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest(),
                }
    text = "".join(linecache.getlines(written))
    if text:
        why = f"line {line} of a notebook cell or a prompt ({written}), not of a file"
        return {"file": None, "sha256": hashlib.sha256(text.encode()).hexdigest(), "why": why}
    how = "by python -c, from standard input or by exec" if written.startswith("<") else f"in {written}, which is gone"
    return {"file": None, "sha256": None, "why": f"it was defined {how}: there is no file"}
