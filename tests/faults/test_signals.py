"""Signals in every phase: nothing to save leaves promptly with nothing behind, anything else is finished and saved."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from nitro_cli.checkpoints import resolve_resume, runs, verify
from tests.faults.conftest import SUBJECT, Victims
from tests.faults.test_kill_matrix import ROOT

CODES = {signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGINT: 130}

# A compile, as a signal sees it: one call of C for minutes, which no signal ends. Here it never ends: a mutex locked
# twice.
STUCK_COMPILE = """
import ctypes, threading
from nitro_cli.run import compiling
real = compiling.compile_program
def stuck(purpose, *args, **words):
    if purpose == {purpose!r}:
        mutex = ctypes.create_string_buffer(64)
        threading.Timer(0.3, clock.strike).start()
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
    return real(purpose, *args, **words)
compiling.compile_program = stuck
"""


def left_behind(root: Path) -> list[str]:
    """Run directories and manifest entries."""
    if not root.exists():
        return []
    listed = json.loads((root / "manifest.json").read_text())["runs"] if (root / "manifest.json").exists() else {}
    return [item.name for item in root.iterdir() if item.is_dir()] + list(listed)


@pytest.mark.parametrize("purpose", ["init", "train"])
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_in_a_compile_that_runs_no_python_leaves_with_nothing_behind(
    victims: Victims, tmp_path: Path, number: signal.Signals, purpose: str
) -> None:
    prepare = STUCK_COMPILE.format(purpose=purpose)
    code = victims.run(tmp_path, "train", SUBJECT, numbers=[number], prepare=prepare, instants=False)
    said = (tmp_path / "said").read_text()
    assert code == CODES[number], said
    assert "nothing to save" in said
    assert "Traceback" not in said
    assert left_behind(tmp_path / ROOT) == []


def test_under_json_the_process_that_leaves_says_so_in_json(victims: Victims, tmp_path: Path) -> None:
    prepare = STUCK_COMPILE.format(purpose="train")
    words = ("train", SUBJECT, "--json")
    code = victims.run(tmp_path, *words, numbers=[signal.SIGTERM], prepare=prepare, instants=False)
    (line,) = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines() if line.startswith("{")]
    assert code == line["exit_code"] == 143
    assert "nothing to save" in line["what"]


def test_a_signal_in_the_compile_of_a_resumed_run_leaves_the_run_as_it_was(victims: Victims, tmp_path: Path) -> None:
    assert victims.run(tmp_path, "train", SUBJECT, at=["after step", 6], numbers=[signal.SIGTERM]) == 75
    root = tmp_path / ROOT
    before = resolve_resume("auto", root)
    prepare = STUCK_COMPILE.format(purpose="train")
    code = victims.run(tmp_path, "resume", str(ROOT), numbers=[signal.SIGTERM], prepare=prepare, instants=False)
    assert code == 143
    (summary,) = runs(root)
    assert summary.status == "interrupted"
    after = resolve_resume("auto", root)
    assert before is not None
    assert after is not None
    assert (before.path, before.step) == (after.path, after.step)


@pytest.mark.parametrize(
    ("number", "code", "instant", "which"),
    [
        (signal.SIGTERM, 75, "before step", 3),
        (signal.SIGUSR1, 75, "before evaluation", 1),
        (signal.SIGINT, 130, "before rename", 1),
        (signal.SIGTERM, 75, "before write", 2),
    ],
)
def test_a_signal_in_a_step_an_evaluation_or_a_save_finishes_it_and_saves(
    victims: Victims,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    instant: str,
    which: int,
) -> None:
    assert victims.run(tmp_path, "train", SUBJECT, at=[instant, which], numbers=[number]) == code
    assert "the state is saved" in (tmp_path / "said").read_text()
    (summary,) = runs(tmp_path / ROOT)
    assert summary.status == "requested"
    assert all(outcome.ok for outcome in verify(tmp_path / ROOT))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_leaves_at_once_and_the_last_committed_checkpoint_is_whole(
    victims: Victims, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    # The write of the third checkpoint takes for ever, in a thread that nothing interrupts.
    prepare = f"""
import os, threading
from nitro_cli.checkpoints import record
from nitro_cli.run.stopping import StopRequest
asked = threading.Event()
ask = StopRequest.ask
def heard(self, cause):
    ask(self, cause)
    asked.set()
StopRequest.ask = heard
real = record.write_arrays
count = 0
def slow(*args):
    global count
    count += 1
    real(*args)
    if count == 3:
        os.kill(os.getpid(), {int(number)})
        asked.wait()
        os.kill(os.getpid(), {int(number)})
        threading.Event().wait()
record.write_arrays = slow
"""
    assert victims.run(tmp_path, "train", SUBJECT, prepare=prepare, instants=False) == code
    assert "last checkpoint committed" in (tmp_path / "said").read_text()
    root = tmp_path / ROOT
    (summary,) = runs(root)
    assert summary.status == "interrupted"
    assert all(outcome.ok for outcome in verify(root))
    ref = resolve_resume("auto", root)
    assert ref is not None
    assert ref.step == 5


FORKS = """
import multiprocessing, os, signal, subprocess, sys
from tests.faults.subject import Subject

def report(path):
    told = [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    told.append(str(signal.set_wakeup_fd(-1)))
    open(path, "w").write("\\n".join(told))

done = False
real = Subject.finalize_metrics
def evaluation(self, acc, split):
    global done
    if not done:
        done = True
        forked = multiprocessing.get_context("fork").Process(target=report, args=("forked",))
        forked.start()
        forked.join()
        ended = multiprocessing.get_context("fork").Process(target=signal.pause)
        ended.start()
        ended.terminate()
        ended.join(30)
        open("ended", "w").write(str(ended.exitcode))
    return real(self, acc, split)
Subject.finalize_metrics = evaluation
"""


def test_children_do_not_inherit_the_handlers_and_a_signal_to_one_is_its_own(victims: Victims, tmp_path: Path) -> None:
    assert victims.run(tmp_path, "train", SUBJECT, prepare=FORKS, instants=False) == 0, (tmp_path / "said").read_text()
    terminate, user, interrupt, wakeup = (tmp_path / "forked").read_text().splitlines()
    assert terminate == user == str(signal.SIG_DFL)
    assert "default_int_handler" in interrupt
    assert wakeup == "-1"
    assert (tmp_path / "ended").read_text() == str(-signal.SIGTERM)
    assert [run.status for run in runs(tmp_path / ROOT)] == ["completed"]


def test_max_time_stops_at_the_next_step_saved(victims: Victims, tmp_path: Path) -> None:
    assert victims.run(tmp_path, "train", SUBJECT, "--max-time", "0.000001s", instants=False) == 75
    said = (tmp_path / "said").read_text()
    assert "stopped by max_time at epoch 1, step 1" in said
    assert "the state is saved" in said
