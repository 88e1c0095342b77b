"""The batches that `predict` is given: arrays of the kind that the model was trained with, with values that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from nitro_cli.data import FieldSpec, check_device_fields, check_device_values, narrowed_fields
from nitro_cli.errors import DataError
from nitro_cli.text import exception_text

__all__ = ["prediction_batch", "unlike_training"]

_KINDS = ("truth values", "integers", "real numbers", "complex numbers")
_WIDE = (np.bool_, np.int64, np.float64, np.complex128)


def unlike_training(trained: Mapping[str, FieldSpec], arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The fields whose samples have another shape than those of training, each told with both."""
    told = []
    for name, array in arrays.items():
        known = trained.get(name)
        if known is not None and array.shape[1:] != tuple(known.shape):
            was = f"{known.dtype}[{', '.join(['n', *map(str, known.shape)])}]"
            told.append(f"field {name} is {array.dtype}{list(array.shape)}, the model was trained with {was}")
    return told


def prediction_batch(
    batch: Mapping[str, Any], fields: Sequence[str], trained: Mapping[str, np.dtype[Any]], where: str
) -> dict[str, np.ndarray]:
    """The fields that `forward` takes, as host arrays.

    Args:
        batch: arrays by field, or lists of numbers, which take the dtype of training where that loses nothing.
        fields: the fields that `forward` takes.
        trained: dtypes of training, where they are known.
        where: the place named in errors.

    Raises:
        DataError: a field is no array, such as lists of several lengths; it holds no numbers, numbers of another kind
            than in training, or one that the device cannot hold.
    """
    arrays = {
        name: _as_array(batch[name], trained.get(name), f"{where}, field `{name}`") for name in fields if name in batch
    }
    specs = {name: FieldSpec(array.dtype, array.shape[1:]) for name, array in arrays.items()}
    check_device_fields(where, specs, frozenset(arrays))
    for name, array in arrays.items():
        before = trained.get(name)
        if before is not None and before.kind not in "OUSMm" and _kind(before) != _kind(array.dtype):
            raise DataError(
                f"field `{name}` is {array.dtype}, the model was trained with {before}",
                where=f"{where}, field `{name}`",
                why=f"{_KINDS[_kind(array.dtype)]} in the place of {_KINDS[_kind(before)]} make another program than "
                "the one that was trained",
                fix=f"convert it, if that is what it means: {name}.astype({before.name!r})",
            )
    check_device_values(where, arrays, narrowed_fields({name: spec.dtype for name, spec in specs.items()}, arrays))
    return arrays


def _as_array(value: Any, trained: np.dtype[Any] | None, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"a {type(value).__name__} is no array: {exception_text(error)}",
            where=where,
            fix="give an array, batch first, or lists of one length at each level",
        ) from error
    if hasattr(value, "dtype") or trained is None or array.dtype.kind not in "biuf" or trained.kind in "OUSMm":
        return array
    # A list has no dtype of its own: whole numbers in it may stand for real ones.
    return array.astype(_WIDE[_kind(trained)]) if _kind(array.dtype) < _kind(trained) else array


def _kind(dtype: np.dtype[Any]) -> int:
    """Where the numbers of a dtype stand in `_KINDS`."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(index for index, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))
