"""Experiment classes of a directory of Python files, found by parsing: nothing is imported."""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BrokenFile", "LocalClass", "find_local_classes"]

_ROOT = "Experiment"
_REQUIRED_HOOKS = frozenset({"build_data", "build_model", "forward", "loss"})

OBJECT_KNOBS = frozenset({"callbacks", "checkpointer", "early_stop", "ema", "logger", "monitor"})
"""The run knobs that hold objects, which are no parts."""

_PLAIN_TYPES = """
    Annotated Any Callable ClassVar Device Enum Field Final GraphConst Host Literal Mapping None Optional Path Private
    Sequence Union bool bytes complex dict float frozenset int list object set str tuple type Array ArrayLike ndarray
"""
_NO_PARTS = frozenset(_PLAIN_TYPES.split())
"""Names in the type of a field that holds no part."""


@dataclass(frozen=True)
class LocalClass:
    """One experiment class of a directory.

    Attributes:
        name: the class's name.
        file: the absolute path of its file.
        line: the line of its `class` statement.
        hidden: why it is not offered (`private`, `abstract`); None when it is.
    """

    name: str
    file: Path
    line: int
    hidden: str | None = None


@dataclass(frozen=True)
class BrokenFile:
    """A file that does not parse, and why."""

    file: Path
    reason: str


@dataclass
class _Class:
    name: str
    module: str
    file: Path
    node: ast.ClassDef
    bases: list[str] = field(default_factory=list)
    """Each base as a full dotted name, in this directory's module names or an imported module's."""


def find_local_classes(
    folder: Path, known: Collection[str] = (), *, recursive: bool = True
) -> tuple[list[LocalClass], list[BrokenFile]]:
    """Find the experiment classes that a directory declares.

    A class counts when one of its bases is called `Experiment`, is a class of the directory that counts, or is one of
    `known`. Classes and files whose name starts with an underscore are private. A class is abstract when it derives
    from `ABC`, declares an abstract method, or serves as a base here while a required hook is still missing that no
    field of it can supply: whether a field holds a part, and which hooks that has, shows only when it is imported.

    Args:
        folder: the directory.
        known: full names (`package.module.Class`) of experiment classes declared elsewhere.
        recursive: whether the folders inside are read too.

    Returns:
        The classes, private and abstract ones marked, and the files that do not parse.
    """
    classes: dict[str, _Class] = {}
    broken: list[BrokenFile] = []
    for file in _python_files(folder, recursive):
        try:
            with tokenize.open(file) as stream:
                tree = ast.parse(stream.read(), filename=str(file))
        except SyntaxError as problem:
            line = f"line {problem.lineno}: " if problem.lineno else ""
            broken.append(BrokenFile(file, f"{line}{problem.msg}"))
        except (OSError, UnicodeDecodeError, ValueError, RecursionError) as problem:
            broken.append(BrokenFile(file, str(problem) or type(problem).__name__))
        else:
            module = _module_name(folder, file)
            for found in _classes_of(tree, module, file, folder.name):
                classes[f"{module}.{found.name}"] = found
    return _experiments(classes, frozenset(known)), broken


def _python_files(folder: Path, recursive: bool) -> list[Path]:
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if recursive and not f.startswith(".") and f != "__pycache__")
        files += [Path(parent, name) for name in sorted(names) if name.endswith(".py") and not name.startswith(".")]
    return files


def _module_name(folder: Path, file: Path) -> str:
    parts = list(file.relative_to(folder).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(["", *parts])


def _classes_of(tree: ast.Module, module: str, file: Path, package: str) -> Iterator[_Class]:
    names: dict[str, str] = {}
    is_package = file.stem == "__init__"
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            source = _import_source(node, module, is_package)
            for alias in node.names:
                names[alias.asname or alias.name] = f"{source}.{alias.name}"
        elif isinstance(node, ast.ClassDef):
            bases = [_resolve(_dotted(base), names, module, package) for base in node.bases]
            names[node.name] = f"{module}.{node.name}"
            yield _Class(node.name, module, file, node, [base for base in bases if base])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements(node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.Try):
            for part in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                yield from _statements(part)


def _import_source(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    drop = node.level - 1 if is_package else node.level
    parts = parts[: max(len(parts) - drop, 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _resolve(dotted: str, names: dict[str, str], module: str, package: str) -> str:
    first, _, rest = dotted.partition(".")
    full = names.get(first, first) + (f".{rest}" if rest else "")
    # `from experiments.base import Base` names the directory itself.
    return full[len(package) :] if full.startswith(f"{package}.") else full


def _experiments(classes: dict[str, _Class], known: frozenset[str]) -> list[LocalClass]:
    by_name: dict[str, list[str]] = {}
    for full, found in classes.items():
        by_name.setdefault(found.name, []).append(full)

    def local_base(base: str) -> str | None:
        if base in classes:
            return base
        # Re-exported by a package of the directory (".Base"), or come by a star import ("Base").
        inside = base.startswith(".") or "." not in base
        same_name = by_name.get(base.rpartition(".")[2], [])
        return same_name[0] if inside and len(same_name) == 1 else None

    def ancestors(full: str, seen: frozenset[str] = frozenset()) -> tuple[bool, set[str], bool]:
        """Whether it is an experiment, the hooks its chain defines, and whether every base of the chain is known."""
        found = classes[full]
        is_experiment, complete = False, True
        hooks = set(_REQUIRED_HOOKS) if _may_hold_part(found.node) else _hooks_of(found.node)
        for base in found.bases:
            if base.rpartition(".")[2] == _ROOT:
                is_experiment = True
                continue
            parent = local_base(base)
            if base in known:
                is_experiment, complete = True, False
            elif parent is not None and parent != full and parent not in seen:
                inherited = ancestors(parent, seen | {full})
                is_experiment |= inherited[0]
                hooks |= inherited[1]
                complete &= inherited[2]
            else:
                complete = False
        return is_experiment, hooks, complete

    used_as_base = {local_base(base) for found in classes.values() for base in found.bases}
    result = []
    for full, found in classes.items():
        is_experiment, hooks, complete = ancestors(full)
        if not is_experiment:
            continue
        unfinished = full in used_as_base and complete and not hooks >= _REQUIRED_HOOKS
        hidden = _hidden(found, unfinished)
        result.append(LocalClass(found.name, found.file, found.node.lineno, hidden))
    return result


def _hooks_of(node: ast.ClassDef) -> set[str]:
    """The names that a class statement defines, or assigns something else than None."""
    names = {statement.name for statement in node.body if isinstance(statement, ast.FunctionDef)}
    for statement in node.body:
        if isinstance(statement, ast.Assign) and not _is_none(statement.value):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return names


def _may_hold_part(node: ast.ClassDef) -> bool:
    """Whether a field of a class may hold a part: its type is no plain one, or its default is made by a call."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if _names_in(statement.annotation) - _NO_PARTS and statement.target.id not in OBJECT_KNOBS:
                return True
        elif isinstance(statement, ast.Assign):
            targets = {target.id for target in statement.targets if isinstance(target, ast.Name)}
            values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            if targets - OBJECT_KNOBS - _REQUIRED_HOOKS and any(isinstance(value, ast.Call) for value in values):
                return True
    return False


def _names_in(node: ast.expr) -> set[str]:
    """The last names of the types in an annotation, quoted ones included."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal")):
            return set()
        case ast.Constant(value=str(text)):
            try:
                return _names_in(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return set()
    inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return {name for child in inner for name in _names_in(child)}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _hidden(found: _Class, unfinished: bool) -> str | None:
    stem = found.file.stem
    if found.name.startswith("_") or (stem.startswith("_") and stem != "__init__"):
        return "private"
    abc_base = any(base.rpartition(".")[2] == "ABC" for base in found.bases)
    abc_meta = any(k.arg == "metaclass" and _dotted(k.value).endswith("ABCMeta") for k in found.node.keywords)
    methods = [node for node in found.node.body if isinstance(node, ast.FunctionDef)]
    decorators = [_dotted(d).rpartition(".")[2] for node in methods for d in node.decorator_list]
    return "abstract" if abc_base or abc_meta or unfinished or "abstractmethod" in decorators else None
