"""Manual mode: schedules bind into the optimizer states by path, with absolute values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import Device, optim
from nitro_cli.errors import OptimizerError, ScheduleError


@pytest.fixture
def states(params: Any) -> dict[str, Any]:
    """Two networks: one whose whole optimizer is injected, one with an injected member in a chain."""
    gen = optax.inject_hyperparams(optax.adam)(learning_rate=1e-4, b1=0.5)
    disc = optax.chain(optax.clip(1.0), optax.inject_hyperparams(optax.sgd)(learning_rate=2e-4, momentum=0.5))
    return {"gen": gen.init(params["body"]), "disc": disc.init(params["head"])}


def bind(base: type[Any], states: Any, schedules: Any, **options: Any) -> optim.Hyper:
    class E(base):  # type: ignore[valid-type, misc]
        strength: Device[float] = 0.5

        def group_learning_rate(self, group: str) -> float:
            return 99.0

    return optim.bind_manual(E(), states, schedules=schedules, origin="keyword", total_steps=10, **options)


def applied(hyper: optim.Hyper, states: Any, step: int = 1) -> Any:
    return jax.jit(hyper.apply_row)(states, hyper.table(step, 1)[0])


def test_a_bare_key_sets_every_state_that_has_it_to_the_absolute_value(base: type[Any], states: Any) -> None:
    hyper = bind(base, states, {"learning_rate": lambda total: lambda step: 0.1 * step})
    new = applied(hyper, states, 3)
    assert float(new["gen"].hyperparams["learning_rate"]) == pytest.approx(0.3)
    assert float(new["disc"][1].hyperparams["learning_rate"]) == pytest.approx(0.3)
    assert float(new["gen"].hyperparams["b1"]) == pytest.approx(0.5)
    assert hyper.bindings[0].bound == ("disc/1/learning_rate", "gen/learning_rate")
    assert hyper.varying() == ("schedule/learning_rate",)


def test_a_path_sets_the_states_below_it_and_wins_over_the_bare_key(base: type[Any], states: Any) -> None:
    ramp = optim.linear(1.0, 0.0)
    for keys in (("learning_rate", "opt.gen.learning_rate"), ("opt.gen.learning_rate", "learning_rate")):
        values = {"learning_rate": 0.25, "opt.gen.learning_rate": ramp}
        hyper = bind(base, states, {key: values[key] for key in keys})
        new = applied(hyper, states)
        assert float(new["gen"].hyperparams["learning_rate"]) == 1.0
        assert float(new["disc"][1].hyperparams["learning_rate"]) == 0.25
        assert hyper.varying() == ("schedule/gen/learning_rate",)
    deep = bind(base, states, {"opt.disc.1.momentum": 0.75})
    assert float(applied(deep, states)["disc"][1].hyperparams["momentum"]) == 0.75


def test_the_structure_and_dtypes_stay_so_nothing_recompiles(base: type[Any], states: Any) -> None:
    hyper = bind(base, states, {"learning_rate": optim.cosine(1.0), "b1": 0.9})
    new = applied(hyper, states)
    assert jax.tree.structure(new) == jax.tree.structure(states)
    shapes = [(x.shape, x.dtype) for x in jax.tree.leaves(new)]
    assert shapes == [(x.shape, x.dtype) for x in jax.tree.leaves(states)]


def test_the_update_uses_the_scheduled_value(base: type[Any], params: Any) -> None:
    gen = optax.inject_hyperparams(optax.sgd)(learning_rate=1e-4)
    state = {"gen": gen.init(params["head"])}
    hyper = bind(base, state, {"opt.gen.learning_rate": 0.5})
    grads = jax.tree.map(jnp.ones_like, params["head"])
    updates, _ = gen.update(grads, applied(hyper, state)["gen"], params["head"])
    np.testing.assert_allclose(updates["bias"], [-0.5])


def test_without_schedules_the_states_pass_through(base: type[Any], states: Any) -> None:
    hyper = bind(base, states, {})
    assert hyper.columns == ()
    assert hyper.table(1, 4).shape == (4, 0)
    assert jax.tree.leaves(applied(hyper, states))[0] == jax.tree.leaves(states)[0]


def test_device_fields_and_plateaus_work_as_in_the_automatic_mode(base: type[Any], states: Any) -> None:
    schedules = {"strength": optim.linear(0.0, 1.0), "b1": optim.Plateau(0.5, patience=0)}
    hyper = bind(base, states, schedules, monitor=("loss", "min"))
    assert hyper.scheduled_device_fields == ("strength",)
    for epoch in (1, 2):
        hyper, _ = hyper.after(epoch, {"loss": 1.0})
    assert float(applied(hyper, states)["gen"].hyperparams["b1"]) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("learning_rat", "binds to nothing"),
        ("opt.gem.learning_rate", "names the path 'gem'"),
        ("opt.gen.momentum", "binds to nothing"),
        ("seed", "Host field"),
        ("device.learning_rate", "Host field"),
        ("grad.rho", "binds to nothing"),
    ],
)
def test_a_key_that_binds_nowhere_is_refused(base: type[Any], states: Any, key: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        bind(base, states, {key: 0.1})


def test_a_state_that_optax_schedules_itself_is_refused(base: type[Any], params: Any) -> None:
    gen = optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(1.0, 0.0, 5))
    with pytest.raises(ScheduleError, match="would be overwritten"):
        bind(base, {"gen": gen.init(params)}, {"learning_rate": 0.1})


def test_a_perturbing_rule_is_refused(base: type[Any], states: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        def grad_rule(self) -> Any:
            return optim.SAM(0.1)

    with pytest.raises(OptimizerError, match="no effect in manual mode"):
        optim.bind_manual(E(), states, total_steps=10)
