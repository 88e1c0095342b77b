"""A prediction file that is written batch by batch, never whole."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from nitro_cli.errors import ConfigError, DataError, NotFoundError, StorageError

__all__ = ["OutputFile"]

_PART = 1 << 24
"""Bytes that are rewritten at once."""


class OutputFile:
    """An `.npz` that grows batch by batch and appears under its name only when it is whole.

    Dtypes that numpy's files do not know (bfloat16, the 8-bit floats, 4-bit integers) are written as float32 or int8,
    which hold them exactly, and that is told.

    Args:
        path: the file to write.
        force: whether an existing file is replaced.
        ready: called once more before the file appears; what it raises keeps it away.

    Attributes:
        converted: the dtype that an array was computed in, where the file holds it in another.

    Raises:
        ConfigError: the file exists, is no regular file, or its name does not end in `.npz`.
    """

    def __init__(self, path: Path, *, force: bool = False, ready: Callable[[], object] = lambda: None) -> None:
        if path.suffix != ".npz":
            raise ConfigError(
                f"the output is an .npz file, not {path.name}",
                where="--output",
                fix="--output predictions.npz: a file, which a pipe is not"
                if str(path) == "-"
                else f"--output {path.with_suffix('.npz')}",
            )
        if os.path.lexists(path) and not path.is_file():
            kind = "a directory" if path.is_dir() else "a link to nothing" if path.is_symlink() else "no regular file"
            raise ConfigError(f"{path} is {kind}", where="--output", fix="give the name of an .npz file")
        if path.exists() and not force:
            raise ConfigError(
                f"{path} exists", where="--output", fix="choose another name, or overwrite it with --force"
            )
        if not path.parent.is_dir():
            raise NotFoundError(f"there is no directory {path.parent}", where=f"--output {path}")
        self.path = path
        self._ready = ready
        self._arrays: dict[str, _GrowingArray] = {}
        self.converted: dict[str, str] = {}

    def __enter__(self) -> OutputFile:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
        except OSError as error:
            raise StorageError("the output cannot be written", where=str(self.path.parent), why=str(error)) from error
        return self

    def write(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Append one batch of every array; one without axes is a value of the whole file.

        Raises:
            DataError: the rows of an array have another shape than before.
        """
        for name, array in outputs.items():
            if name not in self._arrays:
                dtype = _dtype_in_file(array.dtype)
                if dtype != array.dtype:
                    self.converted[name] = array.dtype.name
                self._arrays[name] = _GrowingArray(name, self._folder / str(len(self._arrays)), dtype, array.shape)
            self._arrays[name].append(array)

    def document(self) -> dict[str, dict[str, Any]]:
        """Every array with rows as JSON values: shape, dtype, and what it was computed in where that is another."""
        return {
            name: {"shape": held.shape, "dtype": held.dtype.name}
            | ({"computed_in": self.converted[name]} if name in self.converted else {})
            for name, held in self._arrays.items()
            if held.shape
        }

    def told(self) -> str:
        """Every array in words, and which are of another dtype than they were computed in."""
        arrays = self.document()
        text = ", ".join(f"{name} {facts['dtype']}{list(facts['shape'])}" for name, facts in arrays.items())
        for name, dtype in self.converted.items():
            held = arrays[name]["dtype"]
            text += f"\n{name} is {dtype}, which .npz files do not know: it is written as {held}"
        return text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _publish(self) -> None:
        whole = self._folder / "whole.npz"
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, held in self._arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    held.copy_to(file)
        self._ready()
        os.replace(whole, self.path)


class _GrowingArray:
    """The rows of one array in a file of their own, which become an array when their number is known."""

    def __init__(self, name: str, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self._name = name
        self._path = path
        self._row = shape[1:]
        self._single = shape == ()
        self._rows = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self._single else (self._rows, *self._row)

    def append(self, array: np.ndarray) -> None:
        if (array.shape == ()) != self._single or array.shape[1:] != self._row:
            raise DataError(
                f"the rows of {self._name} change their shape",
                why=f"{list(array.shape[1:])} in one batch, {list(self._row)} in those before",
            )
        if array.dtype.kind in "US" and array.dtype.itemsize > self.dtype.itemsize:
            self._widen(array.dtype)
        with open(self._path, "ab") as file:
            file.write(np.ascontiguousarray(array.astype(self.dtype, copy=False)).data.cast("B") if array.size else b"")
        self._rows += len(array) if array.shape else 1

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the array as an `.npy`."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": self.shape,
        }
        np.lib.format.write_array_header_2_0(file, header)
        with open(self._path, "rb") as rows:
            shutil.copyfileobj(rows, file, 1 << 20)

    def _widen(self, dtype: np.dtype[Any]) -> None:
        """Write the rows so far again, for a text longer than all before."""
        narrow = self._path.rename(self._path.with_suffix(".narrow"))
        rows = max(1, _PART // (dtype.itemsize * math.prod(self._row)))
        size = rows * self.dtype.itemsize * math.prod(self._row)
        with open(narrow, "rb") as before, open(self._path, "wb") as after:
            while part := before.read(size):
                after.write(np.frombuffer(part, self.dtype).astype(dtype).tobytes())
        narrow.unlink()
        self.dtype = dtype


def _dtype_in_file(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype itself where numpy's files keep it, else the numpy dtype that holds its values exactly."""
    try:
        if np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype:
            return dtype
    except TypeError:  # a description that numpy itself cannot read back
        pass
    if "float" in dtype.name:
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if dtype.name.startswith("uint") else np.int8)
