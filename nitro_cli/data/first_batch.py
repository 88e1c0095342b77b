"""The first batch of a split, drawn at setup: what programs are compiled for."""

from __future__ import annotations

from typing import Any

from nitro_cli.data.batches import leading_size
from nitro_cli.data.ownership import owned_batch
from nitro_cli.data.sources import Reader
from nitro_cli.data.stream import close_iterator
from nitro_cli.data.worker_processes import answer_fork_warnings
from nitro_cli.errors import DataError, NitroError

__all__ = ["first_batch"]


def first_batch(name: str, reader: Reader, seed: int) -> Any:
    """Draw the first batch of an evaluation pass.

    Args:
        name: name of the split, for errors.
        reader: how its source is read.
        seed: seed of the run.

    Returns:
        A batch that is nitro's own: the source may refill its arrays, and a view of them would keep them all.

    Raises:
        DataError: there is none, or it is no batch.
        Exception: what the source raised.
    """
    try:
        with answer_fork_warnings(f"split `{name}`: its source"):
            batch = _drawn(reader, seed)
    except StopIteration as error:
        raise DataError(
            f"the split yields no batch, its length says {reader.batches}",
            where=f"split `{name}`, batch 0",
            why="setup draws the first batch to learn the fields, their dtypes and shapes",
            fix="let the source start over each time it is iterated, and let len count its batches",
        ) from error
    except NitroError:
        raise
    except Exception as error:
        error.add_note(f"raised while setup drew the first batch of split `{name}`")
        raise
    leading_size(batch, f"split `{name}`, batch 0")
    return owned_batch(batch)


def _drawn(reader: Reader, seed: int) -> Any:
    if reader.open_indexed is not None:
        return reader.open_indexed(0, seed)(0)
    assert reader.open_ordered is not None
    iterator, _ = reader.open_ordered(0, seed, 0, None)
    try:
        return next(iterator)
    finally:
        close_iterator(iterator)
