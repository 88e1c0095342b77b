"""Where arrays live: the devices of a run, its mesh, and moving batches and trees onto them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from nitro_cli.data import ResidentArrays
from nitro_cli.distributed import gather_bytes, host_array, process_count
from nitro_cli.errors import ConfigError, DataError, nearest
from nitro_cli.programs import ArrayLayout

__all__ = ["DeviceReport", "Placement", "setup_devices"]

_pinned: int | None = None


@dataclass(frozen=True)
class DeviceReport:
    """What `setup_devices` found: backend name, visible devices, devices a run will use, whether that was pinned."""

    backend: str
    visible: tuple[str, ...]
    n_devs: int
    pinned: bool


def setup_devices(backend: str | None = None, n_devs: int | None = None) -> DeviceReport:
    """Choose the backend and the number of devices for every later run of this process, or just report them.

    Args:
        backend: a JAX platform (`cpu`, `gpu`, `tpu`); it can only be chosen before the first array exists.
        n_devs: local devices a run uses unless it says its own `n_devs`.

    Raises:
        ConfigError: the backend is not available, or fewer devices are visible than asked for.
    """
    global _pinned
    if backend is not None and not isinstance(backend, str):
        raise ConfigError(f"the backend {backend!r} is no text", fix="give cpu, gpu or tpu")
    if backend is not None:
        jax.config.update("jax_platforms", backend)
    try:
        visible = jax.local_devices()
    except RuntimeError as error:
        raise ConfigError(
            f"the backend {backend!r} is not available",
            why=str(error).splitlines()[0],
            nearest=nearest(str(backend), ["cpu", "gpu", "cuda", "rocm", "tpu"]),
        ) from error
    if backend is not None and jax.default_backend() not in (backend, {"cuda": "gpu", "rocm": "gpu"}.get(backend)):
        raise ConfigError(
            f"the process already runs on {jax.default_backend()}",
            why="JAX chooses its backend once, at the first array",
            fix=f"call setup_devices(backend={backend!r}) before anything else",
        )
    if n_devs is not None:
        _check_count(n_devs, len(visible))
        _pinned = n_devs
    return DeviceReport(
        jax.default_backend(), tuple(str(device) for device in visible), _pinned or len(visible), _pinned is not None
    )


def _check_count(n_devs: int, visible: int) -> None:
    if not isinstance(n_devs, int) or isinstance(n_devs, bool) or not 1 <= n_devs <= visible:
        raise ConfigError(
            f"n_devs = {n_devs}, but {visible} device{'s are' if visible != 1 else ' is'} visible",
            fix=f"choose 1 to {visible}, or leave n_devs unset for all",
        )


@dataclass(frozen=True)
class Placement:
    """Where a run's arrays go.

    Attributes:
        devices: the devices of the run.
        layout: how arrays lie on several devices; None on one.
    """

    devices: tuple[jax.Device, ...]
    layout: ArrayLayout | None = None

    @classmethod
    def choose(cls, n_devs: int | None, sharding: str = "replicated") -> Placement:
        """The placement on the first `n_devs` local devices; None takes the pinned number, or all."""
        visible = jax.local_devices()
        count = n_devs if n_devs is not None else (_pinned or len(visible))
        _check_count(count, len(visible))
        devices = _of_all_processes(visible[:count])
        if len(devices) == 1:
            return cls(devices)
        return cls(devices, ArrayLayout.over(devices, fsdp=sharding == "fsdp"))

    @property
    def count(self) -> int:
        """How many devices share each batch."""
        return len(self.devices)

    @property
    def replicated(self) -> Sharding:
        """For everything that each device holds whole."""
        return SingleDeviceSharding(self.devices[0]) if self.layout is None else self.layout.replicated

    @property
    def sharded(self) -> Sharding:
        """For batches, split on their first axis."""
        return SingleDeviceSharding(self.devices[0]) if self.layout is None else self.layout.batch

    def check_batch_size(self, split: str, batch_size: int) -> None:
        """Refuse a global batch size that the devices cannot share evenly."""
        if batch_size % self.count:
            raise DataError(
                f"batches of {batch_size} do not divide by {self.count} devices",
                where=f"split {split!r}",
                fix=f"choose a batch size that is a multiple of {self.count}, or another n_devs"
                + (f" for each of the {process_count()} processes" if process_count() > 1 else ""),
            )

    def width(self, size: int) -> int:
        """The smallest batch size, `size` or more, that the devices can share evenly."""
        return -(-size // self.count) * self.count

    def put(self, tree: Any) -> Any:
        """Copy a tree of host arrays to every device of the run."""
        if process_count() > 1:
            return jax.tree.map(lambda leaf: _spread(leaf, self.replicated), tree)
        return jax.device_put(tree, self.replicated)

    def put_parameters(self, tree: Any) -> Any:
        """Move parameters, or what is shaped like them, to where they lie between steps."""
        layout = self.layout
        if layout is None or not layout.fsdp:
            return self.put(tree)
        place = _spread if process_count() > 1 else jax.device_put
        return jax.tree.map(lambda leaf: place(leaf, layout.leaf(np.shape(leaf))), tree)

    @cached_property
    def on_host(self) -> bool:
        """Whether the one device is the host itself, where no batch has to be moved."""
        return self.layout is None and self.devices[0].platform == "cpu"

    def put_batch(self, batch: Mapping[str, np.ndarray], size: int | None = None) -> dict[str, Any]:
        """Move one batch, its rows spread over the devices; where these are the host itself it stays as it is.

        Args:
            batch: the fields; with several processes whole, or this process's rows of it.
            size: rows of the whole batch; None for those that there are.
        """
        if process_count() > 1:
            return {name: _spread_rows(array, self.sharded, size or len(array)) for name, array in batch.items()}
        if self.on_host:
            # The program reads host memory where it is; a copy made beforehand costs more than the whole call.
            return {name: _canonical(array) for name, array in batch.items()}
        return jax.device_put(dict(batch), self.sharded)

    def put_window(self, fields: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Move batches that lie one behind the other, `[batches, rows, ...]` by field, as `put_batch` moves one.

        Args:
            fields: of one process, in the dtypes of the device.
        """
        if self.on_host:
            return dict(fields)
        place = SingleDeviceSharding(self.devices[0]) if self.layout is None else self.layout.window
        return jax.device_put(dict(fields), place)

    def put_resident(self, resident: ResidentArrays, fields: Collection[str]) -> dict[str, jax.Array]:
        """Copy the arrays of a split to every device; a device that is the host shares them with their source."""
        placed: dict[str, jax.Array] = {}
        for name in [name for name in resident.arrays if name in fields]:
            placed[name] = self.put(resident.arrays[name])
            if self.on_host:
                resident.share(name, np.asarray(placed[name]))
        return placed

    def put_each(self, value: np.generic) -> jax.Array:
        """One number of this process beside those of the others: an array of one entry per device."""
        mine = np.full(self.count // process_count(), value)
        return jax.make_array_from_process_local_data(self.sharded, mine, (self.count,))

    def described(self, params: Any) -> str:
        """How the parameters lie, for the report."""
        layout = self.layout
        if layout is None or not layout.fsdp:
            return "whole on each device"
        leaves = jax.tree.leaves(params)
        total = sum(leaf.nbytes for leaf in leaves)
        held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
        return f"fsdp: {held:,} of {total:,} bytes on each device"


def _canonical(array: np.ndarray) -> np.ndarray:
    """The array in the dtype that JAX would give it."""
    if array.dtype.itemsize < 8:
        return array
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def _of_all_processes(local: Sequence[jax.Device]) -> tuple[jax.Device, ...]:
    """The devices of the run: as many of every process, in the order of the processes."""
    if process_count() == 1:
        return tuple(local)
    ids = [json.loads(text) for text in gather_bytes(json.dumps([device.id for device in local]).encode())]
    counts = sorted({len(found) for found in ids})
    if len(counts) > 1:
        raise ConfigError(
            f"the processes have {' and '.join(map(str, counts))} devices each",
            why="every process takes an equal part of each batch",
            fix=f"set n_devs = {counts[0]} in all of them",
        )
    known = {device.id: device for device in jax.devices()}
    return tuple(known[number] for found in ids for number in found)


def _spread(leaf: Any, sharding: Sharding) -> jax.Array:
    """One array, held by every process, onto devices of all."""
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _spread(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    whole = host_array(leaf)
    whole = _canonical(whole)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _spread_rows(array: np.ndarray, sharding: Sharding, size: int) -> jax.Array:
    """This process's rows of a batch onto its devices."""
    count = process_count()
    if len(array) == size:
        share = size // count
        array = array[jax.process_index() * share :][:share]
    array = _canonical(array)
    return jax.make_array_from_process_local_data(sharding, array, (size, *array.shape[1:]))
