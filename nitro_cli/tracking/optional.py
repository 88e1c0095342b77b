"""Importing the library of a tracker where it is used."""

from __future__ import annotations

import importlib
from typing import Any

from nitro_cli.errors import MissingExtraError

__all__ = ["import_tracker"]


def import_tracker(module: str, *, tracker: str, extra: str, package: str | None = None) -> Any:
    """Import `module`.

    Raises:
        MissingExtraError: it is not installed, naming the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        top = module.split(".")[0]
        if err.name != top:
            raise
        raise MissingExtraError(
            f"Logging to {tracker} needs the package {package or top}, which is not installed.",
            where="logger",
            fix=f"pip install 'nitro-cli[{extra}]'",
        ) from err
