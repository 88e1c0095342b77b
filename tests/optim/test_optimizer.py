"""One optimizer step: clipping, groups, frozen leaves, decay and anchors, traced hyperparameters."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli import optim
from nitro_cli.errors import ConfigError, OptimizerError


def build(e: Any, params: Any, **options: Any) -> optim.Optimizer:
    layout = optim.build_layout(e, params)
    options.setdefault("total_steps", 10)
    return optim.Optimizer(e, layout, optim.bind(e, layout, **options))


def one_step(optimizer: optim.Optimizer, grads: Any, params: Any, w0: Any = None) -> tuple[Any, Any, Any]:
    row = optimizer.hyper.table(1, 1)[0]
    anchors = optimizer.anchors(params if w0 is None else w0)
    return jax.jit(optimizer.update)(grads, optimizer.init(params), params, row, anchors)


@pytest.fixture
def sgd(base: type[Any]) -> type[Any]:
    class Sgd(base):  # type: ignore[valid-type, misc]
        learning_rate = 0.1

        def optimizer(self, group: str) -> Any:
            return optax.sgd

    return Sgd


@pytest.fixture
def grouped(sgd: type[Any]) -> type[Any]:
    class Grouped(sgd):  # type: ignore[valid-type, misc]
        def param_group(self, path: Any) -> str:
            return "head" if path[0] == "head" else "default"

        def group_learning_rate(self, group: str) -> float:
            return 0.5 if group == "head" else self.learning_rate

        def group_weight_decay(self, group: str) -> float:
            return 0.2 if group == "head" else self.weight_decay

    return Grouped


class TestGroups:
    def test_each_group_moves_at_its_own_rate(self, grouped: type[Any], params: Any, grads: Any) -> None:
        class E(grouped):  # type: ignore[valid-type, misc]
            def group_weight_decay(self, group: str) -> float:
                return 0.0

        new, _, _ = one_step(build(E(), params), grads, params)
        for module, rate in (("body", 0.1), ("head", 0.5)):
            expected = np.asarray(params[module]["kernel"]) - rate * np.asarray(grads[module]["kernel"])
            np.testing.assert_allclose(new[module]["kernel"], expected, rtol=1e-6)

    def test_the_state_is_per_group_over_a_flat_dict_of_its_leaves(self, base: type[Any], params: Any) -> None:
        class E(base):  # type: ignore[valid-type, misc]
            def param_group(self, path: Any) -> str:
                return "head" if path[0] == "head" else "default"

            def optimizer(self, group: str) -> Any:
                return optax.adam

        state = build(E(), params).init(params)
        assert set(state) == {"default", "head"}
        assert set(state["head"][0].mu) == {"head/bias", "head/kernel"}

    def test_frozen_leaves_have_no_state_and_stay_bit_identical(self, sgd: type[Any], params: Any, grads: Any) -> None:
        class E(sgd):  # type: ignore[valid-type, misc]
            def param_group(self, path: Any) -> str:
                return "frozen" if path[0] == "body" else "default"

            def optimizer(self, group: str) -> Any:
                return optax.adam

        optimizer = build(E(weight_decay=0.5, gradient_clip_norm=1e-3), params)
        assert set(optimizer.init(params)) == {"default"}
        without = {**grads, "body": {"kernel": None, "bias": None}}
        for gradient in (grads, without):
            new, _, norm = one_step(optimizer, gradient, params)
            for name in ("kernel", "bias"):
                assert np.asarray(new["body"][name]).tobytes() == np.asarray(params["body"][name]).tobytes()
            assert not np.array_equal(new["head"]["kernel"], params["head"]["kernel"])
            assert norm == pytest.approx(np.sqrt(0.36 + 0.64 + 4.0), rel=1e-6)

    def test_a_base_rate_of_zero_is_refused(self, sgd: type[Any], params: Any) -> None:
        with pytest.raises(OptimizerError, match="learning_rate is 0"):
            build(sgd(learning_rate=0.0), params)

    def test_a_rate_that_is_not_finite_or_a_negative_decay_is_refused(self, sgd: type[Any], params: Any) -> None:
        class Rate(sgd):  # type: ignore[valid-type, misc]
            def group_learning_rate(self, group: str) -> float:
                return float("nan")

        class Decay(sgd):  # type: ignore[valid-type, misc]
            def group_weight_decay(self, group: str) -> float:
                return -0.1

        for cls, message in ((Rate, "nan"), (Decay, "-0.1")):
            with pytest.raises(OptimizerError, match=message):
                build(cls(), params)

    def test_the_report_has_rate_ratio_anchor_decay_rule_and_size_per_group(
        self, grouped: type[Any], params: Any
    ) -> None:
        class E(grouped):  # type: ignore[valid-type, misc]
            def decay_anchor(self, group: str) -> str:
                return "w0" if group == "head" else "zero"

        head = build(E(), params).hyper.groups[1]
        assert (head.group, head.rate, head.ratio, head.anchor) == ("head", "0.5", 5.0, "w0")
        assert (head.decay, head.rule, head.parameters, head.leaves) == ("0.2", "optax.sgd", 3, 2)


class TestDecay:
    def test_decay_is_decoupled_scaled_by_the_groups_rate_and_leaves_out_vectors(
        self, grouped: type[Any], params: Any, grads: Any
    ) -> None:
        new, _, _ = one_step(build(grouped(weight_decay=0.4), params), grads, params)
        for module, rate, coefficient in (("body", 0.1, 0.4), ("head", 0.5, 0.2)):
            w, g = np.asarray(params[module]["kernel"]), np.asarray(grads[module]["kernel"])
            np.testing.assert_allclose(new[module]["kernel"], w - rate * g - rate * coefficient * w, rtol=1e-6)
            b, gb = np.asarray(params[module]["bias"]), np.asarray(grads[module]["bias"])
            np.testing.assert_allclose(new[module]["bias"], b - rate * gb, rtol=1e-6)

    def test_adam_with_decay_is_adamw(self, base: type[Any], params: Any, grads: Any) -> None:
        class E(base):  # type: ignore[valid-type, misc]
            def optimizer(self, group: str) -> Any:
                return optax.adam

        new, _, _ = one_step(build(E(learning_rate=0.01, weight_decay=0.1), params), grads, params)
        reference = optax.adamw(0.01, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda w: w.ndim > 1, p))
        updates, _ = jax.jit(reference.update)(grads, reference.init(params), params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), new, optax.apply_updates(params, updates)
        )

    def test_an_anchor_pulls_toward_it_and_zero_emits_no_subtraction(
        self, grouped: type[Any], params: Any, grads: Any
    ) -> None:
        class E(grouped):  # type: ignore[valid-type, misc]
            def decay_anchor(self, group: str) -> str:
                return "w0" if group == "head" else "zero"

        w0 = jax.tree.map(lambda w: 2.0 * w + 1.0, params)
        optimizer = build(E(weight_decay=0.4), params)
        new, _, _ = one_step(optimizer, grads, params, w0)
        w, g, a = (np.asarray(tree["head"]["kernel"]) for tree in (params, grads, w0))
        np.testing.assert_allclose(new["head"]["kernel"], w - 0.5 * g - 0.5 * 0.2 * (w - a), rtol=1e-6)
        w, g = (np.asarray(tree["body"]["kernel"]) for tree in (params, grads))
        np.testing.assert_allclose(new["body"]["kernel"], w - 0.1 * g - 0.1 * 0.4 * w, rtol=1e-6)
        assert set(optimizer.anchors(w0)) == {"head"}
        assert set(optimizer.anchors(w0)["head"]) == {"head/kernel"}

        def subtractions(e: Any) -> int:
            made = build(e, params)
            row = made.hyper.table(1, 1)[0]
            text = str(jax.make_jaxpr(made.update)(grads, made.init(params), params, row, made.anchors(w0)))
            return text.count(" sub ")

        # two decaying leaves subtract their decay; the anchored one its anchor first
        assert subtractions(E(weight_decay=0.4)) == subtractions(grouped(weight_decay=0.4)) + 1

    def test_an_anchor_tree_may_hold_the_groups_own_leaves(self, grouped: type[Any], params: Any, grads: Any) -> None:
        target = np.full((2, 1), 7.0)

        class E(grouped):  # type: ignore[valid-type, misc]
            def decay_anchor(self, group: str) -> Any:
                return {"head": {"kernel": target}} if group == "head" else "zero"

        new, _, _ = one_step(build(E(), params), grads, params)
        w, g = (np.asarray(tree["head"]["kernel"]) for tree in (params, grads))
        np.testing.assert_allclose(new["head"]["kernel"], w - 0.5 * g - 0.1 * (w - 7.0), rtol=1e-6)

    @pytest.mark.parametrize(
        ("anchor", "message"),
        [
            ("w1", "'w1'"),
            (None, "is None"),
            ({"head": {"bias": np.zeros(1)}}, "no leaf 'head/kernel'"),
            ({"head": {"kernel": np.zeros((2, 2))}}, r"shape \(2, 2\)"),
            ({"head": {"kernel": np.zeros((2, 1)), "kernle": np.zeros(1)}}, "head/kernle"),
        ],
    )
    def test_an_anchor_that_does_not_fit_is_refused(
        self, grouped: type[Any], params: Any, anchor: Any, message: str
    ) -> None:
        class E(grouped):  # type: ignore[valid-type, misc]
            def decay_anchor(self, group: str) -> Any:
                return anchor if group == "head" else "zero"

        with pytest.raises(OptimizerError, match=message):
            build(E(), params).anchors(params)

    def test_the_checksum_is_per_anchored_group_and_changes_with_one_bit(self, grouped: type[Any], params: Any) -> None:
        class E(grouped):  # type: ignore[valid-type, misc]
            def decay_anchor(self, group: str) -> str:
                return "w0" if group == "head" else "zero"

        optimizer = build(E(), params)
        sums = optimizer.anchor_checksums(params)
        kernel = np.asarray(params["head"]["kernel"])
        expected = hashlib.sha256(b"head/kernel|float32|(2, 1)|" + kernel.tobytes()).hexdigest()
        assert sums == {"head": expected}
        nudged = {**params, "head": {**params["head"], "kernel": jnp.asarray(np.nextafter(kernel, np.float32(9)))}}
        assert optimizer.anchor_checksums(nudged) != sums
        assert build(grouped(), params).anchor_checksums(params) == {}


class TestClipping:
    @settings(max_examples=25, deadline=None)
    @given(
        values=st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3),
        threshold=st.floats(2**-10, 200, width=32),
    )
    def test_a_threshold_clips_as_optax_does(self, values: list[float], threshold: float) -> None:
        grads = {"a": jnp.asarray(values[:2]), "b": jnp.asarray(values[2])}
        ours, norm = clip(grads, jnp.float32(threshold))
        theirs = OPTAX_CLIP(grads, jnp.float32(threshold))
        for name in grads:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-30)
        assert norm == pytest.approx(np.linalg.norm(np.asarray(values, np.float32)), rel=1e-5)

    def test_zero_is_off(self) -> None:
        grads = {"a": jnp.asarray([3e3, 4e3])}
        ours, norm = clip(grads, jnp.float32(0.0))
        assert np.asarray(ours["a"]).tolist() == [3e3, 4e3]
        assert norm == 5e3

    @pytest.mark.parametrize("threshold", [0.0, 1.0])
    def test_an_all_zero_gradient_stays_zero(self, threshold: float) -> None:
        ours, norm = clip({"a": jnp.zeros(3)}, jnp.float32(threshold))
        assert np.asarray(ours["a"]).tolist() == [0.0, 0.0, 0.0]
        assert norm == 0.0

    def test_clipping_comes_before_the_groups_over_all_of_them(
        self, grouped: type[Any], params: Any, grads: Any
    ) -> None:
        new, _, norm = one_step(build(grouped(gradient_clip_norm=0.5), params), grads, params)
        whole = np.sqrt(sum(float(np.sum(np.square(g))) for g in jax.tree.leaves(grads)))
        assert norm == pytest.approx(whole, rel=1e-6)
        b, g = np.asarray(params["head"]["bias"]), np.asarray(grads["head"]["bias"])
        np.testing.assert_allclose(new["head"]["bias"], b - 0.5 * g * 0.5 / whole, rtol=1e-6)

    @pytest.mark.parametrize("threshold", [-1.0, float("nan"), float("inf"), "big", True])
    def test_a_threshold_that_is_no_size_is_refused(self, sgd: type[Any], params: Any, threshold: Any) -> None:
        with pytest.raises(ConfigError, match="gradient_clip_norm"):
            build(sgd(), params, clip_norm=threshold)

    def test_half_precision_gradients_do_not_overflow_the_norm(self) -> None:
        grads = {"a": jnp.full((100,), 1e3, jnp.float16)}
        _, norm = clip(grads, jnp.float32(1.0))
        assert norm == pytest.approx(1e4, rel=1e-3)


@jax.jit
def clip(grads: Any, threshold: Any) -> Any:
    factor, norm = optim.clip_factor(grads, threshold)
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads), norm


OPTAX_CLIP = jax.jit(lambda g, t: optax.clip_by_global_norm(t).update(g, optax.EmptyState())[0])


def test_no_hyperparameter_is_in_the_program(grouped: type[Any], params: Any, grads: Any) -> None:
    class E(grouped):  # type: ignore[valid-type, misc]
        def grad_rule(self) -> Any:
            return optim.SAM(self.rho)

        rho: float = 0.1

        def group_weight_decay(self, group: str) -> float:
            return self.weight_decay * 2

    def text(e: Any, **options: Any) -> str:
        optimizer = build(e, params, **options)
        row = optimizer.hyper.table(1, 1)[0]

        def step(row: Any) -> Any:
            moved = optimizer.perturb(optimizer.rule, grads, params, row)
            return optimizer.update(moved, optimizer.init(params, row), params, row)

        return jax.jit(step).lower(row).as_text()

    first = text(E())
    assert text(E(learning_rate=0.7)) == first
    assert text(E(weight_decay=0.3)) == first
    assert text(E(gradient_clip_norm=2.0)) == first
    assert text(E(rho=0.5)) == first
    assert text(E(), schedules={"learning_rate": optim.one_cycle(1e-3), "weight_decay": 0.1}) != ""
    constant = text(E(), schedules={"momentum": 0.9})
    assert text(E(), schedules={"momentum": optim.linear(0.0, 0.9)}) == constant
    assert text(E(), schedules={"learning_rate": optim.cosine(1.0)}) == first
    assert text(E(), total_steps=999) == first


def test_half_precision_parameters_keep_their_dtype_and_their_averages_are_float32(base: type[Any]) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def optimizer(self, group: str) -> Any:
            return optax.adam

    params = {"w": jnp.ones((2, 2), jnp.bfloat16), "v": jnp.ones((2, 2), jnp.float32)}
    optimizer = build(E(weight_decay=0.1), params, schedules={"b1": 0.8})
    state = optimizer.init(params)
    new, new_state, _ = one_step(optimizer, params, params)
    assert jax.tree.map(lambda w: w.dtype, new) == jax.tree.map(lambda w: w.dtype, params)
    for averages in (state["default"][0], new_state["default"][0]):
        assert {leaf.dtype for leaf in jax.tree.leaves((averages.mu, averages.nu))} == {jnp.dtype(jnp.float32)}


def test_a_rules_averages_of_half_precision_gradients_do_not_stick(base: type[Any]) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def optimizer(self, group: str) -> Any:
            return optax.adam

    params = {"w": jnp.full((3,), 0.5, jnp.bfloat16)}
    optimizer = build(E(learning_rate=1e-3), params)
    update, row, state = jax.jit(optimizer.update), optimizer.hyper.table(1, 1)[0], optimizer.init(params)
    for _ in range(400):
        _, state, _ = update(jax.tree.map(jnp.ones_like, params), state, params, row)
    # 1 - 0.999 ** 400; in bfloat16 the second moment sticks at 0.25
    np.testing.assert_allclose(state["default"][0].nu["w"], 0.32978, rtol=1e-3)


def test_a_rule_whose_state_starts_from_the_rate_takes_it_from_the_row(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def optimizer(self, group: str) -> Any:
            return optax.rprop

    optimizer = build(E(learning_rate=0.25), params)
    assert float(optimizer.init(params)["default"][0].step_sizes["head/bias"][0]) == 0.25
    row = optimizer.hyper.table(1, 1)[0] * 2
    assert float(jax.jit(optimizer.init)(params, row)["default"][0].step_sizes["head/bias"][0]) == 0.5


def test_a_traced_device_field_reaches_a_level_2_hook(base: type[Any], params: Any, grads: Any) -> None:
    from nitro_cli import Device

    class E(base):  # type: ignore[valid-type, misc]
        boost: Device[float] = 1.0

        def optimizer(self, group: str, hp: Any) -> Any:
            return optax.sgd(hp.learning_rate * self.boost)

    E.model_rebuild(_types_namespace={"Device": Device})
    optimizer = build(E(learning_rate=0.1), params)
    row, state = optimizer.hyper.table(1, 1)[0], optimizer.init(params)

    @jax.jit
    def step(boost: Any) -> Any:
        return optimizer.update(grads, state, params, row, device={"boost": boost})[0]

    moved = np.asarray(params["head"]["bias"] - step(jnp.float32(3.0))["head"]["bias"])
    np.testing.assert_allclose(moved, 0.3 * np.asarray(grads["head"]["bias"]), rtol=1e-6)


def test_a_gradient_of_another_structure_is_refused(sgd: type[Any], params: Any) -> None:
    optimizer = build(sgd(), params)
    with pytest.raises(OptimizerError, match="1 leaves was given for parameters of 4"):
        optimizer.update({"w": 1.0}, optimizer.init(params), params, optimizer.hyper.table(1, 1)[0])
