"""Importing an experiment class from a module name or a file, when it is used and not before."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from nitro_cli.errors import ConfigError, ExperimentNotFoundError, nearest
from nitro_cli.installation import install_command
from nitro_cli.registry.worker_imports import share_with_workers
from nitro_cli.text import exception_text

__all__ = [
    "LOCAL_FOLDER",
    "LOCAL_PREFIX",
    "find_module_file",
    "import_path_of",
    "load_class",
    "load_file",
    "package_root",
    "split_import_path",
]

LOCAL_FOLDER = "experiments"

LOCAL_PREFIX = "_nitro_local_"
_FILE_FORM = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[^:/\\]+))?")


def split_import_path(text: str) -> tuple[str, str | None, bool]:
    """Split `package.module:Class` or `path/to/file.py:Class`.

    Returns:
        The module or file, the class's name (None when it is not given), and whether the first is a file.
    """
    found = _FILE_FORM.fullmatch(text)
    if found:
        return found["file"], found["name"], True
    module, _, name = text.partition(":")
    return module, name or None, False


def package_root(file: Path) -> Path:
    """The folder that a file's relative imports reach up to.

    The topmost package around the file; at least the nearest folder above it that is called `experiments`; else the
    file's own folder.
    """
    root = file.absolute().parent
    while (root / "__init__.py").is_file() and (root.parent / "__init__.py").is_file():
        root = root.parent
    return next((f for f in (root, *root.parents) if f.name == LOCAL_FOLDER), root)


def find_module_file(module: str) -> Path | None:
    """The file a module would be imported from, found without importing anything; None when there is none."""
    first, *rest = module.split(".")
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(first)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            # By its last name alone: a folder without __init__.py would look for its parent among what is imported.
            spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if spec.origin and spec.origin not in ("built-in", "frozen"):
        return Path(spec.origin)
    locations = list(spec.submodule_search_locations or ())
    return Path(locations[0]) if locations else None


def load_file(file: Path) -> ModuleType:
    """Import a file under a module name of its own, with the files around it reachable by relative imports.

    The name is made of the folder's absolute path, so it never collides with an installed package, and the same file
    is imported once per process however it was named.

    Raises:
        ExperimentNotFoundError: there is no such file.
        Exception: whatever the file raises; a half-imported module is forgotten.
    """
    file = file.absolute()
    if not file.is_file():
        raise ExperimentNotFoundError(f"there is no file {file}", where=str(file), fix="give the path of a Python file")
    root = package_root(file)
    package = LOCAL_PREFIX + hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    parts = list(file.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    before = set(sys.modules)
    share_with_workers(package, root)
    try:
        _load_package(package, root)
        name = package
        for depth, part in enumerate(parts[:-1]):
            name = f"{name}.{_identifier(part)}"
            _load_package(name, root.joinpath(*parts[: depth + 1]))
        return _load_module(f"{name}.{_identifier(parts[-1])}", file) if parts else sys.modules[package]
    except BaseException:
        for new in set(sys.modules) - before:
            if new == package or new.startswith(f"{package}."):
                del sys.modules[new]
        raise


def _identifier(stem: str) -> str:
    if stem.isidentifier():
        return stem
    return f"{re.sub(r'[^0-9a-zA-Z]', '_', stem)}_{hashlib.sha256(os.fsencode(stem)).hexdigest()[:6]}"


def _load_package(name: str, folder: Path) -> None:
    if name in sys.modules:
        return
    init = folder / "__init__.py"
    if init.is_file():
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
        assert spec is not None
        _execute(spec)
        return
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    _attach(name, module)


def _load_module(name: str, file: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    return _execute(spec)


def _execute(spec: ModuleSpec) -> ModuleType:
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    _attach(spec.name, module)
    return module


def _attach(name: str, module: ModuleType) -> None:
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


def load_class(import_path: str, *, what: str | None = None, cwd: Path | None = None) -> type[Any]:
    """Import the experiment class an import path names.

    Args:
        import_path: `package.module:Class` or `path/to/file.py:Class`.
        what: how messages call it; the import path when None.
        cwd: a folder whose modules may be imported too, after everything installed.

    Raises:
        ExperimentNotFoundError: there is no such module, file or class.
        ConfigError: the module fails to import (its exception is the cause), or the name is not an experiment class.
    """
    source, name, is_file = split_import_path(import_path)
    label = what or import_path
    if cwd is not None and not is_file and str(cwd) not in sys.path:
        sys.path.append(str(cwd))
    try:
        module = load_file(Path(source)) if is_file else importlib.import_module(source)
    except ExperimentNotFoundError:
        raise
    except ModuleNotFoundError as problem:
        if not is_file and problem.name and (source == problem.name or source.startswith(f"{problem.name}.")):
            raise ExperimentNotFoundError(
                f"{label} cannot be found", where=import_path, why=f"there is no module {problem.name}"
            ) from problem
        raise _import_failure(label, import_path, problem) from problem
    except (Exception, SystemExit, GeneratorExit) as problem:
        raise _import_failure(label, import_path, problem) from problem
    return _experiment_in(module, name, label, import_path)


def _import_failure(label: str, import_path: str, problem: BaseException) -> ConfigError:
    fix = "correct the module; --debug shows the traceback"
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        missing, folder = problem.name.split(".")[0], Path(split_import_path(import_path)[0]).parent
        if missing == LOCAL_FOLDER:
            fix = "import the files of one directory relatively: from .base import Base"
        elif (folder / f"{missing}.py").is_file() or (folder / missing).is_dir():
            fix = f"import the files of one directory relatively: from .{missing} import ..."
        else:
            fix = install_command(missing) or f"install what provides {missing!r}"
    why = exception_text(problem).rstrip(": ")
    return ConfigError(f"{label} cannot be imported", where=import_path, why=why, fix=fix)


def _experiment_in(module: ModuleType, name: str | None, label: str, import_path: str) -> type[Any]:
    from nitro_cli.experiment import Experiment

    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Experiment) and value.__module__ == module.__name__
    }
    if name is None:
        public = [value for key, value in own.items() if not key.startswith("_")]
        if len(public) == 1:
            return public[0]
        many = f"it declares {', '.join(sorted(own))}" if own else "it declares no experiment class"
        raise ExperimentNotFoundError(
            f"{label} does not name one experiment", where=import_path, why=many, fix=f"write {import_path}:NAME"
        )
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ExperimentNotFoundError(
            f"{label} cannot be found",
            where=import_path,
            why=f"the module has no class {name}",
            nearest=nearest(name, own),
        )
    if not (isinstance(found, type) and issubclass(found, Experiment)):
        raise ConfigError(
            f"{label} is not an experiment",
            where=import_path,
            why=f"{name} is not a subclass of nitro_cli.Experiment",
            nearest=nearest(name, own),
        )
    return found


def import_path_of(cls: type[Any]) -> str:
    """The text that names a class so that another process in another folder can import it.

    `module:Class` for what is importable by name; the absolute path of the file for a class from a local directory
    or a script. A class of a notebook cell or of `python -c` is `__main__:Class`, which only its own process imports.
    """
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file and file.endswith(".py") and (cls.__module__ == "__main__" or cls.__module__.startswith(LOCAL_PREFIX)):
        return f"{Path(file).absolute()}:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"
