"""Several optimizer steps in one call of the program, over data on the device: nothing but the time may tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Checkpointer, Nitro, NoPrefetch, checkpoint_info, read_manifest
from nitro_cli.errors import DivergenceError
from nitro_cli.experiment import Last
from nitro_cli.programs import MOST_STEPS, trace_step
from nitro_cli.run import RunState, dispatch
from nitro_cli.run.recording import Recorder
from tests.tiny import Bare, Quick, points, stop_after

ROWS = dispatch.Pending.rows
BATCHES = 40
"""Batches of an epoch: more than one call can take."""


class Many(Quick):
    """Dropout, layer state, momentum, an average; forty steps an epoch, each with its line in the log."""

    max_epochs = 2
    log_every_n_steps = 1
    ema = {"beta": 0.8}  # noqa: RUF012
    checkpointer = Checkpointer(keep=(Last(9),))


def fed(stream: bool = False) -> dict[str, Any]:
    source = ArrayBatches(points(8 * BATCHES, 1), 8, shuffle=True)
    return {"train": NoPrefetch(source) if stream else source, "val": ArrayBatches(points(19, 2), 8)}


def dispatches(nitro: Nitro) -> list[dict[str, Any]]:
    return [dict(row) for band in nitro.report.bands if band.title == "dispatch" for row in band.rows]


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Trains with so many seconds for a call; gives the handle and the sizes of its calls."""

    def train(seconds: float, cls: Any = Many, until: int | None = None, **words: Any) -> tuple[Nitro, list[int]]:
        monkeypatch.setattr(dispatch, "SECONDS", seconds)
        nitro = Nitro(cls(), data=words.pop("data", None) or fed(), run_dir=tmp_path / f"{seconds}", **words)
        if until is not None:
            stop_after(nitro, until)
        sizes: list[int] = []

        def counted(pending: dispatch.Pending) -> np.ndarray:
            sizes.append(pending.count)
            return ROWS(pending)

        monkeypatch.setattr(dispatch.Pending, "rows", counted)
        return nitro.train(), sizes

    return train


def test_how_steps_are_grouped_changes_no_bit_and_no_line(grouped: Any, bits: Any, log_lines: Any) -> None:
    single, ones = grouped(0.0)
    many, sizes = grouped(60.0)
    assert set(ones) == {1}
    assert max(sizes) == MOST_STEPS
    assert sum(sizes) == sum(ones) == 2 * BATCHES
    assert bits(many.train_state) == bits(single.train_state)
    assert many.history.json_rows() == single.history.json_rows()
    assert log_lines(many, "train", "validate") == log_lines(single, "train", "validate")
    assert [line["step"] for line in log_lines(many, "train")] == list(range(1, 2 * BATCHES + 1))


def test_they_agree_with_one_step_per_call(grouped: Any, tmp_path: Path) -> None:
    many, _ = grouped(60.0)
    streamed = Nitro(Many(), data=fed(stream=True), run_dir=tmp_path / "streamed").train()
    assert dispatches(streamed) == [
        {"steps in one call": "1", "because": "every batch is built right before its step (NoPrefetch)"}
    ]
    assert dispatches(many) == [{"steps in one call": f"up to {MOST_STEPS}", "because": "the data is on the device"}]
    for ours, theirs in zip(jax.tree.leaves(many.params), jax.tree.leaves(streamed.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_call_ends_where_a_checkpoint_is_due(grouped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = Recorder.save

    def noted(recorder: Recorder, state: RunState, **words: Any) -> Any:
        saved.append(int(state.train.step))
        return save(recorder, state, **words)

    monkeypatch.setattr(Recorder, "save", noted)
    _, sizes = grouped(60.0, checkpoint_every_n_steps=7, max_epochs=1)
    assert saved == [7, 14, 21, 28, 35, 40]
    assert max(sizes) == 7


def test_a_run_stopped_between_two_calls_resumes_bit_for_bit(grouped: Any, bits: Any, log_lines: Any) -> None:
    whole, _ = grouped(60.0)
    stopped, sizes = grouped(59.0, until=23)
    assert (stopped.step, stopped.state_saved) == (23, True)
    assert max(sizes) > 1
    resumed = Nitro(Many(), data=fed(), run_dir=stopped.run_dir, resume="auto").train()
    assert bits(resumed.train_state) == bits(whole.train_state)
    assert log_lines(resumed, "train", "validate") == log_lines(whole, "train", "validate")


def test_the_mode_is_in_the_record_and_a_resumed_run_keeps_it(grouped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("nitro_cli.programs.repeated.StepTrace.obstacle", lambda self, backend: "not here")
        one, _ = grouped(60.0, max_epochs=1)
    entry = read_manifest(one.run_dir).entries[-1]
    assert checkpoint_info(one.run_dir / entry.path).meta.steps_per_dispatch == 1
    resumed = Nitro(Many(), data=fed(), run_dir=one.run_dir, resume="auto").train()
    assert dispatches(resumed) == [{"steps in one call": "1", "because": "as the run began"}]
    assert resumed.step == 2 * BATCHES


def test_a_mode_that_cannot_be_kept_is_said(grouped: Any) -> None:
    several, _ = grouped(60.0, max_epochs=1)
    resumed = Nitro(Many(), data=fed(stream=True), run_dir=several.run_dir, resume="auto").train()
    assert dispatches(resumed)[0]["steps in one call"] == "1"
    assert "the run began with several" in dispatches(resumed)[0]["because"]


class Convolving(Bare):
    """A convolution in the place of the matrix product."""

    max_epochs = 1

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        smooth = jax.vmap(lambda row: jnp.convolve(row, jnp.ones(3), mode="same"))(x)
        return model(params, state, smooth)


class Printing(Bare):
    """A step that calls back into Python."""

    max_epochs = 1

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        jax.debug.callback(lambda mean: None, x.mean())
        return model(params, state, x)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(Convolving, "a convolution in a loop is slow on cpu"), (Printing, "the step calls back into Python")],
)
def test_what_does_not_belong_into_a_loop_takes_one_step_per_call(cls: Any, reason: str, tmp_path: Path) -> None:
    nitro = Nitro(cls(), run_dir=tmp_path).train()
    assert dispatches(nitro) == [{"steps in one call": "1", "because": reason}]


def test_a_divergence_inside_a_call_ends_it_there(grouped: Any, bits: Any, log_lines: Any) -> None:
    good, _ = grouped(60.0, Bare, until=25, data={"train": ArrayBatches(points(8 * BATCHES, 1), 8)})
    arrays = points(8 * BATCHES, 1)
    arrays["x"][8 * 25 + 3, 2] = np.nan
    with pytest.raises(DivergenceError, match="step 26, epoch 1, batch 25") as raised:
        grouped(61.0, Bare, data={"train": ArrayBatches(arrays, 8)})
    assert "batch field x (1 of 48 values)" in str(raised.value)
    sick = Nitro(Bare(), data={"train": ArrayBatches(arrays, 8)}, run_dir=good.run_dir / "again")
    with pytest.raises(DivergenceError):
        sick.train()
    assert bits(sick.params) == bits(good.params)
    assert (sick.step, int(sick.train_state.step)) == (25, 25)
    assert [line["step"] for line in log_lines(sick, "train")] == list(range(1, 26))


def test_a_state_of_very_many_arrays_is_stepped_one_by_one_since_a_loop_over_it_compiles_for_long() -> None:
    step = trace_step(lambda carry, batches, inputs: (carry, jnp.zeros(2), None), ([1.0] * 1000, (), {}))
    assert step.obstacle("cpu") == "a loop over a state of 1,001 arrays compiles for long"
    fewer = trace_step(lambda carry, batches, inputs: (carry, jnp.zeros(2), None), ([1.0] * 999, (), {}))
    assert fewer.obstacle("cpu") is None
