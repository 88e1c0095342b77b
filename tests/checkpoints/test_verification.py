from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli.checkpoints import average_checkpoints, quarantine, read_manifest, verify
from nitro_cli.errors import CheckpointNotFoundError
from nitro_cli.experiment import Average, Every, Last


def test_a_record_a_run_and_a_directory_can_be_verified(tmp_path: Path, make_run: Any) -> None:
    one = make_run(tmp_path, [1, 2], keep=(Every(1),))
    two = make_run(tmp_path, [1], keep=(Every(1),))
    assert len(verify(tmp_path)) == len(verify(tmp_path / "manifest.json")) == 3
    assert [outcome.path.name for outcome in verify(tmp_path / one)] == ["epoch-0001", "epoch-0002"]
    record = tmp_path / two / "checkpoints" / "epoch-0001"
    assert [outcome.ok for outcome in verify(record)] == [True]
    (record / "record.json").unlink()
    (outcome,) = verify(record)
    assert not outcome.ok
    document = outcome.as_json()
    assert (document["ok"], document["error"]["exit_code"]) == (False, 5)
    assert sorted(outcome.ok for outcome in verify(tmp_path)) == [False, True, True]


def test_the_averages_of_a_run_are_verified_too(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1, 2], keep=(Every(1),), leaf=lambda epoch: np.arange(3.0) + epoch)
    place = tmp_path / run / "averages" / "mean"
    average_checkpoints(tmp_path, run, Average(Last(2)), save=place)
    for path in (tmp_path, tmp_path / run):
        assert [(o.path.name, o.ok) for o in verify(path)][-1] == ("mean", True)
    data = max((file for file in place.rglob("*") if file.name != "record.json" and file.is_file()), key=file_size)
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    for path in (tmp_path, tmp_path / run, place):
        assert [outcome.path.name for outcome in verify(path) if not outcome.ok] == ["mean"]


def file_size(file: Path) -> int:
    return file.stat().st_size


def test_quarantined_ones_are_not_verified_again(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path, [1, 2], keep=(Every(1),))
    quarantine(tmp_path, read_manifest(tmp_path).entries[0])
    assert [outcome.path.name for outcome in verify(tmp_path)] == ["epoch-0002"]


def test_what_holds_no_checkpoint_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointNotFoundError):
            verify(path)
