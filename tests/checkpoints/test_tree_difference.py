from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.checkpoints import tree_difference


def test_equal_trees_of_different_kinds_of_leaf_match() -> None:
    one = {"params/w": np.zeros((3, 4), np.float32), "params/n": 3}
    other = {"params/n": 4, "params/w": jax.ShapeDtypeStruct((3, 4), jnp.float32)}
    assert tree_difference(one, other) == []


def test_each_difference_names_the_leaf_and_both_sides() -> None:
    one = {"a": np.zeros(3), "b": np.zeros(3), "c": np.zeros(3), "e": 1}
    other = {"a": np.zeros(4), "b": np.zeros(3, np.float32), "d": np.zeros(3), "e": 1.0}
    assert tree_difference(one, other) == [
        "a: float64[3] and float64[4]",
        "b: float64[3] and float32[3]",
        "c: float64[3] and absent",
        "d: absent and float64[3]",
        "e: int and float",
    ]
