"""The commands on runs that were moved, averaged, damaged and pruned."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nitro_cli.checkpoints import RunStore, read_manifest, read_record, runs
from nitro_cli.errors import ExitCode
from tests.faults.conftest import Victims
from tests.faults.outcome import assert_equal, outcome
from tests.faults.test_corrupt_records import file_of, flip
from tests.faults.test_kill_matrix import ROOT

EXPERIMENT = "from tests.faults.subject import Subject as Base\n\n\nclass Subject(Base):\n    pass\n"


def test_a_project_that_moved_to_other_absolute_paths_resumes_to_the_same_end(
    victims: Victims, fast_place: Path, uninterrupted: Path
) -> None:
    old, new = fast_place / "machine-a" / "project", fast_place / "machine-b" / "elsewhere"
    old.mkdir(parents=True)
    (old / "experiment.py").write_text(EXPERIMENT)
    words = ("train", f"{old}/experiment.py:Subject", "--run-dir", f"{old}/runs/Subject")
    assert victims.run(old, *words, at=["after step", 6], numbers=[signal.SIGTERM]) == 75, (old / "said").read_text()
    new.parent.mkdir()
    shutil.move(old, new)
    assert victims.run(new, "resume", str(ROOT), instants=False) == 0, (new / "said").read_text()
    assert not old.exists()
    assert_equal(outcome(new / ROOT), outcome(uninterrupted / ROOT))


@pytest.fixture
def place(uninterrupted: Path, tmp_path: Path) -> Path:
    """A working directory with a copy of a finished run of two records."""
    shutil.copytree(uninterrupted / ROOT, tmp_path / ROOT)
    return tmp_path


def test_a_run_killed_before_its_first_checkpoint_does_not_stand_in_the_way_of_a_resume(
    victims: Victims, place: Path
) -> None:
    (finished,) = runs(place / ROOT)
    RunStore.create(place / ROOT, experiment="Subject").close()
    assert [summary.id == finished.id for summary in runs(place / ROOT)] == [False, True]
    assert victims.run(place, "resume", str(ROOT), "--max-epochs", "3", instants=False) == 0
    assert f"run {finished.id} of" in (place / "said").read_text()
    assert max(runs(place / ROOT)[0].epochs) == 3


def told(place: Path) -> dict[str, object]:
    """The JSON document that a command wrote."""
    text = (place / "said").read_text()
    return json.loads(text[text.index("{") :])


def test_an_average_is_the_mean_of_what_it_names_and_evaluates(victims: Victims, place: Path) -> None:
    words = ("average", str(ROOT), "--select", "epochs(1:2)", "--save", "mean", "--json")
    assert victims.run(place, *words, instants=False) == 0, (place / "said").read_text()
    records = [read_record(place / ROOT / entry.path).arrays for entry in read_manifest(place / ROOT).entries]
    mean = read_record(place / "mean").arrays
    for path in (name for name in mean if name.startswith("params/")):
        wanted = np.mean([record[path].astype(np.float64) for record in records], axis=0)
        assert mean[path].tobytes() == wanted.astype(np.float32).tobytes()
    assert victims.run(place, *words, instants=False) == ExitCode.USAGE, "an existing record was overwritten"
    assert victims.run(place, "evaluate", "mean", "--split", "test", "--json", instants=False) == 0
    assert told(place)["split"] == "test"
    assert [len(summary.checkpoints) for summary in runs(place / ROOT)] == [2]


def nitro(place: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nitro_cli", *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_runs_of_all_directories_are_listed_and_a_lost_manifest_is_rebuilt(
    place: Path, child_environment: dict[str, str]
) -> None:
    shutil.copytree(place / ROOT, place / "runs" / "Other")
    before = json.loads(nitro(place, child_environment, "runs", "--json").stdout)["runs"]
    assert {Path(run["run_dir"]).name for run in before} == {"Subject", "Other"}
    (place / ROOT / "manifest.json").unlink()
    again = json.loads(nitro(place, child_environment, "runs", str(ROOT), "--rescan", "--json").stdout)["runs"]
    expected = [run for run in before if Path(run["run_dir"]).name == "Subject"]
    assert again[0]["checkpoints"] == expected[0]["checkpoints"]
    assert again[0]["best"] == expected[0]["best"]
    assert (again[0]["id"], again[0]["status"]) == (expected[0]["id"], "completed")


def test_verify_names_the_damaged_file_with_the_integrity_code(place: Path, child_environment: dict[str, str]) -> None:
    newest = max(read_manifest(place / ROOT).entries, key=lambda entry: entry.step)
    damaged = file_of(place / ROOT / newest.path, "arrays/d/0")
    flip(damaged)
    done = nitro(place, child_environment, "checkpoint", "verify", str(ROOT))
    assert done.returncode == ExitCode.INTEGRITY
    assert damaged.name in done.stderr
    info = nitro(place, child_environment, "checkpoint", "info", str(ROOT / newest.path))
    assert info.returncode == 0
    assert newest.name in info.stdout


@pytest.mark.parametrize(("answer", "left"), [("n", 2), ("y", 1)])
def test_prune_asks_on_a_terminal(place: Path, child_environment: dict[str, str], answer: str, left: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nitro_cli", "checkpoint", "prune", str(ROOT), "--keep", "last(1)"]
    os.write(ours, f"{answer}\n".encode())
    with subprocess.Popen(
        command, cwd=place, env=child_environment, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        said, _ = child.communicate(timeout=300)
    os.close(theirs)
    os.close(ours)
    assert b"delete these 1 directories" in said
    assert len(read_manifest(place / ROOT).entries) == left


def test_prune_off_a_terminal_needs_yes(place: Path, child_environment: dict[str, str]) -> None:
    words = ("checkpoint", "prune", str(ROOT), "--keep", "last(1)")
    refused = nitro(place, child_environment, *words)
    assert refused.returncode == ExitCode.USAGE
    assert "--yes" in refused.stderr
    assert len(read_manifest(place / ROOT).entries) == 2
    assert nitro(place, child_environment, *words, "--yes").returncode == 0
    assert [entry.epoch for entry in read_manifest(place / ROOT).entries] == [2]
