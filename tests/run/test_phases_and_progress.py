"""What a run says it is doing: phases to monitors, events to a reporter, notes of the user's hooks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Callback, Nitro, progress_counter, progress_note, register_phase_monitor, set_progress_reporter
from nitro_cli.errors import ConfigError, DataError, HookError
from nitro_cli.run import unregister_phase_monitor
from tests.tiny import Light

VERBS = ("begin", "step", "end", "phase", "note", "line", "done")


class Noting(Light):
    """Says what its metrics hook is doing."""

    max_epochs = 2

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        with progress_note("decoding"):
            with progress_note("decoding 3/10"):
                pass
            return super().metrics(outputs, y=y)


class Events:
    """Keeps what it is told; may raise at a verb."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[tuple[Any, ...]] = []
        self.fails_at = fails_at

    def _tell(self, verb: str, *args: Any) -> None:
        self.told.append((verb, *args))
        if verb == self.fails_at:
            raise RuntimeError("no paper left")

    def of(self, *verbs: str) -> list[tuple[Any, ...]]:
        return [event for event in self.told if event[0] in verbs]


for _verb in VERBS:
    setattr(Events, _verb, lambda self, *args, verb=_verb: self._tell(verb, *args))


@pytest.fixture
def events() -> Events:
    reporter = Events()
    set_progress_reporter(reporter)
    return reporter


@pytest.fixture
def phases() -> Iterator[list[Any]]:
    """Every transition of the process: phase, step, epoch, what the monitor was given."""
    seen: list[Any] = []
    handle = register_phase_monitor(lambda phase, step, epoch, info: seen.append((str(phase), step, epoch, dict(info))))
    yield seen
    unregister_phase_monitor(handle)
    unregister_phase_monitor(handle)


def without_compiling(seen: list[Any]) -> list[str]:
    names = [name for name, *_ in seen if not name.startswith("Compiling")]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def test_the_phases_of_a_run_come_in_their_order_and_end_idle(phases: list[Any], tmp_path: Path) -> None:
    nitro = Nitro(Noting(), run_dir=tmp_path)
    phases.clear()
    nitro.train()
    epoch = ["Training", "Evaluating", "Checkpointing"]
    assert without_compiling(phases) == ["Starting", *epoch, *epoch, "Done", "Idle"]
    assert str(nitro.phase) == "Done"
    assert [(step, at) for name, step, at, _ in phases if name == "Checkpointing"] == [(2, 1), (4, 2)]
    assert all(info["nitro"] is nitro and info["is_main"] is True for *_, info in phases)
    assert all(info["logger"] is not None for name, _, _, info in phases if name == "Checkpointing")


def test_leaving_an_evaluation_hands_its_metrics_over(phases: list[Any], tmp_path: Path) -> None:
    nitro = Nitro(Noting(checkpointer=None), run_dir=tmp_path).train()
    given = [(name, info["metrics"]["acc"]) for name, _, _, info in phases if "metrics" in info]
    assert given == list(zip(("Training", "Done"), nitro.history["acc"].tolist(), strict=True))
    phases.clear()
    found = nitro.evaluate("test")
    assert without_compiling(phases) == ["Starting", "Evaluating", "Idle"]
    assert next(info["metrics"] for name, _, _, info in phases if name == "Idle") == found


def test_an_epoch_that_a_resume_goes_on_with_counts_the_steps_before(events: Events, tmp_path: Path) -> None:
    class Longer(Light):
        samples = 64
        checkpoint_every_n_steps = 3

        def metrics(self, outputs: Any, *, y: Any) -> Any:
            if Longer.fails:
                raise OSError("gone")
            return super().metrics(outputs, y=y)

    Longer.fails = True
    with pytest.raises(OSError, match="gone"):
        Nitro(Longer(max_epochs=1), run_dir=tmp_path).train()
    Longer.fails = False
    events.told.clear()
    Nitro(Longer(max_epochs=1), run_dir=tmp_path, resume="auto").train()
    train = events.told.index(("begin", "train", 8, 1, 1))
    assert events.told[train + 1] == ("step", 6, None)
    end = next(at for at, event in enumerate(events.told) if at > train and event[0] == "end")
    assert sum(event[1] for event in events.told[train:end] if event[0] == "step") == 8


def test_a_failed_run_says_failed_and_then_idle(phases: list[Any], tmp_path: Path) -> None:
    class Broken(Noting):
        def metrics(self, outputs: Any, *, y: Any) -> Any:
            raise OSError("gone")

    nitro = Nitro(Broken(), run_dir=tmp_path)
    with pytest.raises(OSError, match="gone"):
        nitro.train()
    assert without_compiling(phases)[-2:] == ["Failed", "Idle"]
    assert str(nitro.phase) == "Failed"


def test_a_monitor_that_raises_is_warned_of_once_and_the_others_go_on(phases: list[Any], tmp_path: Path) -> None:
    def broken(phase: Any, step: Any, epoch: Any, info: Any) -> None:
        raise LookupError("no such metric")

    nitro = Nitro(Noting(checkpointer=None, logger=None), run_dir=tmp_path)
    handle = nitro.register_phase_monitor(broken)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nitro.train()
    ours = [str(warning.message) for warning in told if "broken" in str(warning.message)]
    assert len(ours) == 1
    assert "no such metric" in ours[0]
    assert nitro.stop_reason == "completed"
    assert phases[-1][0] == "Idle"
    unregister_phase_monitor(handle)


class Released(list[Any]):
    """Batches that note when they are let go."""

    def __init__(self, batches: Any, heard: list[str]) -> None:
        super().__init__(batches)
        self.heard = heard

    def release(self) -> None:
        self.heard.append("released")


@pytest.mark.parametrize(("broken", "end"), [(False, "Done"), (True, "Failed")])
def test_sources_are_released_once_after_the_monitors_heard_how_it_ended(
    broken: bool, end: str, tmp_path: Path
) -> None:
    heard: list[str] = []
    batches = [{"x": np.ones((4, 6), np.float32), "y": np.zeros(4, np.int32)}] * 2
    if broken:
        batches[1] = {**batches[1], "y": np.zeros(4, np.int8)}
    nitro = Nitro(
        Light(max_epochs=1, monitor=None, eval_loss=True), data={"train": Released(batches, heard)}, run_dir=tmp_path
    )
    nitro.register_phase_monitor(lambda phase, *_: heard.append(str(phase)))
    if broken:
        with pytest.raises(DataError, match="int8"):
            nitro.train()
    else:
        nitro.train()
    assert [name for name in heard if name in (end, "released")] == [end, "released"]


def test_the_counter_counts_steps_and_evaluation_batches_and_only_grows(tmp_path: Path) -> None:
    seen: list[int] = []
    nitro = Nitro(Noting(checkpointer=None, logger=None), run_dir=tmp_path)
    nitro.register_phase_monitor(lambda *_: seen.append(progress_counter()))
    before = progress_counter()
    nitro.train()
    assert progress_counter() - before == 2 * (2 + 2)
    assert seen == sorted(seen)
    nitro.evaluate("test")
    assert progress_counter() - before == 2 * (2 + 2) + 3


def test_a_reporter_is_told_of_every_stretch_and_unit(events: Events, tmp_path: Path) -> None:
    nitro = Nitro(Noting(), run_dir=tmp_path).train()
    stretches = [event[1:] for event in events.of("begin") if event[1] != "setup"]
    assert stretches == [("train", 2, 1, 2), ("val", 2, 1, 2), ("train", 2, 2, 2), ("val", 2, 2, 2)]
    assert len(events.of("begin")) == len(events.of("end"))
    ends = [event[1] for event in events.of("end") if event[1]]
    assert [end["loss"] for end in ends if "loss" in end] == nitro.history["train_loss"].tolist()
    assert [end["acc"] for end in ends if "acc" in end] == nitro.history["acc"].tolist()
    assert sum(event[1] for event in events.of("step")) == 8
    assert "compiling train" in [event[1] for event in events.of("phase")]
    assert events.told[-1] == ("done", "completed: 2/2 epochs")


def test_a_reporter_is_told_that_a_run_that_failed_is_over(events: Events, tmp_path: Path) -> None:
    class Failing(Light):
        def metrics(self, outputs: Any, *, y: Any) -> Any:
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        Nitro(Failing(), run_dir=tmp_path).train()
    assert events.told[-1] == ("done", "")
    assert len(events.of("done")) == 1


def test_notes_nest_and_the_outer_one_comes_back(events: Events, tmp_path: Path) -> None:
    nitro = Nitro(Noting(), run_dir=tmp_path)
    events.told.clear()
    nitro.validate()
    one_batch = ["decoding", "decoding 3/10", "decoding", None]
    assert [event[1] for event in events.of("note")] == one_batch * 2


@pytest.mark.parametrize("verb", ["begin", "step", "note", "done"])
def test_a_reporter_that_raises_is_switched_off_and_the_run_goes_on(verb: str, tmp_path: Path) -> None:
    reporter = Events(fails_at=verb)
    set_progress_reporter(reporter)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nitro = Nitro(Noting(checkpointer=None, logger=None), run_dir=tmp_path).train()
    assert nitro.stop_reason == "completed"
    assert [event[0] for event in reporter.told].count(verb) == 1
    assert reporter.told[-1][0] == verb
    assert len([warning for warning in told if "no paper left" in str(warning.message)]) == 1
    assert set_progress_reporter(None) is None


def test_a_reporter_without_a_verb_is_refused_by_name() -> None:
    class Mute:
        def begin(self, *args: Any) -> None: ...

    with pytest.raises(ConfigError, match="Mute lacks the methods step, end, phase, note, line, done"):
        set_progress_reporter(Mute())


class FailsAtOnce(Callback):
    """Fails in the middle of the first epoch."""

    def on_update(self, run: Any, event: Any) -> None:
        raise ValueError("no")


def test_an_epoch_that_an_error_cut_is_not_closed_with_a_loss(events: Events, tmp_path: Path) -> None:
    with pytest.raises(HookError, match="FailsAtOnce"):
        Nitro(Noting(callbacks=(FailsAtOnce(),)), run_dir=tmp_path).train()
    assert events.of("begin")[-1][1] == "train"
    assert events.of("end")[-1][1] is None
