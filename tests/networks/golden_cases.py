"""The cases of a golden file: arrays by name, those of a model as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, np.ndarray]


def golden(name: str) -> dict[str, Case]:
    """The cases of `golden/<name>.npz` by their names."""
    found: dict[str, Case] = {}
    with np.load(Path(__file__).parent / "golden" / f"{name}.npz") as file:
        for key in file.files:
            case, _, array = key.partition("|")
            found.setdefault(case, {})[array] = file[key]
    return found


def tree(case: Case, prefix: str) -> dict[str, Any]:
    """The arrays under a prefix, nested by the words of their names."""
    found: dict[str, Any] = {}
    for name, array in case.items():
        if name.startswith(f"{prefix}/"):
            *path, last = name.removeprefix(f"{prefix}/").split("/")
            place = found
            for word in path:
                place = place.setdefault(word, {})
            place[last] = array
    return found
