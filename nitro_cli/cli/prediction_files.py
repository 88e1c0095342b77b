"""Input files of `nitro predict`: read batch by batch, never whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nitro_cli.errors import DataError, nearest
from nitro_cli.text.array_files import ArrayFile

__all__ = ["InputFields"]


class InputFields:
    """The arrays of an `.npz` (one per field) or of an `.npy` (one field), read in order.

    Args:
        path: the file.
        wanted: the fields that `forward` needs.
        optional: fields it takes where they are there.
        beside: fields that are read with them for another use.
        if_there: such fields that need not be there.

    Raises:
        NotFoundError: no such file.
        DataError: a field is missing, lengths differ or are 0, or an array cannot be read without pickle.
    """

    def __init__(
        self,
        path: Path,
        wanted: Sequence[str],
        optional: Sequence[str] = (),
        beside: Sequence[str] = (),
        if_there: Sequence[str] = (),
    ) -> None:
        self._file = ArrayFile(path)
        self.path = path
        held = self._file.names
        if self._file.single and len(wanted) != 1:
            raise DataError(
                f"{path.name} holds one array, and forward takes {', '.join(wanted)}",
                where=str(path),
                fix="save the fields by name: numpy.savez(file, " + ", ".join(f"{name}=..." for name in wanted) + ")",
            )
        missing = [name for name in wanted if name not in held] if not self._file.single else []
        if missing:
            raise DataError(
                f"forward takes {', '.join(missing)}, which {path.name} does not hold",
                where=str(path),
                why=f"it holds {', '.join(held) or 'nothing'}",
                nearest=nearest(missing[0], held),
            )
        absent = [name for name in beside if name not in held]
        if absent:
            raise DataError(
                f"{path.name} holds no {absent[0]}",
                where=str(path),
                why=f"it holds {', '.join(held) or 'one array without a name'}",
                nearest=nearest(absent[0], held),
            )
        taken = (
            *wanted,
            *(name for name in optional if name in held),
            *beside,
            *(name for name in if_there if name in held),
        )
        self.fields = tuple(dict.fromkeys(taken))
        self._inputs = (*wanted, *(name for name in optional if name in held))
        lengths = {name: self._shape(name)[:1] for name in self.fields}
        if () in lengths.values() or len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name}: {self._shape(name)}" for name in self.fields)
            raise DataError("the fields have different lengths", where=str(path), why=f"their shapes are {shown}")
        if (0,) in lengths.values():
            shown = ", ".join(f"{name}: {self._shape(name)}" for name in self.fields)
            raise DataError("the input holds no samples", where=str(path), why=f"its shapes are {shown}")
        self.samples = next(iter(lengths.values()))[0] if lengths else 0

    def types(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of the array of every field that `forward` takes."""
        told = {}
        for name in self._inputs:
            shape, dtype = self._file.shape_and_dtype(name)
            told[name] = (shape, dtype.name)
        return told

    def batches(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Batches of at most `size` samples, in order."""
        with contextlib.ExitStack() as opened:
            readers = {name: opened.enter_context(contextlib.closing(self._file.rows(name))) for name in self.fields}
            for start in range(0, self.samples, size):
                count = min(size, self.samples - start)
                yield {name: reader.rows(count) for name, reader in readers.items()}

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape_and_dtype(name)[0]
