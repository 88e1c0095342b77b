"""How each leaf of a checkpoint is held: through orbax, as raw bytes through orbax, in pieces, or in record.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError, IntegrityError

from .json_text import decode_value, encode_value
from .pieces import ArrayPieces, tiling_problem

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ARRAYS",
    "LeafSpec",
    "PieceSpec",
    "dtype_of",
    "host_arrays",
    "join_leaves",
    "pieces_problem",
    "record_bytes",
    "split_leaves",
]

ARRAYS = "arrays"
"""The array store of a record; of several processes that write one together, the first one's."""

# Dtypes that TensorStore's zarr driver gives back bit for bit. Others are held as their bytes: it has no type for
# some of them, and sub-byte types are packed differently by different libraries.
_NATIVE = frozenset(
    {"bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128", "bfloat16"}
    | {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"}
)


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """What record.json says about one leaf.

    Attributes:
        dtype: numpy's (or ml_dtypes') name of the dtype; of a Python value its type: bool, int, float, str, None.
        shape: its shape.
        kind: "array" (as it is), "bytes" (as uint8, one more axis), "pieces" (each one of these two), "empty" (a size
            of zero), "value" (Python).
        key: its name in the array store, for "array" and "bytes".
        value: the value, for "value".
        pieces: what the leaf is made of, for "pieces".
    """

    dtype: str
    shape: tuple[int, ...]
    kind: str
    key: str | None = None
    value: Any = None
    pieces: tuple[PieceSpec, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf in memory."""
        return 0 if self.kind == "value" else math.prod(self.shape) * dtype_of(self.dtype).itemsize

    def as_json(self) -> dict[str, Any]:
        """The form in record.json."""
        document: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "kind": self.kind}
        if self.key is not None:
            document["key"] = self.key
        if self.kind == "value":
            document["value"] = encode_value(self.value, "value")
        if self.kind == "pieces":
            document["pieces"] = [piece.as_json() for piece in self.pieces]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LeafSpec:
        """Undo `as_json`."""
        return cls(
            dtype=document["dtype"],
            shape=tuple(document["shape"]),
            kind=document["kind"],
            key=document.get("key"),
            value=decode_value(document.get("value")),
            pieces=tuple(PieceSpec.from_json(document["dtype"], piece) for piece in document.get("pieces", ())),
        )


@dataclass(frozen=True, slots=True)
class PieceSpec:
    """What record.json says about one piece of a leaf.

    Attributes:
        store: the array store that holds it, a directory of the record.
        start: index of its first element in the leaf.
        spec: how it is held there.
    """

    store: str
    start: tuple[int, ...]
    spec: LeafSpec

    def as_json(self) -> dict[str, Any]:
        """The form in record.json; the dtype is the leaf's."""
        return {
            "store": self.store,
            "start": list(self.start),
            "shape": list(self.spec.shape),
            "kind": self.spec.kind,
            "key": self.spec.key,
        }

    @classmethod
    def from_json(cls, dtype: str, document: Mapping[str, Any]) -> PieceSpec:
        """Undo `as_json`."""
        spec = LeafSpec(dtype, tuple(document["shape"]), document["kind"], document.get("key"))
        return cls(document["store"], tuple(document["start"]), spec)


def pieces_problem(spec: LeafSpec) -> str | None:
    """Why the pieces of a leaf are not exactly the leaf, or None where they are."""
    return tiling_problem(spec.shape, [(piece.start, piece.spec.shape) for piece in spec.pieces])


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of this name, numpy's or ml_dtypes'."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))


def _dtype_name(dtype: np.dtype[Any]) -> str:
    # `name` drops the byte order and the unit of a datetime; `str` keeps both.
    return dtype.name if dtype.isnative and dtype.kind not in "mM" else dtype.str


def host_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copy device arrays to the host, all transfers started before the first is waited for.

    Host numpy arrays, pieces of arrays and Python values pass through as they are: nobody may write to them until the
    save is done.

    Args:
        arrays: path text to numpy array, jax array, `ArrayPieces`, numpy scalar, bool, int, float, str or None.

    Returns:
        path text to numpy array, `ArrayPieces` or Python value.

    Raises:
        ConfigError: a leaf that a checkpoint cannot hold, named by its path.
    """
    import numpy as np

    for leaf in arrays.values():
        start = getattr(leaf, "copy_to_host_async", None)
        if start is not None and isinstance(leaf.dtype, np.dtype):
            start()
    return {path: _host_leaf(path, leaf) for path, leaf in arrays.items()}


def _host_leaf(path: str, leaf: Any) -> Any:
    import numpy as np

    if not isinstance(path, str):
        raise ConfigError("the paths of a checkpoint's leaves are texts", where=repr(path))
    if leaf is None or (isinstance(leaf, (bool, int, float, str)) and not isinstance(leaf, np.generic)):
        return leaf
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        raise _unfit(path, f"it is a {type(leaf).__name__}, not an array")
    if not isinstance(dtype, np.dtype):
        raise _unfit(path, f"its dtype {dtype} is not a plain array's", "save `jax.random.key_data(key)`")
    if dtype.kind in "OSUT" or dtype.names is not None:
        raise _unfit(path, f"its dtype is {dtype}")
    if isinstance(leaf, np.ndarray | ArrayPieces):
        return leaf
    # A numpy view of an array on the CPU would keep the next step from donating its buffer.
    shares = any(device.platform == "cpu" for device in leaf.devices()) if hasattr(leaf, "devices") else True
    return np.array(leaf, copy=True) if shares else np.asarray(leaf)


def _unfit(
    path: str, why: str, fix: str = "save numbers as arrays; other values belong in the metadata"
) -> ConfigError:
    return ConfigError(f"the leaf {path!r} cannot be saved", where=path, why=why, fix=fix)


def split_leaves(
    arrays: Mapping[str, Any], store: str = ARRAYS
) -> tuple[dict[str, LeafSpec], dict[str, np.ndarray[Any, Any]]]:
    """Divide host leaves into what record.json says of each and what the array store holds, by its numbered key.

    Args:
        arrays: path text to host leaf, as `host_arrays` returns them.
        store: the array store's directory, which pieces name.
    """
    import numpy as np

    specs: dict[str, LeafSpec] = {}
    stored: dict[str, np.ndarray[Any, Any]] = {}
    for path, leaf in arrays.items():
        if isinstance(leaf, ArrayPieces):
            pieces = tuple(PieceSpec(store, start, _keep(piece, stored)) for start, piece in leaf.pieces.items())
            specs[path] = LeafSpec(_dtype_name(leaf.dtype), leaf.shape, "pieces", pieces=pieces)
        elif isinstance(leaf, np.ndarray):
            specs[path] = _keep(leaf, stored)
        else:
            # Of a subclass, such as an enumeration, its plain value.
            plain = next((kind for kind in (bool, int, float, str) if isinstance(leaf, kind)), None)
            name, value = ("None", None) if plain is None else (plain.__name__, plain(leaf))
            specs[path] = LeafSpec(name, (), "value", value=value)
    return specs, stored


def _keep(leaf: np.ndarray[Any, Any], stored: dict[str, np.ndarray[Any, Any]]) -> LeafSpec:
    """Put an array under the next key of a store; returns how it is held."""
    import numpy as np

    name = _dtype_name(leaf.dtype)
    if leaf.size == 0:
        return LeafSpec(name, leaf.shape, "empty")
    key = str(len(stored))
    if name in _NATIVE:
        stored[key] = leaf
        return LeafSpec(name, leaf.shape, "array", key)
    flat = np.ascontiguousarray(leaf.reshape(-1))
    stored[key] = flat.view(np.uint8).reshape(*leaf.shape, leaf.dtype.itemsize)
    return LeafSpec(name, leaf.shape, "bytes", key)


ReadStore = Callable[[str, list[str]], Mapping[str, Any]]


def join_leaves(specs: Mapping[str, LeafSpec], read: ReadStore, where: str) -> dict[str, Any]:
    """Read the leaves and put them together, checking each against its spec; nothing is cast.

    One array store is in memory at a time, beside the leaves.

    Args:
        specs: path text to what record.json says.
        read: called with the name of an array store and keys in it; returns their arrays.
        where: the record, for errors.

    Raises:
        IntegrityError: a leaf has another dtype or shape than its spec says, both sides are named; or its pieces are
            not the whole of it.
    """
    leaves: dict[str, Any] = {}
    wanted: dict[str, list[tuple[str, LeafSpec, Sequence[int] | None]]] = {}
    for path, spec in specs.items():
        leaves[path] = spec.value
        if spec.kind == "empty":
            leaves[path] = _space(path, spec, where)
        elif spec.kind == "pieces":
            problem = pieces_problem(spec)
            if problem is not None:
                raise IntegrityError(f"the pieces of the leaf {path!r} are not the leaf", where=where, why=problem)
            leaves[path] = _space(path, spec, where)
            for piece in spec.pieces:
                wanted.setdefault(piece.store, []).append((path, piece.spec, piece.start))
        elif spec.kind != "value":
            wanted.setdefault(ARRAYS, []).append((path, spec, None))
    for store, items in wanted.items():
        stored = read(store, [spec.key or "" for _, spec, _ in items])
        for path, spec, start in items:
            found = _checked(path, spec, stored[spec.key or ""], where)
            if start is None:
                leaves[path] = found
            else:
                leaves[path][tuple(slice(a, a + n) for a, n in zip(start, spec.shape, strict=True))] = found
    return leaves


def _space(path: str, spec: LeafSpec, where: str) -> np.ndarray[Any, Any]:
    """An array of a leaf's shape and dtype, to be filled."""
    import numpy as np

    try:
        return np.empty(spec.shape, _dtype_in(path, spec, where))
    except (MemoryError, ValueError) as error:
        raise IntegrityError(
            f"the leaf {path!r} is larger than this machine can hold",
            where=where,
            why=f"{spec.dtype}{list(spec.shape)}",
        ) from error


def _dtype_in(path: str, spec: LeafSpec, where: str) -> np.dtype[Any]:
    try:
        return dtype_of(spec.dtype)
    except (TypeError, ValueError) as error:
        raise IntegrityError(f"the leaf {path!r} has a dtype that no array has", where=where, why=spec.dtype) from error


def _checked(path: str, spec: LeafSpec, stored: Any, where: str) -> np.ndarray[Any, Any]:
    """A stored array as the leaf, or piece of one, that its spec says."""
    import numpy as np

    dtype = _dtype_in(path, spec, where)
    found = np.asarray(stored)
    expected = (dtype, spec.shape)
    if spec.kind == "bytes":
        expected = (np.dtype(np.uint8), (*spec.shape, dtype.itemsize))
    if (found.dtype, found.shape) != expected:
        raise IntegrityError(
            f"the leaf {path!r} is not what the record says",
            where=where,
            why=f"the record says {expected[0]}{list(expected[1])}, the array store holds "
            f"{found.dtype}{list(found.shape)}",
        )
    return found.reshape(-1).view(dtype).reshape(spec.shape) if spec.kind == "bytes" else found


def record_bytes(arrays: Mapping[str, Any]) -> int:
    """About how many bytes a record of these leaves takes on disk (arrays are not compressed)."""
    return sum(int(getattr(leaf, "nbytes", 8)) + 256 for leaf in arrays.values()) + 8192
