"""Training as events: it can be stepped from outside, and several runs can be at work in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nitro_cli import ArrayBatches, Nitro, NoPrefetch
from nitro_cli.run import EpochBegan, EpochDone, RunState, StepsDone, Stopped, StopRequest, train_events
from tests.tiny import Quick, points

BATCHES, EPOCHS = 6, 2


class Streamed(Quick):
    """Batches that come from the host, one step a call."""

    max_epochs = EPOCHS
    logger = None
    checkpointer = None

    def build_data(self, dist: Any) -> Any:
        return {"train": NoPrefetch(ArrayBatches(points(BATCHES * 8, 0), 8, shuffle=True))}


def handle(tmp_path: Path, seed: int) -> Nitro:
    return Nitro(Streamed(), seed=seed, run_dir=tmp_path / str(seed))


def events(nitro: Nitro) -> Any:
    return train_events(nitro.plan, nitro.run_state, nitro.compiler, nitro.stop)


def test_two_runs_trained_in_turns_each_equal_their_lone_run_bit_for_bit(tmp_path: Path, bits: Any) -> None:
    lone = [bits(handle(tmp_path, seed).train().train_state) for seed in (1, 2)]
    both = [events(handle(tmp_path, seed)) for seed in (1, 2)]
    states: list[RunState | None] = [None, None]
    going = {0, 1}
    while going:
        for index in sorted(going):
            item = next(both[index], None)
            if item is None:
                going.discard(index)
            else:
                states[index] = item[1]
    assert [bits(state.train) for state in states if state is not None] == lone


def test_the_events_of_a_run_come_in_their_order_and_hold_every_step_once(tmp_path: Path) -> None:
    kinds: list[str] = []
    steps: list[int] = []
    for event, state in events(handle(tmp_path, 1)):
        if isinstance(event, StepsDone):
            steps += range(event.first, event.first + len(event.numbers))
            assert state.position.step >= len(steps)
        else:
            kinds.append(type(event).__name__)
    assert kinds == [EpochBegan.__name__, EpochDone.__name__] * EPOCHS
    assert steps == list(range(1, BATCHES * EPOCHS + 1))


def test_a_run_that_is_stopped_by_events_stands_where_the_next_goes_on(tmp_path: Path, bits: Any) -> None:
    whole = bits(handle(tmp_path, 1).train().train_state)
    nitro = handle(tmp_path, 1)
    nitro.stop.last_step = 4
    *_, (last, state) = events(nitro)
    assert isinstance(last, Stopped)
    assert (state.position.step, state.position.batch, state.position.closed) == (4, 4, False)
    *_, (_, end) = train_events(nitro.plan, state, nitro.compiler, StopRequest())
    assert bits(end.train) == whole


def test_what_is_loaded_is_not_held_on_the_host_once_it_is_on_the_device(tmp_path: Path) -> None:
    first = Nitro(Quick(), run_dir=tmp_path, max_epochs=1).train()
    for words in ({"resume": "auto", "max_epochs": 2}, {"weights": (first.run_id, "latest")}):
        source = Nitro(Quick(), run_dir=tmp_path, **words).plan.source
        assert source is not None
        assert source.record.arrays == {}


@pytest.mark.parametrize("field", ["settings", "data", "hooks", "model", "optim", "placement", "source"])
def test_a_plan_is_frozen(tmp_path: Path, field: str) -> None:
    plan = handle(tmp_path, 1).plan
    with pytest.raises(AttributeError):
        setattr(plan, field, None)
