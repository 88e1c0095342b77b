"""Killing, filling and forbidding: what was committed stays, and the next start finds a directory that loads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nitro_cli.checkpoints import (
    RecordMeta,
    RunStore,
    load_with_fallback,
    read_manifest,
    read_record,
    record_info,
    resolve_resume,
    resolve_source,
    runs,
    verify,
    write_record,
)
from nitro_cli.errors import NitroWarning, StorageError
from nitro_cli.experiment import Best, Checkpointer, Last

RULE = Checkpointer(keep=(Best(1), Last(1)))

# Forks a child per change to the disk; each trains a pretend run and dies by SIGKILL at that change, having noted in a
# file what was acknowledged before. Arrays are written as plain files, since a process with orbax in it cannot fork;
# the order of record, manifest and deletion is that of the product.
VICTIMS = """
import os, signal, sys
import numpy as np
from nitro_cli.checkpoints import RecordMeta, RunStore, record
from nitro_cli.experiment import Best, Checkpointer, Last
base = sys.argv[1]
rule = Checkpointer(keep=(Best(1), Last(1)))
real = {name: getattr(os, name) for name in ("open", "mkdir", "rename", "replace", "fsync", "unlink", "rmdir", "close")}

def write_arrays(directory, arrays):
    directory.mkdir()
    for key, array in arrays.items():
        (directory / key).write_bytes(array.tobytes())

record.write_arrays = write_arrays

def train(root, die_at):
    count = 0

    def counted(function):
        def wrapper(*arguments, **keywords):
            nonlocal count
            count += 1
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)
        return wrapper

    def save(epoch, score):
        run.save(RecordMeta(epoch=epoch), {"params/w": np.full(4, epoch)}, epoch=epoch, step=epoch, score=score,
                 name=f"e{epoch}", final=True)
        note = real["open"](root + ".acknowledged", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(note, str(epoch).encode())
        real["close"](note)

    run = RunStore.create(root, experiment="Toy", checkpointer=rule, metric="loss", mode="min")
    save(1, 0.5)
    for name, function in real.items():
        setattr(os, name, counted(function))
    save(2, 0.9)
    save(3, 0.1)
    save(4, 0.2)
    run.set_status("completed")

die_at = 0
while True:
    die_at += 1
    child = os.fork()
    if child == 0:
        train(f"{base}/at-{die_at:03d}", die_at)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
"""


@pytest.fixture
def fast_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: thousands of fsyncs take a minute on a disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


def test_a_kill_at_any_change_to_the_disk_loses_no_committed_checkpoint(fast_disk: Path) -> None:
    subprocess.run([sys.executable, "-c", VICTIMS, fast_disk], check=True, timeout=300)
    roots = sorted(p for p in fast_disk.iterdir() if p.is_dir())
    # The last one was not killed; three saves and a status take many changes.
    assert len(roots) > 80
    assert runs(roots.pop())[0].status == "completed"
    for root in roots:
        acknowledged = int(root.with_suffix(".acknowledged").read_text())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*did not list .*: taken in")
            assert all(outcome.ok for outcome in verify(root))
            (summary,) = runs(root)
            ref = resolve_resume("auto", root)
        assert ref is not None
        assert ref.epoch >= acknowledged, root
        assert record_info(ref.path).meta.epoch == ref.epoch
        assert ref.continues(root)
        with RunStore.reopen(root, summary.id, ref.entry, checkpointer=RULE, metric="loss", mode="min") as again:
            assert again.latest is not None
            assert again.latest.epoch == ref.epoch
            again.save(RecordMeta(), {}, epoch=ref.epoch + 1, step=ref.step + 1, score=0.05, name="next")
        assert [p.name for p in (root / summary.id / "checkpoints").iterdir()] == ["next"], root
        assert not list(root.glob(".manifest.json.tmp-*"))


def test_what_a_published_but_unlisted_checkpoint_displaces_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, experiment="Toy", checkpointer=RULE, metric="loss", mode="min") as run:
        run.save(RecordMeta(), {}, epoch=1, step=5, score=0.1, name="e1", final=True)
        run.save(RecordMeta(), {}, epoch=2, step=8, name="e2", resume_point=True, final=True)
        before = (tmp_path / "manifest.json").read_bytes()
        run.save(RecordMeta(), {}, epoch=2, step=10, score=0.2, name="e2", final=True)
    # As a kill between the record and the manifest leaves it: the deletion has not begun either.
    shutil.copytree(run.path / "checkpoints" / "e2", run.path / "checkpoints" / "e2-resume")
    (tmp_path / "manifest.json").write_bytes(before)
    ref = resolve_resume("auto", tmp_path)
    assert ref is not None
    assert ref.step == 10
    with RunStore.reopen(tmp_path, run.id, ref.entry, checkpointer=RULE, metric="loss", mode="min") as again:
        assert [entry.step for entry in again.entries] == [5, 10]
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["e1", "e2"]


KILLED_IN_ORBAX = """
import os, signal, sys, threading
import numpy as np
from nitro_cli.checkpoints import RecordMeta, RunStore, array_store
from nitro_cli.experiment import Checkpointer, Last
run = RunStore.create(sys.argv[1], experiment="Toy", checkpointer=Checkpointer(keep=Last(1)))
run.save(RecordMeta(), {"params/w": np.arange(4)}, epoch=1, step=1, name="e1", final=True)
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
run.save(RecordMeta(), {"params/w": np.zeros(2_000_000)}, epoch=2, step=2, name="e2", final=True)
"""


def test_a_kill_in_the_middle_of_the_arrays_leaves_the_one_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_IN_ORBAX, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (summary,) = runs(tmp_path)
    folder = summary.path / "checkpoints"
    assert sorted(p.name.split("-")[0] for p in folder.iterdir()) == [".tmp", "e1"]
    ref = resolve_source("latest:latest", tmp_path)
    assert load_with_fallback(ref)[0].arrays["params/w"].tolist() == [0, 1, 2, 3]  # type: ignore[arg-type]
    RunStore.reopen(tmp_path, summary.id).close()
    assert [p.name for p in folder.iterdir()] == ["e1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_one_clear_error_and_what_was_committed_stays(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunStore.create(small_disk, experiment="Toy", checkpointer=RULE)
    arrays = {f"params/{i}": np.arange(20_000.0) for i in range(4)}
    run.save(RecordMeta(epoch=1), arrays, epoch=1, step=1, name="e1", final=True)
    for epoch in (2, 3):
        big = {path: np.tile(leaf, 4) for path, leaf in arrays.items()}
        run.save(RecordMeta(epoch=epoch), big, epoch=epoch, step=epoch, name=f"e{epoch}")
        with pytest.raises(StorageError, match="could not be written") as caught:
            run.wait()
        assert "the disk is full" in (caught.value.why or "")
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["e1"]
    assert np.array_equal(read_record(run.path / "checkpoints" / "e1").arrays["params/3"], arrays["params/3"])
    run.save(RecordMeta(epoch=4), {"params/0": np.arange(3)}, epoch=4, step=4, name="e4", final=True)
    assert [e.name for e in read_manifest(small_disk).entries] == ["e4"]
    run.close()
    assert capfd.readouterr().err == "", "orbax complains beside the one error"


def test_a_disk_too_full_for_the_manifest_keeps_the_old_one_and_the_record_is_adopted(small_disk: Path) -> None:
    run = RunStore.create(small_disk, experiment="Toy", checkpointer=RULE)
    run.save(RecordMeta(), {}, epoch=1, step=1, name="e1", final=True)
    before = (small_disk / "manifest.json").read_bytes()
    real = os.rename

    def fill_after(source: object, target: object) -> None:
        real(source, target)  # type: ignore[arg-type]
        with open(small_disk / "filler", "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", fill_after)
        run.save(RecordMeta(), {}, epoch=2, step=2, name="e2")
        with pytest.raises(StorageError, match="manifest could not be written"):
            run.close()
    assert (small_disk / "manifest.json").read_bytes() == before
    assert resolve_resume("auto", small_disk).epoch == 2  # type: ignore[union-attr]
    (small_disk / "filler").unlink()
    with RunStore.reopen(small_disk, run.id, checkpointer=RULE) as again:
        assert [e.epoch for e in again.entries] == [1, 2]


def test_a_read_only_directory_is_one_clear_error_and_can_be_read(small_disk: Path) -> None:
    run = RunStore.create(small_disk, experiment="Toy", checkpointer=RULE)
    run.save(RecordMeta(epoch=1), {"params/w": np.arange(3)}, epoch=1, step=1, name="e1")
    run.save(RecordMeta(epoch=2), {"params/w": np.arange(3)}, epoch=2, step=2, name="e2", resume_point=True)
    run.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for attempt in (
        lambda: RunStore.create(small_disk, experiment="Toy", checkpointer=RULE),
        lambda: RunStore.create(small_disk / "new", experiment="Toy", checkpointer=RULE),
        lambda: RunStore.reopen(small_disk, run.id),
        lambda: write_record(small_disk / "r", RecordMeta(), {"params/w": np.arange(3)}),
    ):
        with pytest.raises(StorageError) as caught:
            attempt()
        assert "read-only" in (caught.value.why or "")
    assert runs(small_disk)[0].status == "interrupted"
    ref = resolve_resume("auto", small_disk)
    assert ref is not None
    assert load_with_fallback(ref)[0].meta == RecordMeta(epoch=2)


READER = """
import sys
from nitro_cli.checkpoints import read_manifest, runs
while True:
    try:
        line = input()
    except EOFError:
        break
    for _ in range(20):
        runs(sys.argv[1])
    print("read", flush=True)
"""


def test_readers_in_other_processes_never_see_a_half_written_directory(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, experiment="Toy", checkpointer=RULE, metric="loss", mode="min") as run:
        command = [sys.executable, "-W", "error", "-c", READER, tmp_path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            for epoch in range(1, 13):
                reader.stdin.write("go\n")
                reader.stdin.flush()
                run.save(
                    RecordMeta(),
                    {"params/w": epoch},
                    epoch=epoch,
                    step=epoch,
                    score=1 / epoch,
                    name=f"e{epoch}",
                    final=True,
                )
                assert reader.stdout.readline() == "read\n"
            reader.stdin.close()
            assert reader.wait(60) == 0


def test_bit_rot_found_while_another_process_trains_only_moves_that_checkpoint(tmp_path: Path) -> None:
    rule = Checkpointer(keep=(Last(3),))
    with RunStore.create(tmp_path, experiment="Toy", checkpointer=rule) as run:
        for epoch in (1, 2, 3):
            run.save(RecordMeta(), {"params/w": epoch}, epoch=epoch, step=epoch, name=f"e{epoch}", final=True)
        record = run.path / "checkpoints" / "e3" / "record.json"
        document = json.loads(record.read_text())
        record.write_text(json.dumps({**document, "written": 0}))
        ref = resolve_source("latest:latest", tmp_path)
        with pytest.warns(NitroWarning, match="1 optimizer steps are lost"):
            assert load_with_fallback(ref)[0].arrays["params/w"] == 2  # type: ignore[arg-type]
        run.save(RecordMeta(), {"params/w": 4}, epoch=4, step=4, name="e4", final=True)
        assert sorted(p.name for p in record.parent.parent.iterdir()) == ["e1", "e2", "e3.corrupt-1", "e4"]


def test_nothing_of_a_checkpoint_is_ever_unpickled() -> None:
    import nitro_cli.checkpoints as room

    folder = Path(room.__file__).parent
    for module in folder.glob("*.py"):
        text = module.read_text()
        assert "pickle" not in text, module
        assert "eval(" not in text, module
