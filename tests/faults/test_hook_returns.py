"""What a hook may not return is that hook's error, by name: never a defect of nitro, and no run is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Concat, Experiment, Max, Mean, Nitro, Sum, set_progress_reporter
from nitro_cli.errors import DataError, ExitCode, NitroError

HUGE = 10**400


class Sound(Experiment):
    """An experiment without a mistake."""

    max_epochs = 1
    checkpointer = None
    logger = None

    def build_data(self, dist: Any) -> Any:
        x = np.ones((4, 1), np.float32)
        return {"train": ArrayBatches({"x": x}, 4), "val": ArrayBatches({"x": x}, 4)}

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs**2)


class Judged(Sound):
    """With a metric of its own."""

    monitor = ("a", "min")

    def metrics(self, outputs: Any) -> Any:
        return {"a": Mean(1.0, 2)}


class Manual(Sound):
    """Does its own step."""

    def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
        return optax.sgd(0.1).init(params)

    def train_step(self, model: Any, params: Any, opt_state: Any, state: Any, *, x: Any) -> Any:
        return jnp.float32(0), params, state, opt_state, {}


class Stateful(Sound):
    """A model with layer state."""

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {"n": jnp.zeros((2,))}


ONE = jnp.ones(())
ROWS = jnp.ones((4, 1))
LOSSES = [None, 3, True, 1j, HUGE, "x", [], {}, object(), (1, 2, 3), jnp.asarray(1j), jnp.asarray(3), np.bool_(True)]
TERMS = [None, {"a": None}, {"a": "x"}, {"a": 1j}, {"a": HUGE}]
PAIRS = [None, "x", {}, (1, 2, 3), ROWS, [ROWS, {}], ("x", {}), (object(), {}), (1.0, {})]
STATES = [None, {"n": "x"}, {"n": jnp.zeros((2,), int)}, {"n": jnp.zeros((3,))}]
SUMS = [Mean(HUGE, 1), Mean(1.0, HUGE), Sum(HUGE), Max(-HUGE), Sum(2**70), Mean(1j, 1), Mean("x", 1), Mean(None, 1)]
COUNTS = [Mean(1, -1), Mean(1, 0), Concat(1), Sum({})]
CASES: dict[str, tuple[type[Experiment], list[Any]]] = {
    "loss": (Sound, [*LOSSES, (None, {}), *((ONE, terms) for terms in TERMS)]),
    "forward": (Stateful, [*PAIRS, *((ROWS, state) for state in STATES)]),
    "train_metrics": (Sound, [None, 3, "x", [], {"a": None}, {"a": "x"}, {"a": 1j}, {"a": HUGE}, {"loss": 1.0}]),
    "metrics": (
        Judged,
        [
            *(None, 3, [], {"a": 1.0}, {"a": None}, {"a": {"b": None}}, {1: Sum(1)}, {"a": Sum(1), "": Sum(1)}),
            *({"a": value} for value in (*SUMS, *COUNTS)),
            {"a": Sum(1), "step": Sum(1)},
        ],
    ),
    "finalize_metrics": (
        Judged,
        [None, 3, "x", [], {"a": None}, {"a": "x"}, {"a": 1j}, {"a": HUGE}, {"a": object()}, {"a": Mean(1, 2)}],
    ),
    "metrics_residency": (Judged, [None, "gpu", True, np.ones(3)]),
    "train_step": (Manual, [None, 3, (None,) * 5, (ONE, 1, 2), (ONE, {}, {}, {}, {}), (ONE, None, {}, (), None)]),
    "setup_optimizers": (Manual, ["x", object(), {"a": "x"}, HUGE, optax.sgd(0.1), {1}]),
    "manual_training": (Manual, [None, "yes", 1, np.ones(3)]),
    "derive": (Sound, [None, 3, [], {1: 2}, {"max_epoch": 1}, {"learning_rate": "x"}, {"learning_rate": HUGE}]),
    "build_data": (Sound, [None, 3, [], {"train": None}, {"train": [1, 2]}, {"train": []}]),
    "build_model": (Sound, [None, 3, (1, 2, 3, 4), (object(), {}, {}), (lambda p, s, x: (x, s), {"w": "x"}, {})]),
    "param_group": (Sound, [None, 3, []]),
    "group_learning_rate": (Sound, [None, "x", 1j, HUGE, float("nan")]),
    "group_weight_decay": (Sound, [None, "x", 1j, HUGE]),
    "no_decay": (Sound, [None, "x", 3]),
    "schedules": (Sound, [3, "x", np.ones(3), {"learning_rate": None}, {"learning_rate": HUGE}, {1: 2.0}]),
    "optimizer": (Sound, [3, "x", int, [], optax.sgd(0.1)]),
    "grad_rule": (Sound, [3, "x", []]),
}


NAMED: dict[str, tuple[str, ...]] = {
    # what the error names in the place of the hook
    "forward": ("layer state",),
    "metrics": ("'a'", "'step'", "''", " 1."),
    "finalize_metrics": ("'a'", "monitor"),
    "train_step": ("loss",),
    "derive": ("learning_rate",),
    "build_data": ("split", "train"),
    "build_model": ("params",),
    "group_learning_rate": ("learning rate",),
    "group_weight_decay": ("weight decay",),
    "schedules": ("schedule",),
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    previous = set_progress_reporter(None)
    yield
    set_progress_reporter(previous)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hook", CASES)
def test_a_hook_that_returns_what_it_may_not_is_named(hook: str, tmp_path: Path) -> None:
    base, values = CASES[hook]
    for value in values:
        kind = type("Wrong", (base,), {hook: lambda self, *args, _value=value, **fields: _value})
        with pytest.raises(NitroError) as caught:  # noqa: PT012 - setup or a pass may be what raises
            nitro = Nitro(kind(), run_dir=tmp_path / "runs")
            if base is Judged:
                nitro.validate()
            nitro.train()
        said = str(caught.value)
        assert any(word in said for word in (hook, *NAMED.get(hook, ()))), f"{value!r}: {said}"
        code = ExitCode.USAGE if isinstance(caught.value, DataError) else ExitCode.FAILED
        assert caught.value.exit_code == code, f"{value!r}: {said}"
        assert not list((tmp_path / "runs").glob("*/record.json"))
