from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import RecordMeta, RunStore, prune, read_manifest
from nitro_cli.errors import NitroWarning, NotFoundError
from nitro_cli.experiment import Best, Checkpointer, Every, Last

ALL = (Every(1),)


def names(root: Path, run: str) -> list[str]:
    return sorted(p.name for p in (root / run / "checkpoints").iterdir())


def leave_rubbish(root: Path, run: str) -> None:
    for name in ("epoch-0009.corrupt-1", ".tmp-12345678-epoch-0009"):
        (root / run / "checkpoints" / name).mkdir()
        (root / run / "checkpoints" / name / "x").write_bytes(b"12345")


def test_nothing_is_deleted_unless_told_to(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [3, 1, 2], keep=ALL)
    leave_rubbish(tmp_path, run)
    before = names(tmp_path, run)
    items = prune(tmp_path, keep=(Best(1), Last(1)))
    assert sorted((item.reason, item.path.name, item.epoch) for item in items) == [
        ("left over", ".tmp-12345678-epoch-0009", None),
        ("not kept", "epoch-0001", 1),
        ("quarantined", "epoch-0009.corrupt-1", None),
    ]
    assert [item.size for item in items if item.reason != "not kept"] == [5, 5]
    assert names(tmp_path, run) == before


def test_what_was_listed_is_what_is_deleted(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [3, 1, 2], keep=ALL)
    leave_rubbish(tmp_path, run)
    listed = prune(tmp_path / run, keep=(Best(1), Last(1)))
    assert prune(tmp_path / run, keep=(Best(1), Last(1)), delete=True) == listed
    assert names(tmp_path, run) == ["epoch-0002", "epoch-0003"]
    assert [e.epoch for e in read_manifest(tmp_path).entries] == [2, 3]
    assert prune(tmp_path, keep=(Best(1), Last(1)), delete=True) == []


def test_without_keep_every_checkpoint_stays(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [3, 1, 2], keep=ALL)
    leave_rubbish(tmp_path, run)
    prune(tmp_path, delete=True)
    assert names(tmp_path, run) == ["epoch-0001", "epoch-0002", "epoch-0003"]


def test_the_last_finite_one_stays_whatever_keep_says(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [3, 1, float("nan")], keep=ALL)
    prune(tmp_path, keep=(Last(1),), delete=True)
    assert names(tmp_path, run) == ["epoch-0002", "epoch-0003"]


def test_a_run_at_work_is_left_alone(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, experiment="Toy", checkpointer=Checkpointer(keep=ALL)) as run:
        for epoch in (1, 2):
            run.save(RecordMeta(), {}, epoch=epoch, step=epoch, name=f"e{epoch}")
        run.wait()
        with pytest.warns(NitroWarning, match="being trained"):
            assert prune(tmp_path, keep=(Last(1),), delete=True) == []
        assert names(tmp_path, run.id) == ["e1", "e2"]


def test_each_run_is_pruned_by_itself(tmp_path: Path, make_run: Any) -> None:
    ids = [make_run(tmp_path, [2, 1], keep=ALL), make_run(tmp_path, [20, 10], keep=ALL)]
    prune(tmp_path, keep=(Best(1),), delete=True)
    assert [names(tmp_path, run) for run in ids] == [["epoch-0002"], ["epoch-0002"]]


def test_what_is_no_run_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        prune(tmp_path / "nowhere")
