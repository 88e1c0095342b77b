"""One batch: its length, its padding, and the promises that every batch of a split keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nitro_cli.data.device_values import check_device_values
from nitro_cli.errors import DataError
from nitro_cli.experiment import BatchProblem

__all__ = ["BatchCheck", "FieldSpec", "batch_length", "check_device_fields", "field_specs", "pad_batch"]


@dataclass(frozen=True)
class FieldSpec:
    """What one batch field looks like.

    Args:
        dtype: dtype of the field's arrays.
        shape: shape of one sample, without the batch dimension.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(['batch', *map(str, self.shape)])}]"


def batch_length(batch: Mapping[str, Any]) -> int:
    """Return the number of samples in a batch: the leading size that all its fields share.

    Args:
        batch: mapping from field name to array, batch dimension first.

    Raises:
        DataError: the batch is empty of fields, a field is not an array or has no batch dimension,
            or the leading sizes differ.
    """
    return leading_size(batch, "batch")


def pad_batch(batch: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the batch padded to `size` samples by repeating its last sample.

    Args:
        batch: mapping from field name to host array, batch dimension first.
        size: number of samples of the compiled program.

    Returns:
        A new dict; the arrays themselves where nothing had to be padded.

    Raises:
        DataError: the batch has more than `size` samples, or none.
    """
    length = batch_length(batch)
    if length == size:
        return dict(batch)
    if length > size:
        raise DataError(
            f"a batch of {length} samples is wider than the compiled batch of {size}",
            why="one compiled program serves batches of one size; shorter ones are padded, wider ones cannot be",
            fix=f"give at most {size} samples at a time",
        )
    if length == 0:
        raise DataError("a batch without samples cannot be padded", fix="leave empty batches out")
    return {name: _pad(np.asarray(value), length, size) for name, value in batch.items()}


def _pad(value: np.ndarray, length: int, size: int) -> np.ndarray:
    padded = np.empty((size, *value.shape[1:]), value.dtype)
    padded[:length] = value
    padded[length:] = value[length - 1]
    return padded


def field_specs(batch: Mapping[str, np.ndarray]) -> dict[str, FieldSpec]:
    """Return the specification of each field of a (checked) batch."""
    return {name: FieldSpec(value.dtype, tuple(value.shape[1:])) for name, value in batch.items()}


def check_device_fields(where: str, fields: Mapping[str, FieldSpec], device_fields: frozenset[str]) -> None:
    """Refuse fields that traced hooks declare and whose arrays no device can hold.

    Args:
        where: the place named in the error: split and batch.
        fields: specification of each batch field.
        device_fields: names that some traced hook declares.

    Raises:
        DataError: such a field holds objects, strings, dates, records or bytes in foreign order.
    """
    for name in sorted(device_fields & fields.keys()):
        dtype = fields[name].dtype
        place = f"{where}, field `{name}`"
        if dtype.kind in "OUSMm" or dtype.type is np.void:
            raise DataError(
                f"field `{name}` has dtype {dtype}, which no device can hold",
                where=place,
                why="a traced hook declares this field, so it is moved to the device",
                fix="encode it as numbers in the data source, or read it in a host hook only",
            )
        if dtype.kind in "fc" and dtype.itemsize > (16 if dtype.kind == "c" else 8):
            raise DataError(
                f"field `{name}` has dtype {dtype}, which no device can hold",
                where=place,
                why="devices know no float wider than 64 bits",
                fix="convert it once when loading: array.astype(np.float32)",
            )
        if not dtype.isnative:
            raise DataError(
                f"field `{name}` has dtype {dtype.str}, whose bytes are in foreign order",
                where=place,
                why="devices hold numbers in the machine's own byte order only",
                fix=f"convert it once when loading: array.astype(np.{dtype.newbyteorder('=').name})",
            )


OwnCheck = Callable[[Mapping[str, np.ndarray]], BatchProblem | None]
"""What an experiment has to say against a batch."""


def refuse_problem(where: str, problem: BatchProblem | None) -> None:
    """Raise what an experiment has to say against a batch.

    Args:
        where: split and batch.
        problem: what it says; None is nothing.

    Raises:
        DataError: there is something.
    """
    if problem is not None:
        row = "" if problem.row is None else f", row {problem.row}"
        raise DataError(problem.what, where=f"{where}{row}", why=problem.why, fix=problem.fix)


@dataclass(frozen=True)
class BatchCheck:
    """Checks each batch of a stream against what setup saw; called by producers, on any thread.

    Args:
        split: name of the split, for errors.
        fields: specification of each field, from the first batch.
        batch_size: the size that programs are compiled for.
        device_fields: fields that some traced hook declares.
        exact: whether a batch shorter than `batch_size` is refused, as in training.
        narrowed: the fields that have fewer bits on the device, with the dtype they have there.
        own: the experiment's own check, or None.
    """

    split: str
    fields: Mapping[str, FieldSpec]
    batch_size: int
    device_fields: frozenset[str] = frozenset()
    exact: bool = False
    narrowed: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    own: OwnCheck | None = None

    def __call__(self, index: int, batch: Any) -> None:
        """Check one batch.

        Args:
            index: batch index from 0.
            batch: what the source returned for it.

        Raises:
            DataError: the batch breaks a promise; split, batch and field are named.
        """
        where = f"split `{self.split}`, batch {index}"
        length = leading_size(batch, where)
        fields = self.fields
        if batch.keys() != fields.keys():
            raise DataError(
                f"batch {index} has the fields {sorted(batch)}, the first batch had {sorted(fields)}",
                where=where,
                why="hooks are routed by field name once, at setup",
                fix="yield the same fields in every batch",
            )
        for name, spec in fields.items():
            value = batch[name]
            if value.dtype != spec.dtype and not _same_text(value.dtype, spec.dtype, name in self.device_fields):
                raise self._changed(where, name, f"dtype {value.dtype}", f"{spec.dtype}")
            if value.ndim != len(spec.shape) + 1:
                raise self._changed(where, name, f"{value.ndim} dimensions", f"{len(spec.shape) + 1}")
        if length != self.batch_size:
            self._check_length(index, length, where)
        if self.narrowed:
            check_device_values(where, batch, self.narrowed)
        if self.own is not None:
            refuse_problem(where, self.own(batch))

    def _check_length(self, index: int, length: int, where: str) -> None:
        if length > self.batch_size:
            raise DataError(
                f"batch {index} has {length} samples, more than the {self.batch_size} of the first batch",
                where=where,
                why="programs are compiled for the first batch's size",
                fix="yield batches of one size, the widest first",
            )
        if self.exact:
            raise DataError(
                f"batch {index} has {length} samples, the first batch had {self.batch_size}",
                where=where,
                why="a partial batch would weigh its samples more than the others' in training",
                fix="drop the partial batch in the source (drop_last=True)",
            )
        if length == 0:
            raise DataError(
                f"batch {index} has no samples", where=where, fix="leave empty batches out and count the others in len"
            )

    def _changed(self, where: str, name: str, now: str, before: str) -> DataError:
        return DataError(
            f"field `{name}` has {now}, in the first batch it had {before}",
            where=f"{where}, field `{name}`",
            why="programs are compiled for the dtypes and ranks of the first batch",
            fix="convert the field to one dtype and rank in the data source",
        )


def _same_text(now: np.dtype[Any], before: np.dtype[Any], on_device: bool) -> bool:
    # The width of a text dtype is that of its longest entry, so it varies from batch to batch.
    return not on_device and now.kind == before.kind and now.kind in "US"


def leading_size(batch: Any, where: str) -> int:
    """Return the leading size that all fields share; `where` is named in the errors of `batch_length`."""
    if not isinstance(batch, Mapping):
        raise _not_a_mapping(batch, where)
    length = -1
    first = ""
    for name, value in batch.items():
        if not isinstance(value, np.ndarray):
            raise _not_an_array(name, value, where)
        if value.ndim == 0:
            raise DataError(
                f"field `{name}` is a scalar array without a batch dimension",
                where=f"{where}, field `{name}`",
                fix="give every field a leading batch dimension",
            )
        if length < 0:
            length, first = value.shape[0], name
        elif value.shape[0] != length:
            raise DataError(
                f"field `{name}` has {value.shape[0]} samples, field `{first}` has {length}",
                where=f"{where}, fields `{first}` {batch[first].shape} and `{name}` {value.shape}",
                why="the first dimension of every field counts the samples of the batch",
                fix="give all fields of a batch the same leading size, batch dimension first",
            )
    if length < 0:
        raise DataError("a batch has no fields", where=where, fix="yield mappings such as {'image': ..., 'label': ...}")
    return length


def _not_a_mapping(batch: Any, where: str) -> DataError:
    kind = type(batch).__name__
    if batch is None:
        return DataError(
            "the source returned None for a batch",
            where=where,
            why="every index below len(source) is a batch",
            fix="return a mapping of arrays for each index, and count only those in len",
        )
    fix = "yield mappings from field name to array, such as {'image': images, 'label': labels}"
    if isinstance(batch, (tuple, list)):
        fix += f"; this {kind} has {len(batch)} entries, which need names"
    return DataError(f"a batch is a {kind}, not a mapping", where=where, why="hooks ask for fields by name", fix=fix)


def _not_an_array(name: Any, value: Any, where: str) -> DataError:
    return DataError(
        f"field `{name}` is a {type(value).__module__}.{type(value).__qualname__}, not a numpy array",
        where=f"{where}, field `{name}`",
        why="sources yield host arrays; the framework moves them to the device itself",
        fix="convert the field in the data source: np.asarray(value)",
    )
