from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import (
    CheckpointRef,
    RecordMeta,
    RunStore,
    fallback,
    load_with_fallback,
    read_manifest,
    read_record,
    resolve_resume,
    resolve_source,
)
from nitro_cli.checkpoints import record as record_module
from nitro_cli.checkpoints.durable import remove_tree
from nitro_cli.errors import CheckpointNotFoundError, IntegrityError, NitroWarning, StorageError
from nitro_cli.experiment import Every

ALL = (Every(1),)


def resolve(spec: Any, root: Path) -> CheckpointRef:
    ref = resolve_source(spec, root)
    assert isinstance(ref, CheckpointRef)
    return ref


def damage(record: Path) -> None:
    content = bytearray((record / "record.json").read_bytes())
    content[-20] ^= 1
    (record / "record.json").write_bytes(bytes(content))


def names(root: Path, run: str) -> list[str]:
    return sorted(p.name for p in (root / run / "checkpoints").iterdir())


def test_a_whole_checkpoint_loads_without_a_word(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path, [1, 2, 3], keep=ALL)
    ref = resolve("latest:latest", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record, used, lost = load_with_fallback(ref)
    assert (record.arrays["params/w"], used, lost) == (3, ref, 0)


def test_a_damaged_newest_is_set_aside_and_the_next_older_taken_saying_what_is_lost(
    tmp_path: Path, make_run: Any
) -> None:
    run = make_run(tmp_path, [1, 2, 3, 4], keep=ALL)
    for epoch in (4, 3):
        damage(tmp_path / run / "checkpoints" / f"epoch-000{epoch}")
    with pytest.warns(NitroWarning, match="20 optimizer steps are lost"):
        record, used, lost = load_with_fallback(resolve("latest:latest", tmp_path))
    assert (record.arrays["params/w"], used.epoch, used.newest, lost) == (2, 2, True, 20)
    assert names(tmp_path, run) == ["epoch-0001", "epoch-0002", "epoch-0003.corrupt-1", "epoch-0004.corrupt-1"]
    assert [e.epoch for e in read_manifest(tmp_path).entries] == [1, 2]


def test_the_run_goes_on_after_a_fallback_and_writes_the_lost_epoch_again(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1, 2], keep=ALL)
    damage(tmp_path / run / "checkpoints" / "epoch-0002")
    with pytest.warns(NitroWarning):
        _, used, _ = load_with_fallback(resolve("latest:latest", tmp_path))
    from nitro_cli.experiment import Checkpointer

    with RunStore.reopen(
        tmp_path, run, used.entry, checkpointer=Checkpointer(keep=ALL), metric="loss", mode="min"
    ) as store:
        store.save(RecordMeta(), {"params/w": 22}, epoch=2, step=20, score=2.0, name="epoch-0002")
    assert names(tmp_path, run) == ["epoch-0001", "epoch-0002", "epoch-0002.corrupt-1"]
    damage(tmp_path / run / "checkpoints" / "epoch-0002")
    with pytest.warns(NitroWarning):
        load_with_fallback(resolve("latest:latest", tmp_path))
    assert names(tmp_path, run) == ["epoch-0001", "epoch-0002.corrupt-1", "epoch-0002.corrupt-2"]


def test_no_whole_checkpoint_is_the_integrity_error_that_names_them_all(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1, 2], keep=ALL)
    for epoch in (1, 2):
        damage(tmp_path / run / "checkpoints" / f"epoch-000{epoch}")
    with pytest.raises(IntegrityError, match="no checkpoint of the run") as caught:
        load_with_fallback(resolve("latest:latest", tmp_path))
    assert "epoch-0001" in str(caught.value)
    assert "epoch-0002" in str(caught.value)
    assert caught.value.exit_code == 5
    assert names(tmp_path, run) == ["epoch-0001", "epoch-0002"]
    again = resolve_resume("auto", tmp_path)
    assert again is not None, "asked again, the run began fresh"
    with pytest.raises(IntegrityError, match="no checkpoint of the run"):
        load_with_fallback(again)


@pytest.mark.parametrize("spec", ["latest:best", "path"])
def test_what_was_named_exactly_has_no_stand_in_and_is_left_alone(tmp_path: Path, make_run: Any, spec: str) -> None:
    run = make_run(tmp_path, [1, 2], keep=ALL)
    record = tmp_path / run / "checkpoints" / "epoch-0001"
    ref = resolve(record if spec == "path" else spec, tmp_path)
    damage(record)
    with pytest.raises(IntegrityError, match="damaged"):
        load_with_fallback(ref)
    assert names(tmp_path, run) == ["epoch-0001", "epoch-0002"]


def test_another_runs_checkpoints_are_no_stand_in(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path, [1], keep=ALL)
    run = make_run(tmp_path, [1], keep=ALL)
    damage(tmp_path / run / "checkpoints" / "epoch-0001")
    with pytest.raises(IntegrityError):
        load_with_fallback(resolve("latest:latest", tmp_path))


def test_a_read_only_directory_still_falls_back_and_says_that_nothing_was_set_aside(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, [1, 2], keep=ALL)
    damage(tmp_path / run / "checkpoints" / "epoch-0002")

    def read_only(*arguments: Any) -> None:
        raise StorageError("the manifest could not be locked", why="the file system is read-only (EROFS)")

    monkeypatch.setattr(fallback, "update_manifest", read_only)
    with pytest.warns(NitroWarning) as caught:
        record, _, lost = load_with_fallback(resolve("latest:latest", tmp_path))
    assert (record.arrays["params/w"], lost) == (1, 10)
    assert any("could not be set aside" in str(warning.message) for warning in caught)


def test_a_checkpoint_rotated_away_in_the_meantime_is_not_called_damaged(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1, 2], keep=ALL)
    ref = resolve("latest:latest", tmp_path)
    shutil.rmtree(ref.path)
    with pytest.warns(NitroWarning, match="it is gone"):
        record, _, _ = load_with_fallback(ref)
    assert record.arrays["params/w"] == 1
    assert names(tmp_path, run) == ["epoch-0001"]


def test_a_newer_checkpoint_written_in_the_meantime_stands_in_for_the_one_rotated_away(
    tmp_path: Path, make_run: Any
) -> None:
    make_run(tmp_path, [1, 2, 3], keep=ALL)
    newest = resolve("latest:latest", tmp_path)
    manifest = read_manifest(tmp_path)
    second = manifest.entries[1]
    old = replace(
        newest, path=tmp_path / second.path, entry=second, epoch=second.epoch, step=second.step, score=second.score
    )
    remove_tree(old.path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record, used, lost = load_with_fallback(old)
    assert (record.arrays["params/w"], used.epoch, lost) == (3, 3, 0)


def test_a_checkpoint_deleted_while_it_is_read_is_gone_and_not_damaged(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, [1, 2], keep=ALL)
    path = tmp_path / run / "checkpoints" / "epoch-0002"
    verify = record_module.verify_record

    def deleted_behind_it(where: Path) -> Any:
        remove_tree(path)
        return verify(where)

    def deleted_later(where: Path) -> Any:
        verify(where)
        remove_tree(path)
        raise StorageError("the checkpoint could not be read", why="FileNotFoundError")

    for stand_in in (deleted_behind_it, deleted_later):
        shutil.copytree(path.with_name("epoch-0001"), path, dirs_exist_ok=True)
        monkeypatch.setattr(record_module, "verify_record", stand_in)
        with pytest.raises(CheckpointNotFoundError):
            read_record(path)
