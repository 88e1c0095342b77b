"""Layers as functions over nested dicts: dense, norms, activations, dropout, and the marker behind a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Norm",
    "activation",
    "dense",
    "dropped",
    "flat_rows",
    "logits_of",
    "new_dense",
    "new_norm",
    "norm_of",
    "tap",
]

Activation = Literal[
    "leaky_relu", "elu", "selu", "tanh", "relu", "softmax", "sigmoid", "softplus", "gelu", "silu", "identity"
]
"""The activations: `leaky_relu` has the slope 0.01, `gelu` is the exact one, `softmax` goes over the last axis."""

ACTIVATIONS: tuple[str, ...] = Activation.__args__  # type: ignore[attr-defined]

Norm = Literal["none", "layer", "batch"]

_MOMENTUM = 0.9
_EPSILON = 1e-5


def tap(name: str, x: Any) -> Any:
    """`x`, marked in the traced program as the activation of a name; the compiled program has nothing of it.

    Args:
        name: such as `hidden/0`.
        x: an array.
    """
    from jax.ad_checkpoint import checkpoint_name

    return checkpoint_name(x, name)


def activation(name: str) -> Callable[[Any], Any]:
    """The function of a name in `ACTIVATIONS`; it keeps the dtype, and `softmax` is computed in float32."""
    import jax
    import jax.numpy as jnp

    if name == "gelu":
        return lambda x: jax.nn.gelu(x, approximate=False)
    if name == "identity":
        return lambda x: x
    if name == "softmax":
        return lambda x: jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)
    found: Callable[[Any], Any] = getattr(jax.nn, name)
    return found


def new_dense(key: Any, inner: int, outer: int) -> dict[str, Any]:
    """A dense layer at its start: kernel f32[inner, outer], truncated normal of variance 1/inner; bias 0."""
    import jax
    import jax.numpy as jnp

    return {"kernel": jax.nn.initializers.lecun_normal()(key, (inner, outer), jnp.float32), "bias": jnp.zeros(outer)}


def dense(params: Mapping[str, Any], x: Any) -> Any:
    """`x @ kernel + bias`."""
    return x @ params["kernel"] + params["bias"]


def logits_of(params: Mapping[str, Any], x: Any) -> Any:
    """A dense layer whose result is float32 in every compute precision."""
    import jax.numpy as jnp

    return jnp.matmul(x, params["kernel"], preferred_element_type=jnp.float32) + params["bias"].astype(jnp.float32)


def dropped(x: Any, rate: Any, rng: Any) -> Any:
    """`x` with a share `rate` of its entries 0, and the others divided by `1 - rate`; as it is where `rate` or `rng` is
    None."""
    import jax
    import jax.numpy as jnp

    if rate is None or rng is None:
        return x
    kept = jax.random.uniform(rng, x.shape) >= rate
    return jnp.where(kept, x / (1 - jnp.asarray(rate, x.dtype)), 0)


def new_norm(kind: str, width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and layer state of a norm at their start; both empty for `none`."""
    import jax.numpy as jnp

    if kind == "none":
        return {}, {}
    params = {"scale": jnp.ones(width), "bias": jnp.zeros(width)}
    running = {"mean": jnp.zeros(width), "variance": jnp.ones(width)}
    return params, running if kind == "batch" else {}


def norm_of(
    kind: str, params: Mapping[str, Any], running: Mapping[str, Any], x: Any, train: bool
) -> tuple[Any, Mapping[str, Any]]:
    """A norm over the last axis (`layer`: Ba et al., arXiv:1607.06450) or over all others (`batch`: Ioffe and Szegedy,
    arXiv:1502.03167), its statistics in float32.

    Args:
        kind: `layer` or `batch`.
        params: `scale` and `bias`.
        running: of `batch` the mean and the variance that evaluation goes by; a training batch moves them by a tenth.
        x: features last.
        train: whether the statistics are the batch's.

    Returns:
        `x` normalized, in its dtype, and `running` as it is then.
    """
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    if kind == "layer":
        mean, variance = wide.mean(axis=-1, keepdims=True), wide.var(axis=-1, keepdims=True)
    elif train:
        axes = tuple(range(x.ndim - 1))
        mean, variance = wide.mean(axis=axes), wide.var(axis=axes)
        found = {"mean": mean, "variance": variance}
        running = {name: _MOMENTUM * held + (1 - _MOMENTUM) * found[name] for name, held in running.items()}
    else:
        mean, variance = running["mean"], running["variance"]
    scaled = (wide - mean) * jax.lax.rsqrt(variance + _EPSILON)
    return (scaled * params["scale"] + params["bias"]).astype(x.dtype), running


def flat_rows(inputs: tuple[Any, ...]) -> Any:
    """Inputs [B, ...] as one [B, features], side by side; whole numbers as float32."""
    import jax.numpy as jnp

    rows = [x.reshape(x.shape[0], -1) for x in inputs]
    rows = [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32) for x in rows]
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows, axis=1)
