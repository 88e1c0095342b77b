"""Damage to a run's records, met through the handle and the commands."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nitro_cli import Nitro
from nitro_cli.checkpoints import read_manifest, read_record
from nitro_cli.checkpoints.json_text import BLANK_DIGEST, seal
from nitro_cli.errors import ExitCode, IntegrityError, NitroWarning
from tests.faults.conftest import Victims
from tests.faults.subject import Subject
from tests.faults.test_kill_matrix import ROOT

# As `find` lists the record of one epoch; the names of data files are random, so they are numbered.
FILES = [
    "record.json",
    "arrays/_METADATA",
    "arrays/manifest.ocdbt",
    "arrays/d/0",
    "arrays/ocdbt.process_0/manifest.ocdbt",
    "arrays/ocdbt.process_0/d/0",
    "arrays/ocdbt.process_0/d/-1",
]


def flip(file: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    """Lose the second half."""
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    """Lose the content."""
    os.truncate(file, 0)


def delete(file: Path) -> None:
    """Lose the file."""
    file.unlink()


def file_of(record: Path, name: str) -> Path:
    """The file that one of `FILES` means."""
    folder, _, last = name.rpartition("/")
    if folder.endswith("d"):
        return sorted((record / folder).iterdir())[int(last)]
    return record / name


@pytest.fixture
def root(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of a finished run with two records: the best, of the first epoch, and the last."""
    shutil.copytree(uninterrupted / ROOT, tmp_path / ROOT)
    return tmp_path / ROOT


@pytest.mark.parametrize("damage", [flip, truncate, empty, delete])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_record_gives_the_exact_older_state_says_what_is_lost_and_is_kept_aside(
    root: Path, name: str, damage: Callable[[Path], None]
) -> None:
    older, newest = sorted(read_manifest(root).entries, key=lambda entry: entry.step)
    assert (older.step, newest.step) == (5, 10)
    damage(file_of(root / newest.path, name))
    with pytest.warns(NitroWarning, match="5 optimizer steps are lost") as said:
        nitro = Nitro(Subject(), run_dir=str(root), resume="auto")
    assert any(newest.name in str(warning.message) for warning in said)
    record = read_record(root / older.path)
    assert (nitro.epoch, nitro.step) == (1, 5)
    for path in ("body/kernel", "head/bias"):
        group, leaf = path.split("/")
        assert np.asarray(nitro.params[group][leaf]).tobytes() == record.arrays[f"params/{path}"].tobytes()
        assert np.asarray(nitro.ema[group][leaf]).tobytes() == record.arrays[f"ema/{path}"].tobytes()
    assert not (root / newest.path).exists()
    assert (root / f"{newest.path}.corrupt-1").is_dir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [entry.path for entry in read_manifest(root).entries] == [older.path]


def test_after_the_fallback_the_run_comes_to_the_same_end(victims: Victims, root: Path, uninterrupted: Path) -> None:
    from tests.faults.outcome import assert_equal, outcome

    newest = max(read_manifest(root).entries, key=lambda entry: entry.step)
    flip(file_of(root / newest.path, "arrays/d/0"))
    code = victims.run(root.parents[1], "resume", str(ROOT), instants=False)
    said = (root.parents[1] / "said").read_text()
    assert code == 0, said
    assert "5 optimizer steps are lost" in said
    assert_equal(outcome(root), outcome(uninterrupted / ROOT))


def test_no_good_record_is_the_integrity_exit_code_and_nothing_is_deleted(victims: Victims, root: Path) -> None:
    for entry in read_manifest(root).entries:
        flip(root / entry.path / "record.json")
    assert victims.run(root.parents[1], "resume", str(ROOT), instants=False) == ExitCode.INTEGRITY
    said = (root.parents[1] / "said").read_text()
    assert "no checkpoint of the run" in said
    assert "Traceback" not in said
    assert len(list(root.rglob("record.json"))) == 2


def test_a_damaged_best_is_never_replaced_by_another_checkpoint(root: Path) -> None:
    best = min(read_manifest(root).entries, key=lambda entry: entry.step)
    flip(file_of(root / best.path, "arrays/d/0"))
    with pytest.raises(IntegrityError):
        Nitro(Subject(), run_dir=str(root), weights="latest:best")


def test_a_manifest_entry_or_a_record_that_leads_outside_is_refused(root: Path, tmp_path: Path) -> None:
    entry = max(read_manifest(root).entries, key=lambda entry: entry.step)
    shutil.copytree(root / entry.path, tmp_path / "outside")
    manifest = root / "manifest.json"
    document = json.loads(manifest.read_text().replace(entry.path, "../../outside"))
    manifest.write_bytes(seal(json.dumps({**document, "sha256": BLANK_DIGEST})))
    with pytest.raises(IntegrityError, match="outside"):
        Nitro(Subject(), run_dir=str(root), resume="auto")
    manifest.unlink()
    arrays = root / entry.path / "arrays"
    shutil.move(arrays, tmp_path / "arrays")
    arrays.symlink_to(tmp_path / "arrays")
    with pytest.raises(IntegrityError):
        Nitro(Subject(), run_dir=str(tmp_path), weights=str(root / entry.path))
