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
    from nitro_cli.nitro import Nitro
    from nitro_cli.run import OutputMeaning, RowsRead

__all__ = ["InputRows", "predict_split"]


class InputRows:
    """The rows of an `.npz` or `.npy`.

    Args:
        source: its fields, those beside the forward's included.
        size: rows at once.
        meaning: which fields go with the outputs.
        kept: further fields that are handed on.
    """

    def __init__(self, source: InputFields, size: int, meaning: OutputMeaning, kept: Sequence[str]) -> None:
        self._source, self._size, self._kept = source, size, tuple(kept)
        self.meaning = meaning.among(source.fields, source.path.name)
        self.split: str | None = None
        self.data: str | None = _file_digest(source.path)

    def rows(self) -> Iterator[RowsRead]:
        """The rows as they are in the file."""
        from nitro_cli.run import RowsRead

        for batch in self._source.batches(self._size):
            yield RowsRead.of(batch, self.meaning, self._kept)


def predict_split(nitro: Nitro, split: str, declared: DeclaredOutputs, fields: Sequence[str]) -> Prediction:
    """The predictions of a whole split.

    Raises:
        ConfigError: nothing says what the outputs mean, or which field is the target.
        DataError: there is no such output or field.
    """
    from dataclasses import replace

    from nitro_cli.analysis import concatenate, data_identity

    meaning = declared.needed(nitro.experiment)
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
