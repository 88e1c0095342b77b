"""What the source of an experiment was."""

from __future__ import annotations

import hashlib
import linecache
import sys
from pathlib import Path
from typing import Any

from nitro_cli.experiment import Experiment

__all__ = ["source_facts"]


def source_facts(cls: type[Experiment]) -> dict[str, Any]:
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
