"""What the source of an experiment was."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

__all__ = ["source_facts"]


def source_facts(cls: type) -> dict[str, Any]:
    """The file a class was defined in and its digest; empty where there is no file."""
    try:
        file = inspect.getsourcefile(cls)
    except TypeError:
        file = None
    if file is None or not Path(file).is_file():
        return {}
    return {"file": str(Path(file).resolve()), "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}
