"""The three levels of optimizer: what is accepted, what is refused and why."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import optim
from nitro_cli.errors import HookError, NitroWarning, OptimizerError, ScheduleError


def build(e: Any, params: Any, schedules: Any = None, **options: Any) -> optim.Optimizer:
    layout = optim.build_layout(e, params)
    return optim.Optimizer(e, layout, optim.bind(e, layout, schedules=schedules, total_steps=10), **options)


def level1(base: type[Any], factory: Any) -> Any:
    class E(base):  # type: ignore[valid-type, misc]
        def optimizer(self, group: str) -> Any:
            return factory

    return E


def level2(base: type[Any], hook: Any) -> Any:
    class E(base):  # type: ignore[valid-type, misc]
        def optimizer(self, group: str, hp: Any) -> Any:
            return hook(hp)

    return E


FACTORIES = sorted(
    (f"{module.__name__}.{name}", getattr(module, name))
    for module in (optax, optax.contrib)
    for name in dir(module)
    if inspect.isfunction(getattr(module, name))
    and "learning_rate" in inspect.signature(getattr(module, name)).parameters
    and not name.startswith(("scale_by", "_"))
)

# Everything of optax that takes a learning rate and cannot be a level 1 factory, with the reason in its error.
REFUSED = {
    "optax.lbfgs": "evaluates the loss again",
    "optax.contrib.sophia": "evaluates the loss again",
    "optax.contrib.dpsgd": "needs l2_norm_clip, noise_multiplier, seed",
    "optax.contrib.momo": "reads the loss",
    "optax.contrib.momo_adam": "reads the loss",
    "optax.contrib.schedule_free": "needs base_optimizer",
    "optax.contrib.schedule_free_adamw": "evaluated at other weights than they train",
    "optax.contrib.schedule_free_sgd": "evaluated at other weights than they train",
}


@pytest.mark.filterwarnings("ignore:Specifying a key", "ignore:`optimistic_adam` is deprecated")
@pytest.mark.parametrize(("name", "factory"), FACTORIES, ids=[name for name, _ in FACTORIES])
def test_every_optax_factory_takes_a_traced_rate_or_is_refused_with_its_reason(
    base: type[Any], params: Any, name: str, factory: Any
) -> None:
    if name in REFUSED:
        with pytest.raises(OptimizerError, match=REFUSED[name]):
            build(level1(base, factory)(), params)
    else:
        build(level1(base, factory)(), params)


def test_the_sweep_over_optax_is_not_empty() -> None:
    names = {name for name, _ in FACTORIES}
    assert {"optax.adam", "optax.sgd", "optax.lamb", "optax.contrib.muon", "optax.contrib.prodigy"} <= names
    assert len(names) > 40


NUMERIC = {
    "radam": optax.radam,
    "adam": optax.adam,
    "sgd, momentum": functools.partial(optax.sgd, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop,
    "adamw": optax.adamw,
    "lion": functools.partial(optax.lion, weight_decay=0.1),
    "lamb": optax.lamb,
    "adafactor": optax.adafactor,
    "muon": optax.contrib.muon,
}


@pytest.mark.parametrize("name", NUMERIC)
def test_a_traced_rate_trains_as_a_number_in_optax_does(base: type[Any], params: Any, grads: Any, name: str) -> None:
    params, grads = params["head"], grads["head"]
    optimizer = build(level1(base, NUMERIC[name])(learning_rate=0.03), params)
    row = optimizer.hyper.table(1, 1)[0]
    reference = NUMERIC[name](learning_rate=0.03)
    # the framework hands optax one flat dict per group
    flat, flat_grads = optimizer.layout.flatten(params), optimizer.layout.flatten(grads)

    @jax.jit
    def two_steps(row: Any) -> Any:
        ours, state, theirs, reference_state = params, optimizer.init(params, row), flat, reference.init(flat)
        for _ in range(2):
            ours, state, _ = optimizer.update(grads, state, ours, row)
            updates, reference_state = reference.update(flat_grads, reference_state, theirs)
            theirs = optax.apply_updates(theirs, updates)
        return optimizer.layout.flatten(ours), theirs

    ours, theirs = two_steps(row)
    for text in theirs:
        np.testing.assert_allclose(ours[text], theirs[text], rtol=2e-6, err_msg=text)
        assert not np.array_equal(ours[text], flat[text])


def test_without_a_hook_the_rule_is_radam(base: type[Any], params: Any) -> None:
    optimizer = build(base(), params)
    assert optimizer.hyper.groups[0].rule == "optax.radam"
    state = optimizer.init(params)["default"]
    assert type(state[0]).__name__ == "ScaleByAdamState"


def test_a_hook_may_leave_single_groups_to_the_default(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def param_group(self, path: Any) -> str:
            return "head" if path[0] == "head" else "default"

        def optimizer(self, group: str) -> Any:
            return optax.sgd if group == "head" else None

    assert [row.rule for row in build(E(), params).hyper.groups] == ["optax.radam", "optax.sgd"]


def test_a_scheduled_argument_reaches_the_factory_by_its_optax_name(base: type[Any], params: Any, grads: Any) -> None:
    optimizer = build(level1(base, optax.sgd)(learning_rate=0.5), params, {"momentum": lambda total: lambda t: 0.1 * t})
    table = optimizer.hyper.table(1, 2)
    update = jax.jit(optimizer.update)
    new, state, _ = update(grads, optimizer.init(params), params, table[0])
    new, state, _ = update(grads, state, new, table[1])
    # two steps of heavy ball, momentum 0.1 then 0.2: w - lr * (g + (0.2 * g + g))
    expected = np.asarray(params["head"]["kernel"]) - 0.5 * (1.0 + 1.2) * np.asarray(grads["head"]["kernel"])
    np.testing.assert_allclose(new["head"]["kernel"], expected, rtol=1e-6)


def test_a_partial_keeps_its_arguments_and_a_schedule_replaces_one(base: type[Any], params: Any, grads: Any) -> None:
    factory = functools.partial(optax.sgd, momentum=0.5)
    plain = build(level1(base, factory)(learning_rate=1.0), params)
    assert plain.hyper.groups[0].rule == "optax.sgd(momentum=0.5)"
    for schedules, momentum in (({}, 0.5), ({"momentum": 0.25}, 0.25)):
        optimizer = build(level1(base, factory)(learning_rate=1.0), params, schedules)
        row, state = optimizer.hyper.table(1, 1)[0], optimizer.init(params)
        update = jax.jit(optimizer.update)
        once, state, _ = update(grads, state, params, row)
        twice, _, _ = update(grads, state, once, row)
        moved = np.asarray(once["head"]["bias"] - twice["head"]["bias"])
        np.testing.assert_allclose(moved, (1 + momentum) * np.asarray(grads["head"]["bias"]), rtol=1e-6)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (optax.adam(1e-3), "built transformation"),
        (functools.partial(optax.sgd, learning_rate=0.1), "sets learning_rate itself"),
        (functools.partial(optax.sgd, 0.1), "takes no learning_rate"),
        (optax.scale_by_adam, "takes no learning_rate"),
        ("adam", "returned str"),
        (lambda learning_rate: 3, "returned int"),
        (lambda learning_rate: optax.sgd(float(learning_rate)), "cannot take traced hyperparameters"),
        (lambda learning_rate: optax.sgd(0.1 if learning_rate > 0 else 0.2), "cannot take traced hyperparameters"),
    ],
)
def test_what_cannot_be_a_level_1_factory_is_refused(base: type[Any], params: Any, factory: Any, message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        build(level1(base, factory)(), params)


def test_a_state_that_changes_its_structure_is_refused(base: type[Any], params: Any) -> None:
    def factory(learning_rate: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            return jax.tree.map(lambda g: -learning_rate * g, updates), (state, state)

        return optax.GradientTransformation(lambda params: jnp.zeros(()), update)

    with pytest.raises(OptimizerError, match="changes its structure"):
        build(level1(base, factory)(), params)


def test_a_switch_of_a_factory_cannot_be_scheduled(base: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError, match="nesterov"):
        build(level1(base, optax.sgd)(), params, {"nesterov": 1.0})


@pytest.mark.parametrize("name", ["min_dim_size_to_factor", "weight_decay_mask"])
def test_an_argument_that_cannot_be_traced_is_refused_with_the_reason(base: type[Any], params: Any, name: str) -> None:
    with pytest.raises(OptimizerError, match=r"cannot take traced|cannot be used|ignores the scheduled"):
        build(level1(base, optax.adafactor)(), params, {name: 3.0})


class TestOwnDecay:
    def test_a_factorys_own_decay_is_kept_while_the_frameworks_is_off(
        self, base: type[Any], params: Any, grads: Any
    ) -> None:
        factory = functools.partial(optax.adamw, weight_decay=0.3)
        optimizer = build(level1(base, factory)(learning_rate=0.1), params)
        assert "own weight_decay" in optimizer.hyper.groups[0].decay
        assert not optimizer.hyper.has_column("default/weight_decay")

    @pytest.mark.parametrize("factory", [optax.adamw, optax.lamb, functools.partial(optax.lion, weight_decay=0.1)])
    @pytest.mark.parametrize("schedules", [None, {"weight_decay": optim.linear(0.0, 0.1)}])
    def test_together_with_the_frameworks_it_is_refused_with_both_ways_out(
        self, base: type[Any], params: Any, factory: Any, schedules: Any
    ) -> None:
        e = level1(base, factory)(weight_decay=0.0 if schedules else 0.01)
        with pytest.raises(OptimizerError, match="decay twice") as caught:
            build(e, params, schedules)
        assert "leave weight_decay at 0" in str(caught.value)
        assert "weight_decay=0.0" in str(caught.value)

    def test_a_partial_that_switches_it_off_leaves_the_decay_to_the_framework(
        self, base: type[Any], params: Any, grads: Any
    ) -> None:
        factory = functools.partial(optax.adamw, weight_decay=0.0)
        optimizer = build(level1(base, factory)(learning_rate=0.1, weight_decay=0.5), params)
        none = build(level1(base, optax.adam)(learning_rate=0.1, weight_decay=0.5), params)
        row = optimizer.hyper.table(1, 1)[0]
        ours = jax.jit(optimizer.update)(grads, optimizer.init(params), params, row)[0]
        plain = jax.jit(none.update)(grads, none.init(params), params, none.hyper.table(1, 1)[0])[0]
        np.testing.assert_array_equal(ours["body"]["kernel"], plain["body"]["kernel"])


class TestLevel2:
    def test_the_chain_is_built_from_hp_and_decays_last(self, base: type[Any], params: Any, grads: Any) -> None:
        def chain(hp: Any) -> Any:
            return optax.chain(
                optax.trace(hp.momentum), optax.scale_by_learning_rate(hp.learning_rate), optim.decay(hp)
            )

        e = level2(base, chain)(learning_rate=0.1, weight_decay=0.5)
        optimizer = build(e, params, {"momentum": 0.9})
        new, _, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params, optimizer.hyper.table(1, 1)[0])
        w, g = np.asarray(params["head"]["kernel"]), np.asarray(grads["head"]["kernel"])
        np.testing.assert_allclose(new["head"]["kernel"], w - 0.1 * g - 0.1 * 0.5 * w, rtol=1e-6)
        b, gb = np.asarray(params["head"]["bias"]), np.asarray(grads["head"]["bias"])
        np.testing.assert_allclose(new["head"]["bias"], b - 0.1 * gb, rtol=1e-6)

    def test_hp_holds_the_anchor_and_the_mask(self, base: type[Any], params: Any) -> None:
        seen: list[Any] = []

        class E(base):  # type: ignore[valid-type, misc]
            def decay_anchor(self, group: str) -> str:
                return "w0"

            def optimizer(self, group: str, hp: Any) -> Any:
                seen.append(hp)
                return optax.chain(optax.scale_by_learning_rate(hp.learning_rate), optim.decay(hp))

        optimizer = build(E(weight_decay=0.1), params)
        jax.eval_shape(
            optimizer.update,
            params,
            optimizer.init(params),
            params,
            optimizer.hyper.table(1, 1)[0],
            optimizer.anchors(params),
        )
        assert seen[-1].decay_mask == {"body/kernel": True, "body/bias": False, "head/kernel": True, "head/bias": False}
        assert set(seen[-1].anchor) == {"body/kernel", "head/kernel"}

    def test_a_factory_that_ignores_a_scheduled_entry_is_refused(self, base: type[Any], params: Any) -> None:
        def chain(hp: Any) -> Any:
            return optax.chain(optax.trace(0.9), optax.scale_by_learning_rate(hp.learning_rate), optim.decay(hp))

        with pytest.raises(OptimizerError, match="ignores the scheduled 'momentum'"):
            build(level2(base, chain)(), params, {"momentum": 0.9})

    def test_reading_a_scheduled_entry_without_using_it_does_not_count(self, base: type[Any], params: Any) -> None:
        def chain(hp: Any) -> Any:
            _ = hp.momentum * 2.0
            return optax.chain(optax.scale_by_learning_rate(hp.learning_rate), optim.decay(hp))

        with pytest.raises(OptimizerError, match="ignores the scheduled 'momentum'"):
            build(level2(base, chain)(), params, {"momentum": 0.9})

    @pytest.mark.filterwarnings("ignore:the optimizer of the group 'default' does not use")
    def test_a_scheduled_entry_inside_a_jitted_function_is_followed(self, base: type[Any], params: Any) -> None:
        @jax.jit
        def scaled(g: Any, used: Any, unused: Any) -> Any:
            return g * used

        def chain(hp: Any, name: str) -> Any:
            rate, other = (hp.learning_rate, hp.b1) if name == "b1" else (hp.b1, hp.learning_rate)

            def update(updates: Any, state: Any, params: Any = None) -> Any:
                return jax.tree.map(lambda g: -scaled(g, rate, other), updates), state

            return optax.GradientTransformation(lambda params: optax.EmptyState(), update)

        with pytest.raises(OptimizerError, match="ignores the scheduled 'b1'"):
            build(level2(base, lambda hp: chain(hp, "b1"))(), params, {"b1": 0.9})
        build(level2(base, lambda hp: chain(hp, "rate"))(), params, {"b1": 0.9})

    def test_a_schedule_of_the_rate_must_be_used(self, base: type[Any], params: Any) -> None:
        with pytest.raises(OptimizerError, match="ignores the scheduled 'learning_rate'"):
            build(level2(base, lambda hp: optax.sgd(0.1))(), params, {"learning_rate": 0.5})

    def test_a_rate_that_the_chain_ignores_is_warned_about(self, base: type[Any], params: Any) -> None:
        with pytest.warns(NitroWarning, match="does not use hp.learning_rate"):
            build(level2(base, lambda hp: optax.sgd(0.1))(), params)

    def test_a_decay_that_the_chain_leaves_out_is_refused(self, base: type[Any], params: Any) -> None:
        with pytest.raises(OptimizerError, match="ignores its weight decay"):
            build(level2(base, lambda hp: optax.sgd(hp.learning_rate))(weight_decay=0.1), params)
        build(level2(base, lambda hp: optax.sgd(hp.learning_rate))(), params)

    def test_a_decay_before_the_rate_is_refused(self, base: type[Any], params: Any) -> None:
        with pytest.raises(OptimizerError, match="not the last member"):
            build(level2(base, lambda hp: optax.chain(optim.decay(hp), optax.sgd(hp.learning_rate)))(), params)

    def test_an_unknown_entry_names_those_there_are(self, base: type[Any], params: Any) -> None:
        with pytest.raises(OptimizerError, match=r"hp\.learning_rat,") as caught:
            build(level2(base, lambda hp: optax.sgd(hp.learning_rat))(), params)
        assert "learning_rate" in caught.value.nearest

    def test_an_entry_with_a_default_may_be_scheduled_or_not(self, base: type[Any], params: Any) -> None:
        def chain(hp: Any) -> Any:
            return optax.chain(
                optax.trace(hp.get("momentum", 0.9)), optax.scale_by_learning_rate(hp.learning_rate), optim.decay(hp)
            )

        build(level2(base, chain)(), params)
        build(level2(base, chain)(), params, {"momentum": 0.5})

    def test_a_misspelled_schedule_is_refused_with_the_name_the_hook_reads(self, base: type[Any], params: Any) -> None:
        def chain(hp: Any) -> Any:
            return optax.sgd(hp.learning_rate, momentum=hp.get("momentum", 0.9))

        with pytest.raises(OptimizerError) as caught:
            build(level2(base, chain)(), params, {"momentm": 0.5})
        assert "momentum" in caught.value.nearest

    def test_a_hook_that_returns_a_factory_is_refused(self, base: type[Any], params: Any) -> None:
        with pytest.raises(OptimizerError, match="returned function"):
            build(level2(base, lambda hp: optax.sgd)(), params)


def test_a_rule_that_reads_the_loss_works_where_the_step_gives_it(base: type[Any], params: Any, grads: Any) -> None:
    optimizer = build(level1(base, optax.contrib.momo)(learning_rate=0.1), params, supplies_loss=True)
    assert optimizer.wants_loss
    row = optimizer.hyper.table(1, 1)[0]
    flat, flat_grads = optimizer.layout.flatten(params), optimizer.layout.flatten(grads)
    reference = optax.contrib.momo(0.1)
    updates, _ = jax.jit(reference.update)(flat_grads, reference.init(flat), flat, value=jnp.float32(2.0))
    new, _, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params, row, value=jnp.float32(2.0))
    np.testing.assert_allclose(new["head"]["kernel"], optax.apply_updates(flat, updates)["head/kernel"], rtol=1e-6)


@pytest.mark.parametrize("name", ["b1", "b2", "eps", "eps_root"])
def test_every_number_of_adam_can_be_scheduled(base: type[Any], params: Any, name: str) -> None:
    assert f"default/{name}" in build(level1(base, optax.adam)(), params, {name: 0.5}).hyper.columns


def test_a_factory_that_raises_is_code_that_fails_with_the_exit_code_of_a_hook(base: Any, params: Any) -> None:
    def factory(learning_rate: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(HookError, match="the optimizer factory raised ValueError: not today") as failed:
        build(level1(base, factory)(), params)
    assert failed.value.exit_code == 1
    assert isinstance(failed.value.__cause__, ValueError)
