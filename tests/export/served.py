"""Experiments that export: wire inputs that are renamed, reordered and echoed, a postprocess, fields of all kinds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli import ArrayBatches, Device, Experiment, ExportSpec, Host
from tests.tiny import CLASSES, FEATURES, Quick

SOFTMAX = """
import numpy as np

def postprocess(outputs):
    e = np.exp(outputs["scores"] - outputs["scores"].max(-1, keepdims=True))
    return {"probabilities": (e / e.sum(-1, keepdims=True)).astype(np.float32)}
"""


class Scores(Quick):
    """The plainest wire: the batch's own field in, the one array that forward returns out."""

    def export_inputs(self) -> list[ExportSpec]:
        return [ExportSpec("x", "float32", (1, FEATURES))]

    def export_outputs(self) -> list[ExportSpec]:
        return [ExportSpec("scores")]


class Wired(Quick):
    """Bytes and an identifier in; renamed, reordered and echoed outputs; a Device field and a Host data set."""

    shift: Device[float] = 0.0
    table: Host[Any] = None
    batch_size: int = 8

    def export_inputs(self) -> list[ExportSpec]:
        return [ExportSpec("number", "int32", (1,)), ExportSpec("levels", "uint8", (1, FEATURES))]

    def export_outputs(self) -> list[ExportSpec]:
        return [
            ExportSpec("best", source="top"),
            ExportSpec("number", "int32", (1,), source="number"),
            ExportSpec("scores", "float32", (1, CLASSES)),
        ]

    def export_preprocess(self, number: jax.Array, levels: jax.Array) -> dict[str, jax.Array]:
        return {"x": levels.astype(jnp.float32) / 255}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        scores, state = model(params, state, x)
        return {"scores": scores + self.shift, "top": jnp.argmax(scores, -1), "unused": scores * 2}, state

    def loss(self, outputs: Any, *, y: jax.Array) -> Any:
        return super().loss(outputs["scores"], y=y)

    def metrics(self, outputs: Any, *, y: np.ndarray) -> dict[str, Any]:
        return super().metrics(outputs["scores"], y=y)


class Softmaxed(Scores):
    """A postprocess whose outputs are declared."""

    def export_postprocess(self) -> str:
        return SOFTMAX

    def export_client_outputs(self) -> list[ExportSpec]:
        return [ExportSpec("probabilities", "float32", (1, CLASSES))]

    def export_provenance_extra(self, *, checkpoint: str | None) -> dict[str, Any]:
        return {"class_names": ["red", "green", "blue"], "seed": "the model's own"}


class Branching(Scores):
    """A forward that branches on the number of samples, which no program for any batch size can."""

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        scores, state = model(params, state, x)
        return (scores * 2 if x.shape[0] > 4 else scores), state


def inputs(size: int, seed: int = 0) -> np.ndarray:
    """Made inputs of `Scores`, f32[size, FEATURES]."""
    return np.random.default_rng(seed + size).normal(size=(size, FEATURES)).astype(np.float32)


def table(params: Any, state: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    return params["table"][tokens].sum(axis=1), state


class Tokens(Experiment):
    """Host batches of 64-bit tokens, a mask that forward takes when it is there, and targets that it does not take."""

    checkpointer = None
    logger = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        fields = {
            "label": rng.integers(0, 2, 8),
            "mask": rng.normal(size=(8, 3)).astype(np.float32),
            "tokens": rng.integers(0, 5, (8, 4)),
            "index": np.arange(8),
        }
        return {"train": ArrayBatches(fields, 4)}

    def build_model(self, rng: jax.Array) -> Any:
        return table, {"table": jax.random.normal(rng, (5, 3))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, tokens: jax.Array, mask: Any = None) -> Any:
        out, state = model(params, state, tokens)
        return out if mask is None else out * mask, state

    def loss(self, outputs: Any, *, label: jax.Array) -> Any:
        return jnp.mean(jax.tree.leaves(outputs)[0] ** 2)


def returning(make: Any) -> type[Tokens]:
    class Returning(Tokens):
        def forward(self, model: Any, params: Any, state: Any, *, tokens: jax.Array, mask: Any = None) -> Any:
            out, state = super().forward(model, params, state, tokens=tokens, mask=mask)
            return make(out), state

    return Returning
