"""Steps that are not taken, all masked, or not finite and skipped: nothing changes but the step number."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import EMA, ArrayBatches, Nitro, checkpoint_info, read_manifest
from nitro_cli.errors import DivergenceError, MetricError, NitroWarning
from nitro_cli.experiment import JSONLogger, Monitor
from nitro_cli.run import EpochDone, StepsDone, dispatch, train_events
from tests.run.masked import Momentum, rows
from tests.tiny import stop_after

SIZE, STEPS = 4, 6


class Averaged(Momentum):
    """Six steps of four rows, with moments, an average and layer state."""

    rows = SIZE * STEPS
    batch_size = SIZE
    learning_rate = 0.05
    ema = EMA(0.8)


def weights(nitro: Nitro, bits: Any) -> Any:
    train = nitro.train_state
    return bits((train.params, train.state, train.opt, train.ema))


def masked(batch: int) -> tuple[int, ...]:
    return tuple(range(batch * SIZE, (batch + 1) * SIZE))


@pytest.mark.filterwarnings("ignore::nitro_cli.NitroWarning")
@pytest.mark.parametrize("resident", [True, False])
def test_a_masked_step_changes_no_bit_and_uses_up_its_number(resident: bool, tmp_path: Path, bits: Any) -> None:
    found = []
    for steps in (2, 3, 4):
        nitro = Nitro(Averaged(masked=masked(2), resident=resident), run_dir=tmp_path / str(steps))
        stop_after(nitro, steps)
        found.append(weights(nitro.train(), bits))
        assert nitro.step == steps
    assert found[0] == found[1]
    assert all(found[1][path] != bit for path, bit in found[2].items())
    assert nitro.run_state.position.updates == 3


@pytest.mark.parametrize("accum", [1, 2])
def test_it_is_told_once_counted_in_the_row_and_null_on_its_line(accum: int, tmp_path: Path, log_lines: Any) -> None:
    e = Averaged(masked=(*masked(2), *masked(3)), accum=accum, logger=JSONLogger(), max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nitro = Nitro(e, run_dir=tmp_path).train()
    told = [str(one.message) for one in caught if "is not taken" in str(one.message)]
    assert told == [
        f"step {3 if accum == 1 else 2} is not taken: every entry of its loss is masked; "
        "the history counts such steps as `skipped`"
    ]
    count = 2 // accum
    assert [row["skipped"] for row in nitro.history] == [count, count]
    lines = log_lines(nitro, "train")
    names = ("loss", "loss/entries", "loss/rows", "near")
    empty = [line["step"] for line in lines if all(line[name] is None for name in names)]
    assert empty == ([3, 4, 9, 10] if accum == 1 else [2, 5])
    assert all(line["loss"] > 0 for line in lines if line["step"] not in empty)
    last = read_manifest(tmp_path).entries[-1]
    assert checkpoint_info(tmp_path / last.path).meta.updates == 2 * (STEPS // accum - count)


def test_the_row_of_its_epoch_is_that_of_the_others(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match="step 3 is not taken"):
        found = Nitro(Averaged(masked=masked(2)), run_dir=tmp_path / "a").train().history[-1]
    data = rows(SIZE * STEPS, masked=masked(2))
    kept = {name: np.delete(array, masked(2), axis=0) for name, array in data.items()}
    wanted = Nitro(Averaged(), data={"train": ArrayBatches(kept, SIZE)}, run_dir=tmp_path / "b").train().history[-1]
    assert (found["train_loss"], found["train/near"]) == (wanted["train_loss"], wanted["train/near"])


@pytest.mark.filterwarnings("ignore::nitro_cli.NitroWarning")
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_resume_around_a_masked_step_equals_the_whole_run(at: int, resident: bool, tmp_path: Path, bits: Any) -> None:
    e = Averaged(masked=masked(2), max_epochs=2, resident=resident)
    whole = Nitro(e, run_dir=tmp_path / "whole").train()
    first = Nitro(e, run_dir=tmp_path / "cut")
    stop_after(first, at)
    first.train()
    second = Nitro(e, run_dir=tmp_path / "cut", resume="auto").train()
    assert weights(second, bits) == weights(whole, bits)
    assert list(second.history) == list(whole.history)
    assert second.run_state.position.updates == whole.run_state.position.updates == 2 * (STEPS - 1)


def spoiled(*batches: int, count: int = STEPS) -> dict[str, np.ndarray]:
    data = rows(SIZE * count)
    data["mask"][:, 0] = True
    for batch in batches:
        data["y"][batch * SIZE, 0] = np.nan
    return data


def fed(data: dict[str, np.ndarray], resident: bool = True) -> dict[str, Any]:
    return {"train": ArrayBatches(data, SIZE, shuffle=False, resident=resident)}


@pytest.mark.filterwarnings("ignore::nitro_cli.NitroWarning")
@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("resident", [True, False])
def test_skipped_batches_leave_a_run_as_one_without_them(
    resident: bool, seconds: float, tmp_path: Path, bits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "SECONDS", seconds)
    data = spoiled(0, 3, 4)
    gone = [row for batch in (0, 3, 4) for row in masked(batch)]
    kept = {name: np.delete(array, gone, axis=0) for name, array in data.items()}
    # An average that warms up goes by the step number.
    e = Averaged(check_divergence="skip", max_epochs=2, ema=EMA(0.8, warmup=False))
    skipping = Nitro(e, data=fed(data, resident), run_dir=tmp_path / "a").train()
    without = Nitro(e, data=fed(kept, resident), run_dir=tmp_path / "b").train()
    assert weights(skipping, bits) == weights(without, bits)
    assert (skipping.step, without.step) == (12, 6)
    left_out = ("step", "skipped")
    for one, other in zip(skipping.history, without.history, strict=True):
        assert {k: v for k, v in one.items() if k not in left_out} == {
            k: v for k, v in other.items() if k not in left_out
        }
        assert (one["skipped"], other["skipped"]) == (3, 0)


@pytest.mark.filterwarnings("ignore::nitro_cli.NitroWarning")
@pytest.mark.parametrize("resident", [True, False])
def test_the_tenth_in_a_row_ends_the_run_before_it(resident: bool, tmp_path: Path, bits: Any) -> None:
    nine, ten = spoiled(*range(1, 10), 11, 12, count=14), spoiled(*range(1, 11), count=14)
    e = Averaged(check_divergence="skip")
    assert Nitro(e, data=fed(nine, resident), run_dir=tmp_path / "nine").train().history[-1]["skipped"] == 11
    nitro = Nitro(e, data=fed(ten, resident), run_dir=tmp_path / "ten")
    with pytest.raises(DivergenceError, match="step 11, epoch 1, batch 10"):
        nitro.train()
    assert nitro.step == 10
    alone = Nitro(e, data=fed({name: array[:SIZE] for name, array in ten.items()}), run_dir=tmp_path / "alone").train()
    assert weights(nitro, bits) == weights(alone, bits)


@pytest.mark.filterwarnings("ignore::nitro_cli.NitroWarning")
def test_a_resume_goes_on_counting_those_in_a_row(tmp_path: Path) -> None:
    e, data = Averaged(check_divergence="skip"), spoiled(*range(1, 11), count=14)
    first = Nitro(e, data=fed(data), run_dir=tmp_path)
    stop_after(first, 6)
    first.train()
    with pytest.raises(DivergenceError, match="step 11, epoch 1, batch 10"):
        Nitro(e, data=fed(data), run_dir=tmp_path, resume="auto").train()


def test_a_step_that_is_not_finite_ends_a_run_that_does_not_skip(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match="step 2, epoch 1, batch 1"):
        Nitro(Averaged(), data=fed(spoiled(1)), run_dir=tmp_path).train()


def test_masked_steps_are_not_taken_where_nothing_checks_for_divergence(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match="step 3 is not taken"):
        nitro = Nitro(Averaged(masked=masked(2), check_divergence=False), run_dir=tmp_path).train()
    assert nitro.history[-1]["skipped"] == 1


def test_the_events_tell_what_became_of_each_step(tmp_path: Path) -> None:
    nitro = Nitro(Averaged(check_divergence="skip", masked=masked(2)), run_dir=tmp_path)
    found = {}
    for event, _ in train_events(nitro.plan, nitro.run_state, nitro.compiler, nitro.stop):
        if isinstance(event, StepsDone):
            found |= {event.first + i: event.outcome(i).name for i in range(len(event.numbers))}
        if isinstance(event, EpochDone):
            break
    assert found == {step: "EMPTY" if step == 3 else "TAKEN" for step in range(1, STEPS + 1)}


def test_an_epoch_of_masked_steps_alone_has_no_train_loss_and_the_monitor_calls_it_missing(tmp_path: Path) -> None:
    every = tuple(range(SIZE * STEPS))
    skipping = Monitor("train_loss", "min", on_missing="skip")
    with pytest.warns(NitroWarning, match="epoch 1 has no train_loss: none of its 6 steps was taken"):
        nitro = Nitro(Averaged(masked=every, monitor=skipping), run_dir=tmp_path / "skip").train()
    row = nitro.history[-1]
    assert row.get("train_loss") is None
    assert row["skipped"] == STEPS
    assert row["monitor"] == {"value": None, "status": "missing", "improved": False}
    assert "nonfinite" not in (nitro.run_path / "history.jsonl").read_text()
    with pytest.warns(NitroWarning), pytest.raises(MetricError, match="train_loss' is missing"):
        Nitro(Averaged(masked=every, monitor=Monitor("train_loss", "min")), run_dir=tmp_path / "error").train()
