"""The experiment that a run, a checkpoint or a bundle names, found among what this machine offers.

No file decides what is imported. An artefact names an experiment as the registry calls it, and the distribution that
it came from. A run's own configuration also says where the code of an experiment lay that the registry does not
offer: a file or module of the project that the run was made in, and it is looked for in the working directory alone.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, ExperimentNotFoundError, NitroWarning, nearest, warn
from nitro_cli.registry.artefact_places import artefact_around
from nitro_cli.registry.discovery import (
    ExperimentRef,
    distribution_of,
    find_experiment,
    module_below,
    offered,
    offered_as,
    ref_of,
)
from nitro_cli.registry.importing import (
    LOCAL_FOLDER,
    LOCAL_PREFIX,
    find_module_file,
    import_path_of,
    split_import_path,
)
from nitro_cli.registry.toml_text import read_toml
from nitro_cli.text import normalized, read_regular

__all__ = [
    "code_to_name",
    "experiment_table",
    "found_by_record",
    "named_experiment",
    "recorded_experiment",
    "relative_source",
]


def relative_source(cls: type[Any]) -> str:
    """How a class is imported, without a path of this machine: `module:Class`, or `folder/file.py:Class`.

    A file is relative to the working directory; one that lies elsewhere is told by its name alone.
    """
    path = import_path_of(cls)
    source, name, is_file = split_import_path(path)
    if not is_file:
        return path
    relative = _below(Path(source), Path.cwd())
    return f"{Path(source).name if relative is None else relative.as_posix()}:{name}"


def _below(file: Path, folder: Path) -> Path | None:
    inside = os.path.relpath(file, folder)
    return None if inside.split(os.sep)[0] == os.pardir or os.path.isabs(inside) else Path(inside)


def experiment_table(cls: type[Any], *, exported: bool) -> dict[str, str]:
    """The `[experiment]` table that finds a class again: `name`, `distribution`, and for a run itself `source`.

    Args:
        cls: the experiment's class.
        exported: whether the table leaves the run, so that it may only name what a registry offers.
    """
    own, ref = import_path_of(cls), offered_as(cls, Path.cwd())
    table = {"name": cls.__name__ if ref is None else ref.name}
    owner = None if ref is None else distribution_of(ref, Path.cwd())
    if owner is not None:
        table["distribution"] = owner
    if not exported:
        table["cwd"] = str(Path.cwd())
        if ref is None and "<locals>" not in own:
            table["source"] = relative_source(cls)
    return table


def found_by_record(cls: type[Any]) -> bool:
    """Whether a run of the class, used from this working directory, finds its code by what the run records.

    It does not find a file or a module that lies elsewhere: a person must name it then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        try:
            ref = recorded_experiment(experiment_table(cls, exported=False), Path("config.toml"))
        except ExperimentNotFoundError:
            return False
    # What this process has imported, the next one has not.
    return ref.source != "class" and ref.import_path == import_path_of(cls)


def code_to_name(config: Path) -> str | None:
    """What a person must name as the code of a run, `path/to/file.py:Class`; None where it is found from here.

    Raises:
        ConfigError, IntegrityError: the run's configuration cannot be read, or names no experiment.
    """
    table = read_toml(config, follow=False).data.get("experiment") or {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        try:
            recorded_experiment(table, config)
        except ExperimentNotFoundError:
            source = table.get("source")
            return _shown_code(str(table["name"]), source if isinstance(source, str) else None)
    return None


def named_experiment(text: str) -> ExperimentRef:
    """The experiment that a person names for an artefact, which may lie anywhere.

    Raises:
        ExperimentNotFoundError: there is none.

    Warns:
        NitroWarning: its code lies in a run, a bundle or a pack.
    """
    ref = find_experiment(text)
    around = None if ref.file is None else artefact_around(ref.file)
    if around is not None:
        warn(f"{ref.file}, which lies in {around}, is run as code, as --experiment says")
    return ref


def recorded_experiment(table: Mapping[str, Any], where: Path) -> ExperimentRef:
    """Find what an `[experiment]` table names. Nothing is imported.

    Args:
        table: of a configuration; `import` is that of format 1.
        where: the configuration's file.

    Raises:
        ConfigError: the table names no experiment.
        ExperimentNotFoundError: this machine offers none of the name, or only inside a run, a bundle or a pack.

    Warns:
        NitroWarning: it is not the code that the file says it was.
    """
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where} names no experiment", where=f"{where}: [experiment]", why="it has no name")
    distribution, source = table.get("distribution"), table.get("source") or _source_of_format_1(table)
    owner = distribution if isinstance(distribution, str) else None
    inside: list[str] = []
    if isinstance(source, str):
        ref = _in_project(name, source, inside)
        if ref is not None:
            return ref
    ref = _by_name(name, owner, inside)
    if ref is None:
        raise _not_found(name, owner, source if isinstance(source, str) else None, inside, where)
    held = distribution_of(ref, Path.cwd())
    told = None
    if isinstance(source, str) and table.get("import") is None:
        told = f"{source}, which {where} names, is not used: {name} is {ref.described}"
    elif owner is not None and held != normalized(owner):
        told = f"{where} was made with {name} of {owner}; taken is that of {held or ref.described}"
    if told is not None:
        warn(told)
    return ref


def _source_of_format_1(table: Mapping[str, Any]) -> str | None:
    """What an import path of format 1 is without the folder that the run was made in."""
    path, folder = table.get("import"), table.get("cwd")
    if not isinstance(path, str):
        return None
    source, name, is_file = split_import_path(path)
    if not is_file or not isinstance(folder, str):
        return path
    relative = _below(Path(source), Path(folder))
    return None if relative is None else f"{relative.as_posix()}:{name or table.get('name')}"


def _in_project(name: str, source: str, inside: list[str]) -> ExperimentRef | None:
    """The class of a file or module below the working directory that declares it, in no artefact; `inside` gets why."""
    path, class_name, is_file = split_import_path(source)
    class_name = class_name or name
    if not is_file and _loaded(path, class_name) is not None:
        return ExperimentRef(name, "module", f"{path}:{class_name}", file=find_module_file(path))
    cwd = Path.cwd()
    if is_file:
        file: Path | None = None if os.path.isabs(path) else Path(os.path.normpath(cwd / path))
    else:
        file = module_below(cwd, path) if all(part.isidentifier() for part in path.split(".")) else None
        file = file or _installed_below(path, cwd)
    if file is None or _below(file, cwd) is None or not file.is_file():
        return None
    around = artefact_around(file)
    if around is not None:
        inside.append(f"{file} lies in {around}, which nitro wrote")
        return None
    if not _declares(file, class_name.split(".")[0]):
        return None
    if is_file:
        return ExperimentRef(name, "file", f"{file}:{class_name}", file=file)
    return ExperimentRef(name, "module", f"{path}:{class_name}", file=file)


def _loaded(module: str, class_name: str) -> type[Any] | None:
    """A class that is in this process already, so that naming it imports nothing; None when it is not."""
    found: Any = sys.modules.get(module)
    for part in class_name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _installed_below(module: str, cwd: Path) -> Path | None:
    """The file of a module that is installed from a folder below the working directory, such as `src/`."""
    file = find_module_file(module)
    return file if file is not None and _below(file, cwd) is not None else None


def _declares(file: Path, class_name: str) -> bool:
    try:
        tree = ast.parse(read_regular(file))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == class_name for node in ast.walk(tree))


def _by_name(name: str, owner: str | None, inside: list[str]) -> ExperimentRef | None:
    local, plugins = offered(Path.cwd())
    found = []
    for ref in (*local, *plugins):
        if ref.name == name:
            around = None if ref.file is None else artefact_around(ref.file)
            if around is None:
                found.append(ref)
            else:
                inside.append(f"{ref.file} lies in {around}, which nitro wrote")
    if not found and (held := _in_this_process(name)) is not None:
        return ref_of(held)
    if len(found) > 1 and owner is not None:
        found = [ref for ref in found if distribution_of(ref, Path.cwd()) == normalized(owner)] or found
    if len(found) > 1:
        raise ExperimentNotFoundError(
            f"{len(found)} experiments are called {name}",
            where="; ".join(ref.described for ref in found),
            why="a name must mean one experiment",
            fix="say which: " + " or ".join(f"--experiment {ref.qualified}" for ref in found),
        )
    return found[0] if found else None


def _in_this_process(name: str) -> type[Any] | None:
    """The one class of the name that a program has declared or imported itself; nothing more is imported for it.

    What nitro loaded from a file was named to it then, and is named again.
    """
    from nitro_cli.experiment import Experiment

    found, open_ = set(), [Experiment]
    while open_:
        cls: type[Any] = open_.pop()
        open_ += cls.__subclasses__()
        own = not cls.__module__.startswith(LOCAL_PREFIX)
        if own and cls.__name__ == name and _loaded(cls.__module__, cls.__qualname__) is cls:
            found.add(cls)
    return found.pop() if len(found) == 1 else None


def _not_found(
    name: str, owner: str | None, source: str | None, inside: list[str], where: Path
) -> ExperimentNotFoundError:
    why = [f"the file says that it was of the distribution {owner}"] if owner else []
    session = source is not None and source.startswith("__main__:")
    if session:
        why.append("it was defined in a notebook cell or by python -c, without a file")
    elif source and not owner:
        why.append(f"the file says that its code was {source}")
    local, plugins = offered(Path.cwd())
    names = [ref.name for ref in (*local, *plugins) if ref.error is None]
    install = f"install {owner} if you know it, or " if owner else ""
    shown = _shown_code(name, None if session or inside else source)
    save = f"save the class in a file of {LOCAL_FOLDER}/, or " if session else ""
    return ExperimentNotFoundError(
        f"there is no experiment {name} here",
        where=str(where),
        why="; ".join([*why, *inside]) or None,
        nearest=nearest(name, names),
        fix=f"{install}{save}name its code: --experiment {shown}",
    )


def _shown_code(name: str, source: str | None) -> str:
    """How `--experiment` is written for code that is not found: its file lies elsewhere, or declares no such class."""
    known = source if source and not (os.path.isabs(source) or source.startswith("__main__:")) else None
    file, declared, is_file = split_import_path(known) if known else ("file.py", name, True)
    return known if known and not is_file else f"path/to/{os.path.basename(file)}:{declared or name}"
