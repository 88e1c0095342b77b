"""The files of lines in a run's directory, and how a run that goes on from a record cuts them to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nitro_cli.errors import warn
from nitro_cli.metrics import History, leading_rows
from nitro_cli.tracking import JsonLinesWriter, check_own_file, files_outside, truncate_to

__all__ = ["HISTORY", "LOG", "cut_lines", "line_lengths"]

LOG, HISTORY = "metrics.jsonl", "history.jsonl"


def line_lengths(folder: Path) -> dict[str, int]:
    """Bytes of each of the run's own files of lines: where a continuing run cuts them."""
    return {name: _length(folder / name) for name in (LOG, HISTORY)}


def cut_lines(folder: Path, lengths: Mapping[str, int], history: History, logger: Any, writer: JsonLinesWriter) -> None:
    """Cut what was written after the record that the run goes on from; what is cut is kept aside.

    Only files of the run's own directory are cut: any other is named by a configuration, and may be anybody's.

    Args:
        folder: the run's directory.
        lengths: the record's; a file that it does not know was not there yet.
        history: the record's; what history.jsonl says otherwise is put aside, and the record's rows are written.
        logger: the live logger, or None.
        writer: of history.jsonl, opened for the run.

    Raises:
        IntegrityError: a file is a link or no plain file; none is cut then.
        StorageError: it cannot be written.
    """
    # All of them before the first is cut: a resume that is refused changes nothing.
    for name in (LOG, HISTORY):
        check_own_file(folder / name)
    truncate_to(folder / LOG, lengths.get(LOG, 0))
    path, rows = folder / HISTORY, history.json_rows()
    if _length(path) > lengths.get(HISTORY, 0):
        truncate_to(path, lengths.get(HISTORY, 0))
    # A copy made while the run wrote has the first rows only.
    there, problem = leading_rows(path, rows)
    if problem is not None:
        _say(f"{path} is written anew from the checkpoint, and what was there put aside: {problem}")
        truncate_to(path, 0)
    for row in rows[there:]:
        writer.write(row)
    for outside in files_outside(logger):
        _say(f"{outside} is not in the run's directory: lines that it got after the checkpoint stay there")


def _length(path: Path) -> int:
    """Bytes of a file, a link not followed; 0 where there is none."""
    return path.lstat().st_size if os.path.lexists(path) else 0


def _say(text: str) -> None:
    warn(text)
