"""What a split is, in the few facts by which a resume knows whether it continues over the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

__all__ = ["SplitIdentity", "batch_digest"]


@dataclass(frozen=True)
class SplitIdentity:
    """The facts of one split that a record keeps. A fact that is None is not known, and compares with nothing.

    Args:
        rows: samples of the whole split.
        batch_size: samples of a full batch.
        batches: batches of an epoch.
        order: what the order of an epoch is a function of, in words.
        first_batch: digest of the first batch of the evaluation pass, where the source repeats it.
    """

    rows: int | None
    batch_size: int
    batches: int
    order: str | None
    first_batch: str | None

    def as_json(self) -> dict[str, Any]:
        """The facts by name."""
        return asdict(self)

    def changed_from(self, held: Mapping[str, Any]) -> dict[str, str]:
        """The facts that differ from what a record holds: name to a sentence with both sides."""
        told = {}
        for field in fields(self):
            before, now = held.get(field.name), getattr(self, field.name)
            if before is None or now is None or before == now:
                continue
            word = field.name.replace("_", " ")
            contents = field.name == "first_batch"
            sides = f"{word}: {before} in the checkpoint, {now} here"
            told[field.name] = "other contents in the first batch" if contents else sides
        return told


def batch_digest(batch: Mapping[str, np.ndarray]) -> str:
    """A short digest of a batch: names, dtypes, shapes and contents of its fields."""
    total = hashlib.sha256()
    for name in sorted(batch):
        array = batch[name]
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        whole = array.dtype.hasobject
        total.update(repr(array.tolist()).encode() if whole else np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]
