"""Predictions of a handle, batch by batch: of a split with its own fields, or of a file."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nitro_cli.cli.output import Output
from nitro_cli.errors import ConfigError, DataError, NotFoundError, nearest
from nitro_cli.text import path_text

if TYPE_CHECKING:
    from nitro_cli.cli.declared_outputs import DeclaredOutputs
    from nitro_cli.cli.prediction_files import InputFields
    from nitro_cli.cli.targets import Target
    from nitro_cli.run import Nitro

__all__ = [
    "InputRows",
    "PredictedBatch",
    "RowSource",
    "SplitRows",
    "origin_of",
    "predict_split",
    "predicted_batches",
    "weights_id",
]

_LARGEST_DIGESTED = 1 << 30


@dataclass(frozen=True)
class RowsRead:
    """Some rows of the data.

    Args:
        inputs: the fields that `forward` takes.
        ids: what names the rows; None where it is their position.
        kept: further fields, by name.
    """

    inputs: Mapping[str, np.ndarray]
    ids: np.ndarray | None
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class PredictedBatch:
    """The outputs of some rows.

    Args:
        outputs: by path; `outputs` where a forward returns one array.
        rows: what they are of.
    """

    outputs: dict[str, np.ndarray]
    rows: RowsRead


class RowSource(Protocol):
    """What rows are read from."""

    split: str | None
    data: str | None

    def rows(self) -> Iterator[RowsRead]:
        """The rows in order."""
        ...


class SplitRows:
    """The rows of a split, in pieces that the compiled forward takes.

    Args:
        output: told where ids are the positions of an order that may be another each time.
        nitro: the handle.
        split: the split's name.
        kept: fields that are handed on.
        id_field: the field of the ids.

    Raises:
        NotFoundError: no such split.
        DataError: a field is not there.
    """

    def __init__(self, output: Output, nitro: Nitro, split: str, kept: Sequence[str], id_field: str | None) -> None:
        held = nitro.plan.splits
        if split not in held:
            names = ", ".join(sorted(held)) or "none"
            raise NotFoundError(
                f"there is no split {split!r}", why=f"build_data returned: {names}", nearest=nearest(split, held)
            )
        self._split = held[split].whole()
        self._seed = nitro.plan.settings.seed
        # The batches that the forward is compiled for are those of evaluation: a batch of train may be wider.
        sizes = [other.batch_size for name, other in held.items() if name != "train"]
        self._width = max(sizes or [self._split.batch_size])
        self._kept = tuple(dict.fromkeys((*kept, *([id_field] if id_field is not None else []))))
        self._id_field = id_field
        for name in self._kept:
            if name not in self._split.fields:
                raise DataError(
                    f"the batches of {split} have no field {name}",
                    why=f"their fields are: {', '.join(self._split.fields)}",
                    nearest=nearest(name, self._split.fields),
                )
        self._order = self._positions()
        if id_field is None and self._order is None and "shuffled" in (self._split.identity.order or ""):
            output.note(f"the ids are positions in the order that {split} gave, which its source shuffles")
        self.split: str | None = split
        self.data = self._digest()

    def rows(self) -> Iterator[RowsRead]:
        """The rows in the order of an evaluation pass."""
        at, width = 0, self._width
        with self._split.stream(epoch=0, seed=self._seed, ahead=False) as stream:
            for item in stream:
                batch = {name: np.asarray(value) for name, value in item.host.items()}
                count = len(next(iter(batch.values())))
                for start in range(0, count, width):
                    piece = {name: value[start : start + width] for name, value in batch.items()}
                    size = min(width, count - start)
                    yield RowsRead(piece, self._ids(piece, at, size), {name: piece[name] for name in self._kept})
                    at += size

    def _ids(self, piece: Mapping[str, np.ndarray], at: int, size: int) -> np.ndarray:
        if self._id_field is not None:
            return piece[self._id_field]
        places = np.arange(at, at + size)
        return places if self._order is None else self._order[places]

    def _positions(self) -> np.ndarray | None:
        """Which sample of the arrays stands at each place of the pass; None where they stand as they are given."""
        from nitro_cli.data import ArrayBatches

        source = self._split.source
        return source.begin_epoch(0, self._seed).order if isinstance(source, ArrayBatches) else None

    def _digest(self) -> str | None:
        from nitro_cli.analysis import data_identity
        from nitro_cli.data import ArrayBatches

        source = self._split.source
        if not isinstance(source, ArrayBatches) or source.nbytes > _LARGEST_DIGESTED:
            return None
        return data_identity(source.arrays)


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
        for batch in self._source.batches(self._size):
            ids = None if self._id_field is None else batch[self._id_field]
            yield RowsRead(batch, ids, {name: batch[name] for name in self._kept})


def predicted_batches(nitro: Nitro, source: RowSource) -> Iterator[PredictedBatch]:
    """The outputs of a handle on rows, in order; nothing is kept that was handed over."""
    import jax

    taken = nitro.plan.settings.hooks.fields("forward")
    fields = (*taken.required, *taken.optional)
    waiting: deque[RowsRead] = deque()

    def inputs() -> Iterator[Mapping[str, np.ndarray]]:
        for rows in source.rows():
            waiting.append(rows)
            yield {name: rows.inputs[name] for name in fields if name in rows.inputs}

    for tree in nitro.predict(inputs()):
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        yield PredictedBatch({path_text(path) or "outputs": leaf for path, leaf in leaves}, waiting.popleft())


def weights_id(nitro: Nitro) -> str:
    """The digest of the weights that a prediction reads: the parameters in use and the layer state."""
    import jax

    from nitro_cli.analysis import model_id

    read = {"params": nitro.eval_params(), "state": nitro.state}
    leaves = jax.tree_util.tree_flatten_with_path(read)[0]
    return model_id((path_text(path), _on_host(leaf)) for path, leaf in leaves)


def origin_of(nitro: Nitro, target: Target, source: RowSource) -> dict[str, Any]:
    """Where predictions come from, by the names that files and predictions share."""
    loaded = target.checkpoint or nitro.checkpoint_source
    return {
        "experiment": target.resolved.class_name,
        "run": target.run,
        "checkpoint": None if loaded is None else Path(loaded).name,  # a file that leaves holds no path of this machine
        "model_id": weights_id(nitro),
        "split": source.split,
        "data": source.data,
    }


def predict_split(
    output: Output, nitro: Nitro, target: Target, split: str, declared: DeclaredOutputs, fields: Sequence[str]
) -> Any:
    """The predictions of a whole split.

    Raises:
        ConfigError: nothing says what the outputs mean, or which field is the target.
        DataError: there is no such output or field.
    """
    from nitro_cli.analysis import PredictionOrigin, PredictionStream, concatenate, data_identity

    spec = declared.needed_spec()
    if declared.target_field is None:
        raise ConfigError("nothing says what was to be predicted", fix="name the field of the batches: --target FIELD")
    kept = list(dict.fromkeys((*fields, declared.target_field)))
    source = SplitRows(output, nitro, split, kept, declared.id_field)
    name = declared.logits or "outputs"
    origin = PredictionOrigin(
        **origin_of(nitro, target, source),
        ids=declared.id_field,
        ignore_index=declared.ignore_index,
        task={"kind": spec.kind, "output": name, "class_axis": spec.class_axis},
    )

    def predictions() -> Iterator[Any]:
        for batch in predicted_batches(nitro, source):
            if name not in batch.outputs:
                held = ", ".join(batch.outputs)
                raise DataError(
                    f"there is no output {name}",
                    why=f"forward gives {held}",
                    nearest=nearest(name, batch.outputs),
                    fix="name the logits: --logits NAME",
                )
            rows = batch.rows
            extra = {key: rows.kept[key] for key in fields}
            given = rows.kept[declared.target_field or ""]
            yield spec.predict(batch.outputs[name], ids=rows.ids, target=given, fields=extra, origin=origin)

    with PredictionStream(predictions()) as stream:
        whole = concatenate(stream)
    if whole.origin.data is None:
        from dataclasses import replace

        data = data_identity({"outputs": whole.outputs, "target": np.asarray(whole.target)})
        whole = replace(whole, origin=replace(whole.origin, data=data))
    return whole


def _on_host(leaf: Any) -> np.ndarray:
    import jax

    if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _file_digest(path: Path) -> str | None:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            total.update(part)
    return f"sha256:{total.hexdigest()}"
