"""An experiment with masked entries and two terms, and the same loss and gradient in NumPy, in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nitro_cli import ArrayBatches, Device, Experiment, Mean, Term

FEATURES = 3
RATE = 0.5
ALPHA = 0.25


def rows(n: int, seed: int = 0, *, masked: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """`n` samples of four entries, float32 (n, 4, 3): few of the first are valid, most of the last."""
    rng = np.random.default_rng(seed)
    kept = np.linspace(0.15, 0.95, n)[:, None]
    mask = rng.random((n, 4)) < kept
    mask[list(masked)] = False
    x = rng.normal(size=(n, 4, FEATURES)).astype(np.float32)
    y = (x.sum(-1) + np.linspace(0, 3, n)[:, None]).astype(np.float32)
    has = (rng.random(n) < 0.5) & mask.any(1)
    return {"x": x, "y": y, "mask": mask, "has": has}


def network(params: Any, state: Any, x: jax.Array, *, train: bool, key: Any) -> Any:
    """`x @ w + b`, and a count of the calls."""
    return x @ params["w"] + params["b"], {"calls": state["calls"] + train}


class Masked(Experiment):
    """A squared error over valid entries, and an absolute one over some rows, weighed by a Device field."""

    alpha: Device[float] = ALPHA
    rows: int = 6
    batch_size: int = 6
    resident: bool | None = None
    masked: tuple[int, ...] = ()

    learning_rate = RATE
    max_epochs = 1
    logger = None

    def build_data(self, dist: Any) -> Any:
        data = rows(self.rows, masked=self.masked)
        return {"train": ArrayBatches(data, self.batch_size, shuffle=False, resident=self.resident)}

    def build_model(self, rng: Any) -> Any:
        return network, {"w": jnp.asarray([0.3, -0.2, 0.5]), "b": jnp.asarray(0.1)}, {"calls": jnp.zeros(())}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any, *, y: Any, mask: Any, has: Any) -> Any:
        off = outputs - y
        return {
            "entries": Term(jnp.sum(jnp.where(mask, off**2, 0.0)), jnp.sum(mask)),
            "rows": Term(jnp.sum(jnp.where(has, jnp.abs(off[:, 0]), 0.0)), jnp.sum(has), self.alpha),
        }

    def train_metrics(self, outputs: Any, *, y: Any, mask: Any) -> Any:
        return {"near": Mean(jnp.sum(mask & (jnp.abs(outputs - y) < 1.5)), jnp.sum(mask))}

    def optimizer(self, group: str) -> Any:
        return optax.sgd


class Momentum(Masked):
    """With moments."""

    def optimizer(self, group: str) -> Any:
        return partial(optax.sgd, momentum=0.9)


class Told(Masked):
    """Without layer state; its loss knows the padding."""

    def build_model(self, rng: Any) -> Any:
        def network(params: Any, state: Any, x: Any, *, train: bool, key: Any) -> Any:
            return x @ params["w"] + params["b"], state

        return network, super().build_model(rng)[1], {}

    def loss(self, outputs: Any, *, y: Any, mask: Any, has: Any, valid: Any) -> Any:
        return super().loss(outputs, y=y, mask=mask & valid[:, None], has=has & valid)

    def train_metrics(self, outputs: Any, *, y: Any, mask: Any, valid: Any) -> Any:
        return super().train_metrics(outputs, y=y, mask=mask & valid[:, None])


def by_hand(data: dict[str, np.ndarray], w: Any = (0.3, -0.2, 0.5), b: float = 0.1) -> dict[str, Any]:
    """Loss, terms and gradient of a whole batch, float64."""
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    mask, has = data["mask"], data["has"]
    off = x @ np.asarray(np.float32(w), np.float64) + np.float64(np.float32(b)) - y
    entries, few = (off**2)[mask].sum() / mask.sum(), np.abs(off[has, 0]).sum() / has.sum()
    d = np.where(mask, 2 * off, 0.0) / mask.sum()
    d[:, 0] += np.where(has, np.sign(off[:, 0]), 0.0) * ALPHA / has.sum()
    return {
        "loss": entries + ALPHA * few,
        "loss/entries": entries,
        "loss/rows": few,
        "near": (np.abs(off) < 1.5)[mask].mean(),
        "w": np.einsum("nk,nkf->f", d, x),
        "b": d.sum(),
    }


def off_by(nitro: Any, data: dict[str, np.ndarray]) -> float:
    """How far the gradient of a run of one step is from that of the whole batch, relative to its largest entry."""
    wanted, found = by_hand(data), {"w": np.float32([0.3, -0.2, 0.5]), "b": np.float32(0.1)}
    wrong = 0.0
    for name, start in found.items():
        gradient = (start.astype(np.float64) - np.asarray(nitro.params[name], np.float64)) / RATE
        wrong = max(wrong, float(np.max(np.abs(gradient - wanted[name])) / np.max(np.abs(wanted[name]))))
    return max(wrong, abs(nitro.history[-1]["train_loss"] / wanted["loss"] - 1))
