"""One record written by several processes: each writes an array store of its own, the first one all else.

The first process makes a temporary directory and says its name. Each process writes and flushes its store there, and
reports what it wrote. When all have, the first one writes record.json, which lists the files of all, and publishes
the record by a rename. Without every report there is no record.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nitro_cli.errors import NitroError, StorageError
from nitro_cli.text import fsync_directory

from .durable import remove_tree
from .leaves import ARRAYS, LeafSpec, PieceSpec, host_arrays, pieces_problem, split_leaves
from .pieces import ArrayPieces
from .record import PreparedRecord, seal_record, temporary_beside, write_store
from .transient import storage_error, with_retry
from .writer import BackgroundWriter

__all__ = ["PartWriter", "WrittenPart", "begin_shared", "commit_shared", "written_in_pieces"]


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What one process wrote of a record, or why it could not: what it reports to the first.

    Attributes:
        process: its index, from 1.
        files: relative POSIX path to size and SHA-256, as record.json has them.
        pieces: path of a leaf to its pieces, as record.json has them.
        error: the error's `what`, `where`, `why` and `fix`; None where all was written.
    """

    process: int
    files: dict[str, Any]
    pieces: dict[str, Any]
    error: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The form of a report."""
        return {"process": self.process, "files": self.files, "pieces": self.pieces, "error": self.error}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WrittenPart:
        """Undo `as_json`."""
        return cls(document["process"], document["files"], document["pieces"], document["error"])


def written_in_pieces(arrays: Mapping[str, Any]) -> bool:
    """Whether other processes have to write some of these leaves."""
    return any(isinstance(leaf, ArrayPieces) for leaf in arrays.values())


def begin_shared(final: Path, *, sleep: Callable[[float], None] | None = None) -> Path:
    """Make the temporary directory of a record that several processes write.

    Raises:
        StorageError: it cannot be made.
    """
    temporary = temporary_beside(final)
    try:
        with_retry(lambda: temporary.mkdir(parents=True, exist_ok=True), f"writing {final.name}", sleep=sleep)
    except OSError as error:
        raise storage_error(error, "the checkpoint could not be written", final) from error
    return temporary


def commit_shared(
    final: Path,
    temporary: Path,
    prepared: PreparedRecord,
    parts: Callable[[], list[WrittenPart]],
    *,
    sleep: Callable[[float], None] | None = None,
) -> Path:
    """Write the first process's part of a record, wait for the others', and publish the whole.

    Args:
        final: the record's directory; does not exist.
        temporary: from `begin_shared`.
        prepared: what this process writes, and the metadata.
        parts: waits until all other processes have reported, and returns the reports.
        sleep: stands in for `time.sleep` between tries after transient errors.

    Raises:
        StorageError: some process could not write; nothing is left at `final`, nor at `temporary`.
        NitroError: what `parts` raises when a process is lost.
    """
    try:
        files = _write_own(temporary, ARRAYS, prepared.stored, sleep)
        document, files = _joined(prepared.document, files, parts(), final)

        def publish() -> None:
            seal_record(temporary, document, files)
            os.rename(temporary, final)

        with_retry(publish, f"writing {final.name}", sleep=sleep)
        fsync_directory(final.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            remove_tree(temporary)
        if isinstance(error, NitroError) or not isinstance(error, Exception):
            raise
        raise storage_error(error, "the checkpoint could not be written", final) from error
    return final


def _write_own(
    temporary: Path, store: str, stored: Mapping[str, Any], sleep: Callable[[float], None] | None
) -> dict[str, Any]:
    """Write this process's store, anew after a transient error."""

    def attempt() -> dict[str, Any]:
        remove_tree(temporary / store)
        return write_store(temporary, store, stored)

    files = with_retry(attempt, f"writing {temporary.name}/{store}", sleep=sleep)
    fsync_directory(temporary)
    return files


def _joined(
    document: Mapping[str, Any], files: dict[str, Any], parts: list[WrittenPart], final: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the files of the whole record, from those of the first process and the others' reports."""
    for part in parts:
        if part.error is not None:
            raise StorageError(
                f"process {part.process} could not write its part of the checkpoint",
                where=part.error["where"],
                why=f"{part.error['what']}: {part.error['why']}",
                fix=part.error["fix"],
            )
        files = {**files, **part.files}
    leaves = {}
    for path, held in document["leaves"].items():
        spec = LeafSpec.from_json(held)
        if spec.kind == "pieces":
            others = [PieceSpec.from_json(spec.dtype, piece) for part in parts for piece in part.pieces.get(path, ())]
            spec = replace(spec, pieces=(*spec.pieces, *others))
            problem = pieces_problem(spec)
            if problem is not None:
                raise StorageError(
                    f"the pieces that the processes wrote of {path!r} are not the leaf", where=str(final), why=problem
                )
        leaves[path] = spec.as_json()
    return {**document, "leaves": leaves}, files


class PartWriter:
    """Writes, in the background, what a process other than the first has of each record.

    Args:
        process: its index, from 1.
        sleep: stands in for `time.sleep` between tries after transient errors.
    """

    def __init__(self, process: int, *, sleep: Callable[[float], None] | None = None) -> None:
        self.process = process
        self._sleep = sleep
        self._writer = BackgroundWriter(f"nitro-checkpoint-part-{process}")

    def write(
        self, temporary: Path, arrays: Mapping[str, ArrayPieces], report: Callable[[WrittenPart], object]
    ) -> None:
        """Write this process's pieces into the directory that the first process named, then report.

        Args:
            temporary: the directory.
            arrays: path text to the pieces of the leaf; they are not copied: do not write to them afterwards.
            report: called once, from another thread, whatever comes of it.

        Raises:
            StorageError: the part before could not be written.
        """
        store = f"{ARRAYS}-{self.process}"
        specs, stored = split_leaves(host_arrays(arrays), store)
        pieces = {path: [piece.as_json() for piece in spec.pieces] for path, spec in specs.items()}

        def job() -> None:
            try:
                files = _write_own(temporary, store, stored, self._sleep)
            except Exception as error:
                problem = storage_error(error, "the checkpoint could not be written", temporary / store)
                report(WrittenPart(self.process, {}, {}, problem.as_json()))
                raise problem from error
            report(WrittenPart(self.process, files, pieces))

        self._writer.submit(job)

    def wait(self) -> None:
        """Wait for the part in flight.

        Raises:
            StorageError: it could not be written; raised once.
        """
        self._writer.wait()
