"""One way to write the place of a leaf, whatever kind of tree it lies in."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import pytest

from nitro_cli.text import path_keys, path_text


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    ("tree", "texts"),
    [
        ({"encoder": {"layers": [{"kernel": 0.0}]}}, ["encoder/layers/0/kernel"]),
        (Pair({"x": 0.0}, (0.0, 0.0)), ["a/x", "b/0", "b/1"]),
        ({3: 0.0, 10: 0.0}, ["3", "10"]),
        (0.0, [""]),
    ],
)
def test_a_leaf_is_named_by_its_keys_attributes_and_positions(tree: Any, texts: list[str]) -> None:
    assert [path_text(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]] == texts


def test_positions_stay_integers_and_plain_keys_are_taken_too() -> None:
    (path, _), *_ = jax.tree_util.tree_flatten_with_path({"a": [0.0]})[0]
    assert path_keys(path) == ("a", 0)
    assert path_text(("a", 0, True)) == "a/0/True"
