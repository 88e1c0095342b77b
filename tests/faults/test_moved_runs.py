"""A run that is moved, removed or replaced while it trains stops, and nothing is made anew in its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nitro_cli import Nitro
from nitro_cli.errors import ExitCode, StorageError
from tests.tiny import Quick


def moved(root: Path, run: Path) -> None:
    run.rename(root.parent / "elsewhere")


def removed(root: Path, run: Path) -> None:
    gone = root.parent / "gone"
    run.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def replaced(root: Path, run: Path) -> None:
    run.rename(root.parent / "elsewhere")
    run.mkdir()


def root_moved(root: Path, run: Path) -> None:
    root.rename(root.parent / "elsewhere")


def lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


class Meddled(Quick):
    """One whose run something happens to in its third validation: the first checkpoint is whole, the second written."""

    happens: str = "moved"
    max_epochs = 4

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        root = Path(self.run_dir)  # type: ignore[arg-type]
        run = next((p for p in root.iterdir() if p.is_dir()), None) if root.is_dir() else None
        if run is not None and lines(run / "history.jsonl") == 2:
            HAPPENINGS[self.happens](root, run)
        return super().metrics(outputs, y=y)


HAPPENINGS: dict[str, Callable[[Path, Path], None]] = {
    "moved": moved,
    "removed": removed,
    "replaced": replaced,
    "root moved": root_moved,
}


@pytest.mark.parametrize("checkpointer", ["with checkpoints", "without"])
@pytest.mark.parametrize("happens", sorted(HAPPENINGS))
@pytest.mark.filterwarnings("ignore:the run could not be closed")
def test_a_run_that_is_moved_while_it_trains_stops_and_is_not_made_anew(
    tmp_path: Path, happens: str, checkpointer: str
) -> None:
    root = tmp_path / "runs"
    e = Meddled(run_dir=root, happens=happens)
    if checkpointer == "without":
        e = e.replace(checkpointer=None)
    with pytest.raises(StorageError, match="was moved or removed while the run was at work") as caught:
        Nitro(e).train()
    assert caught.value.exit_code == ExitCode.FAILED
    left = sorted(p.name for p in root.iterdir()) if root.exists() else []
    runs = [name for name in left if (root / name).is_dir()]
    assert len(runs) == (1 if happens == "replaced" else 0)
    assert all(os.listdir(root / name) == [] for name in runs)
    if happens != "removed":
        elsewhere = tmp_path / "elsewhere"
        (kept,) = list(elsewhere.rglob("history.jsonl"))
        assert lines(kept) == 2
        assert bool(list(elsewhere.rglob("epoch-0001*/record.json"))) == (checkpointer == "with checkpoints")
