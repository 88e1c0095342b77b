"""One tensor of the wire contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError

__all__ = ["ExportSpec"]


@dataclass(frozen=True)
class ExportSpec:
    """A tensor that a client sends or receives.

    Args:
        name: its name on the wire.
        dtype: its dtype (`"uint8"`, `np.float32`); required for inputs, checked against the program for outputs.
        shape: its shape, the batch axis first; the size of that axis is a placeholder. Of what a postprocess gives,
            -1 stands for any size.
        source: of an output, the leaf of `outputs` (or the wire input) that it is; the name itself when None.

    Raises:
        ConfigError: the name is empty, the dtype unknown, or the shape has no batch axis.
    """

    name: str
    dtype: Any = None
    shape: tuple[int, ...] | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"an ExportSpec is named {self.name!r}", fix="give it a non-empty name")
        if self.dtype is not None:
            try:
                object.__setattr__(self, "dtype", np.dtype(self.dtype))
            except TypeError as error:
                raise ConfigError(f"ExportSpec {self.name!r} has dtype {self.dtype!r}", why=str(error)) from None
        if self.shape is not None:
            shape = tuple(self.shape)
            if not shape or any(not _is_size(n, i) for i, n in enumerate(shape)):
                raise ConfigError(
                    f"ExportSpec {self.name!r} has shape {self.shape!r}",
                    why="a shape is whole numbers from 1 up, the batch axis first",
                    fix="for one image of 28 x 28: shape=(1, 28, 28)",
                )
            object.__setattr__(self, "shape", shape)

    @property
    def leaf(self) -> str:
        """What it comes from."""
        return self.source if self.source is not None else self.name

    def sized(self, batch: Any) -> tuple[Any, ...]:
        """The shape at a batch size, a number or a symbol."""
        assert self.shape is not None
        return (batch, *self.shape[1:])

    def as_json(self) -> dict[str, Any]:
        """The form in a manifest; the batch axis is null."""
        shape = None if self.shape is None else [None, *(None if n == -1 else n for n in self.shape[1:])]
        return {"name": self.name, "dtype": None if self.dtype is None else self.dtype.name, "shape": shape}


def _is_size(n: object, axis: int) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and (n >= 1 or (n == -1 and axis > 0))
