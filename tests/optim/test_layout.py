"""Groups and per-leaf answers over a parameter tree."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from nitro_cli import optim
from nitro_cli.errors import OptimizerError


def with_groups(base: type[Any], group: Any) -> Any:
    return type("E", (base,), {"param_group": lambda self, path: group(path), "__module__": __name__})()


def test_paths_are_plain_keys_and_their_text_is_joined_by_slashes(base: type[Any]) -> None:
    params = {"layers": [{"w": jnp.ones((2, 2))}, (jnp.ones(3),)]}
    layout = optim.build_layout(base(), params)
    assert [leaf.path for leaf in layout.leaves] == [("layers", 0, "w"), ("layers", 1, 0)]
    assert [leaf.text for leaf in layout.leaves] == ["layers/0/w", "layers/1/0"]


def test_default_comes_first_and_the_others_as_they_appear(base: type[Any], params: Any) -> None:
    names = {("body", "bias"): "late", ("body", "kernel"): "early", ("head", "bias"): "default"}
    layout = optim.build_layout(with_groups(base, lambda path: names.get(path, "frozen")), params)
    assert layout.groups == ("default", "late", "early")
    assert [leaf.text for leaf in layout.frozen] == ["head/kernel"]


def test_the_defaults_of_the_leaf_hooks_go_by_rank(base: type[Any], params: Any) -> None:
    layout = optim.build_layout(base(), params)
    kernel, bias = (next(leaf for leaf in layout.leaves if leaf.text == f"body/{n}") for n in ("kernel", "bias"))
    assert (kernel.decays, kernel.perturbs, kernel.adaptive) == (True, True, True)
    assert (bias.decays, bias.perturbs, bias.adaptive) == (False, True, False)


def test_default_no_decay_can_be_extended(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def no_decay(self, path: Any, leaf: Any) -> bool:
            return optim.default_no_decay(path, leaf) or "head" in path

    layout = optim.build_layout(E(), params)
    assert [leaf.text for leaf in layout.leaves if leaf.decays] == ["body/kernel"]


def test_a_tree_round_trips_through_path_texts(base: type[Any], params: Any) -> None:
    layout = optim.build_layout(base(), params)
    flat = layout.flatten(params)
    assert layout.unflatten(flat, params)["head"]["bias"] is params["head"]["bias"]


@pytest.mark.parametrize("group", [None, 3, "", "a/b", "device", "grad"])
def test_what_is_no_group_name_is_refused_with_the_leaf(base: type[Any], params: Any, group: Any) -> None:
    with pytest.raises(OptimizerError, match="body/bias"):
        optim.build_layout(with_groups(base, lambda path: group), params)


def test_all_frozen_is_refused(base: type[Any], params: Any) -> None:
    with pytest.raises(OptimizerError, match="no parameter trains"):
        optim.build_layout(with_groups(base, lambda path: "frozen"), params)


def test_an_integer_parameter_may_be_frozen_only(base: type[Any]) -> None:
    params = {"table": jnp.arange(3), "w": jnp.ones(2)}
    with pytest.raises(OptimizerError, match=r"table has dtype int32"):
        optim.build_layout(base(), params)
    optim.build_layout(with_groups(base, lambda path: "frozen" if path[0] == "table" else "default"), params)


def test_two_leaves_of_one_path_text_are_refused(base: type[Any]) -> None:
    with pytest.raises(OptimizerError, match="'a/b'"):
        optim.build_layout(base(), {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(1)})


def test_a_leaf_hook_must_answer_yes_or_no(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def no_decay(self, path: Any, leaf: Any) -> Any:
            return leaf > 0

    with pytest.raises(OptimizerError, match=r"no_decay returned"):
        optim.build_layout(E(), params)
