"""history.jsonl as it lies on disk, and what the run's newest record says of the same epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nitro_cli.errors import IntegrityError, RunNotFoundError, StorageError
from nitro_cli.text import IrregularFileError, parse_json, read_regular

__all__ = ["history_difference", "leading_rows", "read_rows", "settled_rows"]

_MOST_BYTES = 1 << 30


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """Read the rows of a history.jsonl as JSON objects; a torn last line is left out.

    Raises:
        RunNotFoundError: there is no such file.
        IntegrityError: it is no plain file, a line other than the last is not a history row, or epochs do not ascend.
        StorageError: it cannot be read.
    """
    from nitro_cli.metrics.row_document import check_row

    try:
        lines = read_regular(path, limit=_MOST_BYTES, follow=False).split(b"\n")
    except FileNotFoundError as error:
        raise RunNotFoundError(f"There is no history at {path}.", fix="train first, or name another run") from error
    except IrregularFileError as error:
        raise IntegrityError(f"{path} is no history", where=str(path), why=str(error.strerror)) from error
    except OSError as error:
        raise StorageError("the history could not be read", where=str(path), why=str(error)) from error
    rows: list[dict[str, Any]] = []
    for number, obj in enumerate(_objects(lines), start=1):
        place = f"{path}, line {number}"
        if isinstance(obj, bytes):
            try:
                obj = parse_json(obj)
            except ValueError as error:
                if number == len(lines):
                    break
                raise IntegrityError(f"{place}, is not a history row: {error}", where=str(path)) from error
        elif obj is None:
            continue
        row = check_row(obj, place)
        if rows and row.epoch <= rows[-1]["epoch"]:
            why = f"epoch {row.epoch} comes after epoch {rows[-1]['epoch']}"
            raise IntegrityError(f"{place}, is not the row of the next epoch", where=str(path), why=why)
        rows.append(obj)
    return rows


def _objects(lines: list[bytes]) -> list[Any]:
    """Parse all lines at once, which takes a third of the time; where one is broken, return the lines themselves."""
    try:
        objects: list[Any] = parse_json(b"[" + b",".join(line if line.strip() else b"null" for line in lines) + b"]")
    except ValueError:
        objects = []
    if len(objects) == len(lines):
        return objects
    return [line if line.strip() else None for line in lines]


def _difference(rows: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> str | None:
    """What rows of a file say otherwise than those of a record, for the record's epochs; None where they agree."""
    by_epoch = {row["epoch"]: row for row in rows}
    for row in held:
        found = by_epoch.pop(row["epoch"], None)
        if found is None:
            return f"it has no row for epoch {row['epoch']}"
        if found != row:
            names = [name for name in {**found, **row} if found.get(name) != row.get(name)]
            name = names[0] if names else "a metric"
            return f"epoch {row['epoch']} has {name} {found.get(name)}, {row.get(name)} in the record"
    last = held[-1]["epoch"] if held else 0
    extra = [epoch for epoch in by_epoch if epoch <= last]
    return f"it has a row for epoch {extra[0]}, the record has none" if extra else None


def history_difference(path: Path | str, held: Sequence[Mapping[str, Any]]) -> str | None:
    """What is wrong with a history.jsonl beside the rows of a record of its run; None where they agree."""
    try:
        rows = read_rows(path)
    except RunNotFoundError:
        return "it is gone" if held else None
    except IntegrityError as error:
        return error.why or error.what
    return _difference(rows, held)


def leading_rows(path: Path | str, held: Sequence[Mapping[str, Any]]) -> tuple[int, str | None]:
    """How many of a record's rows a history.jsonl holds that should end where the record does.

    Returns:
        The number, and what is wrong where the file holds anything but the first of these rows; the number is 0 then.
    """
    try:
        rows = read_rows(path)
    except RunNotFoundError:
        return 0, None
    except IntegrityError as error:
        return 0, error.why or error.what
    if rows == list(held[: len(rows)]):
        return len(rows), None
    return 0, _difference(rows, held) or f"it has a row for epoch {rows[-1]['epoch']}, the record has none"


def settled_rows(path: Path | str, held: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str | None]:
    """The rows of a run: those of its newest record, which are the truth, then those the file has of later epochs.

    Args:
        path: the history.jsonl.
        held: the record's rows; none where no record can be read.

    Returns:
        The rows, and what the file says otherwise than the record; None where they agree.

    Raises:
        As `read_rows`, where there is no record to take the rows from.
    """
    try:
        rows = read_rows(path)
    except (IntegrityError, RunNotFoundError) as error:
        if not held:
            raise
        return list(held), error.why or error.what
    problem = _difference(rows, held)
    last = held[-1]["epoch"] if held else 0
    return [*held, *(row for row in rows if row["epoch"] > last)], problem
