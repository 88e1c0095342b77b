"""Batches over in-memory or memory-mapped arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nitro_cli.data.buffers import BatchBuffers
from nitro_cli.data.dist import Dist
from nitro_cli.data.order import batch_rng, epoch_order, order_in_words
from nitro_cli.data.resident import RESIDENT_LIMIT, ResidentArrays
from nitro_cli.errors import DataError, nearest

__all__ = ["ArrayBatches", "ArrayPlan"]

Transform = Callable[[dict[str, np.ndarray], np.random.Generator], Mapping[str, np.ndarray]]


class ArrayPlan(NamedTuple):
    """The plan of one epoch.

    Args:
        seed: the seed that holds: the source's own, or the run's.
        epoch: the epoch.
        order: the order of its samples; None where it is the arrays' own.
        buffers: memory of the gathered batches, by field.
    """

    seed: int
    epoch: int
    order: np.ndarray | None
    buffers: Mapping[str, BatchBuffers]


class ArrayBatches:
    """A data source over arrays of equal length, gathering whole batches.

    The order of an epoch and the generators of `transform` are functions of the seed and the epoch
    (and of the batch index, for `transform`), so they are the same at any number of workers and
    when an epoch is entered again in its middle. Iterating the source directly is the evaluation
    pass: epoch 0.

    Args:
        arrays: mapping from field name to array, sample dimension first; numpy arrays or
            `np.memmap`, of any dtype but object. They are never copied as a whole.
        batch_size: samples per batch.
        shuffle: whether each epoch has a new random order.
        drop_last: whether a partial last batch is left out; training needs it left out.
        seed: seed of the order; None follows the run's `seed`.
        transform: `transform(batch, rng) -> batch`, called with writable host arrays and a generator of
            its own for each batch; for random augmentation.
        resident: True keeps the arrays on the device and gathers there; False streams batches from
            the host; None decides by size (at most 256 MiB, no `transform`, no batches of a subclass's own).
        rows: the rows of the arrays that are the samples, in this order, int (n,); None is all. The arrays stay shared,
            so the splits of one source are views of it, each with a `transform` of its own.

    Raises:
        DataError: there are no arrays or no samples, lengths differ, an array has no sample dimension
            or dtype object, `batch_size` is not a positive whole number, `rows` is no list of rows that there are, or
            `resident=True` meets a `transform`.

    Example:
        >>> source = ArrayBatches({"image": images, "label": labels}, 100, shuffle=True, drop_last=True)
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        transform: Transform | None = None,
        resident: bool | None = None,
        rows: Any = None,
    ) -> None:
        self.arrays = _checked_arrays(arrays)
        self.batch_size = _checked_batch_size(batch_size)
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.seed = _checked_seed(seed)
        self.transform = transform
        if resident and transform is not None:
            raise DataError(
                "`resident=True` together with a `transform`",
                where="ArrayBatches(resident=, transform=)",
                why="resident arrays are gathered on the device, where a host transform cannot see the batch",
                fix="leave `resident` out, or do the augmentation in a traced hook",
            )
        own = self._own_batches()
        if resident and own:
            raise DataError(
                f"`resident=True`, and {type(self).__name__} writes `{own[0]}` itself",
                where=f"{type(self).__name__}(resident=)",
                why="resident arrays are gathered on the device, which would not ask it",
                fix="leave `resident` out, or write a `transform` or a traced hook",
            )
        self.resident = resident
        self._dist = Dist()
        held = len(next(iter(self.arrays.values())))
        self.rows = None if rows is None else _checked_rows(rows, held)
        self.samples = held if self.rows is None else len(self.rows)

    def _own_batches(self) -> list[str]:
        """What a subclass makes batches by in the place of this class."""
        names = ("batch_at", "begin_epoch", "fill")
        return [name for name in names if getattr(type(self), name) is not getattr(ArrayBatches, name)]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in self.arrays.items())
        return f"ArrayBatches({{{fields}}}, batch_size={self.batch_size}, shuffle={self.shuffle})"

    def __len__(self) -> int:
        full, rest = divmod(self.samples, self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    @property
    def order(self) -> str:
        """What the order of an epoch is a function of, in words."""
        return order_in_words(self.shuffle, self.seed)

    @property
    def fresh_batches(self) -> bool:
        """Whether every batch lies in memory of its own: true but for what a `transform` or a subclass returns."""
        return self.transform is None and type(self).batch_at is ArrayBatches.batch_at

    @property
    def last_batch_size(self) -> int:
        """Number of samples in the last batch of an epoch."""
        rest = self.samples % self.batch_size
        return self.batch_size if self.drop_last or rest == 0 else rest

    @property
    def nbytes(self) -> int:
        """Bytes of all samples together."""
        sizes = sum(array.nbytes for array in self.arrays.values())
        return sizes if self.rows is None else sizes * self.samples // len(next(iter(self.arrays.values())))

    def selected(self) -> dict[str, np.ndarray]:
        """The samples as whole arrays by field, read-only: the arrays themselves, or a copy of their `rows`."""
        return dict(self.arrays) if self.rows is None else {name: a[self.rows] for name, a in self.arrays.items()}

    def first(self, samples: int) -> ArrayBatches:
        """A source of the first samples alone, otherwise the same."""
        kept = copy.copy(self)
        kept.samples = min(self.samples, samples)
        if self.rows is None:
            kept.arrays = {name: array[:samples] for name, array in self.arrays.items()}
        else:
            kept.rows = self.rows[:samples]
        return kept

    def begin_epoch(self, epoch: int, seed: int | None = None) -> ArrayPlan:
        """Return the plan of an epoch.

        Args:
            epoch: epoch from 1; 0 for an evaluation pass.
            seed: the run's seed, used where the source has none; None is 0.
        """
        seed = self._seed(seed)
        order = epoch_order(self.samples, seed=seed, epoch=epoch, shuffle=True) if self.shuffle else None
        gathers = order is not None or self.rows is not None
        buffers = {name: self._buffers(array) for name, array in self.arrays.items()} if gathers else {}
        return ArrayPlan(seed, epoch, order, buffers)

    def batch_at(self, index: int, plan: ArrayPlan) -> Mapping[str, np.ndarray]:
        """Return batch `index` (from 0) of the epoch that `plan` describes.

        Without `shuffle`, `rows` and `transform` the arrays are read-only views.

        Raises:
            DataError: the index is outside of the epoch.
        """
        if not 0 <= index < len(self):
            raise DataError(
                f"batch {index} does not exist, the epoch has {len(self)} batches", where="ArrayBatches.batch_at"
            )
        begin = index * self.batch_size
        rows: Any = slice(begin, min(begin + self.batch_size, self.samples))
        if self._dist.process_count > 1:
            own = self._dist.range(self.batch_size)
            rows = slice(begin + own.start, begin + own.stop)
        batch: dict[str, np.ndarray]
        picked = self._picked(plan, rows)
        if isinstance(picked, slice):
            batch = {name: array[picked] for name, array in self.arrays.items()}
        else:
            batch = _gather(self.arrays, picked, plan.buffers, full=len(self._dist.range(self.batch_size)))
        if self.transform is None:
            return batch
        if isinstance(picked, slice):
            batch = {name: array.copy() for name, array in batch.items()}
        return self.transform(batch, batch_rng(seed=plan.seed, epoch=plan.epoch, index=index))

    def fill(self, out: Mapping[str, np.ndarray], index: int, count: int, plan: ArrayPlan) -> None:
        """Write batches `index` to `index + count - 1` into the first rows of `out`, each field at once.

        Args:
            out: arrays `[capacity, batch size, ...]` by field, of the fields' dtypes; not every field has to be there.
            index: the first batch, from 0.
            count: how many, none of them short.
            plan: of the epoch; no `transform` is called.
        """
        own, begin = self._dist.range(self.batch_size), index * self.batch_size
        span = np.arange(begin, begin + count * self.batch_size) if plan.order is None else plan.order[begin:]
        rows = span[: count * self.batch_size].reshape(count, self.batch_size)[:, own.start : own.stop].reshape(-1)
        rows = rows if self.rows is None else self.rows[rows]
        for name, target in out.items():
            array = self.arrays[name]
            array.take(rows, axis=0, out=target[:count].reshape(len(rows), *array.shape[1:]), mode="clip")

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        plan = self.begin_epoch(0)
        return (self.batch_at(index, plan) for index in range(len(self)))

    def part(self, dist: Dist) -> ArrayBatches | None:
        """Return a source of one process's rows of each of these batches; None where a batch has to be built whole.

        A `transform` sees whole batches, so that it draws the same numbers at any number of processes.

        Args:
            dist: the process. Every batch must be full, and its size divisible by the number of processes.
        """
        if self.transform is not None or self.last_batch_size != self.batch_size:
            return None
        part = copy.copy(self)
        part._dist = dist
        return part

    def resident_arrays(self, *, wrapped: bool = False) -> ResidentArrays | None:
        """Return the arrays to keep on the device, or None where batches are streamed.

        Args:
            wrapped: whether the user chose how to prefetch the split, which asks for streaming
                unless `resident` is True.
        """
        small = self.transform is None and self.nbytes <= RESIDENT_LIMIT and not self._own_batches()
        if not (self.resident or (self.resident is None and small and not wrapped)):
            return None
        sizes = (self.batch_size,) * (len(self) - 1) + (self.last_batch_size,)
        # Its own mapping where it can be, so that a device that is the host shares the arrays.
        arrays = self.arrays if self.rows is None else self.selected()
        return ResidentArrays(arrays, min(self.batch_size, self.samples), sizes, self._order)

    def _picked(self, plan: ArrayPlan, samples: slice) -> slice | np.ndarray:
        """The rows of the arrays that samples of an epoch are."""
        if plan.order is None:
            return samples if self.rows is None else self.rows[samples]
        return plan.order[samples] if self.rows is None else self.rows[plan.order[samples]]

    def _buffers(self, array: np.ndarray) -> BatchBuffers:
        return BatchBuffers((len(self._dist.range(self.batch_size)), *array.shape[1:]), array.dtype)

    def _seed(self, seed: int | None) -> int:
        if self.seed is not None:
            return self.seed
        return 0 if seed is None else seed

    def _order(self, epoch: int, seed: int) -> np.ndarray:
        return epoch_order(self.samples, seed=self._seed(seed), epoch=epoch, shuffle=self.shuffle)


def _gather(
    arrays: Mapping[str, np.ndarray], picked: np.ndarray, buffers: Mapping[str, BatchBuffers], *, full: int
) -> dict[str, np.ndarray]:
    batch = {}
    for name, array in arrays.items():
        buffer = buffers[name]
        out = buffer.take() if len(picked) == full and buffer.worthwhile else None
        # The order holds valid rows only; `clip` spares the bounds check and its extra copy.
        batch[name] = array.take(picked, axis=0, out=out, mode="clip")
    return batch


def _checked_batch_size(batch_size: Any) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise DataError(
            f"`batch_size` is {batch_size!r}", where="ArrayBatches(batch_size=)", fix="give a whole number, 1 or more"
        )
    return int(batch_size)


def _checked_rows(rows: Any, held: int) -> np.ndarray:
    given = np.asarray(rows)
    problem = None
    if given.shape == (0,):
        problem = "`rows` names no row"
    elif given.ndim != 1 or given.dtype.kind not in "iu":
        problem = f"`rows` is {given.dtype}{list(given.shape)}"
    elif given.min() < 0 or given.max() >= held:
        problem = f"`rows` has {given.min() if given.min() < 0 else given.max()}, and the arrays have {held} rows"
    if problem is not None:
        raise DataError(problem, where="ArrayBatches(rows=)", fix="give the row numbers of the samples, int (n,)")
    own = given.astype(np.int64)
    own.flags.writeable = False
    return own


def _checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise DataError(f"`seed` is {seed!r}", where="ArrayBatches(seed=)", fix="give a whole number, or None")
    return int(seed)


def _checked_arrays(arrays: Any) -> dict[str, np.ndarray]:
    where = "ArrayBatches(arrays=)"
    if not isinstance(arrays, Mapping) or not arrays:
        raise DataError(
            f"`arrays` is {'an empty mapping' if isinstance(arrays, Mapping) else type(arrays).__name__}",
            where=where,
            fix="give a mapping from field name to array, such as {'image': images, 'label': labels}",
        )
    views: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        views[name] = _checked_array(name, array, where)
    lengths = {name: len(view) for name, view in views.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"`{name}` {length}" for name, length in lengths.items())
        raise DataError(
            f"the arrays have different lengths: {shown}",
            where=where,
            why="row i of every array belongs to sample i",
            fix="cut the arrays to one length, sample dimension first",
        )
    if not next(iter(lengths.values())):
        raise DataError("the arrays hold no samples", where=where, fix="leave the split out, or give it data")
    return views


def _checked_array(name: Any, array: Any, where: str) -> np.ndarray:
    place = f"{where}, field `{name}`"
    if not isinstance(name, str) or not name.isidentifier():
        raise DataError(
            f"{name!r} cannot name a batch field",
            where=where,
            why="hooks ask for fields by keyword",
            fix="use a valid Python identifier",
            nearest=nearest(str(name), [str(name).replace("-", "_").replace(" ", "_")]),
        )
    if not isinstance(array, np.ndarray):
        raise DataError(
            f"field `{name}` is a {type(array).__name__}, not a numpy array",
            where=place,
            fix="convert it once: np.asarray(value)",
        )
    if array.dtype == object:
        raise DataError(
            f"field `{name}` has dtype object",
            where=place,
            why="an array of Python objects has no fixed layout: it can be neither gathered fast nor moved to a device",
            fix="encode it as numbers or fixed-width text, or pad ragged rows to one length",
        )
    if array.ndim == 0:
        raise DataError(f"field `{name}` is a scalar", where=place, fix="give every array a leading sample dimension")
    view = np.asarray(array)[:]
    view.flags.writeable = False
    return view
