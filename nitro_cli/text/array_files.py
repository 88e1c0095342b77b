"""Arrays in numpy's own files, which may be from somebody else: read without pickle and in parts."""

from __future__ import annotations

import contextlib
import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nitro_cli.errors import DataError, NotFoundError, nearest
from nitro_cli.text.files import IrregularFileError, open_regular

__all__ = ["ArrayFile", "RowReader"]

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


class ArrayFile:
    """The arrays of an `.npz`, by name, or of an `.npy`, which holds one.

    Args:
        path: the file.

    Attributes:
        single: whether it is an `.npy`; its array is read under any name.
        names: the arrays of an `.npz`, in the order of the file; none of an `.npy`.

    Raises:
        NotFoundError: no such file.
        DataError: it is no regular file or no such archive.
    """

    def __init__(self, path: Path) -> None:
        _check_regular(path)
        self.path = path
        self.single = path.suffix == ".npy"
        self.names: tuple[str, ...] = ()
        if not self.single:
            with _readable(path, f"{path.name} is no .npz file"), zipfile.ZipFile(path) as archive:
                self.names = tuple(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """What the header of an array says.

        Raises:
            DataError: it is no header of an array that can be read without pickle.
        """
        with self._open(name) as stream:
            shape, _, dtype = _header(stream, self._place(name))
        return shape, dtype

    def rows(self, name: str) -> RowReader:
        """A reader of an array's rows, in order; the caller closes it."""
        return RowReader(self._open(name), self._place(name))

    def array(self, name: str) -> np.ndarray:
        """A whole array, in this machine's byte order.

        Raises:
            DataError: it cannot be read, or ends before its header says.
        """
        reader = self.rows(name)
        with contextlib.closing(reader):
            return reader.rows(reader.shape[0]) if reader.shape else reader.rows(1).reshape(())

    def _place(self, name: str) -> str:
        return f"{self.path}: {name}"

    def _open(self, name: str) -> Any:
        with _readable(self._place(name)):
            if self.single:
                return open(self.path, "rb")
            with zipfile.ZipFile(self.path) as archive:
                return archive.open(f"{name}.npy")


class RowReader:
    """Reads the rows of one array from its stream, in order.

    Args:
        stream: the stream, at the array's header.
        where: the place named in errors.

    Attributes:
        shape: the shape of the whole array.

    Raises:
        DataError: the header is none, or promises what cannot be read.
    """

    def __init__(self, stream: Any, where: str) -> None:
        self._where = where
        self._stream = stream
        self.shape, fortran, self._dtype = _header(stream, where)
        self._row = self.shape[1:]
        self._row_bytes = math.prod(self._row) * self._dtype.itemsize
        self._whole: np.ndarray | None = None
        if fortran and len(self.shape) > 1:  # rows are not contiguous: this one array is read whole
            flat = self._exactly(self.shape[0] * self._row_bytes)
            self._whole = _native(np.frombuffer(flat, self._dtype)).reshape(self.shape, order="F")
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
    if dtype.itemsize == 0:
        raise DataError("the entries of the array have no bytes", where=where, why=f"its dtype is {dtype.str}")
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
