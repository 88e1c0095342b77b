from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import RunStore, read_manifest, rescan, resolve_source, runs
from nitro_cli.errors import IncompatibleError, NitroWarning, RunNotFoundError
from nitro_cli.experiment import Every

ALL = (Every(1),)


def facts(root: Path) -> Any:
    """Everything of the manifest that the records can give back."""
    manifest = read_manifest(root)
    return manifest.entries, {run: (i.experiment, i.preset, i.seed, i.parent) for run, i in manifest.runs.items()}


def test_a_lost_manifest_is_rebuilt_from_the_records(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path, [3.0, float("inf"), 1.0], keep=ALL)
    make_run(tmp_path, [0.5], metric="acc", mode="max")
    before = facts(tmp_path)
    (tmp_path / "manifest.json").unlink()
    rescan(tmp_path)
    assert facts(tmp_path) == before
    assert {summary.status for summary in runs(tmp_path)} == {"interrupted"}


def test_the_status_comes_back_from_run_json(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, experiment="Toy") as run:
        run.write_info({"experiment": "Toy", "preset": "big"})
        run.set_status("early_stop")
    (tmp_path / "manifest.json").unlink()
    rescan(tmp_path)
    (summary,) = runs(tmp_path)
    assert (summary.status, summary.preset) == ("early_stop", "big")


def test_a_damaged_manifest_is_kept_aside(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [3.0, 1.0], keep=ALL)
    (tmp_path / "manifest.json").write_text("{ torn")
    with pytest.warns(NitroWarning, match=r"kept as manifest.json.corrupt-1"):
        rescan(tmp_path)
    assert (tmp_path / "manifest.json.corrupt-1").read_text() == "{ torn"
    assert [e.run for e in read_manifest(tmp_path).entries] == [run, run]


def test_a_manifest_of_a_newer_nitro_is_not_touched(tmp_path: Path) -> None:
    text = '{"format": 9, "framework": "7.0.0"}'
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(IncompatibleError):
        rescan(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text


def test_deleted_and_copied_checkpoints_are_taken_in(tmp_path: Path, make_run: Any) -> None:
    root = tmp_path / "runs"
    run = make_run(root, [3.0, 2.0, 1.0], keep=ALL)
    shutil.rmtree(root / run / "checkpoints" / "epoch-0001")
    other = make_run(tmp_path / "elsewhere", [9.0], keep=ALL)
    shutil.copytree(tmp_path / "elsewhere" / other, root / other)
    rescan(root)
    held = sorted((e.run, e.epoch) for e in read_manifest(root).entries)
    assert held == sorted([(run, 2), (run, 3), (other, 1)])
    assert resolve_source(f"{other}:best", root).epoch == 1  # type: ignore[union-attr]


def test_damaged_quarantined_and_temporary_ones_are_left_out(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [3.0, 2.0, 1.0], keep=ALL)
    folder = tmp_path / run / "checkpoints"
    (folder / "epoch-0003" / "record.json").write_text("{}")
    (folder / "epoch-0002").rename(folder / "epoch-0002.corrupt-1")
    shutil.copytree(folder / "epoch-0001", folder / ".tmp-12345678-epoch-0004")
    (tmp_path / "manifest.json").unlink()
    with pytest.warns(NitroWarning, match="epoch-0003"):
        rescan(tmp_path)
    assert [e.name for e in read_manifest(tmp_path).entries] == ["epoch-0001"]


def test_other_directories_are_no_runs(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1.0])
    (tmp_path / "notes").mkdir()
    (tmp_path / "12345678").mkdir()
    (tmp_path / "abcdefab").symlink_to(tmp_path / run)
    rescan(tmp_path)
    assert list(read_manifest(tmp_path).runs) == [run]


def test_a_rescan_of_a_good_manifest_changes_nothing_but_the_order_of_writing(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [2.0, 1.0], keep=ALL, status="completed")
    before = read_manifest(tmp_path)
    rescan(tmp_path)
    after = read_manifest(tmp_path)
    assert after.entries == before.entries
    assert replace(after.runs[run], written=0) == replace(before.runs[run], written=0)


def test_no_directory_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError):
        rescan(tmp_path / "nowhere")


def test_a_new_run_beside_runs_that_no_manifest_lists_says_so(tmp_path: Path, make_run: Any) -> None:
    lost = make_run(tmp_path, [1])
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "0123abcd" / "checkpoints").mkdir(parents=True)
    with pytest.warns(NitroWarning, match=rf"1 run that its manifest does not list: {lost}; .*--rescan"):
        RunStore.create(tmp_path, experiment="m:Toy", checkpointer=None).close()
    rescan(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RunStore.create(tmp_path, experiment="m:Toy", checkpointer=None).close()
