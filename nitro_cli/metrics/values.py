"""Metric values that carry their own way to combine over the batches of a split."""

from __future__ import annotations

from typing import Any, ClassVar

from nitro_cli.errors import MetricError

__all__ = ["INT64_LIMIT", "MODES", "Concat", "Max", "Mean", "Min", "Sum"]

INT64_LIMIT = 2**63
"""From here on integers no longer fit the 64 bits in which they are kept."""

_MISSING: Any = object()


class _Value:
    """A value with its mode. Nothing is converted here: inside a trace the values are tracers.

    `tree_children` and `from_children` are the flatten and unflatten functions that JAX's
    `register_pytree_node` wants, so that a traced hook can return these values.
    """

    __slots__ = ("value",)
    mode: ClassVar[str] = ""

    def __init__(self, x: Any) -> None:
        self.value = x

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def tree_children(self) -> tuple[tuple[Any, ...], None]:
        """Return `(children, None)`: the values that a tree traversal visits, and no static part."""
        return (self.value,), None

    @classmethod
    def from_children(cls, aux: None, children: tuple[Any, ...]) -> _Value:
        """Rebuild a value from what `tree_children` gave; children are not checked."""
        made = object.__new__(cls)
        (made.value,) = children
        return made


class Mean(_Value):
    """A total with its denominator: totals and counts are summed over the split, divided once.

    Args:
        total: a number, an array, or a nested mapping of them (the sum over the batch, not its mean).
        count: the denominator of this batch: a number (samples, tokens, pixels) for every leaf of
            `total`, an array that broadcasts to `total`'s shape (per class, say), or a mapping
            of the same structure as `total`.

    Example:
        >>> Mean(total=3.0, count=4)
        Mean(total=3.0, count=4)
    """

    __slots__ = ("count",)
    mode: ClassVar[str] = "mean"

    def __init__(self, total: Any, count: Any = _MISSING) -> None:
        if count is _MISSING:
            raise MetricError(
                "Mean was given a value without its denominator.",
                why="batches differ in size, so a mean of means is not the mean over the split",
                fix="return Mean(total, count): the sum over the batch and the number of things summed",
            )
        super().__init__(total)
        self.count = count

    @property
    def total(self) -> Any:
        """The sum over the batch."""
        return self.value

    def __repr__(self) -> str:
        return f"Mean(total={self.value!r}, count={self.count!r})"

    def tree_children(self) -> tuple[tuple[Any, ...], None]:
        """Return `((total, count), None)`."""
        return (self.value, self.count), None

    @classmethod
    def from_children(cls, aux: None, children: tuple[Any, ...]) -> Mean:
        """Rebuild from `(total, count)`; children are not checked."""
        made = object.__new__(cls)
        made.value, made.count = children
        return made


class Sum(_Value):
    """A value that is added over the split and never divided (a confusion matrix, a count).

    Args:
        x: a number, an array of the same shape in every batch, or a nested mapping of them.
    """

    __slots__ = ()
    mode: ClassVar[str] = "sum"


class Max(_Value):
    """The elementwise maximum over the split.

    Args:
        x: a number, an array of the same shape in every batch, or a nested mapping of them.
    """

    __slots__ = ()
    mode: ClassVar[str] = "max"


class Min(_Value):
    """The elementwise minimum over the split.

    Args:
        x: a number, an array of the same shape in every batch, or a nested mapping of them.
    """

    __slots__ = ()
    mode: ClassVar[str] = "min"


class Concat(_Value):
    """One entry per sample, joined over the split on the first axis; for `finalize_metrics` to reduce.

    Args:
        x: an array `[samples of the batch, ...]`, or a nested mapping of them.
    """

    __slots__ = ()
    mode: ClassVar[str] = "concat"


MODES: tuple[type[_Value], ...] = (Mean, Sum, Max, Min, Concat)
"""Every kind of combinable value, for registration as pytree nodes."""
