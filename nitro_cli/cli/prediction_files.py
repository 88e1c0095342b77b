"""Input and output files of `nitro predict`: read and written batch by batch, never whole."""

from __future__ import annotations

import contextlib
import lzma
import math
import os
import shutil
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nitro_cli.cli.stop_signals import raise_if_stopped
from nitro_cli.errors import ConfigError, DataError, NotFoundError, StorageError, nearest
from nitro_cli.text import IrregularFileError, open_regular

__all__ = ["InputFields", "OutputFile"]

_PART = 1 << 26
"""Bytes that are read at once."""
_NO_LITERAL = (
    ValueError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
    OverflowError,
)
"""What numpy raises of a header, which it reads as a Python literal or as its tokens: it may be any text."""


class InputFields:
    """The arrays of an `.npz` (one per field) or of an `.npy` (one field), read in order.

    Args:
        path: the file.
        wanted: the fields that `forward` needs.
        optional: fields it takes where they are there.

    Raises:
        NotFoundError: no such file.
        DataError: a field is missing, lengths differ or are 0, or an array cannot be read without pickle.
    """

    def __init__(self, path: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> None:
        _check_regular(path)
        self.path = path
        self._single = path.suffix == ".npy"
        held = self._names()
        if self._single and len(wanted) != 1:
            raise DataError(
                f"{path.name} holds one array, and forward takes {', '.join(wanted)}",
                where=str(path),
                fix="save the fields by name: numpy.savez(file, " + ", ".join(f"{name}=..." for name in wanted) + ")",
            )
        missing = [name for name in wanted if name not in held] if not self._single else []
        if missing:
            raise DataError(
                f"forward takes {', '.join(missing)}, which {path.name} does not hold",
                where=str(path),
                why=f"it holds {', '.join(held) or 'nothing'}",
                nearest=nearest(missing[0], held),
            )
        self.fields = tuple(wanted) + tuple(name for name in optional if name in held)
        lengths = {name: self._shape(name)[:1] for name in self.fields}
        if () in lengths.values() or len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name}: {self._shape(name)}" for name in self.fields)
            raise DataError("the fields have different lengths", where=str(path), why=f"their shapes are {shown}")
        if (0,) in lengths.values():
            shown = ", ".join(f"{name}: {self._shape(name)}" for name in self.fields)
            raise DataError("the input holds no samples", where=str(path), why=f"its shapes are {shown}")
        self.samples = next(iter(lengths.values()))[0] if lengths else 0

    def types(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every field's array."""
        told = {}
        for name in self.fields:
            with self.open(name) as stream:
                shape, _, dtype = _header(stream, f"{self.path}: {name}")
            told[name] = (shape, dtype.name)
        return told

    def batches(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Batches of at most `size` samples, in order."""
        readers = [_RowReader(self, name) for name in self.fields]
        try:
            for start in range(0, self.samples, size):
                count = min(size, self.samples - start)
                yield {reader.name: reader.rows(count) for reader in readers}
        finally:
            for reader in readers:
                reader.close()

    def _names(self) -> tuple[str, ...]:
        if self._single:
            return ()
        with _readable(self.path, f"{self.path.name} is no .npz file"), zipfile.ZipFile(self.path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))

    def open(self, name: str) -> Any:
        """The stream of one field's array, at its header."""
        with _readable(f"{self.path}: {name}"):
            if self._single:
                return open(self.path, "rb")
            with zipfile.ZipFile(self.path) as archive:
                return archive.open(f"{name}.npy")

    def _shape(self, name: str) -> tuple[int, ...]:
        with self.open(name) as stream:
            return _header(stream, f"{self.path}: {name}")[0]


class _RowReader:
    """Reads the rows of one array from its stream, in order."""

    def __init__(self, source: InputFields, name: str) -> None:
        self.name = name
        self._where = f"{source.path}: {name}"
        self._stream = source.open(name)
        shape, fortran, self._dtype = _header(self._stream, self._where)
        self._row = shape[1:]
        self._row_bytes = math.prod(self._row) * self._dtype.itemsize
        self._whole: np.ndarray | None = None
        if fortran and len(shape) > 1:  # rows are not contiguous: this one array is read whole
            flat = self._exactly(shape[0] * self._row_bytes)
            self._whole = _native(np.frombuffer(flat, self._dtype)).reshape(shape, order="F")
        self._at = 0

    def rows(self, count: int) -> np.ndarray:
        """The next `count` rows."""
        if self._whole is not None:
            self._at += count
            return np.ascontiguousarray(self._whole[self._at - count : self._at])
        data = self._exactly(count * self._row_bytes)
        return _native(np.frombuffer(data, self._dtype)).reshape(count, *self._row)

    def _exactly(self, size: int) -> bytes:
        with _readable(self._where):
            # In parts, so that a header that promises more than there is does not ask for the memory.
            parts = []
            while size > 0 and (part := self._stream.read(min(size, _PART))):
                parts.append(part)
                size -= len(part)
        data = b"".join(parts)
        if size:
            raise DataError("the file ends inside its array", where=self._where, why=f"{size} bytes are missing")
        return data

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def _header(stream: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        with _readable(where):
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
    except _NO_LITERAL as error:
        raise DataError(
            "this is no numpy array", where=where, why=(str(error) or type(error).__name__)[:300]
        ) from error
    if not all(type(size) is int and 0 <= size < 2**48 for size in shape) or math.prod(shape) >= 2**60:
        raise DataError("no array has this shape", where=where, why=str(shape)[:300])
    if dtype.hasobject:
        raise DataError("the array holds Python objects", where=where, why="reading them would run code from the file")
    if dtype.kind == "V":
        raise DataError(
            f"the array holds raw bytes, {dtype.str}",
            where=where,
            why="numpy's files do not know bfloat16 and its like: they keep the bits and lose what they mean",
            fix="save it as float32: array.astype(numpy.float32)",
        )
    return shape, fortran, dtype


def _native(array: np.ndarray) -> np.ndarray:
    """The array in this machine's byte order, which JAX takes alone: files may hold `>f4`."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_regular(path: Path) -> None:
    """Refuse what is no file: a pipe would be waited for.

    Raises:
        NotFoundError: there is none.
        DataError: it is something else, or its name cannot be one.
    """
    try:
        os.close(open_regular(path, os.O_RDONLY, follow=True))
    except (FileNotFoundError, NotADirectoryError):
        beside = [p.name for p in path.parent.glob("*.np[yz]")] if path.parent.is_dir() else []
        raise NotFoundError(f"there is no file {path}", nearest=nearest(path.name, beside)) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        fix = "give an .npz or .npy file" if isinstance(error, IrregularFileError) else None
        raise DataError("the input cannot be read", where=str(path)[:300], why=why, fix=fix) from error


@contextlib.contextmanager
def _readable(where: Path | str, what: str = "the input cannot be read") -> Iterator[None]:
    """While inside, what zipfile raises of a damaged, encrypted or unknown archive is an error of the data."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, OSError) as error:
        raise DataError(what, where=str(where), why=str(error) or type(error).__name__) from error
    except RuntimeError as error:  # zipfile's word for an encrypted file
        fix = "save it without a password" if "encrypted" in str(error) else None
        raise DataError(what, where=str(where), why=str(error), fix=fix) from error


class OutputFile:
    """An `.npz` that grows batch by batch and appears under its name only when it is whole.

    Dtypes that numpy's files do not know (bfloat16, the 8-bit floats, 4-bit integers) are written as float32 or int8,
    which hold them exactly, and that is told.

    Args:
        path: the file to write.
        samples: how many rows every array will have.
        force: whether an existing file is replaced.

    Attributes:
        shapes: shape and dtype of every array written.
        converted: the dtype that an array was computed in, where the file holds it in another.

    Raises:
        ConfigError: the file exists, is no regular file, or its name does not end in `.npz`.
    """

    def __init__(self, path: Path, samples: int, *, force: bool = False) -> None:
        if path.suffix != ".npz":
            raise ConfigError(
                f"the output is an .npz file, not {path.name}",
                where="--output",
                fix=f"--output {path.with_suffix('.npz')}",
            )
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "no regular file"
            raise ConfigError(f"{path} is {kind}", where="--output", fix="give the name of an .npz file")
        if path.exists() and not force:
            raise ConfigError(
                f"{path} exists", where="--output", fix="choose another name, or overwrite it with --force"
            )
        if not path.parent.is_dir():
            raise NotFoundError(f"there is no directory {path.parent}", where=f"--output {path}")
        self.path = path
        self._samples = samples
        self._arrays: dict[str, np.memmap[Any, Any]] = {}
        self.shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        self.converted: dict[str, str] = {}
        self._at = 0

    def __enter__(self) -> OutputFile:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
        except OSError as error:
            raise StorageError("the output cannot be written", where=str(self.path.parent), why=str(error)) from error
        return self

    def write(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Append one batch of every array."""
        count = 0
        for name, array in outputs.items():
            if name not in self._arrays:
                file = self._folder / f"{len(self._arrays)}.npy"
                shape = (self._samples, *array.shape[1:])
                dtype = _dtype_in_file(array.dtype)
                if dtype != array.dtype:
                    self.converted[name] = array.dtype.name
                self.shapes[name] = (shape, dtype.name)
                self._arrays[name] = np.lib.format.open_memmap(file, "w+", dtype, shape)
            count, held = len(array), self._arrays[name]
            held[self._at : self._at + count] = array.astype(held.dtype)
        self._at += count

    def document(self) -> dict[str, dict[str, Any]]:
        """Every array as JSON values: shape, dtype, and what it was computed in where that is another."""
        return {
            name: {"shape": shape, "dtype": dtype}
            | ({"computed_in": self.converted[name]} if name in self.converted else {})
            for name, (shape, dtype) in self.shapes.items()
        }

    def told(self) -> str:
        """Every array in words, and which are of another dtype than they were computed in."""
        text = ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in self.shapes.items())
        for name, dtype in self.converted.items():
            text += f"\n{name} is {dtype}, which .npz files do not know: it is written as {self.shapes[name][1]}"
        return text

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            self._arrays.clear()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _publish(self) -> None:
        whole = self._folder / "whole.npz"
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in self._arrays.items():
                array.flush()
                archive.write(str(array.filename), f"{name}.npy")
        raise_if_stopped()
        os.replace(whole, self.path)


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
