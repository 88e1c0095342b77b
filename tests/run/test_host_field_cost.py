"""An array of the size of a data set on a Host field reaches no program and is never copied."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import ArrayBatches, Nitro
from nitro_cli.registry.toml_values import unwritten_digest, value_type
from tests.tiny import Light, points

ROWS = 2**29


class Guarded(np.ndarray):
    """Two gigabytes that are one number in memory: any copy, reduction or conversion of it is counted."""

    copies: list[str] = []  # noqa: RUF012

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        Guarded.copies.append("converted")
        return np.zeros(0, np.float32)

    def __array_ufunc__(self, ufunc: Any, *args: Any, **kwargs: Any) -> Any:
        Guarded.copies.append(ufunc.__name__)
        return NotImplemented

    def tobytes(self, *args: Any, **kwargs: Any) -> bytes:
        if self.nbytes > 2**24:  # a digest reads it in pieces
            Guarded.copies.append("tobytes")
        return b""

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        Guarded.copies.append("copy")
        return self


class WithTable(Light):
    """Carries a table and reads it where it may: on the host, row by row."""

    table: Any = None
    checkpointer = None
    max_epochs = 1

    def build_data(self, dist: Any) -> dict[str, Any]:
        assert self.table.nbytes == 2**31
        return {"train": ArrayBatches(points(16, 1), 8)}


def test_a_two_gigabyte_host_array_is_neither_copied_nor_part_of_a_program(tmp_path: Path) -> None:
    table = np.broadcast_to(np.float32(1), (ROWS,)).view(Guarded)
    Guarded.copies.clear()
    with_table = Nitro(WithTable(table=table), run_dir=tmp_path).train()
    assert with_table.experiment.table is table
    assert Guarded.copies == []
    other = Nitro(WithTable(table=np.broadcast_to(np.float64(2), (2**28,)).view(Guarded)), run_dir=tmp_path).train()
    assert other.programs["train"].key == with_table.programs["train"].key
    assert other.programs["train"].source == "memory"


def test_the_digest_of_an_array_read_in_pieces_is_that_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(60, dtype=np.int16).reshape(10, 6)[::2, ::-1]
    whole = hashlib.sha256(value_type(array).encode() + array.tobytes()).hexdigest()
    monkeypatch.setattr("nitro_cli.registry.toml_values._BLOCK_BYTES", 30)
    assert unwritten_digest(array) == whole
