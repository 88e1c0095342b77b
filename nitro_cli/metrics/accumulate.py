"""Combining the metric values of a split's batches into the values of the split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nitro_cli.errors import MetricError
from nitro_cli.metrics.combine import divide_leaf, join_leaf
from nitro_cli.metrics.leaves import EXAMPLE, CombinedLeaf, batch_leaf, flatten_values, joined_name
from nitro_cli.metrics.values import Concat, Mean

__all__ = ["SplitAccumulator"]


class SplitAccumulator:
    """Combines what a metric hook returns, batch by batch, into the values of the whole split.

    Integers are summed as integers, floating-point numbers in float64. Arrays of any library that
    numpy can read (JAX arrays among them) are converted when they are added.

    Args:
        hook: the hook whose values these are, for messages.
        split: the split's name, for messages.

    Example:
        >>> acc = SplitAccumulator(split="val")
        >>> acc.add({"acc": Mean(3, 4)}, batch=0)
        >>> acc.add({"acc": Mean(1, 1)}, batch=1)
        >>> acc.result()
        {'acc': 0.8}
    """

    def __init__(self, hook: str = "metrics", split: str | None = None) -> None:
        self._hook = hook
        self._split = split
        self._leaves: dict[tuple[str, ...], CombinedLeaf] = {}
        self._first: int | None = None
        self._batches = 0
        self._concatenated: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return self._batches

    @property
    def concatenated(self) -> dict[str, np.ndarray]:
        """The joined arrays of `Concat` leaves that `result` handed out, by slash-joined path."""
        return dict(self._concatenated)

    def add(self, mapping: Mapping[str, Any], *, batch: int | None = None, samples: int | None = None) -> None:
        """Add one batch's values.

        Args:
            mapping: what the hook returned: names to combinable values, nested mappings allowed.
            batch: the batch's index from 0, for messages; counted when not given.
            samples: how many samples the batch has; when given, `Concat` lengths are checked against it.

        Raises:
            MetricError: a value that says no way to combine, or another structure, mode or shape
                than in the first batch. The accumulator is unchanged then.
        """
        index = self._batches if batch is None else batch
        where = self._where(index)
        if not isinstance(mapping, Mapping):
            raise MetricError(
                f"`{self._hook}` returned a {type(mapping).__name__}, not a mapping of names to values.",
                where=where,
                fix=f"return a dict such as {{'acc': Mean(correct, samples)}}; the values are {EXAMPLE}",
            )
        flat = dict(flatten_values(mapping, (), self._hook, where))
        batch_leaves = {p: batch_leaf(v, joined_name(p), where, samples) for p, v in flat.items()}
        if self._first is not None:
            self._check_structure(batch_leaves, where)
        joined = {p: join_leaf(self._leaves.get(p), leaf, joined_name(p), where) for p, leaf in batch_leaves.items()}
        for path, leaf in joined.items():
            kept = self._leaves.setdefault(path, leaf)
            if kept is not leaf:
                kept.value, kept.count, kept.bound, kept.count_bound = (
                    leaf.value,
                    leaf.count,
                    leaf.bound,
                    leaf.count_bound,
                )
                kept.parts.extend(leaf.parts)
        if self._first is None:
            self._first = index
        self._batches += 1

    def merge(self, other: SplitAccumulator) -> None:
        """Add the batches of another accumulator of the same structure, which stays as it is.

        Raises:
            MetricError: it has another structure. The accumulator is unchanged then.
        """
        where = self._where(None)
        theirs = {path: replace(leaf, parts=list(leaf.parts)) for path, leaf in other._leaves.items()}
        if self._first is not None and theirs:
            self._check_structure(theirs, where)
        for path, leaf in theirs.items():
            kept = self._leaves.get(path)
            joined = join_leaf(kept, leaf, joined_name(path), where)
            joined.parts = [*(kept.parts if kept is not None else ()), *leaf.parts]
            self._leaves[path] = joined
        self._first = other._first if self._first is None else self._first
        self._batches += other._batches

    def result(self) -> dict[str, Any]:
        """Return the values of the split in the structure the hook returned, the modes removed.

        Returns:
            Python ints and floats for scalars, numpy int64 or float64 arrays otherwise; `Concat`
            leaves as arrays `[samples of the split, ...]` in their own dtype.

        Raises:
            MetricError: no batch was added, or a denominator is zero over the whole split.
        """
        if not self._batches:
            raise MetricError(
                f"No batch was evaluated, so `{self._hook}` has no values to combine.",
                where=self._where(None),
                fix="give the split at least one batch",
            )
        out: dict[str, Any] = {}
        self._concatenated = {}
        for path, leaf in self._leaves.items():
            level = out
            for key in path[:-1]:
                level = level.setdefault(key, {})
            level[path[-1]] = self._finished(joined_name(path), leaf)
        return out

    def _finished(self, name: str, leaf: CombinedLeaf) -> Any:
        if leaf.mode is Concat:
            joined = np.concatenate(leaf.parts, axis=0)
            self._concatenated[name] = joined
            return joined
        value = leaf.value
        if leaf.mode is Mean:
            value = divide_leaf(leaf, f"{name!r}", self._where(None))
        return value.copy() if isinstance(value, np.ndarray) else value

    def _check_structure(self, leaves: dict[tuple[str, ...], CombinedLeaf], where: str) -> None:
        missing = [joined_name(p) for p in self._leaves if p not in leaves]
        extra = [joined_name(p) for p in leaves if p not in self._leaves]
        if missing or extra:
            parts = []
            if missing:
                parts.append(f"without {', '.join(map(repr, missing))}")
            if extra:
                parts.append(f"with the new {', '.join(map(repr, extra))}")
            raise MetricError(
                f"`{self._hook}` returned other names than for batch {self._first}: {' and '.join(parts)}.",
                where=where,
                why="every batch of a split must report the same metrics, or their denominators would not match",
                fix="return every name for every batch; a metric that does not apply has total 0 and count 0",
            )
        for path, leaf in leaves.items():
            first = self._leaves[path]
            if leaf.mode is not first.mode:
                raise MetricError(
                    f"{joined_name(path)!r} is {leaf.mode.__name__} here and was {first.mode.__name__} "
                    f"in batch {self._first}.",
                    where=where,
                    fix="use one mode for a metric",
                )
            if (leaf.shape, leaf.count_shape) != (first.shape, first.count_shape):
                here, there = _shapes(leaf), _shapes(first)
                raise MetricError(
                    f"{joined_name(path)!r} has {here} here and had {there} in batch {self._first}.",
                    where=where,
                    why="values of different shapes cannot be combined",
                    fix="return one shape for all batches"
                    + ("" if leaf.mode is Concat else "; entries per sample belong in Concat(x)"),
                )

    def _where(self, batch: int | None) -> str:
        parts = [f"hook `{self._hook}`"]
        if self._split is not None:
            parts.append(f"split {self._split!r}")
        if batch is not None:
            parts.append(f"batch {batch}")
        return ", ".join(parts)


def _shapes(leaf: CombinedLeaf) -> str:
    if leaf.mode is Concat:
        return f"entries of shape {leaf.shape}"
    text = f"shape {leaf.shape}"
    return f"{text} with a count of shape {leaf.count_shape}" if leaf.mode is Mean else text
