"""What a batch's outputs and targets are, entry by entry: the arrays that terms and metrics are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.metrics import library_of
from nitro_cli.text import path_text

__all__ = ["JudgedEntries", "output_leaf", "per_entry", "spread_valid", "widened", "with_head"]


@dataclass(frozen=True)
class JudgedEntries:
    """The entries of a batch, flat, as metrics take them: see `Metric` for their shapes.

    Args:
        target: what is wanted, 0 where `valid` is False.
        valid: which entries count.
        values: logits or values.
        decoded: the decisions.
        probabilities: None of values.
    """

    target: Any
    valid: Any
    values: Any
    decoded: Any
    probabilities: Any = None

    def read(self, reads: str) -> Any:
        """What a metric reads."""
        return getattr(self, reads)


def output_leaf(outputs: Any, path: str | None, where: str) -> Any:
    """The array of the outputs that a task reads.

    Args:
        outputs: what `forward` returned.
        path: its path, such as `head/logits`; None where there is one array.
        where: what asks, for errors.

    Raises:
        ConfigError: there is none of that path, or there are several and no path.
    """
    if path is None and hasattr(outputs, "shape"):
        return outputs
    import jax

    leaves = {path_text(place): leaf for place, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]}
    if path is None and len(leaves) == 1:
        return next(iter(leaves.values()))
    if path is None or path not in leaves:
        wanted = "which of them is not said" if path is None else f"none of them is {path!r}"
        raise ConfigError(
            f"forward returns {len(leaves)} outputs, and {wanted}",
            where=where,
            why=f"there are: {', '.join(leaves)}",
            fix="name the one that the task reads: output = ...",
            nearest=[] if path is None else nearest(path, leaves),
        )
    return leaves[path]


def with_head(outputs: Any, made: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by their paths, one array as `outputs`, with what a head makes of them beside."""
    if hasattr(outputs, "shape"):
        return {"outputs": outputs, **made}
    import jax

    leaves = {path_text(place): leaf for place, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]}
    return {**leaves, **{name: value for name, value in made.items() if name not in leaves}}


def per_entry(x: Any, shape: tuple[int, ...]) -> Any:
    """What is said per sample, or per entry, spread over entries of a shape `[N, ...]`."""
    return library_of(x).broadcast_to(x.reshape(x.shape + (1,) * (len(shape) - x.ndim)), shape)


def widened(x: Any) -> Any:
    """Numbers in the precision that tasks compute in: float32 at least, NumPy's in float64."""
    if library_of(x) is np:
        return np.asarray(x, np.float64)
    import jax.numpy as jnp

    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def spread_valid(target_ok: Any, mask: Any, valid: Any) -> Any:
    """Which entries count: those with a target, of the mask, and not padding."""
    for other in (mask, valid):
        if other is not None:
            target_ok = target_ok & per_entry(other.astype(bool), target_ok.shape)
    return target_ok
