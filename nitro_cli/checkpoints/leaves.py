"""How each leaf of a checkpoint is held: through orbax, as raw bytes through orbax, or in record.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError, IntegrityError

from .json_text import decode_value, encode_value

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LeafSpec", "dtype_of", "host_arrays", "join_leaves", "record_bytes", "split_leaves"]

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
        kind: "array" (as it is), "bytes" (as uint8, one more axis), "empty" (a size of zero), "value" (Python).
        key: its name in the array store, for "array" and "bytes".
        value: the value, for "value".
    """

    dtype: str
    shape: tuple[int, ...]
    kind: str
    key: str | None = None
    value: Any = None

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
        )


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

    Host numpy arrays and Python values pass through as they are: nobody may write to them until the save is done.

    Args:
        arrays: path text to numpy array, jax array, numpy scalar, bool, int, float, str or None.

    Returns:
        path text to numpy array or Python value.

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
    if isinstance(leaf, np.ndarray):
        return leaf
    # A numpy view of an array on the CPU would keep the next step from donating its buffer.
    shares = any(device.platform == "cpu" for device in leaf.devices()) if hasattr(leaf, "devices") else True
    return np.array(leaf, copy=True) if shares else np.asarray(leaf)


def _unfit(
    path: str, why: str, fix: str = "save numbers as arrays; other values belong in the metadata"
) -> ConfigError:
    return ConfigError(f"the leaf {path!r} cannot be saved", where=path, why=why, fix=fix)


def split_leaves(arrays: Mapping[str, Any]) -> tuple[dict[str, LeafSpec], dict[str, np.ndarray[Any, Any]]]:
    """Divide host leaves into what record.json says of each and what the array store holds, by its numbered key."""
    import numpy as np

    specs: dict[str, LeafSpec] = {}
    stored: dict[str, np.ndarray[Any, Any]] = {}
    for path, leaf in arrays.items():
        if not isinstance(leaf, np.ndarray):
            kind = "None" if leaf is None else type(leaf).__name__
            specs[path] = LeafSpec(kind, (), "value", value=leaf)
            continue
        name = _dtype_name(leaf.dtype)
        if leaf.size == 0:
            specs[path] = LeafSpec(name, leaf.shape, "empty")
            continue
        key = str(len(stored))
        if name in _NATIVE:
            specs[path], stored[key] = LeafSpec(name, leaf.shape, "array", key), leaf
        else:
            flat = np.ascontiguousarray(leaf.reshape(-1))
            raw = flat.view(np.uint8).reshape(*leaf.shape, leaf.dtype.itemsize)
            specs[path], stored[key] = LeafSpec(name, leaf.shape, "bytes", key), raw
    return specs, stored


def join_leaves(
    specs: Mapping[str, LeafSpec], stored: Mapping[str, np.ndarray[Any, Any]], where: str
) -> dict[str, Any]:
    """Put the leaves together again, checking each against its spec; nothing is cast.

    Raises:
        IntegrityError: a leaf has another dtype or shape than its spec says; both sides are named.
    """
    import numpy as np

    leaves: dict[str, Any] = {}
    for path, spec in specs.items():
        if spec.kind == "value":
            leaves[path] = spec.value
            continue
        dtype = dtype_of(spec.dtype)
        if spec.kind == "empty":
            leaves[path] = np.empty(spec.shape, dtype)
            continue
        found = np.asarray(stored[spec.key or ""])
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
        if spec.kind == "bytes":
            found = found.reshape(-1).view(dtype).reshape(spec.shape)
        leaves[path] = found
    return leaves


def record_bytes(arrays: Mapping[str, Any]) -> int:
    """About how many bytes a record of these leaves takes on disk (arrays are not compressed)."""
    return sum(int(getattr(leaf, "nbytes", 8)) + 256 for leaf in arrays.values()) + 8192
