"""Manual mode: the experiment's own optimizer step inside the framework's loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import EMA, Checkpointer, Device, Nitro
from nitro_cli.errors import (
    ConfigError,
    DivergenceError,
    HookError,
    NitroError,
    NitroWarning,
    OptimizerError,
    ScheduleError,
)
from nitro_cli.optim import SAM, Plateau, linear
from nitro_cli.tracking import JSONLogger
from tests.tiny import CLASSES, Bare, points

SGD = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.5)


class Own(Bare):
    """Softmax regression, kernel and bias each by an optimizer of its own; a pull of 1 or more is no finite loss."""

    pull: Device[float] = 0.0
    samples: int = 32
    checkpointer = None
    logger = None

    def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
        return {name: SGD.init(weight) for name, weight in params.items()}

    def train_step(self, model: Any, params: Any, opt_state: Any, state: Any, *, x: jax.Array, y: jax.Array) -> Any:
        def objective(weights: Any) -> Any:
            pulled = self.pull * jnp.sum(weights["kernel"]) + jnp.log1p(-self.pull)
            return self.loss(model(weights, state, x)[0], y=y) + pulled

        loss, grads = jax.value_and_grad(objective)(params)
        new, states = {}, {}
        for name, weight in params.items():
            update, states[name] = SGD.update(grads[name], opt_state[name], weight)
            new[name] = weight + update
        return loss, new, state, states, {"norm": optax.tree.norm(grads)}

    def train_metrics(self, outputs: Any, *, y: jax.Array) -> Any:
        raise AssertionError("stats stand in its place")


def gradient(layer: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Of the mean cross entropy of softmax regression, in double precision."""
    logits = x.astype(np.float64) @ layer["kernel"] + layer["bias"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    error = (shares / shares.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(x)
    return {"kernel": x.astype(np.float64).T @ error, "bias": error.sum(0)}


def by_hand(layer: dict[str, np.ndarray], rates: dict[str, list[float]], pull: list[float]) -> Any:
    """The trajectory under momentum 0.5, one rate per leaf and step."""
    data = points(32, 1)
    velocity = {name: np.zeros_like(value) for name, value in layer.items()}
    path = [layer]
    for step in range(len(pull)):
        rows = slice(8 * step, 8 * step + 8)
        g = gradient(layer, data["x"][rows], data["y"][rows])
        g["kernel"] = g["kernel"] + pull[step]
        velocity = {name: g[name] + 0.5 * velocity[name] for name in layer}
        layer = {name: layer[name] - rates[name][step] * velocity[name] for name in layer}
        path.append(layer)
    return path


def initial(nitro: Nitro) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float64) for name, value in nitro.params.items()}


def assert_close(found: Any, wanted: Any) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_schedules_by_path_and_on_device_fields_are_absolute_and_the_average_follows(tmp_path: Any) -> None:
    schedules = {
        "learning_rate": lambda total: lambda step: 0.2 * step / total,
        "opt.bias.learning_rate": optax.linear_schedule(0.4, 0.0, 4),
        "pull": lambda total: lambda step: 0.01 * step,
    }
    nitro = Nitro(Own(), run_dir=tmp_path, schedules=schedules, ema=EMA(0.9, every=2))
    before = initial(nitro)
    nitro.train()
    rates = {"kernel": [0.05, 0.1, 0.15, 0.2], "bias": [0.4, 0.3, 0.2, 0.1]}
    path = by_hand(before, rates, [0.01, 0.02, 0.03, 0.04])
    assert_close(nitro.params, path[-1])
    average = before
    for t in (2, 4):
        b = min(0.9, (1 + t) / (10 + t))
        average = {name: b * average[name] + (1 - b) * path[t][name] for name in average}
    assert_close(nitro.ema, average)


def test_the_setup_report_and_the_train_lines_name_each_path(tmp_path: Any) -> None:
    schedules = {"opt.kernel.learning_rate": lambda total: lambda step: 0.1 * step, "momentum": 0.5}
    nitro = Nitro(Own(logger=JSONLogger()), run_dir=tmp_path, schedules=schedules).train()
    (band,) = (band for band in nitro.report.bands if band.title == "bindings")
    bound = {row["key"]: (row["bound"], row["origin"]) for row in band.rows}
    assert bound == {
        "opt.kernel.learning_rate": ("kernel/learning_rate", "keyword"),
        "momentum": ("bias/momentum, kernel/momentum", "keyword"),
    }
    lines = [json.loads(line) for line in (nitro.run_path / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line.get("context") == "train"]
    assert [line["schedule/kernel/learning_rate"] for line in train] == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-6)
    assert not [name for name in train[0] if name.startswith("schedule/") and "momentum" in name]
    assert train[0]["norm"] > 0


def test_a_plateau_scales_a_state_from_the_next_epoch_on(tmp_path: Any) -> None:
    rule = Plateau(0.1, metric="loss", mode="max", factor=0.5, patience=0)
    nitro = Nitro(Own(), run_dir=tmp_path, max_epochs=3, schedules={"learning_rate": rule}).train()
    assert [row["loss"] for row in nitro.history] == sorted((row["loss"] for row in nitro.history), reverse=True)
    # the falling loss is bad under "max": the first epoch is the best, the second reduces, the third is trained with it
    assert float(nitro.train_state.opt["kernel"].hyperparams["learning_rate"]) == pytest.approx(0.05, rel=1e-6)


def test_a_resume_over_another_horizon_tells_where_a_schedule_jumps(tmp_path: Any) -> None:
    class Kept(Own):
        checkpointer = Checkpointer(keep=("last(1)",))

        def schedules(self) -> Any:
            return {"opt.kernel.learning_rate": linear(0.4, 0.0)}

    Nitro(Kept(), run_dir=tmp_path, max_epochs=2).train()
    jump = r"kernel/learning_rate at step 8 is 0.166667 over 12 steps; it was 0.05 over 8"
    with pytest.warns(NitroWarning, match=jump):
        Nitro(Kept(), run_dir=tmp_path, max_epochs=3, resume="latest:latest")


def test_declining_keeps_the_method_and_trains_by_the_framework(tmp_path: Any) -> None:
    class Declined(Own):
        def manual_training(self) -> bool:
            return False

        def train_step(self, *args: Any, **fields: Any) -> Any:
            raise AssertionError("declined")

        def train_metrics(self, outputs: Any, *, y: jax.Array) -> Any:
            return {"mean": jnp.mean(outputs)}

        def optimizer(self, group: str) -> Any:
            return optax.sgd

    nitro = Nitro(Declined(), run_dir=tmp_path).train()
    assert nitro.step == 4
    assert set(nitro.train_state.opt) == {"default"}


def test_a_loss_that_is_not_finite_stops_with_the_last_good_weights(tmp_path: Any) -> None:
    nitro = Nitro(Own(), run_dir=tmp_path, schedules={"pull": lambda total: lambda step: 0.0 if step < 4 else 2.0})
    before = initial(nitro)
    with pytest.raises(DivergenceError, match="step 4"):
        nitro.train()
    assert nitro.step == 3
    assert np.isfinite(np.asarray(nitro.params["kernel"])).all()
    good = by_hand(before, {name: [0.1] * 3 for name in before}, [0.0] * 3)[-1]
    assert_close(nitro.params, good)


Result = tuple[Any, ...]
WRONG: dict[str, tuple[Callable[[Result], Any], str]] = {
    "one value": (lambda r: r[0], "`train_step` returned"),
    "four": (lambda r: r[:4], "loss, params, state, opt_state, stats"),
    "a loss per sample": (lambda r: (jnp.ones(8), *r[1:]), r"shape \(8,\)"),
    "no stats": (lambda r: (*r[:4], None), "stats"),
    "stats per sample": (lambda r: (*r[:4], {"norm": jnp.ones(8)}), "'norm'"),
    "stats named loss": (lambda r: (*r[:4], {"loss": r[0]}), "'loss'"),
    "a parameter less": (lambda r: (r[0], {"kernel": r[1]["kernel"]}, *r[2:]), "params"),
    "states swapped": (lambda r: (r[0], r[1], r[3], r[2], r[4]), "state"),
    "a parameter of another shape": (lambda r: (r[0], {**r[1], "bias": r[1]["bias"][:1]}, *r[2:]), "(?s)params.*bias"),
    "a parameter of another dtype": (
        lambda r: (r[0], {**r[1], "bias": r[1]["bias"].astype(jnp.bfloat16)}, *r[2:]),
        "(?s)params.*bias",
    ),
    "an optimizer state of another dtype": (
        lambda r: (*r[:3], jax.tree.map(lambda leaf: leaf.astype(jnp.float16), r[3]), r[4]),
        "opt_state",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_return_is_refused_before_anything_trains(what: str, tmp_path: Any) -> None:
    change, message = WRONG[what]

    class Wrong(Own):
        def train_step(self, *args: Any, x: jax.Array, y: jax.Array) -> Any:
            return change(super().train_step(*args, x=x, y=y))

    nitro = Nitro(Wrong(), run_dir=tmp_path)
    with pytest.raises(HookError, match=message):
        nitro.train()


class Sharp(Own):
    def grad_rule(self) -> Any:
        return SAM(0.1)


class NoStates(Bare):
    def train_step(self, *args: Any, x: Any, y: Any) -> Any: ...


class OptaxScheduled(Own):
    def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
        return optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(0.1, 0.0, 4)).init(params)


REFUSED: dict[str, tuple[Any, type[NitroError], str]] = {
    "accumulation": (lambda: (Own(accum=2), {}), ConfigError, "accum = 2"),
    "a perturbing rule": (lambda: (Sharp(), {}), OptimizerError, "no effect in manual mode"),
    "no optimizer states": (lambda: (NoStates(), {}), ConfigError, "setup_optimizers"),
    "an unknown key": (lambda: (Own(), {"momentun": 0.1}), ScheduleError, "did you mean: momentum"),
    "an unknown path": (lambda: (Own(), {"opt.kernl.momentum": 0.1}), ScheduleError, "did you mean: kernel"),
    "a Host field": (lambda: (Own(), {"samples": 1}), ScheduleError, "Host field"),
    "a state optax schedules": (lambda: (OptaxScheduled(), {"learning_rate": 0.1}), ScheduleError, "overwritten"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_manual_mode_cannot_do_is_refused_at_setup(what: str, tmp_path: Any) -> None:
    make, error, message = REFUSED[what]
    e, schedules = make()
    with pytest.raises(error, match=message):
        Nitro(e, run_dir=tmp_path, schedules=schedules or None)
