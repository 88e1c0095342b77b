"""Traces of the profiler: one beside the other, and what is told where there is none."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from nitro_cli.errors import StorageError
from nitro_cli.profiling.trace_files import Trace


def traced(folder: Path) -> tuple[Path, ...]:
    trace = Trace(folder)
    trace.start()
    trace.stop()
    return trace.files


def test_traces_that_end_in_one_second_stay_beside_each_other(tmp_path: Path) -> None:
    made = [traced(tmp_path) for _ in range(4)]
    assert len({file for files in made for file in files}) == sum(map(len, made)) >= 4
    assert all(file.stat().st_size for files in made for file in files)
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]


def test_a_profiler_that_writes_nothing_is_told_for_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = jax.profiler.stop_trace

    def end_without_files() -> None:
        end()
        for file in tmp_path.rglob("*.*"):
            if file.is_file():
                file.unlink()

    monkeypatch.setattr(jax.profiler, "stop_trace", end_without_files)
    with pytest.raises(StorageError, match="ended without writing a trace") as told:
        traced(tmp_path)
    assert "full" not in str(told.value)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".trace")]
