"""The networks as plain JAX functions: what the hand-written loops and nitro train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .jobs import BLOCKS, EPSILON, HEADS, LEARNING_RATE, LENGTH, WIDTH, Job, nested

__all__ = ["adam", "cross_entropy", "initial", "network"]


def initial(job: Job, key: jax.Array) -> dict[str, Any]:
    """First weights, drawn inside a program."""
    keys = jax.random.split(key, len(job.leaves))
    drawn = {
        name: leaf.fill + leaf.std * jax.random.normal(k, leaf.shape)
        if leaf.std
        else jnp.full(leaf.shape, leaf.fill, jnp.float32)
        for (name, leaf), k in zip(job.leaves.items(), keys, strict=True)
    }
    return nested(drawn)


def network(job: Job) -> Callable[[Any, jax.Array], jax.Array]:
    """`(params, x) -> logits`, float32 with the classes or tokens last."""
    return {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}[job.name]


def adam() -> optax.GradientTransformation:
    """The optimizer of everyone."""
    return optax.adam(LEARNING_RATE, eps=EPSILON)


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Mean over the batch, and over the tokens if there are any."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean()


def _dense(p: Any, x: jax.Array) -> jax.Array:
    return x @ p["kernel"] + p["bias"]


def _mlp(params: Any, x: jax.Array) -> jax.Array:
    return _dense(params["out"], jax.nn.relu(_dense(params["in"], x)))


def _pooled(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _cnn(params: Any, x: jax.Array) -> jax.Array:
    for name in ("one", "two"):
        layer = params[name]
        x = jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = _pooled(jax.nn.relu(x + layer["bias"]))
    return _dense(params["out"], x.reshape(x.shape[0], -1))


def _normed(p: Any, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _attention(p: Any, x: jax.Array) -> jax.Array:
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    q, k, v = (_dense(p[name], x).reshape(heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return _dense(p["mix"], mixed.reshape(x.shape))


def _transformer(params: Any, x: jax.Array) -> jax.Array:
    h = params["token"]["table"][x] + params["place"]["table"]
    for i in range(BLOCKS):
        p = params[f"block{i}"]
        h = h + _attention(p, _normed(p["before"], h))
        h = h + _dense(p["down"], jax.nn.gelu(_dense(p["up"], _normed(p["between"], h)), approximate=True))
    return _dense(params["out"], _normed(params["last"], h))
