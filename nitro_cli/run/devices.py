"""Where arrays live: the devices of a run, its mesh, and moving batches and trees onto them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

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
    if not 1 <= n_devs <= visible:
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
        devices = tuple(visible[:count])
        if count == 1:
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
                fix=f"choose a batch size that is a multiple of {self.count}, or another n_devs",
            )

    def width(self, size: int) -> int:
        """The smallest batch size, `size` or more, that the devices can share evenly."""
        return -(-size // self.count) * self.count

    def put(self, tree: Any) -> Any:
        """Copy a tree of host arrays to every device of the run."""
        return jax.device_put(tree, self.replicated)

    def put_parameters(self, tree: Any) -> Any:
        """Move parameters, or what is shaped like them, to where they lie between steps."""
        layout = self.layout
        if layout is None or not layout.fsdp:
            return self.put(tree)
        return jax.tree.map(lambda leaf: jax.device_put(leaf, layout.leaf(np.shape(leaf))), tree)

    def put_batch(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Move one batch, its rows spread over the devices."""
        return jax.device_put(dict(batch), self.sharded)

    def described(self, params: Any) -> str:
        """How the parameters lie, for the report."""
        layout = self.layout
        if layout is None or not layout.fsdp:
            return "whole on each device"
        leaves = jax.tree.leaves(params)
        total = sum(leaf.nbytes for leaf in leaves)
        held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
        return f"fsdp: {held:,} of {total:,} bytes on each device"
