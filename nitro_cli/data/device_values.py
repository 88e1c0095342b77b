"""Numbers on their way to the device: what its 32 bits cannot hold is refused where it is, before it changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from nitro_cli.errors import DataError
from nitro_cli.experiment import first_lost, narrowed_dtype

__all__ = ["check_device_values", "narrowed_fields", "value_error"]


def narrowed_fields(dtypes: Mapping[str, np.dtype[Any]], device_fields: Collection[str]) -> dict[str, np.dtype[Any]]:
    """The fields that lose bits on the way to the device, and the dtype that they have there.

    Args:
        dtypes: dtype of each field.
        device_fields: fields that go to the device.
    """
    found = {name: narrowed_dtype(dtypes[name]) for name in device_fields if name in dtypes}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def check_device_values(where: str, batch: Mapping[str, np.ndarray], narrowed: Mapping[str, np.dtype[Any]]) -> None:
    """Refuse a batch with a number that the device would change into another.

    Args:
        where: the place named in the error: split and batch.
        batch: host arrays by field, batch dimension first.
        narrowed: the fields to look at, with the dtype they have on the device.

    Raises:
        DataError: an integer is out of the range of that dtype, or a float overflows it.
    """
    for name, dtype in narrowed.items():
        array = batch[name]
        at = first_lost(array, dtype)
        if at is not None:
            raise value_error(f"{where}, row {at[0]}, field `{name}`", name, array[at], array.dtype, dtype)


def value_error(where: str, name: str, value: Any, wide: np.dtype[Any], narrow: np.dtype[Any]) -> DataError:
    """The error for one value that does not fit; `where` has split, batch and row."""
    whole = narrow.kind in "iu"
    limits: Any = np.iinfo(narrow.type) if whole else np.finfo(narrow.type)
    bounds = f"{limits.min} to {limits.max}" if whole else f"up to {limits.max:.8g} in magnitude"
    return DataError(
        f"field `{name}` holds {value}, which does not fit the device's {narrow}",
        where=where,
        why=f"JAX's 64-bit mode is off, so {wide} becomes {narrow}, {bounds}: another number would be trained on",
        fix="map the values into that range in the data source (ids by rank, times from an origin), keep the field out "
        "of traced hooks, or set JAX_ENABLE_X64=1",
    )
