"""One optimizer step against a plain JAX and optax computation of the same thing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import EMA, Nitro
from nitro_cli.optim import one_cycle
from tests.tiny import CLASSES, FEATURES, Bare, points

STEPS = 4
ROWS = 8 * 4 * STEPS


def plain_loss(params: Any, x: Any, y: Any) -> Any:
    logits = x @ params["kernel"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def by_hand(
    params: Any,
    accum: int,
    *,
    tx: Any,
    rates: Any,
    clip: float = 0.0,
    decay: float = 0.0,
    anchor: Any = None,
    ratio: Any = None,
) -> tuple[Any, list[float]]:
    """The steps as one would write them: big batch, global clip, optax, decoupled decay on the kernel."""
    data = points(ROWS, 1)
    size = 8 * accum
    opt = tx.init(params)
    losses = []
    for step in range(STEPS):
        rows = slice(step * size, (step + 1) * size)
        loss, grads = jax.value_and_grad(plain_loss)(params, data["x"][rows], data["y"][rows])
        losses.append(float(loss))
        if clip:
            scale = jnp.minimum(1.0, clip / optax.tree.norm(grads))
            grads = {name: g * scale for name, g in grads.items()}
        updates, opt = tx.update(grads, opt, params)
        new = {}
        for name, w in params.items():
            rate = rates[step] * (ratio or {}).get(name, 1.0)
            new[name] = w + rate * updates[name]
            if decay and name == "kernel":
                new[name] = new[name] - rate * decay * (w - (0 if anchor is None else anchor[name]))
        params = new
    return params, losses


class Steps(Bare):
    """Bare, with the rows of the log kept."""

    max_epochs = 1
    learning_rate = 0.1
    logger = None
    checkpointer = None

    def optimizer(self, group: str) -> Any:
        return optax.adam


def assert_close(found: Any, wanted: Any) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(value), rtol=1e-6, atol=1e-6, err_msg=name)


ADAM = optax.scale_by_adam()
DOWN = optax.chain(ADAM, optax.scale(-1.0))


def four_steps(cls: type[Steps], tmp_path: Any, **fields: Any) -> tuple[Any, Any]:
    e = cls(**fields)
    data = points(ROWS, 1)

    class Source:
        def __len__(self) -> int:
            return STEPS * e.accum

        def __iter__(self) -> Any:
            for i in range(len(self)):
                yield {name: value[8 * i : 8 * i + 8] for name, value in data.items()}

    handle = Nitro(e, run_dir=tmp_path, data={"train": Source()})
    initial = jax.tree.map(np.asarray, handle.params)
    return initial, handle.train()


@pytest.mark.parametrize("accum", [1, 4])
def test_a_step_is_optax_on_the_big_batch(accum: int, tmp_path: Any) -> None:
    initial, handle = four_steps(Steps, tmp_path, accum=accum)
    wanted, _ = by_hand(initial, accum, tx=DOWN, rates=[0.1] * STEPS)
    assert_close(handle.params, wanted)


@pytest.mark.parametrize("accum", [1, 4])
def test_clipping_is_of_the_global_norm_of_the_accumulated_gradient(accum: int, tmp_path: Any) -> None:
    initial, handle = four_steps(Steps, tmp_path, accum=accum, gradient_clip_norm=0.05)
    wanted, _ = by_hand(initial, accum, tx=DOWN, rates=[0.1] * STEPS, clip=0.05)
    assert_close(handle.params, wanted)


@pytest.mark.parametrize("accum", [1, 4])
def test_decay_is_decoupled_scaled_by_the_rate_and_spares_biases(accum: int, tmp_path: Any) -> None:
    initial, handle = four_steps(Steps, tmp_path, accum=accum, weight_decay=0.3)
    wanted, _ = by_hand(initial, accum, tx=DOWN, rates=[0.1] * STEPS, decay=0.3)
    assert_close(handle.params, wanted)


def test_decay_toward_the_initial_weights(tmp_path: Any) -> None:
    class Anchored(Steps):
        def decay_anchor(self, group: str) -> Any:
            return "w0"

    initial, handle = four_steps(Anchored, tmp_path, weight_decay=0.3)
    wanted, _ = by_hand(initial, 1, tx=DOWN, rates=[0.1] * STEPS, decay=0.3, anchor=initial)
    assert_close(handle.params, wanted)


def test_groups_keep_their_ratio_under_a_schedule(tmp_path: Any) -> None:
    class Grouped(Steps):
        def param_group(self, path: Any) -> str:
            return "slow" if path[0] == "bias" else "default"

        def group_learning_rate(self, group: str) -> float:
            return 0.01 if group == "slow" else self.learning_rate

        def schedules(self) -> Any:
            return {"learning_rate": lambda total: lambda step: 0.2 / step}

    initial, handle = four_steps(Grouped, tmp_path)
    rates = [0.2 / step for step in range(1, STEPS + 1)]
    wanted, _ = by_hand(initial, 1, tx=DOWN, rates=rates, ratio={"bias": 0.1})
    assert_close(handle.params, wanted)


def test_an_optax_schedule_is_evaluated_from_count_zero(tmp_path: Any) -> None:
    schedule = optax.cosine_decay_schedule(0.1, decay_steps=STEPS)

    class Scheduled(Steps):
        def schedules(self) -> Any:
            return {"learning_rate": schedule}

    initial, handle = four_steps(Scheduled, tmp_path)
    wanted, _ = by_hand(initial, 1, tx=DOWN, rates=[float(schedule(i)) for i in range(STEPS)])
    assert_close(handle.params, wanted)


def test_the_loss_of_an_accumulated_step_is_that_of_the_big_batch(tmp_path: Any) -> None:
    initial, handle = four_steps(Steps, tmp_path, accum=2)
    _, losses = by_hand(initial, 2, tx=DOWN, rates=[0.1] * STEPS)
    assert handle.history[1]["train_loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_a_loop_over_micro_batches_inside_the_program_agrees_with_writing_them_out(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, unrolled = four_steps(Steps, tmp_path, accum=2)
    monkeypatch.setattr("nitro_cli.programs.accumulation.UNROLL_UP_TO", 1)
    _, looped = four_steps(Steps, tmp_path, accum=2)
    assert "loop" in str(looped.report)
    assert_close(looped.params, jax.tree.map(np.asarray, unrolled.params))


def test_ema_follows_the_recursion_with_warmup(tmp_path: Any) -> None:
    class Averaged(Steps):
        ema = EMA(beta=0.9)

        def optimizer(self, group: str) -> Any:
            return optax.sgd

    initial, handle = four_steps(Averaged, tmp_path)
    data = points(ROWS, 1)
    w = average = {name: value.astype(np.float64) for name, value in initial.items()}
    for t in range(1, STEPS + 1):
        rows = slice(8 * t - 8, 8 * t)
        grads = jax.grad(plain_loss)({k: v.astype(np.float32) for k, v in w.items()}, data["x"][rows], data["y"][rows])
        w = {name: w[name] - 0.1 * np.asarray(grads[name], np.float64) for name in w}
        beta = min(0.9, (1 + t) / (10 + t))
        average = {name: beta * average[name] + (1 - beta) * w[name] for name in w}
    assert_close(handle.ema, average)


def test_a_frozen_group_is_bit_identical_and_has_no_state(tmp_path: Any) -> None:
    class Frozen(Steps):
        def param_group(self, path: Any) -> str:
            return "frozen" if path[0] == "bias" else "default"

    initial, handle = four_steps(Frozen, tmp_path, weight_decay=0.1)
    assert np.asarray(handle.params["bias"]).tobytes() == initial["bias"].tobytes()
    assert "frozen" not in handle.train_state.opt
    assert all(leaf.shape != (CLASSES,) for leaf in jax.tree.leaves(handle.train_state.opt))
    assert np.asarray(handle.params["kernel"]).shape == (FEATURES, CLASSES)


def test_one_cycle_reaches_the_program_step_by_step(tmp_path: Any) -> None:
    class Cycled(Steps):
        def schedules(self) -> Any:
            return {"learning_rate": one_cycle(0.1)}

    initial, handle = four_steps(Cycled, tmp_path)
    table = handle.plan.optim.hyper.table(1, STEPS)[:, handle.plan.optim.hyper.column("default/learning_rate")]
    wanted, _ = by_hand(initial, 1, tx=DOWN, rates=[float(v) for v in table])
    assert_close(handle.params, wanted)
