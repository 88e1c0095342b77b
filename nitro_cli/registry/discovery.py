"""Finding experiments by name, importing nothing."""

from __future__ import annotations

import os
import re
import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, ExperimentNotFoundError, nearest
from nitro_cli.registry.importing import LOCAL_FOLDER, find_module_file, import_path_of, load_class, split_import_path
from nitro_cli.registry.local_classes import LocalClass, find_local_classes
from nitro_cli.registry.plugins import ENTRY_POINT_GROUP, Plugin, find_plugins
from nitro_cli.registry.toml_text import read_toml
from nitro_cli.text import declared_entries, normalized, user_path

__all__ = [
    "ExperimentRef",
    "distribution_of",
    "find_experiment",
    "list_experiments",
    "module_below",
    "offered",
    "offered_as",
    "ref_of",
]


@dataclass(frozen=True)
class ExperimentRef:
    """An experiment that was found, not yet imported.

    Attributes:
        name: the name it is called by.
        source: `local` (the working directory's `experiments/`), `plugin`, `file`, `module`, or `class`.
        import_path: `module:Class` or `/path/file.py:Class`.
        distribution: the distribution of a plugin.
        error: why it cannot be used; None when nothing speaks against it.
        file: the file that declares it.
        line: the line of its `class` statement, for a local one.
        loaded: the class, where it is imported already.
    """

    name: str
    source: str
    import_path: str
    distribution: str | None = None
    error: str | None = None
    file: Path | None = None
    line: int | None = None
    loaded: type[Any] | None = None

    @property
    def class_name(self) -> str:
        """The name of its class, which run directories and preset folders carry."""
        return split_import_path(self.import_path)[1] or self.name

    @property
    def qualified(self) -> str:
        """A name that no other experiment has: `distribution:Name`, or the path form."""
        if self.source == "plugin":
            return f"{self.distribution}:{self.name}"
        if self.file is not None and self.source in ("local", "file"):
            relative = os.path.relpath(self.file)
            return f"{self.file if relative.startswith('..') else relative}:{self.class_name}"
        return self.import_path

    @property
    def described(self) -> str:
        """Where it comes from, for people."""
        if self.source == "plugin":
            return f"{self.import_path} of distribution {self.distribution}"
        place = f"{self.file}:{self.line}" if self.line else str(self.file or self.import_path)
        return f"{self.source} {place}"

    def load(self, cwd: Path | None = None) -> type[Any]:
        """Import the class.

        Args:
            cwd: for the `module` form, a folder whose modules may be imported too.

        Raises:
            ExperimentNotFoundError: module, file or class do not exist.
            ConfigError: the import fails; the exception is the cause.
        """
        if self.loaded is not None:
            return self.loaded
        owner = f" of distribution {self.distribution}" if self.distribution else ""
        label = f"experiment {self.name}{owner}"
        if self.error is not None:
            fix = f"reinstall or repair {self.distribution}" if self.distribution else f"correct {self.file}"
            raise ExperimentNotFoundError(f"{label} is broken", where=self.described, why=self.error, fix=fix)
        return load_class(self.import_path, what=label, cwd=(cwd or Path.cwd()) if self.source == "module" else None)


def ref_of(cls: type[Any]) -> ExperimentRef:
    """The reference of a class that is already imported.

    Raises:
        ConfigError: it is no class of an experiment.
    """
    if not isinstance(cls, type) or not hasattr(cls, "__nitro_kinds__"):
        what = f"an object of the class {type(cls).__name__}" if hasattr(cls, "__nitro_kinds__") else reprlib.repr(cls)
        raise ConfigError(
            f"{what} is no class of an experiment", fix="give the class: MyExperiment, not MyExperiment()"
        )
    path = import_path_of(cls)
    source, _, is_file = split_import_path(path)
    file = Path(source) if is_file else _file_of(cls)
    return ExperimentRef(cls.__name__, "class", path, file=file, loaded=cls)


def _file_of(cls: type[Any]) -> Path | None:
    """The file that declares an imported class; None when there is none, as in an interactive session."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file else None


def list_experiments(cwd: Path | None = None, env: Mapping[str, str] = os.environ) -> list[ExperimentRef]:
    """List the experiments of the working directory and of the installed plugins, by name.

    Names come from package metadata and from parsing files; nothing is imported. What is broken is listed with its
    `error`. A plugin that is the same code as a local class is left out: the local one stands for it (see
    `_same_code`).

    Args:
        cwd: the working directory.
        env: where `NITRO_NO_PLUGINS` is looked up.
    """
    local, plugins, _ = _found(cwd or Path.cwd(), env)
    return sorted([*local, *plugins], key=lambda ref: (ref.name.casefold(), ref.source, ref.qualified))


def _found(cwd: Path, env: Mapping[str, str]) -> tuple[list[ExperimentRef], list[ExperimentRef], list[LocalClass]]:
    """Local references, the plugins beside them, and the local classes that are not offered."""
    plugins = find_plugins(env)
    folder = cwd.absolute() / LOCAL_FOLDER
    if not folder.is_dir():
        return [], [_plugin_ref(plugin) for plugin in plugins], []
    known = [plugin.import_path.replace(":", ".") for plugin in plugins]
    classes, broken = find_local_classes(folder, known)
    refs = [
        ExperimentRef(c.name, "local", f"{c.file}:{c.name}", file=c.file, line=c.line)
        for c in classes
        if c.hidden is None
    ]
    project = _project_name(cwd)
    others = [_plugin_ref(p) for p in plugins if not any(_same_code(p, ref, folder, project) for ref in refs)]
    for bad in broken:
        name = str(bad.file.relative_to(cwd.absolute()))
        refs.append(ExperimentRef(name, "local", str(bad.file), error=f"does not parse: {bad.reason}", file=bad.file))
    return refs, others, [c for c in classes if c.hidden is not None]


def offered(cwd: Path, env: Mapping[str, str] = os.environ) -> tuple[list[ExperimentRef], list[ExperimentRef]]:
    """The experiments of the working directory, and those of the plugins beside them."""
    local, plugins, _ = _found(cwd, env)
    return local, plugins


def offered_as(cls: type[Any], cwd: Path, env: Mapping[str, str] = os.environ) -> ExperimentRef | None:
    """What an imported class is offered as in a working directory; None where it is not."""
    own = import_path_of(cls)
    source, _, is_file = split_import_path(own)
    if is_file:
        possible = Path(source).is_relative_to(cwd.absolute() / LOCAL_FOLDER)
    else:
        possible = any(entry.import_path == own for entry in declared_entries(ENTRY_POINT_GROUP, env))
    if not possible:  # parsing what the directory holds takes longer
        return None
    local, plugins = offered(cwd, env)
    return next((ref for ref in (*local, *plugins) if ref.import_path == own), None)


def distribution_of(ref: ExperimentRef, cwd: Path) -> str | None:
    """The distribution that an experiment is of, by its normalized name: a plugin's, or the checkout it lies in."""
    if ref.distribution is not None:
        return normalized(ref.distribution)
    return _project_name(cwd) if ref.source == "local" else None


def _plugin_ref(plugin: Plugin) -> ExperimentRef:
    return ExperimentRef(
        plugin.name, "plugin", plugin.import_path, plugin.distribution, error=plugin.error, file=plugin.file
    )


def _same_code(plugin: Plugin, ref: ExperimentRef, folder: Path, project: str | None) -> bool:
    """Whether a plugin is the local class under its installed name.

    So it is when both have one file (an editable install), or when the working directory is the checkout of the
    plugin's distribution and the module's path inside its package is the class's path inside `experiments/`.
    """
    module, _, name = plugin.import_path.partition(":")
    if ref.file is None or name != ref.class_name:
        return False
    if plugin.file is not None and plugin.file.exists() and os.path.samefile(plugin.file, ref.file):
        return True
    inside = ".".join(ref.file.relative_to(folder).with_suffix("").parts)
    return project == normalized(plugin.distribution) and module.partition(".")[2] == inside


def _project_name(cwd: Path) -> str | None:
    file = cwd / "pyproject.toml"
    if not file.is_file():
        return None
    try:
        project = read_toml(file).data.get("project")
    except ConfigError:
        return None  # whoever needs the file says what is wrong with it
    name = project.get("name") if isinstance(project, dict) else None
    return normalized(name) if isinstance(name, str) else None


def find_experiment(name: str, cwd: Path | None = None, env: Mapping[str, str] = os.environ) -> ExperimentRef:
    """Find one experiment.

    Args:
        name: `Name`; `distribution:Name`; `package.module:Class`; `path/to/file.py:Class`, or the file alone when it
            declares exactly one experiment.
        cwd: the working directory, which relative paths and `experiments/` are looked up in.
        env: where `NITRO_NO_PLUGINS` is looked up.

    Returns:
        The reference; a broken experiment is returned too, and `load` says what is wrong with it.

    Raises:
        ExperimentNotFoundError: there is none, or several; the nearest names or the qualified forms are given.
    """
    cwd = (cwd or Path.cwd()).absolute()
    source, class_name, is_file = split_import_path(name)
    if is_file:
        return _from_file(cwd / user_path(source), class_name, name)
    local, plugins, hidden = _found(cwd, env)
    if class_name is not None:
        return _qualified(name, source, class_name, plugins, cwd)
    matches = [ref for ref in (*local, *plugins) if ref.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ExperimentNotFoundError(
            f"{len(matches)} experiments are called {name}",
            where="; ".join(ref.described for ref in matches),
            why="a name must mean one experiment",
            fix="write " + " or ".join(ref.qualified for ref in matches),
        )
    raise _not_found(name, [*local, *plugins], hidden, cwd)


def _not_found(
    name: str, refs: Sequence[ExperimentRef], hidden: Sequence[LocalClass], cwd: Path
) -> ExperimentNotFoundError:
    aside = next((c for c in hidden if c.name == name), None)
    if aside is not None:
        return ExperimentNotFoundError(
            f"{name} is {aside.hidden} and is not offered by name",
            where=f"{aside.file}:{aside.line}",
            fix=f"to use it all the same, write {os.path.relpath(aside.file, cwd)}:{name}",
        )
    names = [ref.name for ref in refs if ref.import_path and ref.error is None]
    broken = "; ".join(f"{ref.name}: {ref.error}" for ref in refs if ref.error is not None)
    return ExperimentNotFoundError(
        f"there is no experiment {name}",
        where=f"{cwd / LOCAL_FOLDER} and the installed plugins",
        why=f"broken ones: {broken}" if broken else None,
        nearest=nearest(name, names),
        fix="nitro list shows what there is; a file is named path/to/file.py:Class",
    )


def _from_file(file: Path, class_name: str | None, text: str) -> ExperimentRef:
    file = Path(os.path.normpath(file))
    if not file.is_file():
        beside = [f.name for f in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ExperimentNotFoundError(
            f"there is no file {file}",
            where=text,
            nearest=nearest(file.name, beside),
            fix="give the path of a Python file",
        )
    if class_name is not None:
        return ExperimentRef(class_name, "file", f"{file}:{class_name}", file=file)
    classes, broken = find_local_classes(file.parent, recursive=False)
    reasons = [bad.reason for bad in broken if bad.file == file]
    if reasons:
        return ExperimentRef(text, "file", str(file), error=f"does not parse: {reasons[0]}", file=file)
    own = [c for c in classes if c.file == file and not c.name.startswith("_")]
    offered = [c for c in own if c.hidden != "abstract"]
    if len(offered) != 1:
        names = ", ".join(c.name for c in own)
        raise ExperimentNotFoundError(
            f"{text} does not name one experiment",
            where=str(file),
            why=f"it declares {names}" if names else "it declares no class derived from Experiment",
            fix=f"write {text}:NAME",
        )
    only = offered[0]
    return ExperimentRef(only.name, "file", f"{file}:{only.name}", file=file, line=only.line)


def _qualified(text: str, source: str, class_name: str, plugins: Sequence[ExperimentRef], cwd: Path) -> ExperimentRef:
    owned = [ref for ref in plugins if ref.distribution and normalized(ref.distribution) == normalized(source)]
    for ref in owned:
        if ref.name == class_name:
            return ref
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", source):
        file = find_module_file(source) or module_below(cwd, source)
        if file is not None:
            return ExperimentRef(class_name, "module", f"{source}:{class_name}", file=file)
    owners = {ref.distribution for ref in plugins if ref.distribution}
    why = f"distribution {owned[0].distribution} declares {', '.join(ref.name for ref in owned)}" if owned else None
    raise ExperimentNotFoundError(
        f"there is no experiment {text}",
        where=text,
        why=why or f"there is neither a module nor a distribution with experiments called {source}",
        nearest=[f"{source}:{n}" for n in nearest(class_name, [r.name for r in owned])] or nearest(source, owners),
        fix="write package.module:Class, distribution:Name, or path/to/file.py:Class",
    )


def module_below(cwd: Path, module: str) -> Path | None:
    """The file of a module that lies in a folder, found without importing anything; None when there is none."""
    base = cwd.joinpath(*module.split("."))
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.is_file():
            return file
    return None
