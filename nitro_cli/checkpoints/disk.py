"""Whether the disk can hold what a run will keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nitro_cli.errors import StorageError

from .retention import Retention

__all__ = ["check_disk", "disk_need"]


def disk_need(retention: Retention, bytes_per_record: int, max_epochs: int | None = None) -> int | None:
    """Bytes that a run's checkpoints take at most, the one being written included; None where `keep` has no bound.

    Args:
        retention: what is kept.
        bytes_per_record: of one checkpoint.
        max_epochs: epochs of the run.
    """
    count = retention.capacity(max_epochs)
    return None if count is None else count * bytes_per_record


def check_disk(root: Path, retention: Retention, bytes_per_record: int, max_epochs: int | None = None) -> None:
    """Compare the free space at `root` with `disk_need`.

    Raises:
        StorageError: there is too little; both numbers are named.
    """
    need = disk_need(retention, bytes_per_record, max_epochs)
    if need is None:
        need = bytes_per_record
    place = root
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < need:
        keep = ", ".join(str(selector) for selector in retention.keep)
        raise StorageError(
            "there is too little disk space for the checkpoints of this run",
            where=str(root),
            why=f"{_size(need)} are needed ({_size(bytes_per_record)} per checkpoint under keep=({keep})), "
            f"{_size(free)} are free",
            fix="free some space, keep fewer checkpoints, or choose another run_dir",
        )


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} TB"
