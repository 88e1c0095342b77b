"""Disks that fill, refuse and fail under a whole run; many processes at once; directories that move."""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nitro_cli import Best, Checkpointer, Last, Nitro
from nitro_cli.checkpoints import RunStore, read_manifest, record, runs, verify
from nitro_cli.errors import ExitCode, NitroWarning, StorageError
from tests.faults.conftest import SUBJECT, Victims
from tests.faults.outcome import assert_equal, outcome
from tests.faults.subject import Subject
from tests.faults.test_kill_matrix import ROOT, resume_point


@pytest.fixture(autouse=True)
def first_validation() -> None:
    """The subject counts the validations of its process."""
    Subject.validations = 0


def statuses(root: Path) -> list[str]:
    return [summary.status for summary in runs(root)]


@pytest.mark.parametrize("failing", [1, 2, 4])
def test_a_checkpoint_that_cannot_be_written_is_an_error_and_never_a_completed_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uninterrupted: Path, failing: int
) -> None:
    real, count = record.write_arrays, 0

    def full(directory: Path, arrays: Any) -> None:
        nonlocal count
        count += 1
        if count >= failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        real(directory, arrays)

    monkeypatch.setattr(record, "write_arrays", full)
    nitro = Nitro(Subject(), run_dir=str(tmp_path))
    with pytest.raises(StorageError, match="could not be written") as caught:
        nitro.train()
    assert "the disk is full" in (caught.value.why or "")
    assert nitro.stop_reason is None
    assert not nitro.state_saved
    # The failed write, and none after it but the one that met the error.
    assert count == failing
    assert statuses(tmp_path) == ["error"]
    assert [entry.step for entry in read_manifest(tmp_path).entries] == {1: [], 2: [4], 4: [5, 8]}[failing]
    monkeypatch.setattr(record, "write_arrays", real)
    if failing > 1:
        Subject.validations = 0
        Nitro(Subject(), run_dir=str(tmp_path), resume="auto").train()
        assert_equal(outcome(tmp_path), outcome(uninterrupted / ROOT))


def test_an_input_output_error_that_passes_is_retried_and_the_run_is_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uninterrupted: Path
) -> None:
    real, count = os.rename, 0

    def sometimes(source: Any, target: Any, **words: Any) -> None:
        nonlocal count
        count += 1
        if count in (1, 3):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        real(source, target, **words)

    monkeypatch.setattr(os, "rename", sometimes)
    with pytest.warns(NitroWarning, match="trying again"):
        nitro = Nitro(Subject(), run_dir=str(tmp_path)).train()
    assert nitro.stop_reason == "completed"
    assert_equal(outcome(tmp_path), outcome(uninterrupted / ROOT))


def test_a_rename_that_never_works_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(source: Any, target: Any, **words: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError, match="could not be written") as caught:
        Nitro(Subject(), run_dir=str(tmp_path)).train()
    assert "permission is denied" in (caught.value.why or "")
    assert statuses(tmp_path) == ["error"]


def test_an_error_of_a_hook_is_not_hidden_by_the_disk_that_fails_while_the_run_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(self: Any, acc: Any, split: str) -> Any:
        raise ValueError("a mistake in a hook")

    def full(store: Any, status: str) -> None:
        raise StorageError("the manifest could not be written")

    monkeypatch.setattr(Subject, "finalize_metrics", wrong)
    monkeypatch.setattr(RunStore, "set_status", full)
    with pytest.warns(NitroWarning, match="manifest could not be written"), pytest.raises(ValueError, match="mistake"):
        Nitro(Subject(), run_dir=str(tmp_path)).train()
    monkeypatch.undo()
    (summary,) = runs(tmp_path)
    assert summary.status == "interrupted"
    RunStore.reopen(tmp_path, summary.id).close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_fills_during_the_run_keeps_what_was_committed_and_the_run_goes_on_with_space(
    monkeypatch: pytest.MonkeyPatch, small_disk: Path, uninterrupted: Path
) -> None:
    real = Subject.finalize_metrics

    def filling(self: Any, acc: Any, split: str) -> Any:
        if Subject.validations == 1:
            nitro._training._recorder.store.wait()
            with open(small_disk / "filler", "wb", buffering=0) as filler:
                try:
                    while filler.write(bytes(4096)):
                        pass
                except OSError:
                    pass
        return real(self, acc, split)

    monkeypatch.setattr(Subject, "finalize_metrics", filling)
    nitro: Any = Nitro(Subject(), run_dir=str(small_disk))
    with pytest.raises(StorageError, match=r"disk is full|could not be written"):
        nitro.train()
    assert [entry.step for entry in read_manifest(small_disk).entries] == [5, 8]
    assert all(checked.ok for checked in verify(small_disk))
    (small_disk / "filler").unlink()
    monkeypatch.undo()
    Subject.validations = 0
    Nitro(Subject(), run_dir=str(small_disk), resume="auto").train()
    assert_equal(outcome(small_disk), outcome(uninterrupted / ROOT))


def test_a_disk_too_small_for_what_retention_keeps_is_refused_before_the_first_step(small_disk: Path) -> None:
    with pytest.raises(StorageError, match="too little disk space"):
        Nitro(Subject(width=8000), run_dir=str(small_disk)).train()
    assert not runs(small_disk)
    assert not [item for item in small_disk.iterdir() if item.is_dir()]


def test_a_read_only_directory_is_one_clear_error(victims: Victims, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    place = small_disk.parent
    assert victims.run(place, "train", SUBJECT, "--run-dir", str(small_disk), instants=False) == ExitCode.FAILED
    said = (place / "said").read_text()
    assert "read-only" in said
    assert "Traceback" not in said


MANY = """
import os, sys
children = []
for number in range({count}):
    pid = os.fork()
    if pid == 0:
        break
    children.append(pid)
else:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    os._exit(0 if codes == [0] * {count} else 1)
"""


def start_many(victims: Victims, place: Path, count: int) -> None:
    words = ("train", SUBJECT, "--max-epochs", "1", "--set", "log_every_n_steps=1000")
    code = victims.run(place, *words, prepare=MANY.format(count=count), instants=False)
    assert code == 0, (place / "said").read_text()
    found = runs(place / ROOT)
    assert len({summary.id for summary in found}) == count
    assert {summary.status for summary in found} == {"completed"}
    assert all(summary.checkpoints for summary in found)
    assert len({(summary.best.score, tuple(summary.epochs)) for summary in found if summary.best}) == 1


def test_processes_that_start_the_same_experiment_at_once_all_get_their_run(victims: Victims, tmp_path: Path) -> None:
    start_many(victims, tmp_path, 4)


@pytest.mark.slow
def test_twenty_processes_that_start_at_once_all_get_their_run(victims: Victims, tmp_path: Path) -> None:
    start_many(victims, tmp_path, 20)


def test_a_second_resume_of_a_run_at_work_is_refused(victims: Victims, uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted / ROOT, tmp_path / ROOT)
    (summary,) = runs(tmp_path / ROOT)
    words = ("resume", str(ROOT), "--max-epochs", "3")
    with RunStore.reopen(tmp_path / ROOT, summary.id):
        assert victims.run(tmp_path, *words, instants=False) == ExitCode.INCOMPATIBLE
        assert "is in use" in (tmp_path / "said").read_text()
    assert victims.run(tmp_path, *words, instants=False) == 0


COPIES = """
import shutil
instants = {instants!r}
tick = clock.tick
def copying(label):
    tick(label)
    if (label, clock.seen[label]) in instants:
        try:
            shutil.copytree("runs", f"copy-{{label}}/runs".replace(" ", "-"), symlinks=True)
        except shutil.Error as error:  # a file that the writer renamed or removed meanwhile; rsync goes on too
            assert all("No such file" in why for _, _, why in error.args[0]), error
clock.tick = copying
"""


def test_a_directory_copied_while_its_run_writes_resumes_elsewhere_to_the_same_end(
    victims: Victims, fast_place: Path, uninterrupted: Path
) -> None:
    place = fast_place / "copied"
    instants = [("before step", 7), ("after write", 3), ("after rename", 4), ("after manifest", 4), ("log", 12)]
    assert victims.run(place, "train", SUBJECT, prepare=COPIES.format(instants=instants)) == 0
    shutil.rmtree(place / "runs")
    copies = sorted(place.glob("copy-*"))
    assert len(copies) == len(instants)

    def go_on(copy: Path) -> None:
        # Steps go on while the first checkpoint is written, so that there may be none yet.
        words = ("resume", str(ROOT)) if resume_point(copy / ROOT) else ("train", SUBJECT)
        assert victims.run(copy, *words, instants=False) == 0, (copy / "said").read_text()
        assert_equal(outcome(copy / ROOT), outcome(uninterrupted / ROOT))

    jobs = [victims.pool.submit(go_on, copy) for copy in copies]
    assert [repr(job.exception()) for job in jobs if job.exception() is not None] == []


def test_metrics_that_are_not_numbers_never_win_displace_or_delete(tmp_path: Path) -> None:
    keep = Checkpointer(keep=(Best(2), Last(1)))
    with pytest.warns(NitroWarning, match="a bad epoch"):
        nitro = Nitro(Subject(nan_from=3), run_dir=str(tmp_path), max_epochs=8, checkpointer=keep).train()
    entries = read_manifest(tmp_path).entries
    assert sorted(entry.epoch for entry in entries) == [1, 2, 8]
    assert math.isnan(max(entries, key=lambda entry: entry.epoch).score)
    assert nitro.best is not None
    assert nitro.best["epoch"] in (1, 2)
    assert nitro.history[8]["acc"] is None or math.isnan(nitro.history[8]["acc"])


def test_the_last_finite_checkpoint_outlives_any_number_of_bad_epochs(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning):
        Nitro(Subject(nan_from=2), run_dir=str(tmp_path), max_epochs=7, checkpointer=Checkpointer(keep=Last(1))).train()
    assert sorted(entry.epoch for entry in read_manifest(tmp_path).entries) == [1, 7]
