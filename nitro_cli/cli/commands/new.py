"""`nitro new`: a plugin project to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nitro_cli.cli.output import Output
from nitro_cli.cli.project_template import ProjectNames, project_files
from nitro_cli.errors import ConfigError, ExitCode
from nitro_cli.installation import nitro_version
from nitro_cli.text import user_path

__all__ = ["run"]


def run(
    output: Output,
    name: Annotated[str, typer.Argument(help="Name of the project, such as my-experiments.", metavar="NAME")],
    directory: Annotated[
        str | None, typer.Option("--dir", help="Folder to write it into; the name by default.", metavar="DIR")
    ] = None,
) -> int:
    """Write a plugin project: a package with an experiment, presets, the entry point and tests."""
    names = ProjectNames.of(name)
    folder = user_path(directory) if directory is not None else Path(names.distribution)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise ConfigError(f"{folder} exists and is not empty", fix="choose another name, or another folder with --dir")
    files = project_files(names, _requirement())
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    if output.json:
        output.document(
            directory=folder, distribution=names.distribution, package=names.package, experiment=names.experiment,
            files=list(files),
        )  # fmt: skip
        return ExitCode.OK
    output.text(str(folder))
    output.note(
        f"next:\n  cd {folder}\n  pip install -e '.[test]'\n  nitro train {names.experiment} --preset quick\n  pytest"
    )
    return ExitCode.OK


def _requirement() -> str:
    version = nitro_version()
    return "" if version == "unknown" else f">={version}"
