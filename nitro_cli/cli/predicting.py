"""Predictions for the commands: of a whole split, or of the rows of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nitro_cli.errors import ConfigError

if TYPE_CHECKING:
    from nitro_cli.analysis import Prediction
    from nitro_cli.cli.declared_outputs import DeclaredOutputs
    from nitro_cli.cli.prediction_files import InputFields
    from nitro_cli.run import Nitro, RowsRead

__all__ = ["InputRows", "predict_split"]


class InputRows:
    """The rows of an `.npz` or `.npy`.

    Args:
        source: its fields, those beside the forward's included.
        size: rows at once.
        kept: fields that are handed on.
        id_field: the field of the ids.
    """

    def __init__(self, source: InputFields, size: int, kept: Sequence[str], id_field: str | None) -> None:
        self._source, self._size, self._id_field = source, size, id_field
        self._kept = tuple(dict.fromkeys((*kept, *([id_field] if id_field is not None else []))))
        self.split: str | None = None
        self.data: str | None = _file_digest(source.path)

    def rows(self) -> Iterator[RowsRead]:
        """The rows as they are in the file."""
        from nitro_cli.run import RowsRead

        for batch in self._source.batches(self._size):
            ids = None if self._id_field is None else batch[self._id_field]
            yield RowsRead(batch, ids, {name: batch[name] for name in self._kept})


def predict_split(nitro: Nitro, split: str, declared: DeclaredOutputs, fields: Sequence[str]) -> Prediction:
    """The predictions of a whole split.

    Raises:
        ConfigError: nothing says what the outputs mean, or which field is the target.
        DataError: there is no such output or field.
    """
    from dataclasses import replace

    from nitro_cli.analysis import concatenate, data_identity

    meaning = declared.meaning()
    if meaning.target is None:
        raise ConfigError("nothing says what was to be predicted", fix="name the field of the batches: --target FIELD")
    with nitro.predictions(split, spec=meaning, fields=fields) as stream:
        whole = concatenate(stream)
    if whole.origin.data is None:
        data = data_identity({"outputs": whole.outputs, "target": np.asarray(whole.target)})
        whole = replace(whole, origin=replace(whole.origin, data=data))
    return whole


def _file_digest(path: Path) -> str | None:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            total.update(part)
    return f"sha256:{total.hexdigest()}"
