"""`torch.utils.data.DataLoader` as a data source.

A loader over a map-style dataset is read through a loader of our own for each epoch: the same dataset,
collation and workers, but with the epoch's batches drawn from (seed, epoch), and with the random numbers
of each batch seeded by (seed, epoch, batch index). So an epoch repeats bitwise at any `num_workers`, and
can be entered at any batch.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from nitro_cli.data.order import batch_rng
from nitro_cli.data.worker_processes import block_group_signals, ignore_group_signals
from nitro_cli.errors import DataError

__all__ = ["TorchIterableBatches", "TorchMapBatches", "torch_batches"]

_ORDER = -1


def torch_batches(name: str, loader: Any, batches: int | None) -> TorchMapBatches | TorchIterableBatches:
    """Return the data source for a loader.

    Args:
        name: name of the split.
        loader: the loader.
        batches: batches of an epoch; None is the loader's own length.

    Raises:
        DataError: the loader has no length.
    """
    from torch.utils.data import IterableDataset

    if batches is None:
        try:
            batches = len(loader)
        except TypeError as error:
            raise DataError(
                "the DataLoader has no length, since its dataset has none",
                where=f"split `{name}`",
                why="the number of batches of an epoch fixes the schedules' horizon at setup",
                fix="define __len__ on the dataset, or return nitro_cli.data.WithLength(loader, batches)",
            ) from error
    if isinstance(loader.dataset, IterableDataset):
        return TorchIterableBatches(name, loader, batches)
    return TorchMapBatches(name, loader, batches)


class TorchIterableBatches:
    """A loader over an iterable dataset, read in order.

    Args:
        name: name of the split.
        loader: the loader.
        batches: batches of an epoch.
    """

    skips_on_reentry = True
    note = "the torch dataset iterates only: one producer, and a mid-epoch resume skips batches"

    def __init__(self, name: str, loader: Any, batches: int) -> None:
        self._name, self._loader, self._batches = name, loader, batches

    def __len__(self) -> int:
        return self._batches

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        """Return an iterator at the epoch's first batch."""
        from torch.utils.data import DataLoader

        loader = self._loader
        if type(loader) is DataLoader:
            # One of its own for each epoch: closing an iterator ends persistent workers for good.
            settings = _worker_settings(loader) | {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
            loader = DataLoader(loader.dataset, **settings)
        with _seeded(seed, epoch, _ORDER):
            iterator = _started(loader)
        return _NumpyIterator(iterator, self._name, 0), 0


class TorchMapBatches:
    """A loader over a map-style dataset, entered at any batch.

    Args:
        name: name of the split.
        loader: the loader.
        batches: batches of an epoch.
    """

    skips_on_reentry = False

    def __init__(self, name: str, loader: Any, batches: int) -> None:
        self._name, self._loader, self._batches = name, loader, batches
        self.note = None
        if loader.persistent_workers:
            self.note = "persistent_workers has no effect: the torch workers start anew for each epoch"

    def __len__(self) -> int:
        return self._batches

    @property
    def samples(self) -> int | None:
        """Samples of an epoch; None where the loader's sampler does not tell."""
        sampler = getattr(self._loader.batch_sampler, "sampler", self._loader.sampler)
        return len(sampler) if hasattr(sampler, "__len__") else None

    @property
    def order(self) -> str:
        """The kind of the loader's sampler, and its own seed where it has one."""
        sampler = getattr(self._loader.batch_sampler, "sampler", self._loader.sampler)
        generator: Any = getattr(sampler, "generator", None)
        seed = generator.initial_seed() if callable(getattr(generator, "initial_seed", None)) else None
        return type(sampler).__name__ + ("" if seed is None else f" with the seed {seed}")

    @property
    def last_batch_size(self) -> int | None:
        """Number of samples in the last batch; None where the loader's sampler does not tell."""
        sampler = self._loader.batch_sampler
        if not hasattr(sampler, "drop_last") or not hasattr(getattr(sampler, "sampler", None), "__len__"):
            return None
        rest = len(sampler.sampler) % sampler.batch_size
        return sampler.batch_size if sampler.drop_last or rest == 0 else rest

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        """Return an iterator at batch `start` of the epoch."""
        from torch.utils.data import DataLoader

        loader = self._loader
        plan = list(enumerate(_draw_order(loader, seed, epoch)))[start:]
        settings = _worker_settings(loader)
        if loader.batch_sampler is None:
            settings |= {"batch_size": None, "sampler": plan}
        else:
            settings["batch_sampler"] = plan
        dataset: Any = _SeededDataset(loader.dataset, seed, epoch)  # torch asks for no more than its two methods
        with _seeded(seed, epoch, _ORDER):
            iterator = _started(DataLoader(dataset, **settings))
        return _NumpyIterator(iterator, self._name, start), start


def _worker_settings(loader: Any) -> dict[str, Any]:
    """How the loader's workers work, for another loader."""
    settings: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "timeout": loader.timeout,
        "worker_init_fn": _WorkerStart(loader.worker_init_fn),
        "multiprocessing_context": loader.multiprocessing_context,
    }
    if loader.num_workers > 0:
        settings["prefetch_factor"] = loader.prefetch_factor
    return settings


def _started(loader: Any) -> Iterator[Any]:
    """The loader's iterator, its workers started by a thread that is not the main one.

    There PyTorch installs a handler that raises wherever the main thread stands when a worker dies; and the workers
    inherit that signals to the whole group are held back.
    """
    if loader.num_workers == 0 or threading.current_thread() is not threading.main_thread():
        return iter(loader)
    started: list[Any] = []

    def start() -> None:
        block_group_signals()
        try:
            started.append(iter(loader))
        except BaseException as error:
            started.append(_Failed(error))

    thread = threading.Thread(target=start, name="nitro-data-torch-start")
    thread.start()
    thread.join()
    if isinstance(started[0], _Failed):
        raise started[0].error
    return cast("Iterator[Any]", started[0])


@dataclass(frozen=True)
class _Failed:
    error: BaseException


def _draw_order(loader: Any, seed: int, epoch: int) -> list[Any]:
    drawn = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    with contextlib.ExitStack() as stack:
        samplers: tuple[Any, ...] = (drawn, getattr(drawn, "sampler", None))
        for sampler in samplers:
            generator: Any = getattr(sampler, "generator", None)
            if callable(getattr(generator, "initial_seed", None)):
                # The sampler's own seed goes before the run's, mixed with the epoch: not with how often
                # the sampler was iterated before.
                kept, own = generator.get_state(), generator.initial_seed()
                stack.callback(generator.set_state, kept)
                # `manual_seed` changes `initial_seed`, which the state restores.
                generator.manual_seed(_torch_seed(own, epoch, _ORDER))
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
        stack.enter_context(_seeded(seed, epoch, _ORDER))
        return list(drawn)


class _SeededDataset:
    """The user's dataset, asked for (batch index, sample indices), its random numbers seeded by batch."""

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self._dataset, self._seed, self._epoch = dataset, seed, epoch

    def __getitems__(self, request: tuple[int, list[Any]]) -> Any:
        index, samples = request
        with _seeded(self._seed, self._epoch, index):
            many = getattr(self._dataset, "__getitems__", None)
            return many(samples) if callable(many) else [self._dataset[sample] for sample in samples]

    def __getitem__(self, request: tuple[int, Any]) -> Any:
        index, sample = request
        with _seeded(self._seed, self._epoch, index):
            return self._dataset[sample]


class _WorkerStart:
    """Runs in each torch worker first: the run's signals are for the main process alone."""

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        # What reaches the whole process group is the run's: the worker must serve the step that it still finishes.
        ignore_group_signals()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._user is not None:
            self._user(worker)


class _NumpyIterator:
    """A loader's iterator whose tensors are numpy arrays."""

    def __init__(self, iterator: Any, name: str, start: int) -> None:
        self._iterator, self._name, self._index = iterator, name, start

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        where = f"split `{self._name}`, batch {self._index}"
        self._index += 1
        if isinstance(batch, Mapping):
            return {name: _as_numpy(value, f"{where}, field `{name}`") for name, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            raise DataError(
                f"the DataLoader yields a {type(batch).__name__} of {len(batch)} entries, which have no names",
                where=where,
                why="hooks ask for fields by name",
                fix="return dicts from the dataset's __getitem__ ({'image': x, 'label': y}), or from collate_fn",
            )
        return batch

    def close(self) -> None:
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if callable(shutdown):
            shutdown()


def _as_numpy(value: Any, where: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        try:
            return value.detach().cpu().numpy()
        except TypeError as error:
            raise DataError(
                f"a tensor of dtype {value.dtype} has no numpy form",
                where=where,
                why=str(error),
                fix="keep it in another dtype in the dataset, and cast in a traced hook",
            ) from error
    if isinstance(value, list) and all(isinstance(entry, (str, bytes)) for entry in value):
        return np.array(value)
    return value


@contextlib.contextmanager
def _seeded(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Seed the global generators that torch datasets draw from, and give them back as they were."""
    import torch

    kept = torch.get_rng_state(), random.getstate(), np.random.get_state()
    mixed = _torch_seed(seed, epoch, index)
    torch.default_generator.manual_seed(mixed)
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])


def _torch_seed(seed: int, epoch: int, index: int) -> int:
    return int(batch_rng(seed=seed, epoch=epoch, index=index + 1).integers(2**63 - 1))
