"""Experiments that differ in how the processes of one run share their data."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nitro_cli import ArrayBatches
from tests.tiny import Quick, points


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
