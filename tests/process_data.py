"""Experiments that differ in how processes share data or parameters; and whether two hold the same, bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli import ArrayBatches
from nitro_cli.checkpoints import CheckpointRecord, load_checkpoint, write_record
from nitro_cli.run import flatten
from tests.tiny import Quick, points


def carry_digest(nitro: Any) -> str:
    """A digest of a handle's whole training state, bit for bit."""
    everything = b"".join(array.tobytes() for array in jax.tree.leaves(flatten("c", nitro.train_state)))
    return hashlib.sha256(everything).hexdigest()


class Wide(Quick):
    """Parameters large enough to be split over processes."""

    width = 2048
    sharding = "fsdp"


class OwnPart(Quick):
    """Each process brings its own samples."""

    shuffle = False

    def build_data(self, dist: Any) -> dict[str, Any]:
        own = list(dist.range(self.samples))
        train = {name: array[own] for name, array in points(self.samples, 1).items()}
        return {**super().build_data(dist), "train": ArrayBatches(train, self.batch_size // dist.process_count)}


class Disagreeing(Quick):
    """A seed of its own in each process, which nothing says."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {
            **super().build_data(dist),
            "train": ArrayBatches(points(self.samples, jax.process_index()), self.batch_size),
        }


class Augmented(Quick):
    """Random augmentation on the host."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        def shift(batch: Any, rng: Any) -> Any:
            return {**batch, "x": batch["x"] + rng.normal(size=batch["x"].shape).astype(np.float32)}

        return {**super().build_data(dist), "train": ArrayBatches(points(96, 1), 8, shuffle=True, transform=shift)}


class Shelf:
    """A checkpointer of one's own that keeps records in a folder which all processes see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved: list[int] = []

    def save(self, record: CheckpointRecord, *, epoch: int, step: int, score: float | None) -> None:
        self.saved.append(step)
        write_record(self.folder / f"step-{step:04d}", record.meta, record.arrays)

    def load(self, name: Path) -> CheckpointRecord:
        return load_checkpoint(name)

    def find_latest(self) -> Path | None:
        found = sorted(self.folder.glob("step-*"))
        return found[-1] if found else None

    find_best = find_latest
