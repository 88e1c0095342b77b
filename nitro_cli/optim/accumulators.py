"""The precision that sums and averages are kept in, whatever the parameters are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["accumulator_dtype", "in_accumulators"]


def accumulator_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype that values of `dtype` are summed and averaged in: float32 for floats that are narrower.

    A bfloat16 has 8 bits: once a sum is 256 times what is added to it, adding changes nothing.
    """
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return np.dtype(np.float32 if narrow else dtype)


def in_accumulators(tree: Any) -> Any:
    """A tree of arrays with its narrow floats as float32, exactly; everything else as it is. Traceable."""

    def widened(leaf: Any) -> Any:
        dtype = accumulator_dtype(leaf.dtype)
        return leaf if leaf.dtype == dtype else jax.lax.convert_element_type(leaf, dtype)

    return jax.tree.map(widened, tree)
