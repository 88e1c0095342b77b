"""Importing an experiment in a child process, to learn whether it can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from nitro_cli.errors import ConfigError
from nitro_cli.registry.discovery import ExperimentRef

__all__ = ["check_import"]

_CHILD = """
import json, sys
from pathlib import Path
path, cwd = json.loads(sys.argv[1])
from nitro_cli.registry.importing import load_class
from nitro_cli.errors import NitroError
stdout, sys.stdout = sys.stdout, sys.stderr
try:
    load_class(path, cwd=Path(cwd))
    reason = None
except NitroError as problem:
    reason = problem.why or problem.what
stdout.write("\\n" + json.dumps(reason))
"""


def check_import(ref: ExperimentRef, cwd: Path | None = None, timeout: float = 120.0) -> str | None:
    """Import an experiment in a child process, where it can neither crash nor slow this one.

    Args:
        ref: the experiment.
        cwd: the working directory of the child.
        timeout: seconds before the import counts as hanging.

    Returns:
        Why it cannot be imported; None when it can.

    Raises:
        ConfigError: the child process cannot be started.
    """
    if ref.error is not None:
        return ref.error
    folder = cwd or Path.cwd()
    words = [sys.executable, "-c", _CHILD, json.dumps([ref.import_path, str(folder)])]
    try:
        child = subprocess.run(
            words, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its import takes longer than {timeout:g} s"
    except OSError as problem:
        raise ConfigError("cannot start a child process", where=sys.executable, why=str(problem)) from problem
    lines = child.stdout.strip().splitlines()
    if child.returncode == 0 and lines:
        reason: str | None = json.loads(lines[-1])
        return reason
    last = child.stderr.strip().splitlines()
    return f"its import ended the process with code {child.returncode}" + (f": {last[-1]}" if last else "")
