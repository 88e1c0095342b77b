"""A split after setup: what it yields, how it is prefetched, and its streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nitro_cli.data.arrays import ArrayBatches
from nitro_cli.data.batches import BatchCheck, FieldSpec, OwnCheck, check_device_fields, refuse_problem
from nitro_cli.data.device_values import check_device_values, narrowed_fields
from nitro_cli.data.dist import Dist
from nitro_cli.data.first_batch import first_batch
from nitro_cli.data.identity import SplitIdentity, batch_digest
from nitro_cli.data.prefetch import PrefetchStream
from nitro_cli.data.resident import ResidentArrays
from nitro_cli.data.sources import Reader, reader_of
from nitro_cli.data.stream import BatchStream, InlineStream, StreamPlan
from nitro_cli.data.windows import WindowPlan
from nitro_cli.errors import DataError, warn
from nitro_cli.text import exception_text

__all__ = ["Padding", "PrefetchPlan", "Split", "release_splits"]


@dataclass(frozen=True)
class PrefetchPlan:
    """The settings that a split resolved to, for the setup report and the logged parameters.

    Args:
        path: "indexed" (producers by batch index), "list" (batches that exist already), "iterator"
            (one producer over the source's own iteration) or "inline" (no prefetch).
        workers: producer threads; 0 inline.
        device_batches: batches staged on the device; 0 inline.
        host_batches: batches built and not yet on the device; 0 inline.
        ordered: whether batches arrive in the source's order.
        skips_on_reentry: whether a resume inside an epoch reads the batches before it again.
        note: what the setup report should say beside; None is nothing.
        window: the most batches of a window; None where time and memory alone limit it.
        follows: whether the run decides if `workers` build at all, where the device is the host: nothing else was asked
            for.
    """

    path: str
    workers: int
    device_batches: int
    host_batches: int
    ordered: bool
    skips_on_reentry: bool = False
    note: str | None = None
    window: int | None = None
    follows: bool = False


@dataclass(frozen=True)
class Padding:
    """What of a padded epoch is real.

    Attributes:
        full: batches without padding.
        rest: real samples of the batch after them; what follows has none.
        split: the split as it is, for passes that need no whole steps.
    """

    full: int
    rest: int
    split: Split


@dataclass(frozen=True)
class Split:
    """One split of `build_data`, inspected.

    Args:
        name: name of the split.
        source: the user's data source, without `Prefetch` or `NoPrefetch`.
        batches: number of batches of an epoch.
        batch_size: samples of the first batch, for which programs are compiled.
        fields: specification of each batch field.
        example: the first batch, on the host.
        prefetch: how its batches reach the loop.
        resident: the arrays to keep on the device instead, None where batches are streamed.
        train: whether batches shorter than `batch_size` are refused.
        recognisable: whether its first batch can tell it from other data: it repeats, and is that of the whole split.
        apart: whether every process of several has samples of its own.
        padding: what is real of a train split that ends in a short batch or in the middle of a step, whose `batches`
            are padded to whole steps; None where all is.
    """

    name: str
    source: Any
    batches: int
    batch_size: int
    fields: Mapping[str, FieldSpec]
    example: Mapping[str, Any]
    prefetch: PrefetchPlan
    resident: ResidentArrays | None
    train: bool
    _reader: Reader = field(repr=False)
    _rows: int | None = field(default=None, repr=False)
    recognisable: bool = True
    apart: bool = False
    _own_check: OwnCheck | None = field(default=None, repr=False)
    padding: Padding | None = None

    @cached_property
    def identity(self) -> SplitIdentity:
        """The facts by which a resume knows the split again."""
        return SplitIdentity(
            rows=self._samples(),
            batch_size=self.batch_size,
            batches=self.batches,
            order=self._reader.order,
            first_batch=batch_digest(self.example) if self.recognisable else None,
        )

    def _samples(self) -> int | None:
        """Samples of the whole split, where the source says it or its batches do."""
        reader = self._reader
        if reader.rows is not None:
            return reader.rows
        if isinstance(self.source, list | tuple):
            sizes = [len(next(iter(batch.values()), ())) if isinstance(batch, Mapping) else 0 for batch in self.source]
            return sum(sizes)
        return self.batches * self.batch_size if self.train else None

    def begins_alike(self, seed: int) -> bool:
        """Draw the first batch once more and say whether it is the same: a source that varies cannot be compared.

        Raises:
            DataError: the source can be read only once.
        """
        try:
            again = first_batch(self.name, self._reader, seed)
        except DataError as error:
            if not isinstance(error.__cause__, StopIteration):
                raise
            raise DataError(
                "the source can be read only once: its second pass gives no batch",
                where=f"split `{self.name}`, batch 0",
                why="setup draws the first batch, and every epoch starts over",
                fix="let __iter__ start over each time it is called",
            ) from error
        return batch_digest(again) == batch_digest(self.example)

    def checked_for_own_order(self, seed: int) -> Split:
        """Compare two passes of a source that only iterates; one whose order is its own is said to be so.

        Args:
            seed: seed of the run.

        Raises:
            DataError: the source can be read only once.
        """
        if not self._reader.skips_on_reentry or self.begins_alike(seed):
            return self
        own = "two passes of one epoch and seed begin with different batches: its order is its own"
        warn(
            f"split `{self.name}`: {own}, and a resume cannot repeat it. Draw the order from the epoch (set_epoch), or "
            "define begin_epoch(epoch, seed) and batch_at(index, plan)"
        )
        note = f"{self.prefetch.note}; {own}, and a resume cannot repeat it"
        return replace(self, recognisable=False, prefetch=replace(self.prefetch, note=note))

    def part(self, dist: Dist) -> Split:
        """The same split read for one process of several: only its rows of each batch, where the source can do that.

        Other sources are read whole in every process, and each takes its rows as it moves them to its devices.

        Args:
            dist: the process; `batch_size` is divisible by the number of processes.
        """
        whole = not isinstance(self.source, ArrayBatches) or not self.train or self.padding is not None
        source = None if whole else self.source.part(dist)
        if source is None:
            return self
        return replace(self, _reader=reader_of(self.name, source), _rows=len(dist.range(self.batch_size)))

    def beside_others(self, processes: int) -> Split:
        """The same split where the source of every process yields its own part: a whole batch is all their rows."""
        return replace(
            self,
            batch_size=self.batch_size * processes,
            recognisable=False,
            apart=True,
            _reader=replace(self._reader, rows=None),
            _rows=self.batch_size,
        )

    def whole(self) -> Split:
        """The same split with whole batches in every process, as evaluation takes them.

        Raises:
            DataError: every process has samples of its own.
        """
        if self.apart:
            raise DataError(
                "every process has samples of its own, and no process a whole batch",
                where=f"split `{self.name}`",
                why="evaluation takes the same whole batches in every process",
                fix="return the samples to evaluate as a split that is the same in every process",
            )
        if self.padding is not None:
            return replace(self.padding.split, _own_check=self._own_check)
        return self if self._rows is None else replace(self, _reader=reader_of(self.name, self.source), _rows=None)

    def check_device_fields(self, device_fields: Collection[str]) -> None:
        """Refuse fields that a traced hook declares and that no device can hold.

        Args:
            device_fields: fields that some traced hook declares.

        Raises:
            DataError: such a field holds objects, text, dates or bytes in foreign order.
        """
        check_device_fields(f"split `{self.name}`, batch 0", self.fields, frozenset(device_fields))

    def check_device_values(self, device_fields: Collection[str], seed: int) -> None:
        """Refuse values that the device would change: in the first batch, and in arrays that stay on the device.

        Args:
            device_fields: fields that some traced hook declares.
            seed: seed of the run, by which the batch of a resident row is named.

        Raises:
            DataError: a number does not fit; split, batch, row, field and value are named.
        """
        narrowed = narrowed_fields(self._dtypes(), device_fields)
        check_device_values(f"split `{self.name}`, batch 0", self.example, narrowed)
        if self.resident is not None:
            self.resident.check_values(self.name, narrowed, epoch=int(self.train), seed=seed)

    def checked_by(self, check: OwnCheck, seed: int) -> Split:
        """The same split, each batch of which the producers give to a check.

        The first batch is given to it now; and so are arrays that stay on the device, whose batches are not looked at
        again.

        Args:
            check: what the experiment has to say against a batch.
            seed: seed of the run, by which the batch of a resident row is named.

        Raises:
            DataError: it has something to say; split, batch and row are named.
        """
        refuse_problem(f"split `{self.name}`, batch 0", check(self.example))
        if self.resident is None:
            return replace(self, _own_check=check)
        found = check(self.resident.arrays)
        if found is not None:
            place = self.resident.place(self.name, found.row or 0, epoch=int(self.train), seed=seed)
            refuse_problem(place, replace(found, row=None))
        return self

    @property
    def enters_anywhere(self) -> bool:
        """Whether a pass can be left and entered again at any batch without reading those before it."""
        return self._reader.open_indexed is not None

    def _dtypes(self) -> dict[str, Any]:
        return {name: spec.dtype for name, spec in self.fields.items()}

    def stream(
        self,
        *,
        epoch: int,
        seed: int,
        prepare: Callable[[int, Any], Any] | None = None,
        start: int = 0,
        device_fields: Collection[str] = frozenset(),
        state: Any = None,
        ahead: bool = True,
        windows: WindowPlan | None = None,
        producers: bool | None = None,
    ) -> BatchStream:
        """Start one pass over the split.

        Args:
            epoch: epoch from 1; 0 for an evaluation pass.
            seed: seed of the run; a seed of the source itself goes before it.
            prepare: `prepare(index, host_batch)`, called for one batch at a time by the transfer thread
                (by the loop under NoPrefetch or without `ahead`): pads and moves to the device.
            start: first batch to deliver; batches before it are not, as in a resume inside an epoch.
            device_fields: fields that some traced hook declares.
            ahead: whether `prepare` runs ahead of the loop, in a thread; without it the loop calls `prepare`.
            state: the source's iterator state after batch `start - 1`, as `StreamItem.state` gave it.
            windows: how batches are gathered; None delivers them one by one.
            producers: whether threads build the batches, where the split's prefetch leaves that open and `prepare` does
                not run ahead; None is true but for arrays in memory.

        Returns:
            An iterator of `StreamItem`, with `windows` of `WindowItem` until a batch has another shape than the first;
            to be used as a context manager.

        Raises:
            DataError: `start` is outside of the epoch, the source's length has changed, or a device
                field cannot be moved.
        """
        if not 0 <= start <= self.batches:
            raise DataError(
                f"batch {start} does not exist", where=f"split `{self.name}`", why=f"it has {self.batches} batches"
            )
        self.check_device_fields(device_fields)
        rows = self.batch_size if self._rows is None else self._rows
        narrowed = narrowed_fields(self._dtypes(), device_fields)
        own = self._own_check
        check = BatchCheck(self.name, self.fields, rows, frozenset(device_fields), self.train, narrowed, own)
        plan = StreamPlan(self.name, self._reader, epoch, seed, start, state, check, prepare, windows)
        how = self.prefetch
        if producers is None:
            producers = self._reader.open_filling is None
        if how.path == "inline" or (how.follows and not ahead and not producers):
            return InlineStream(plan)
        return PrefetchStream(
            plan,
            workers=how.workers,
            host_batches=how.host_batches,
            device_batches=how.device_batches if ahead else None,
            ordered=how.ordered,
        )


def release_splits(splits: Iterable[Split] | Mapping[str, Split]) -> None:
    """Call `release()` of each split's source that has one, once per source.

    An error there is a warning; the others are still released.

    Args:
        splits: inspected splits, or a mapping of them.
    """
    seen: set[int] = set()
    for split in splits.values() if isinstance(splits, Mapping) else splits:
        release = getattr(split.source, "release", None)
        if not callable(release) or id(split.source) in seen:
            continue
        seen.add(id(split.source))
        try:
            release()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            message = f"split `{split.name}`: release() of its source failed: {exception_text(error)}"
            warn(message)
