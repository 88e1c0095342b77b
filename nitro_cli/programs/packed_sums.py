"""The sums of an evaluation program in one vector per dtype: each array read back costs as much as a small batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.experiment import Term
from nitro_cli.metrics import MODES, Concat, Max, Min

__all__ = ["PackedSums"]

# A traced `metrics` hook returns these values, so JAX must be able to take them apart.
for _mode in MODES:
    jax.tree_util.register_pytree_node(_mode, lambda value: value.tree_children(), _mode.from_children)

How = Literal["sum", "max", "min", "same"]


class _Place(NamedTuple):
    """Where a leaf lies: its vector, the first entry, its shape; and how it combines over batches."""

    vector: str
    first: int
    shape: tuple[int, ...]
    how: How


@dataclass(frozen=True)
class PackedSums:
    """How the leaves of combinable values and loss terms lie in vectors. Made by `of`."""

    structure: Any
    places: tuple[_Place, ...]

    @classmethod
    def of(cls, values: Any) -> PackedSums | None:
        """The packing of values of such shapes; None where one is kept per sample.

        Args:
            values: a tree of `Mean`, `Sum`, `Max`, `Min`, `Concat` and `Term`, of arrays or their shapes.
        """
        marks = jax.tree.map(_marked, values, is_leaf=lambda x: isinstance(x, (*MODES, Term)))
        hows = jax.tree.leaves(marks)
        if None in hows or "entries" in hows:
            return None
        leaves, structure = jax.tree.flatten(values)
        taken: dict[str, int] = {}
        places = []
        for leaf, how in zip(leaves, hows, strict=True):
            vector, shape = _vector_of(jnp.result_type(leaf)), tuple(np.shape(leaf))
            places.append(_Place(vector, taken.get(vector, 0), shape, how))
            taken[vector] = taken.get(vector, 0) + math.prod(shape)
        return cls(structure, tuple(places))

    @property
    def sizes(self) -> dict[str, int]:
        """How long each vector is, by its dtype."""
        found: dict[str, int] = {}
        for place in self.places:
            found[place.vector] = max(found.get(place.vector, 0), place.first + math.prod(place.shape))
        return found

    def pack(self, values: Any) -> dict[str, jax.Array]:
        """Inside a traced function: the vectors of such values."""
        found: dict[str, list[jax.Array]] = {}
        for leaf, place in zip(jax.tree.leaves(values), self.places, strict=True):
            found.setdefault(place.vector, []).append(jnp.ravel(leaf).astype(place.vector))
        return {name: jnp.concatenate(parts) for name, parts in found.items()}

    def combined(self, batches: Sequence[Mapping[str, np.ndarray]]) -> Any:
        """The values over several batches, integers exactly and all else in float64.

        Args:
            batches: the vectors of each.
        """
        names = batches[0]
        rows = {name: np.stack([batch[name] for batch in batches]) for name in names}
        wide = {name: np.int64 if array.dtype.kind == "i" else np.float64 for name, array in rows.items()}
        sums = {name: array.sum(axis=0, dtype=wide[name]) for name, array in rows.items()}

        def leaf(place: _Place) -> np.ndarray:
            at = slice(place.first, place.first + math.prod(place.shape))
            if place.how == "sum":
                return sums[place.vector][at].reshape(place.shape)
            column = rows[place.vector][:, at]
            taken = column[-1] if place.how == "same" else getattr(column, place.how)(axis=0)
            return taken.astype(wide[place.vector]).reshape(place.shape)

        return jax.tree.unflatten(self.structure, [leaf(place) for place in self.places])


def _vector_of(dtype: Any) -> str:
    """The dtype of the vector that holds numbers of a dtype exactly."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "float64" if dtype == np.float64 else "float32"
    return "int64" if np.dtype(dtype).itemsize > 4 or dtype == np.uint32 else "int32"


def _marked(value: Any) -> Any:
    if isinstance(value, Term):
        return Term("sum", None if value.denominator is None else "sum", "same")
    how = "entries" if isinstance(value, Concat) else "max" if isinstance(value, Max) else "min"
    how = how if isinstance(value, Concat | Max | Min) else "sum"
    return jax.tree.map(lambda leaf: how, value)
