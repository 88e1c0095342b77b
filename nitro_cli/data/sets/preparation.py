"""From a batch to what `forward` takes, in the program: bytes to 0..1, random changes, mean and deviation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from nitro_cli.data.sets.augment import Augment
from nitro_cli.errors import ConfigError, DataError
from nitro_cli.experiment import RowSpec

__all__ = ["Normalize", "check_preparation", "check_spacing", "prepared_fields"]


def _usable(value: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, deviation = value
    told = None
    if len(mean) != len(deviation) or not mean:
        told = f"{len(mean)} means and {len(deviation)} deviations"
    elif not all(abs(x) < float("inf") for x in (*mean, *deviation)) or min(deviation) <= 0:
        told = "a mean is not finite, or a deviation is not above 0"
    if told is not None:
        raise PydanticCustomError("normalize", "should be [[mean...], [deviation...]], got {told}", {"told": told})
    return value


Normalize = Annotated[tuple[tuple[float, ...], tuple[float, ...]], AfterValidator(_usable)]
"""Mean and deviation of each channel, or one of each for all."""


def prepared_fields(
    inputs: Mapping[str, Any],
    augment: Sequence[Augment],
    key: Any,
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None,
    mean: Any,
    scale: Any,
) -> dict[str, Any]:
    """The fields that change on the way to `forward`, traced.

    Args:
        inputs: the fields, batch axis first.
        augment: what happens to images [batch, H, W, C], each row by a key of its own; empty outside of training.
        key: the step's key.
        normalize: mean and deviation of the last axis.
        mean, scale: of columns [batch, columns]; None leaves them.
    """
    import jax
    import jax.numpy as jnp

    changed = {}
    for at, (name, given) in enumerate(inputs.items()):
        x = given.astype(jnp.float32) / 255 if given.dtype == jnp.uint8 else given
        if not jnp.issubdtype(x.dtype, jnp.floating):
            continue
        if augment and x.ndim == 4:
            x = _augmented(x, augment, jax.random.fold_in(key, at))
        if normalize is not None and _fits(x.shape[1:], normalize):
            x = (x - jnp.asarray(normalize[0], x.dtype)) / jnp.asarray(normalize[1], x.dtype)
        if mean is not None and scale is not None and x.shape[1:] == mean.shape:
            x = (x - mean) / scale
        if x is not given:
            changed[name] = x
    return changed


def _augmented(x: Any, augment: Sequence[Augment], key: Any) -> Any:
    import jax

    for step, change in enumerate(augment):
        keys = jax.random.split(jax.random.fold_in(key, step), x.shape[0])
        made = jax.vmap(change)(keys, x)
        if made.shape != x.shape:
            raise ConfigError(
                f"the augmentation {change.label} made {list(made.shape[1:])} of an image {list(x.shape[1:])}",
                where="data.augment",
                why="evaluation takes images as they are, so that training cannot have another shape",
            )
        x = made.astype(x.dtype)
    return x


def _fits(shape: Sequence[int], normalize: tuple[tuple[float, ...], tuple[float, ...]]) -> bool:
    return bool(shape) and len(normalize[0]) in (1, shape[-1])


def check_preparation(
    label: str,
    normalize: Any,
    augment: Sequence[Augment],
    standardize: bool,
    batch: Mapping[str, RowSpec],
    inputs: Iterable[str] | None,
) -> None:
    """Refuse fields of a data set that nothing in a batch goes with.

    Args:
        label: what the set is called.
        normalize, augment, standardize: its fields.
        batch: the rows of the batch; empty where there is no data.
        inputs: the fields that a network takes; None is all of the batch.

    Raises:
        ConfigError: names the field, and what the batch has.
    """
    rows = {name: row for name, row in batch.items() if inputs is None or name in inputs}
    if not rows:
        return
    floats = {name: row for name, row in rows.items() if row.dtype.startswith(("float", "bfloat"))}
    told = ", ".join(f"{name} {row.dtype}{list(row.shape)}" for name, row in rows.items())
    if normalize is not None and not any(_fits(row.shape, normalize) for row in floats.values()):
        raise ConfigError(
            f"data.normalize has {len(normalize[0])} channels, and no field of {label} has so many: {told}",
            where="data.normalize",
            fix="give one mean and deviation per channel, or one of each for all",
        )
    if augment:
        images = [row for row in floats.values() if len(row.shape) == 3]
        needed = max(change.needed_side for change in augment)
        if not any(min(row.shape[:2]) >= needed for row in images):
            raise ConfigError(
                f"data.augment needs images (H, W, C) of {needed} pixels a side or more, and {label} has {told}",
                where="data.augment",
            )
    if standardize and (len(rows) > 1 or not floats or len(next(iter(floats.values())).shape) != 1):
        raise ConfigError(
            f"data.standardize needs one field of columns, float (B, columns), and {label} has {told}",
            where="data.standardize",
            fix="use data.normalize for images",
        )


_FINE = 1e-3
"""What share of a deviation the distance of neighbouring float32 numbers may be."""


def check_spacing(columns: np.ndarray, scale: np.ndarray) -> None:
    """Refuse columns whose values are so large beside what they vary by that float32 cannot tell them apart.

    Args:
        columns: of the rows of train, (rows, columns).
        scale: the deviation of each.

    Raises:
        DataError: names the columns by their number.
    """
    low, high = columns.min(axis=0), columns.max(axis=0)
    distance = np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    lost = np.flatnonzero((low < high) & (distance > _FINE * scale))
    if len(lost):
        at = lost[0]
        raise DataError(
            f"float32 cannot tell the values of column {', '.join(map(str, lost[:20]))} apart",
            where="data.standardize",
            why=f"column {at} goes from {low[at]:.10g} to {high[at]:.10g} with a deviation of {scale[at]:.3g}, and its "
            f"neighbouring float32 numbers are {distance[at]:.3g} apart",
            fix="take an offset off before the data is saved, such as the first time of a column of times",
        )
