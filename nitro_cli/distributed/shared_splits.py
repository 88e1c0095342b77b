"""How the processes of a run share its data: each takes its rows of whole batches, or brings its own part of them."""

from __future__ import annotations

import json
from typing import Any

from nitro_cli.data import Dist, Split
from nitro_cli.distributed.processes import digest, gather_bytes
from nitro_cli.errors import DataError

__all__ = ["WatchedDist", "shared_split"]


class WatchedDist(Dist):
    """The argument of `build_data`, which knows whether it was looked at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_consulted", False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("process_index", "process_count", "range"):
            object.__setattr__(self, "_consulted", True)
        return super().__getattribute__(name)

    @property
    def consulted(self) -> bool:
        """Whether anything asked which process this is."""
        return bool(self.__dict__["_consulted"])

    def unwatched(self) -> Dist:
        """The same without the watch."""
        return Dist(self.__dict__["process_index"], self.__dict__["process_count"])


def shared_split(split: Split, dist: WatchedDist) -> Split:
    """A split as one process of several reads it.

    A source that yields the same first batch in every process yields whole batches, of which each process takes its
    rows. Where `build_data` looked at `dist`, a train source may yield another part in each process: together they
    are the batch.

    Args:
        split: as this process alone inspected it.
        dist: which process this is.

    Raises:
        DataError: the processes see different data, and nothing says that this is meant.
    """
    fields = sorted(split.fields)
    mine = [split.batches, split.batch_size, fields, digest([split.example[name] for name in fields])]
    told = [json.loads(text) for text in gather_bytes(json.dumps(mine).encode())]
    same_shape = all(other[:3] == told[0][:3] for other in told)
    same = same_shape and all(other[3] == told[0][3] for other in told)
    if same:
        return split.part(dist.unwatched())
    where = f"split {split.name!r}"
    if not same_shape:
        raise DataError(
            "the processes see different numbers of batches or batch sizes",
            where=where,
            why=", ".join(f"{other[0]} of {other[1]} in process {i}" for i, other in enumerate(told)),
            fix="cut the data so that every process has equally many batches of one size",
        )
    if split.train and dist.consulted:
        return split.beside_others(len(told))
    raise DataError(
        "the processes see different first batches",
        where=where,
        why="evaluation takes whole batches in every process"
        if not split.train
        else "build_data did not look at `dist`, so each should yield the same batches, of which it takes its rows",
        fix="return the same data in every process, and seed whatever shuffles it",
    )
