"""Predictions made up for tests, with the properties that break metrics: ties, absent classes, masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nitro_cli.analysis import Prediction, PredictionOrigin, Probabilities

WEIGHTS = "sha256:" + "a" * 64
OTHER_WEIGHTS = "sha256:" + "b" * 64
DATA = {name: "sha256:" + digit * 64 for name, digit in (("train", "0"), ("val", "1"), ("test", "2"))}


@pytest.fixture
def predicted() -> Callable[..., Prediction]:
    """Make a categorical prediction of given logits and targets, of the split `val` unless told otherwise."""

    def make(
        logits: object,
        target: object,
        *,
        split: str = "val",
        model: str | None = WEIGHTS,
        labels: tuple[str, ...] | None = None,
        kind: str = "categorical",
        ids: object = None,
        ids_field: str | None = None,
        ignore_index: int | None = None,
        fields: dict[str, object] | None = None,
    ) -> Prediction:
        origin = PredictionOrigin(
            model_id=model, split=split, data=DATA.get(split), ids=ids_field, ignore_index=ignore_index
        )
        spec = Probabilities(kind, labels=labels)
        return spec.predict(np.asarray(logits), target=np.asarray(target), ids=ids, fields=fields, origin=origin)

    return make


def scored_rows(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and targets with ties in the scores; the last class is never a target."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes - 1, n)
    logits = np.round(rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[target], 1)
    return logits, target
