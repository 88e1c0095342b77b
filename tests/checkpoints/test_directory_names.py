"""Checkpoints below directories of every name that the system takes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nitro_cli import Nitro
from nitro_cli.checkpoints import RecordMeta, check_run_dir_name, read_record, verify_record, write_record
from nitro_cli.errors import ConfigError, StorageError
from tests.tiny import Quick

NAMES = [
    "proj[v2]", "a\\b", "\\begin", "end\\", "gs:", "s3:", "a*b?", "{x}", "%41", "#frag", "q?x=1", "ü é", "~", "a:b",
    "|pipe", '"quote"', "'s", "$HOME", "new\nline", "\x01ctl", "[", "!", "...", "-rf", "n" * 255, "  sp ", "file:",
]  # fmt: skip


def test_arrays_are_written_to_and_read_from_a_directory_of_any_name_and_to_no_other(tmp_path: Path) -> None:
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for name in NAMES:
        (tmp_path / name).mkdir()
        path = write_record(tmp_path / name / "record", RecordMeta(a=1), {"params/w": values})
        verify_record(path)
        np.testing.assert_array_equal(read_record(path).arrays["params/w"], values, err_msg=repr(name))
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)
    assert all(os.listdir(tmp_path / name) == ["record"] for name in NAMES)


@pytest.mark.parametrize("name", ["proj[v2]", "back\\slash\\"])
def test_a_run_below_such_a_name_is_trained_and_resumed(tmp_path: Path, name: str) -> None:
    place = tmp_path / name / "runs"
    first = Nitro(Quick(run_dir=place, max_epochs=1)).train()
    again = Nitro(Quick(run_dir=place, max_epochs=2), resume="auto").train()
    assert (again.run_id, again.epoch) == (first.run_id, 2)
    assert os.listdir(tmp_path) == [name]


def test_a_record_whose_arrays_do_not_open_again_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orbax.checkpoint import PyTreeCheckpointHandler

    real = PyTreeCheckpointHandler.finalize

    def finalize_and_lose(self: object, place: Path) -> None:
        real(self, place)
        for file in Path(place).rglob("manifest.ocdbt"):
            file.unlink()

    monkeypatch.setattr(PyTreeCheckpointHandler, "finalize", finalize_and_lose)
    with pytest.raises(StorageError, match="could not be written") as caught:
        write_record(tmp_path / "record", RecordMeta(), {"params/w": np.zeros(3, np.float32)})
    assert "is not there" in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("n" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("/".join(["d" * 200] * 19), "at most"),
        ("a\0b", "null"),
        ("r\udcff", "UTF-8"),
    ],
)
def test_a_name_that_no_system_takes_is_refused_at_setup(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match="directory of this name") as caught:
        check_run_dir_name(tmp_path / name)
    assert why in str(caught.value.why)
    if why != "UTF-8":
        with pytest.raises(ConfigError, match="directory of this name"):
            Nitro(Quick(run_dir=tmp_path / name), data={})
