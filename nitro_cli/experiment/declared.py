"""What parts of an experiment tell each other, so that what follows from the data need not be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nitro_cli.errors import ConfigError

from .content import same_content

__all__ = ["Declared", "RowSpec", "agreed"]


@dataclass(frozen=True)
class RowSpec:
    """One row of a batch field.

    Attributes:
        shape: without the batch axis.
        dtype: numpy's name of the element type.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Declared:
    """What a part tells the others; None where it says nothing.

    Attributes:
        inputs: the batch fields that a network takes, in order.
        target: the batch field of the targets.
        labels: the names of the classes or targets, in order.
        num_classes, num_targets: how many there are.
        outputs: the width of the network's output.
        vocab_size: how many ids a tokenizer has.
        length: tokens in a row.
    """

    inputs: tuple[str, ...] | None = None
    target: str | None = None
    labels: tuple[str, ...] | None = None
    num_classes: int | None = None
    num_targets: int | None = None
    outputs: int | None = None
    vocab_size: int | None = None
    length: int | None = None


def agreed(said: Mapping[str, Declared]) -> Declared:
    """What several parts say together.

    Args:
        said: what each says, by the part's dotted name.

    Raises:
        ConfigError: two say something else of one thing; both are named with what they say.
    """
    found: dict[str, tuple[str, Any]] = {}
    for path, declared in said.items():
        for name in (field.name for field in fields(Declared)):
            value = getattr(declared, name)
            if value is None:
                continue
            other, held = found.setdefault(name, (path, value))
            if not same_content(held, value):
                raise ConfigError(
                    f"{other} has {name} = {held!r}, and {path} has {name} = {value!r}",
                    where=f"{other}, {path}",
                    fix=f"leave it out of {path}, where it then follows from {other}, or write what {other} has",
                )
    return Declared(**{name: value for name, (_, value) in found.items()})
