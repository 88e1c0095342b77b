from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nitro_cli.checkpoints import (
    RecordMeta,
    RunStore,
    read_manifest,
    read_record,
    record_bytes,
    run_is_locked,
    runs,
    store,
    write_record,
)
from nitro_cli.checkpoints import record as record_module
from nitro_cli.errors import (
    ConfigError,
    HookError,
    IncompatibleError,
    IntegrityError,
    LockedError,
    NitroWarning,
    RunNotFoundError,
    StorageError,
)
from nitro_cli.experiment import Best, Checkpointer, Every, Last

KEEP_LAST = Checkpointer(keep=(Last(1),))


def create(root: Path, checkpointer: Checkpointer | None = KEEP_LAST, **keywords: Any) -> RunStore:
    return RunStore.create(root, experiment="pkg:Toy", checkpointer=checkpointer, metric="loss", mode="min", **keywords)


def save(run: RunStore, epoch: int, score: float | None = None, **keywords: Any) -> Path:
    facts: dict[str, Any] = {"epoch": epoch, "step": epoch * 10, "score": score, "name": f"epoch-{epoch}", **keywords}
    return run.save(RecordMeta(epoch=epoch), {"params/w": epoch}, **facts)


def on_disk(run: RunStore) -> list[str]:
    return sorted(p.name for p in (run.path / "checkpoints").iterdir())


@contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Make the background part of a save wait until the yielded function is called."""
    gate = threading.Event()
    real = store.commit_record

    def waiting(*arguments: Any, **keywords: Any) -> Path:
        assert gate.wait(120)
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit_record", waiting)
        yield gate.set
        gate.set()


def failing_writes(monkeypatch: pytest.MonkeyPatch, number: int, times: int = 1) -> None:
    left = [times]
    real = record_module._stage

    def stage(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        real(*arguments)

    monkeypatch.setattr(record_module, "_stage", stage)


def test_the_best_is_the_best_finite_one_under_the_checkpointers_metric(tmp_path: Path) -> None:
    with create(tmp_path, Checkpointer(keep=(Every(1),))) as run:
        assert run.best is None
        for epoch, score in enumerate([0.5, 0.2, float("nan"), 0.3], start=1):
            save(run, epoch, score, final=True)
        assert run.best is not None
        assert run.best.epoch == 2


def test_a_fresh_run_is_listed_as_running_before_its_first_checkpoint(tmp_path: Path) -> None:
    with create(tmp_path / "a" / "b", preset="base", seed=3) as run:
        (summary,) = runs(run.root)
        assert (summary.id, summary.experiment, summary.preset, summary.seed) == (run.id, "pkg:Toy", "base", 3)
        assert (summary.status, summary.checkpoints) == ("running", ())
        assert len(run.id) == 8
        assert run.path.is_dir()


def test_a_save_returns_before_it_is_written_and_close_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path)
    with held_back(monkeypatch) as let_go:
        path = save(run, 1)
        assert not path.exists()
        let_go()
        run.close()
    assert read_record(path).arrays == {"params/w": 1}
    assert [e.name for e in read_manifest(tmp_path).entries] == ["epoch-1"]


def test_metadata_and_device_arrays_are_copied_when_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    run = create(tmp_path)
    weights = jnp.zeros(3)
    history = [{"loss": 1.0}]
    with held_back(monkeypatch) as let_go:
        path = run.save(RecordMeta(rows=history), {"params/w": weights}, epoch=1, step=1, name="e")
        history.append({"loss": 2.0})
        weights.delete()
        let_go()
        run.close()
    record = read_record(path)
    assert record.meta.as_json() == {"rows": [{"loss": 1.0}]}
    assert record.arrays["params/w"].tolist() == [0, 0, 0]


def test_an_array_on_the_cpu_can_be_donated_while_its_copy_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    import jax.numpy as jnp

    weights = jnp.zeros(3)
    with create(tmp_path) as run, held_back(monkeypatch) as let_go:
        path = run.save(RecordMeta(), {"params/w": weights}, epoch=1, step=1, name="e")
        jax.jit(lambda w: w + 1, donate_argnums=0)(weights).block_until_ready()
        assert weights.is_deleted()
        let_go()
    assert read_record(path).arrays["params/w"].tolist() == [0, 0, 0]


def test_a_final_save_is_committed_when_it_returns(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        assert save(run, 1, final=True).is_dir()
        assert run.latest is not None
        assert run.latest.epoch == 1


def test_rotation_deletes_only_after_the_next_one_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path)
    save(run, 1, final=True)
    seen: list[tuple[list[str], list[str]]] = []
    real = store.remove_displaced

    def watching(root: Path, manifest: Any, displaced: Any) -> None:
        seen.append((on_disk(run), [e.name for e in read_manifest(tmp_path).entries]))
        real(root, manifest, displaced)

    monkeypatch.setattr(store, "remove_displaced", watching)
    save(run, 2, final=True)
    assert seen == [(["epoch-1", "epoch-2"], ["epoch-2"])]
    assert on_disk(run) == ["epoch-2"]
    run.close()


def test_admits_counts_the_save_in_flight(tmp_path: Path) -> None:
    with create(tmp_path, Checkpointer(keep=(Best(1),))) as run:
        assert run.admits(1, 2.0)
        save(run, 1, 2.0)
        assert not run.admits(2, 3.0)
        assert run.admits(2, 1.0)


def test_a_run_without_a_checkpointer_admits_and_saves_nothing(tmp_path: Path) -> None:
    with create(tmp_path, None) as run:
        assert not run.admits(1, 0.0)
        run.check_disk(10**30)
        with pytest.raises(ConfigError, match="switched off"):
            save(run, 1)


def test_the_newest_resume_point_lasts_until_a_later_checkpoint(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        save(run, 1, 0.5, step=3, resume_point=True)
        save(run, 1, 0.5, step=6, resume_point=True, name="later", final=True)
        assert on_disk(run) == ["later-resume"]
        (entry,) = run.entries
        assert (entry.resume_point, entry.score, entry.metric) == (True, None, None)
        save(run, 1, final=True)
        assert on_disk(run) == ["epoch-1"]


def test_two_stops_at_one_step_do_not_collide(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        save(run, 1, 0.5, final=True)
        assert save(run, 2, resume_point=True, name="same").name == "same-resume"
        assert save(run, 2, resume_point=True, name="same", final=True).name == "same-resume-2"
        assert on_disk(run) == ["epoch-1", "same-resume-2"]


def test_a_name_that_collides_or_leads_outside_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        save(run, 1)
        with pytest.raises(HookError, match="already has"):
            save(run, 2, name="epoch-1")
        with pytest.raises(HookError, match="cannot be named"):
            save(run, 2, name="../outside")
        assert save(run, 2, name="val/acc=1").name == "val_acc=1"


def test_a_score_that_is_not_finite_ends_as_null_in_the_json(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        save(run, 1, float("nan"), final=True)
    document = json.loads((tmp_path / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert document["entries"][0]["score"] is None
    assert document["entries"][0]["nonfinite"] == {"score": "nan"}


def test_a_failed_save_is_raised_by_the_next_one_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path)
    save(run, 1, final=True)
    failing_writes(monkeypatch, errno.ENOSPC)
    save(run, 2)
    with pytest.raises(StorageError, match="could not be written") as caught:
        save(run, 3)
    assert "disk is full" in (caught.value.why or "")
    assert on_disk(run) == ["epoch-1"]
    save(run, 3, final=True)
    assert on_disk(run) == ["epoch-3"]
    run.close()


def test_a_failed_last_save_is_raised_by_close_which_still_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path)
    failing_writes(monkeypatch, errno.EROFS)
    save(run, 1)
    with pytest.raises(StorageError, match="could not be written"):
        run.close()
    assert not run_is_locked(run.path)


def test_a_transient_error_of_a_save_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    run = create(tmp_path, sleep=waits.append)
    failing_writes(monkeypatch, errno.EIO, times=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(run, 1, final=True)
    run.close()
    assert len(waits) == 2
    assert any("trying again" in str(warning.message) for warning in caught)
    assert on_disk(run) == ["epoch-1"]


def test_a_checkpoint_that_cannot_be_deleted_is_deleted_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nitro_cli.checkpoints import reconcile

    run = create(tmp_path)
    save(run, 1, final=True)

    def stuck(path: Path) -> None:
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as patch:
        patch.setattr(reconcile, "remove_tree", stuck)
        with pytest.warns(NitroWarning, match="could not be deleted"):
            save(run, 2, final=True)
    assert on_disk(run) == ["epoch-1", "epoch-2"]
    save(run, 3, final=True)
    run.close()
    assert on_disk(run) == ["epoch-1", "epoch-3"]
    RunStore.reopen(tmp_path, run.id, checkpointer=KEEP_LAST).close()
    assert on_disk(run) == ["epoch-3"]


@pytest.mark.parametrize(
    "hostile", ["{run}/checkpoints/epoch-1", "{run}/run.json", "{run}", "../precious", "/precious"]
)
def test_a_manifest_cannot_make_the_next_start_delete_anything_else(tmp_path: Path, hostile: str) -> None:
    root = tmp_path / "runs"
    (tmp_path / "precious").mkdir()
    with create(root) as run:
        run.write_info({})
        save(run, 1)
    document = json.loads((root / "manifest.json").read_text())
    document["runs"][run.id]["displaced"] = [hostile.format(run=run.id)]
    (root / "manifest.json").write_text(json.dumps(document))
    with contextlib.suppress(IntegrityError):
        RunStore.reopen(root, run.id).close()
    assert on_disk(run) == ["epoch-1"]
    assert (run.path / "run.json").is_file()
    assert (tmp_path / "precious").is_dir()


def test_a_deletion_that_ends_half_way_leaves_nothing_under_the_checkpoints_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from nitro_cli.checkpoints.durable import remove_tree

    (tmp_path / "epoch-1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *arguments, **keywords: None)
        remove_tree(tmp_path / "epoch-1")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".deleting-")


def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        script = (
            "import sys; from nitro_cli.checkpoints import RunStore; from nitro_cli.errors import LockedError\n"
            "try: RunStore.reopen(sys.argv[1], sys.argv[2])\nexcept LockedError as error: print(error.exit_code.name)"
        )
        done = subprocess.run([sys.executable, "-c", script, tmp_path, run.id], capture_output=True, text=True)
        assert done.stdout == "INCOMPATIBLE\n", done.stderr
        with pytest.raises(LockedError):
            RunStore.reopen(tmp_path, run.id)
    RunStore.reopen(tmp_path, run.id).close()


def test_the_end_of_a_forked_worker_does_not_free_the_run(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        with create(tmp_path) as run:
            child = multiprocessing.get_context("fork").Process(target=int)
            child.start()
            child.join()
            assert run_is_locked(run.path)
    assert not run_is_locked(run.path)


CREATOR = """
import sys
from nitro_cli.checkpoints import RunStore
for _ in range(5):
    with RunStore.create(sys.argv[1], experiment="pkg:Toy") as run:
        print(run.id)
"""


def test_runs_begun_at_once_by_many_processes_get_ids_of_their_own(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", CREATOR, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    ids = [line for process in processes for line in process.communicate()[0].split()]
    assert len(ids) == len(set(ids)) == 20
    assert {summary.id for summary in runs(tmp_path)} == set(ids)


def test_an_id_that_is_taken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nitro_cli.checkpoints import run_directory

    (tmp_path / "dddddddd").mkdir()
    draws = iter(["aaaaaaaa", "aaaaaaaa", "dddddddd", "bbbbbbbb"])
    monkeypatch.setattr(run_directory, "secrets", SimpleNamespace(token_hex=lambda count: next(draws)))
    assert create(tmp_path).id == "aaaaaaaa"
    assert create(tmp_path).id == "bbbbbbbb"


def test_two_runs_at_work_in_one_directory_both_survive(tmp_path: Path) -> None:
    with create(tmp_path) as one, create(tmp_path) as other:
        for epoch in range(1, 4):
            save(one, epoch)
            save(other, epoch)
    assert sorted((e.run, e.epoch) for e in read_manifest(tmp_path).entries) == sorted([(one.id, 3), (other.id, 3)])


def test_scope_dir_deletes_the_worse_of_a_finished_run_and_spares_one_at_work(tmp_path: Path) -> None:
    rule = Checkpointer(keep=(Best(1),), scope="dir")
    with create(tmp_path, rule) as finished:
        save(finished, 1, 0.5)
    with pytest.warns(NitroWarning, match=f"{finished.id} may be deleted"):
        at_work = create(tmp_path, rule)
    with at_work:
        save(at_work, 1, 0.4, final=True)
        with pytest.warns(NitroWarning, match=f"{at_work.id} may be deleted"):
            better = create(tmp_path, rule)
        with better:
            save(better, 1, 0.3)
    left = {path.parts[-3] for path in tmp_path.glob("*/checkpoints/*")}
    assert left == {entry.run for entry in read_manifest(tmp_path).entries} == {at_work.id, better.id}


def test_a_run_that_failed_early_leaves_nothing_behind(tmp_path: Path) -> None:
    other = create(tmp_path)
    run = create(tmp_path)
    (run.path / "metrics.jsonl").write_text("{}")
    run.discard()
    assert not run.path.exists()
    assert [summary.id for summary in runs(tmp_path)] == [other.id]
    other.close()


def test_the_status_is_in_the_manifest_and_in_run_json(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        run.write_info({"experiment": "pkg:Toy", "argv": ["nitro", "train"]})
        assert json.loads((run.path / "run.json").read_text())["status"] == "running"
        run.set_status("early_stop")
        assert runs(tmp_path)[0].status == "early_stop"
    assert json.loads((run.path / "run.json").read_text()) == {
        "status": "early_stop",
        "experiment": "pkg:Toy",
        "argv": ["nitro", "train"],
    }


def test_a_reopened_run_goes_on_under_its_id_and_keeps_its_facts(tmp_path: Path) -> None:
    with create(tmp_path, preset="base", seed=5) as run:
        save(run, 1)
        run.set_status("requested")
    with RunStore.reopen(tmp_path, run.id, run.latest, checkpointer=KEEP_LAST) as again:
        assert runs(tmp_path)[0].status == "running"
        save(again, 2, final=True)
        assert on_disk(again) == ["epoch-2"]
    assert (runs(tmp_path)[0].preset, runs(tmp_path)[0].seed) == ("base", 5)


def test_a_run_is_continued_only_from_its_newest(tmp_path: Path) -> None:
    with create(tmp_path, Checkpointer(keep=(Every(1),))) as run:
        save(run, 1)
        save(run, 2)
    first, second = run.entries
    with pytest.raises(IncompatibleError, match="cannot be continued"):
        RunStore.reopen(tmp_path, run.id, first)
    RunStore.reopen(tmp_path, run.id, second).close()
    with pytest.raises(RunNotFoundError):
        RunStore.reopen(tmp_path, "00000000")


def test_a_record_published_but_not_listed_is_adopted_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path)
    save(run, 1, 0.5, final=True)
    with monkeypatch.context() as patch:
        patch.setattr(store, "update_manifest", lambda *arguments, **keywords: (_ for _ in ()).throw(OSError("killed")))
        save(run, 2, 0.25)
        with pytest.raises(OSError, match="killed"):
            run.wait()
    run.close()
    assert [e.epoch for e in read_manifest(tmp_path).entries] == [1]
    with RunStore.reopen(tmp_path, run.id, checkpointer=KEEP_LAST, metric="loss", mode="min") as again:
        assert [(e.epoch, e.score, e.metric) for e in again.entries] == [(1, 0.5, "loss"), (2, 0.25, "loss")]
        save(again, 3, 1.0, final=True)
        assert on_disk(again) == ["epoch-3"]


def test_temporaries_are_cleaned_by_the_holder_of_the_run_alone(tmp_path: Path) -> None:
    with create(tmp_path) as busy, create(tmp_path) as run:
        save(run, 1)
    busy_again = RunStore.reopen(tmp_path, busy.id)
    for each in (busy, run):
        (each.path / "checkpoints" / ".tmp-12345678-epoch-9").mkdir()
        (each.path / "checkpoints" / ".deleting-12345678-epoch-8").mkdir()
    RunStore.reopen(tmp_path, run.id).close()
    assert on_disk(run) == ["epoch-1"]
    assert len(on_disk(busy)) == 2
    busy_again.close()


def test_an_averaged_record_laid_beside_the_checkpoints_is_not_adopted(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        save(run, 1)
    write_record(run.path / "checkpoints" / "average", RecordMeta(), {"params/w": 1})
    RunStore.reopen(tmp_path, run.id).close()
    assert [e.name for e in read_manifest(tmp_path).entries] == ["epoch-1"]


def test_too_little_disk_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5_000_000))
    with create(tmp_path, Checkpointer(keep=(Best(3), Last(1)))) as run:
        run.check_disk(800_000, max_epochs=50)
        with pytest.raises(StorageError, match="too little disk") as caught:
            run.check_disk(900_000, max_epochs=50)
    assert "5.4 MB" in (caught.value.why or "")
    assert "5.0 MB are free" in (caught.value.why or "")


def test_the_estimated_size_covers_what_is_written(tmp_path: Path) -> None:
    arrays = {f"params/{i}": np.zeros((50, 50), np.float32) for i in range(20)}
    path = write_record(tmp_path / "r", RecordMeta(), arrays)
    written = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    assert written <= record_bytes(arrays) <= 2 * written


ENDS_IN_FLIGHT = """
import sys, threading
import numpy as np
from nitro_cli.checkpoints import RecordMeta, RunStore, array_store
from nitro_cli.experiment import Checkpointer
from nitro_cli.checkpoints import record
run = RunStore.create(sys.argv[1], experiment="pkg:Toy", checkpointer=Checkpointer())
ending = threading.Event()
threading._register_atexit(ending.set)
real = array_store.write_arrays
def late(*arguments):
    assert ending.wait(60)
    real(*arguments)
record.write_arrays = late
run.save(RecordMeta(), {"params/w": np.arange(4)}, epoch=1, step=1, name="e")
"""


def test_a_process_that_ends_finishes_the_save_in_flight(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS_IN_FLIGHT, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (entry,) = read_manifest(tmp_path).entries
    assert read_record(tmp_path / entry.path).arrays["params/w"].tolist() == [0, 1, 2, 3]
