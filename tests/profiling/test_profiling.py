"""Where the time of a short run went: which phases, which steps, what is left behind."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from nitro_cli import NoPrefetch, Prefetch, profile
from nitro_cli.errors import ConfigError, DivergenceError
from nitro_cli.profiling.stopwatch import REST, Stopwatch
from tests.tiny import Light


class Many(Light):
    """Ten steps an epoch, resident."""

    samples = 80
    max_epochs = 4


class Streamed(Many):
    """Its batches come from other threads."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {name: Prefetch(source, workers=1, window=1) for name, source in super().build_data(dist).items()}


class Inline(Many):
    """Its batches are made by the loop."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {name: NoPrefetch(source) for name, source in super().build_data(dist).items()}


def times(found: Any) -> dict[str, int]:
    """How often each phase was entered."""
    return {phase.name: phase.times for phase in found.phases}


def steps_of(found: Any) -> list[int]:
    """The first step of each dispatch in the trace."""
    (file,) = (file for file in found.files if file.name.endswith(".trace.json.gz"))
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if event.get("name") == "train")


def test_the_stopwatch_gives_every_second_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])  # made, outer in, inner in, inner out, outer out, read
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    watch = Stopwatch()
    with watch.spent("evaluation"), watch.spent("compile"):
        pass
    spent = watch.read()
    assert spent.seconds == {REST: 1.0 + 5.0, "evaluation": 2.0 + 4.0, "compile": 3.0}
    assert spent.times == {"evaluation": 1, "compile": 1}


def test_what_was_spent_since_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    watch = Stopwatch()
    with watch.spent("step"):
        pass
    before = watch.read()
    with watch.spent("step"):
        pass
    since = watch.read().since(before)
    assert (since.seconds["step"], since.seconds[REST], since.times["step"]) == (1.0, 2.0, 1)


def test_streamed_steps_wait_for_data_that_is_moved_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nitro_cli.run.devices.Placement.on_host", False)  # as on a device that needs the move
    found = profile(Streamed(), out_dir=tmp_path, first_step=3, steps=5)
    assert (found.first_step, found.steps, found.steps_per_epoch) == (3, 5, 10)
    counted = times(found)
    assert counted.pop("transfer", 0) <= 10  # the thread runs ahead: how many fall into the window the clock decides
    assert counted == {
        "setup": 1,
        "compile": 4,
        "data wait": 5,
        "step": 5,
        "other": 5,
        "evaluation": 1,
        "checkpoint": 1,
    }
    assert all(phase.overlapped for phase in found.phases if phase.name == "transfer")
    assert not found.resident
    assert steps_of(found) == [3, 4, 5, 6, 7]


def test_batches_made_by_the_loop_are_waited_for_and_moved_in_it(tmp_path: Path) -> None:
    found = profile(Inline(), out_dir=tmp_path, first_step=2, steps=4)
    (transfer,) = (phase for phase in found.phases if phase.name == "transfer")
    assert (transfer.times, transfer.overlapped, transfer.share is None) == (4, False, False)
    assert times(found)["data wait"] == 4


def test_resident_data_is_neither_waited_for_nor_moved(tmp_path: Path) -> None:
    found = profile(Many(), out_dir=tmp_path, first_step=2, steps=3)
    assert found.resident
    assert times(found).keys() == {"setup", "compile", "step", "other", "evaluation", "checkpoint"}
    assert found.first_step >= 2
    assert found.first_step + found.steps > 4
    assert times(found)["step"] == found.steps
    taken = steps_of(found)
    assert taken[0] == found.first_step
    assert taken[-1] < found.first_step + found.steps


def test_shares_add_up_to_one_over_the_measurement_and_over_an_epoch(tmp_path: Path) -> None:
    found = profile(Inline(), out_dir=tmp_path, first_step=2, steps=4)
    assert sum(phase.share for phase in found.phases) == pytest.approx(1)
    parts = {phase.name: phase.epoch_share for phase in found.phases if phase.epoch_share is not None}
    assert parts.keys() == {"data wait", "transfer", "step", "other", "evaluation", "checkpoint"}
    assert sum(parts.values()) == pytest.approx(1)
    seconds = {phase.name: phase.seconds for phase in found.phases}
    steps = sum(seconds[name] for name in ("data wait", "transfer", "step", "other")) / 4 * 10
    assert found.epoch_seconds == pytest.approx(steps + seconds["evaluation"] + seconds["checkpoint"])


def test_a_window_over_the_end_of_an_epoch_has_its_evaluation_and_checkpoint_inside(tmp_path: Path) -> None:
    found = profile(Streamed(), out_dir=tmp_path, first_step=9, steps=4)
    counted = times(found)
    assert (counted["step"], counted["evaluation"], counted["checkpoint"]) == (4, 1, 2)


def test_without_validation_or_checkpoints_there_are_no_such_phases(tmp_path: Path) -> None:
    data = {"train": Many().build_data(None)["train"]}
    found = profile(Many(checkpointer=None), data=data, out_dir=tmp_path)
    assert times(found).keys() == {"setup", "compile", "step", "other"}


def test_only_the_trace_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = profile(Inline())
    assert found.trace == Path("runs/Inline/profile")
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {file.absolute() for file in found.files}
    assert {file.suffix for file in found.files} == {".pb", ".gz"}
    assert [path.name for path in found.trace.iterdir()] == ["plugins"]


def test_the_usual_window_fits_a_short_run(tmp_path: Path) -> None:
    found = profile(Inline(samples=16, max_epochs=2), out_dir=tmp_path)  # four steps
    assert (found.first_step, found.steps) == (4, 1)
    usual = profile(Inline(), out_dir=tmp_path)
    assert (usual.first_step, usual.steps) == (6, 20)


@pytest.mark.parametrize(("first", "steps"), [(41, 1), (39, 5), (0, 2), (1, 0)])
def test_a_window_outside_the_run_is_refused(tmp_path: Path, first: int, steps: int) -> None:
    out = tmp_path / "new" / "trace"
    with pytest.raises(ConfigError, match="steps"):
        profile(Inline(), out_dir=out, first_step=first, steps=steps)
    assert not (tmp_path / "new").exists()


def test_a_trace_that_is_running_already_is_an_error_and_goes_on(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path / "own")), pytest.raises(ConfigError, match="no trace can be started"):
        profile(Inline(), out_dir=tmp_path / "ours")
    assert any((tmp_path / "own").rglob("*.pb"))
    assert not (tmp_path / "ours").exists()


def test_a_run_that_fails_in_the_window_ends_the_trace_too(tmp_path: Path) -> None:
    class Diverging(Inline):
        """Its loss is no number."""

        def loss(self, outputs: Any, *, y: Any) -> Any:
            return outputs.sum() * float("nan")

    with pytest.raises(DivergenceError):
        profile(Diverging(), out_dir=tmp_path / "first", first_step=1, steps=5)
    assert profile(Inline(), out_dir=tmp_path / "second").files


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    import signal

    class Interrupted(Inline):
        """Is interrupted while it validates."""

        def finalize_metrics(self, acc: Any, split: str) -> Any:
            signal.raise_signal(signal.SIGINT)
            return acc

    with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
        profile(Interrupted(), out_dir=tmp_path / "out", first_step=9, steps=8)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".run-")]
