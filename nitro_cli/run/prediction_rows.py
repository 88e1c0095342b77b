"""The rows that predictions are of: those of a split, or of batches in hand, with their ids and further fields."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np

from nitro_cli.analysis import data_identity
from nitro_cli.data import ArrayBatches
from nitro_cli.errors import NotFoundError, nearest, warn
from nitro_cli.run.output_meaning import OutputMeaning, check_field
from nitro_cli.run.plan import Plan
from nitro_cli.text import path_text

__all__ = ["BatchRows", "PredictedBatch", "RowSource", "RowsRead", "SplitRows", "outputs_by_path", "predicted_batches"]

_LARGEST_DIGESTED = 1 << 30


@dataclass(frozen=True)
class RowsRead:
    """Some rows of the data.

    Args:
        inputs: the fields that `forward` takes.
        ids: what names the rows; None where it is their position.
        target: what was to be predicted, or None.
        kept: further fields, by name.
    """

    inputs: Mapping[str, Any]
    ids: np.ndarray | None
    target: np.ndarray | None = None
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Mapping[str, Any], meaning: OutputMeaning, kept: Sequence[str]) -> RowsRead:
        """The rows of a batch that has the fields which `meaning` and `kept` name."""
        ids = None if meaning.ids is None else np.asarray(batch[meaning.ids])
        return cls(batch, ids, meaning.target_in(batch), {name: np.asarray(batch[name]) for name in kept})


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
    """What rows are read from: the split that they are of and the digest of its data, where these are known."""

    meaning: OutputMeaning
    split: str | None
    data: str | None

    def rows(self) -> Iterator[RowsRead]:
        """The rows in order."""
        ...


class SplitRows:
    """The rows of a split, in pieces that the compiled forward takes.

    Args:
        plan: of the run.
        split: the split's name.
        meaning: which fields go with the outputs; without ids they are positions in the split, under a shuffle of
            arrays too.
        kept: further fields that are handed on.

    Raises:
        NotFoundError: no such split.
        DataError: a field is not there.

    Warns:
        NitroWarning: the ids are positions in an order that is the source's own.
    """

    def __init__(self, plan: Plan, split: str, meaning: OutputMeaning, kept: Sequence[str] = ()) -> None:
        held = plan.splits
        if split not in held:
            names = ", ".join(sorted(held)) or "none"
            raise NotFoundError(
                f"there is no split {split!r}", why=f"build_data returned: {names}", nearest=nearest(split, held)
            )
        self._split = held[split].whole()
        self._seed = plan.settings.seed
        # The batches that the forward is compiled for are those of evaluation: a batch of train may be wider.
        sizes = [other.batch_size for name, other in held.items() if name != "train"]
        self._width = max(sizes or [self._split.batch_size])
        self.meaning, self._kept = meaning.among(self._split.fields, f"the batches of {split}"), tuple(kept)
        for name in self._kept:
            check_field(name, self._split.fields, f"the batches of {split}")
        source = self._split.source
        arrays = source if isinstance(source, ArrayBatches) else None
        self._order = None if arrays is None else arrays.begin_epoch(0, self._seed).order
        if self.meaning.ids is None and self._order is None and "shuffled" in (self._split.identity.order or ""):
            warn(f"the ids are positions in the order that {split} gave, which its source shuffles")
        self.split: str | None = split
        digested = arrays is not None and arrays.nbytes <= _LARGEST_DIGESTED
        self.data = data_identity(arrays.selected()) if arrays is not None and digested else None

    def rows(self) -> Iterator[RowsRead]:
        """The rows in the order of an evaluation pass."""
        at, width = 0, self._width
        with self._split.stream(epoch=0, seed=self._seed, ahead=False) as stream:
            for item in stream:
                batch = {name: np.asarray(value) for name, value in item.host.items()}
                count = len(next(iter(batch.values())))
                for start in range(0, count, width):
                    piece = {name: value[start : start + width] for name, value in batch.items()}
                    yield self.read(piece, at)
                    at += min(width, count - start)

    def read(self, batch: Mapping[str, Any], at: int) -> RowsRead:
        """The rows of a batch that an evaluation pass gives, the first of which is its `at`-th."""
        rows = RowsRead.of(batch, self.meaning, self._kept)
        if rows.ids is not None:
            return rows
        places = np.arange(at, at + len(next(iter(batch.values()))))
        return replace(rows, ids=places if self._order is None else self._order[places])


class BatchRows:
    """The rows of batches in hand, in their order.

    Args:
        batches: mappings of fields, no wider than the compiled forward.
        meaning: which fields go with the outputs.
        kept: further fields that are handed on.
    """

    def __init__(self, batches: Iterable[Mapping[str, Any]], meaning: OutputMeaning, kept: Sequence[str] = ()) -> None:
        self._batches, self.meaning, self._kept = batches, meaning, tuple(kept)
        self.split: str | None = None
        self.data: str | None = None

    def rows(self) -> Iterator[RowsRead]:
        """The rows of each batch.

        Raises:
            DataError: a batch lacks a field that is handed on.
        """
        for index, batch in enumerate(self._batches):
            what = f"batch {index}"
            meaning = self.meaning.among(batch, what)
            for name in self._kept:
                check_field(name, batch, what)
            yield RowsRead.of(batch, meaning, self._kept)


def predicted_batches(plan: Plan, predict: Callable[[Any], Any], source: RowSource) -> Iterator[PredictedBatch]:
    """The outputs of a run on rows, in order; nothing is kept that was handed over.

    Args:
        plan: of the run.
        predict: gives the outputs of each of an iterable of batches, lazily.
        source: of the rows.
    """
    taken = plan.settings.hooks.fields("forward")
    fields = (*taken.required, *taken.optional)
    waiting: deque[RowsRead] = deque()

    def inputs() -> Iterator[Mapping[str, np.ndarray]]:
        for rows in source.rows():
            waiting.append(rows)
            yield {name: rows.inputs[name] for name in fields if name in rows.inputs}

    for tree in predict(inputs()):
        yield PredictedBatch(outputs_by_path(tree), waiting.popleft())


def outputs_by_path(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of what a forward gave; `outputs` where it gave one array."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {path_text(path) or "outputs": np.asarray(leaf) for path, leaf in leaves}
