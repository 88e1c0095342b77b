"""What the runs under `tests/legacy/format2` trained, and still do: nothing here may change."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nitro_cli import EMA, ArrayBatches, Checkpointer, Experiment, GraphConst, Mean, NoPrefetch

FEATURES, CLASSES = 6, 3


def points(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Points, float32 (rows, 6), and a class of each, int32 (rows,)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    x = rng.random((rows, FEATURES)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] * CLASSES).astype(np.int32)}


def network(params: Any, state: Any, x: jax.Array, *, train: bool, key: jax.Array | None) -> tuple[jax.Array, Any]:
    """A hidden layer with dropout and a running mean, and a head."""
    hidden = x @ params["body"]["kernel"] + params["body"]["bias"]
    if train and key is not None:
        state = {"mean": 0.9 * state["mean"] + 0.1 * jnp.mean(hidden, axis=0)}
        hidden = jnp.where(jax.random.bernoulli(key, 0.8, hidden.shape), hidden / 0.8, 0.0)
    return jax.nn.relu(hidden) @ params["head"]["kernel"], state


class MidEpoch(Experiment):
    """Shuffled, with dropout, layer state, an average and a schedule over the whole run: five steps an epoch."""

    width: GraphConst[int] = 4
    max_epochs = 3
    learning_rate = 1e-2
    weight_decay = 1e-3
    gradient_clip_norm = 0.5
    ema = EMA(beta=0.9)
    monitor = ("acc", "max")
    checkpointer = Checkpointer(keep=("last(1)",))

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {
            "train": NoPrefetch(ArrayBatches(points(40, 1), 8, shuffle=True)),
            "val": ArrayBatches(points(10, 2), 8),
        }

    def build_model(self, rng: jax.Array) -> Any:
        body, head = jax.random.split(rng)
        params = {
            "body": {"kernel": jax.random.uniform(body, (FEATURES, self.width)), "bias": jnp.zeros(self.width)},
            "head": {"kernel": jax.random.uniform(head, (self.width, CLASSES))},
        }
        return network, params, {"mean": jnp.zeros(self.width)}

    def schedules(self) -> dict[str, Any]:
        return {"learning_rate": {"kind": "cosine", "init_value": 1e-2}}

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x)

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1))

    def metrics(self, outputs: np.ndarray, *, y: np.ndarray) -> dict[str, Any]:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


class Pieces(MidEpoch):
    """Its parameters lie in parts over the processes that train it; large enough for that, and no larger."""

    width = 1024
    sharding = "fsdp"
    monitor = None
    ema = None

    def build_data(self, dist: Any) -> dict[str, Any]:
        own = dist.range(40)
        rows = {name: value[own.start : own.stop] for name, value in points(40, 1).items()}
        return {"train": NoPrefetch(ArrayBatches(rows, 8 // dist.process_count, shuffle=True))}

    def optimizer(self, group: str) -> Any:
        return optax.sgd


class Manual(MidEpoch):
    """Takes the optimizer steps of two groups into its own hands."""

    weight_decay = 0.0
    gradient_clip_norm = 0.0

    def schedules(self) -> dict[str, Any]:
        return {}

    def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
        return {"body": self._body().init(params["body"]), "head": self._head().init(params["head"])}

    def train_step(self, model: Any, params: Any, opt_state: Any, state: Any, *, x: jax.Array, y: jax.Array) -> Any:
        def objective(p: Any) -> Any:
            outputs, new = model(p, state, x)
            return self.loss(outputs, y=y), new

        (loss, state), grads = jax.value_and_grad(objective, has_aux=True)(params)
        made = {}
        opt = {}
        for name, optimizer in (("body", self._body()), ("head", self._head())):
            updates, opt[name] = optimizer.update(grads[name], opt_state[name], params[name])
            made[name] = optax.apply_updates(params[name], updates)
        return loss, made, state, opt, {}

    _body = staticmethod(partial(optax.adam, 1e-2))
    _head = staticmethod(partial(optax.sgd, 1e-2, momentum=0.9))


def digest(nitro: Any) -> str:
    """The SHA-256 of everything that training changed, bit for bit."""
    whole = hashlib.sha256()
    for tree in (nitro.params, nitro.state, nitro.train_state.opt, nitro.ema):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            array = np.asarray(leaf)
            whole.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def norms(nitro: Any) -> dict[str, float]:
    """The norm of each parameter, for machines whose compiler rounds otherwise."""
    leaves = jax.tree_util.tree_flatten_with_path(nitro.params)[0]
    return {jax.tree_util.keystr(path): float(np.linalg.norm(np.asarray(leaf, np.float64))) for path, leaf in leaves}


def machine() -> dict[str, str]:
    """What decides how a program rounds: the versions of the compiler, and the processor it compiles for."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return {"jax": jax.__version__, "processor": hashlib.sha256(flags.encode()).hexdigest()[:16]}
