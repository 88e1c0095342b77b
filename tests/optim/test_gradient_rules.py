"""SAM, ASAM and a user's own perturbing rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import optim
from nitro_cli.errors import OptimizerError


def build(base: type[Any], rule: Any, params: Any, *, schedules: Any = None, **hooks: Any) -> optim.Optimizer:
    e = type("E", (base,), {"grad_rule": lambda self: rule, "__module__": __name__, **hooks})()
    layout = optim.build_layout(e, params)
    return optim.Optimizer(e, layout, optim.bind(e, layout, schedules=schedules, total_steps=10))


def perturbed(optimizer: optim.Optimizer, grads: Any, params: Any, step: int = 1) -> dict[str, np.ndarray]:
    assert optimizer.rule is not None
    row = optimizer.hyper.table(step, 1)[0]
    moved = jax.jit(lambda g, p, r: optimizer.perturb(optimizer.rule, g, p, r))(grads, params, row)
    return {text: np.asarray(value) for text, value in optimizer.layout.flatten(moved).items()}


def numbers(optimizer: optim.Optimizer, tree: Any) -> dict[str, np.ndarray]:
    return {text: np.asarray(value, np.float64) for text, value in optimizer.layout.flatten(tree).items()}


def test_the_default_is_the_plain_gradient(base: type[Any], params: Any) -> None:
    assert build(base, None, params).rule is None
    assert build(base, optim.SingleGrad(), params).rule is None


def test_sam_steps_along_the_normalised_gradient(base: type[Any], params: Any, grads: Any) -> None:
    optimizer = build(base, optim.SAM(0.3), params)
    w, g = numbers(optimizer, params), numbers(optimizer, grads)
    norm = np.sqrt(sum(np.sum(v**2) for v in g.values()))
    moved = perturbed(optimizer, grads, params)
    for text in w:
        np.testing.assert_allclose(moved[text], w[text] + 0.3 * g[text] / norm, rtol=1e-5)


def test_asam_steps_in_proportion_to_the_weights(base: type[Any], params: Any, grads: Any) -> None:
    optimizer = build(base, optim.ASAM(0.7, eta=0.05), params)
    w, g = numbers(optimizer, params), numbers(optimizer, grads)
    size = {t: np.abs(v) + 0.05 if v.ndim >= 2 else np.ones_like(v) for t, v in w.items()}
    norm = np.sqrt(sum(np.sum((size[t] * g[t]) ** 2) for t in w))
    moved = perturbed(optimizer, grads, params)
    for text in w:
        expected = w[text] + 0.7 * size[text] ** 2 * g[text] / norm
        np.testing.assert_allclose(moved[text], expected, rtol=1e-5)


@pytest.mark.parametrize("rule", [optim.SAM(0.5), optim.ASAM(0.5)])
def test_a_zero_gradient_moves_nothing(base: type[Any], params: Any, rule: Any) -> None:
    zero = jax.tree.map(jnp.zeros_like, params)
    optimizer = build(base, rule, params)
    for text, value in perturbed(optimizer, zero, params).items():
        np.testing.assert_array_equal(value, optimizer.layout.flatten(params)[text])


def test_excluded_and_frozen_leaves_neither_move_nor_count_in_the_norm(
    base: type[Any], params: Any, grads: Any
) -> None:
    optimizer = build(
        base,
        optim.SAM(0.3),
        params,
        no_perturb=lambda self, path, leaf: path[-1] == "bias",
        param_group=lambda self, path: "frozen" if path[0] == "body" else "default",
    )
    w, g = numbers(optimizer, params), numbers(optimizer, grads)
    moved = perturbed(optimizer, grads, params)
    for text in ("body/kernel", "body/bias", "head/bias"):
        np.testing.assert_array_equal(moved[text], w[text].astype(np.float32))
    kernel = g["head/kernel"]
    np.testing.assert_allclose(
        moved["head/kernel"], w["head/kernel"] + 0.3 * kernel / np.linalg.norm(kernel), rtol=1e-5
    )


def test_rho_is_scheduled_by_its_name(base: type[Any], params: Any, grads: Any) -> None:
    optimizer = build(base, optim.SAM(0.3), params, schedules={"rho": lambda total: lambda step: 0.1 * step})
    assert optimizer.hyper.varying() == ("schedule/rho",)
    g = numbers(optimizer, grads)
    norm = np.sqrt(sum(np.sum(v**2) for v in g.values()))
    for step in (1, 4):
        moved = perturbed(optimizer, grads, params, step)["head/bias"] - np.asarray(params["head"]["bias"])
        np.testing.assert_allclose(moved, 0.1 * step * g["head/bias"] / norm, rtol=1e-5)


def test_a_users_own_rule_needs_one_method_and_its_floats_are_traced(base: type[Any], params: Any, grads: Any) -> None:
    @dataclass(frozen=True)
    class SignStep(optim.PerturbRule):
        size: float = 0.25
        times: int = 2

        def perturbation(self, grads: Any, params: Any, adaptive: Any) -> Any:
            assert isinstance(self.size, jax.core.Tracer)
            return {t: sum(self.size * jnp.sign(g) for _ in range(self.times)) for t, g in grads.items()}

    optimizer = build(base, SignStep(), params)
    assert "grad/size" in optimizer.hyper.columns
    moved = perturbed(optimizer, grads, params)
    expected = np.asarray(params["head"]["kernel"]) + 0.5 * np.sign(np.asarray(grads["head"]["kernel"]))
    np.testing.assert_allclose(moved["head/kernel"], expected)


def test_a_rule_of_a_plain_class_works_too(base: type[Any], params: Any, grads: Any) -> None:
    class Shift(optim.PerturbRule):
        def __init__(self) -> None:
            self.by = 0.5

        def perturbation(self, grads: Any, params: Any, adaptive: Any) -> Any:
            return {text: jnp.full_like(w, 1.0) * self.by for text, w in params.items()}

    moved = perturbed(build(base, Shift(), params), grads, params)
    np.testing.assert_allclose(moved["head/bias"], np.asarray(params["head"]["bias"]) + 0.5)


def test_a_rule_that_misses_a_leaf_or_changes_its_shape_is_refused(base: type[Any], params: Any, grads: Any) -> None:
    class Misses(optim.PerturbRule):
        def perturbation(self, grads: Any, params: Any, adaptive: Any) -> Any:
            return {}

    class Sums(optim.PerturbRule):
        def perturbation(self, grads: Any, params: Any, adaptive: Any) -> Any:
            return {text: jnp.sum(g) for text, g in grads.items()}

    for rule, message in ((Misses(), "returned nothing for body/bias"), (Sums(), r"shape \(\) for body/bias")):
        with pytest.raises(OptimizerError, match=message):
            perturbed(build(base, rule, params), grads, params)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (optim.SAM, "the class SAM"),
        ("sam", "returned str"),
        (optim.PerturbRule(), "no method `perturbation`"),
    ],
)
def test_what_is_no_rule_is_refused(base: type[Any], params: Any, rule: Any, message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        build(base, rule, params)


@pytest.mark.parametrize("rho", [-0.1, float("nan"), float("inf")])
def test_a_radius_that_is_no_size_is_refused(rho: float) -> None:
    with pytest.raises(OptimizerError, match="rho"):
        optim.SAM(rho)
