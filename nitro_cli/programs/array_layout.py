"""How the arrays of a program lie on several devices: batches split, parameters whole or in parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nitro_cli.programs.models.adapted import PyTree

__all__ = ["ArrayLayout"]


DATA_AXIS = "data"
"""Name of the mesh axis that batches are split over, and parameters under `fsdp`."""

SMALLEST_SHARDED = 4096
"""Elements below which a leaf stays whole: gathering it would cost more than it saves."""


@dataclass(frozen=True)
class ArrayLayout:
    """Where each array of a program lies on a mesh of one axis.

    Batches are split along their first axis. Parameters, and what is shaped like them (gradients, optimizer state,
    averages), are whole on every device, or with `fsdp` each is split along its largest axis that the devices divide.
    A leaf's place follows from its shape alone, so the optimizer state lies as its parameters do. Only the ends of a
    program are held in place; how it computes between them is the compiler's choice, which in our measurements needed
    less memory than gathering each parameter by hand, once or twice.

    Attributes:
        mesh: the devices.
        fsdp: whether parameters are split.
    """

    mesh: Mesh
    fsdp: bool = False

    @classmethod
    def over(cls, devices: Sequence[jax.Device], *, fsdp: bool = False) -> ArrayLayout:
        """The layout on `devices`, in their order."""
        return cls(Mesh(np.array(devices), (DATA_AXIS,), axis_types=(AxisType.Auto,)), fsdp)

    @property
    def replicated(self) -> NamedSharding:
        """Whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """Split along the first axis."""
        return NamedSharding(self.mesh, PartitionSpec(DATA_AXIS))

    @property
    def window(self) -> NamedSharding:
        """Batches one behind the other, each split along its first axis."""
        return NamedSharding(self.mesh, PartitionSpec(None, DATA_AXIS))

    def leaf(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where a parameter of this shape lies."""
        count = self.mesh.size
        divisible = [axis for axis, size in enumerate(shape) if size % count == 0]
        if not self.fsdp or math.prod(shape) < SMALLEST_SHARDED or not divisible:
            return self.replicated
        largest = max(divisible, key=lambda axis: shape[axis])
        return NamedSharding(self.mesh, PartitionSpec(*[None] * largest, DATA_AXIS))

    # Inside a traced function

    def keep(self, tree: PyTree) -> PyTree:
        """Hold parameters, or what is shaped like them, where they lie between steps."""
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, self.leaf(leaf.shape)), tree)

    def same(self, tree: PyTree) -> PyTree:
        """Hold values whole on every device."""
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, self.replicated), tree)

    def rows(self, tree: PyTree, batch_size: int) -> PyTree:
        """Hold outputs split by sample, where their first axis is the batch; whole if processes have to read them."""
        if jax.process_count() > 1:
            return self.same(tree)

        def hold(leaf: jax.Array) -> jax.Array:
            by_row = leaf.ndim > 0 and leaf.shape[0] == batch_size
            return jax.lax.with_sharding_constraint(leaf, self.batch if by_row else self.replicated)

        return jax.tree.map(hold, tree)
