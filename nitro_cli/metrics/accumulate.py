"""Combining the metric values of a split's batches into the values of the split."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nitro_cli.errors import MetricError, NitroWarning
from nitro_cli.metrics.values import MODES, Concat, Max, Mean, Min, _Value

__all__ = ["SplitAccumulator"]

_INT64_LIMIT = 2**63
_EXAMPLE = "Mean(total, count) for a mean, Sum(x), Max(x), Min(x), or Concat(x) with one entry per sample"


@dataclass
class _Leaf:
    """What has been combined so far for one leaf."""

    mode: type[_Value]
    shape: tuple[int, ...]
    count_shape: tuple[int, ...] = ()
    value: Any = None
    count: Any = None
    bound: int = 0
    count_bound: int = 0
    parts: list[np.ndarray] = field(default_factory=list)


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
        self._leaves: dict[tuple[str, ...], _Leaf] = {}
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
                fix=f"return a dict such as {{'acc': Mean(correct, samples)}}; the values are {_EXAMPLE}",
            )
        flat = dict(_flatten(mapping, (), self._hook, where))
        batch_leaves = {p: _batch_leaf(v, _name(p), where, samples) for p, v in flat.items()}
        if self._first is not None:
            self._check_structure(batch_leaves, where)
        joined = {p: _join(self._leaves.get(p), leaf, _name(p), where) for p, leaf in batch_leaves.items()}
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
            level[path[-1]] = self._finished(_name(path), leaf)
        return out

    def _finished(self, name: str, leaf: _Leaf) -> Any:
        if leaf.mode is Concat:
            joined = np.concatenate(leaf.parts, axis=0)
            self._concatenated[name] = joined
            return joined
        value = leaf.value
        if leaf.mode is Mean:
            value = _divide(leaf, f"{name!r}", self._where(None))
        return value.copy() if isinstance(value, np.ndarray) else value

    def _check_structure(self, leaves: dict[tuple[str, ...], _Leaf], where: str) -> None:
        missing = [_name(p) for p in self._leaves if p not in leaves]
        extra = [_name(p) for p in leaves if p not in self._leaves]
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
                    f"{_name(path)!r} is {leaf.mode.__name__} here and was {first.mode.__name__} "
                    f"in batch {self._first}.",
                    where=where,
                    fix="use one mode for a metric",
                )
            if (leaf.shape, leaf.count_shape) != (first.shape, first.count_shape):
                here, there = _shapes(leaf), _shapes(first)
                raise MetricError(
                    f"{_name(path)!r} has {here} here and had {there} in batch {self._first}.",
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


def _name(path: tuple[str, ...]) -> str:
    return "/".join(path)


def _shapes(leaf: _Leaf) -> str:
    if leaf.mode is Concat:
        return f"entries of shape {leaf.shape}"
    text = f"shape {leaf.shape}"
    return f"{text} with a count of shape {leaf.count_shape}" if leaf.mode is Mean else text


def _flatten(
    tree: Mapping[Any, Any], path: tuple[str, ...], hook: str, where: str
) -> Iterator[tuple[tuple[str, ...], _Value]]:
    """Yield `(path, value)` with every mode pushed down to single leaves."""
    if path and not tree:
        raise MetricError(
            f"{_name(path)!r} is an empty mapping.", where=where, fix="leave the name out, or give it values"
        )
    for key, value in tree.items():
        if not isinstance(key, str) or not key:
            raise MetricError(f"A metric is named {key!r}.", where=where, fix="name metrics by non-empty strings")
        here = (*path, key)
        if isinstance(value, MODES):
            yield from _leaves_of(value, here, where)
        elif isinstance(value, Mapping):
            yield from _flatten(value, here, hook, where)
        else:
            raise _bare(value, _name(here), hook, where)


def _bare(value: Any, name: str, hook: str, where: str) -> MetricError:
    shown = repr(value)
    shown = f"{type(value).__name__} {shown}" if len(shown) <= 40 else f"value of type {type(value).__name__}"
    return MetricError(
        f"{name!r} of `{hook}` is a bare {shown}; what is its denominator?",
        where=where,
        why="how it combines over batches of different size cannot be guessed",
        fix=f"return {name!r} as {_EXAMPLE}",
    )


def _leaves_of(value: _Value, path: tuple[str, ...], where: str) -> Iterator[tuple[tuple[str, ...], _Value]]:
    inner = value.value
    if isinstance(inner, MODES):
        raise MetricError(
            f"{_name(path)!r} has two modes: {type(inner).__name__} inside {type(value).__name__}.",
            where=where,
            why="a mode covers every leaf below it, and each leaf has exactly one",
            fix="keep one of the two",
        )
    if not isinstance(inner, Mapping):
        yield path, value
        return
    if not inner:
        raise MetricError(
            f"{_name(path)!r} is an empty mapping.", where=where, fix="leave the name out, or give it values"
        )
    counts = value.count if isinstance(value, Mean) else None
    if isinstance(counts, Mapping) and set(counts) != set(inner):
        raise MetricError(
            f"The counts of {_name(path)!r} are named {sorted(map(str, counts))}, "
            f"its totals {sorted(map(str, inner))}.",
            where=where,
            fix="give one count for all totals, or a mapping with the same names",
        )
    for key, leaf in inner.items():
        if not isinstance(key, str) or not key:
            raise MetricError(f"A metric is named {key!r}.", where=where, fix="name metrics by non-empty strings")
        made: _Value
        if isinstance(value, Mean):
            made = Mean(leaf, counts[key] if isinstance(counts, Mapping) else counts)
        else:
            made = type(value)(leaf)
        yield from _leaves_of(made, (*path, key), where)


def _batch_leaf(value: _Value, name: str, where: str, samples: int | None) -> _Leaf:
    if isinstance(value, Concat):
        entries = _array(value.value, name, where)
        if entries.ndim == 0:
            raise MetricError(
                f"{name!r} is Concat of a single value.",
                where=where,
                why="Concat joins one entry per sample on the first axis",
                fix="give an array of shape [samples, ...], or use Sum, Max, Min or Mean",
            )
        if samples is not None and entries.shape[0] != samples:
            raise MetricError(
                f"{name!r} has {entries.shape[0]} entries on its first axis for a batch of {samples} samples.",
                where=where,
                why="Concat holds one entry per sample, the batch axis first",
                fix="move the batch axis to the front, or use another mode",
            )
        return _Leaf(Concat, entries.shape[1:], parts=[entries.copy()])
    total, bound = _number(value.value, name, where)
    leaf = _Leaf(type(value), np.shape(total), value=total, bound=bound)
    if isinstance(value, Mean):
        count, leaf.count_bound = _number(value.count, f"{name} (its count)", where)
        leaf.count, leaf.count_shape = count, np.shape(count)
        _check_count(count, leaf.shape, name, where)
    return leaf


def _check_count(count: Any, shape: tuple[int, ...], name: str, where: str) -> None:
    # Python integers of any size are allowed, and numpy cannot test those for being finite.
    finite = True if isinstance(count, int) else bool(np.all(np.isfinite(count)))
    if not finite or np.any(np.less(count, 0)):
        raise MetricError(
            f"The count of {name!r} is negative or not finite: {count!r}.",
            where=where,
            fix="count samples, tokens or weights, from 0 up",
        )
    try:
        fits = np.broadcast_shapes(shape, np.shape(count)) == shape
    except ValueError:
        fits = False
    if not fits:
        raise MetricError(
            f"The count of {name!r} has shape {np.shape(count)}, its total {shape}.",
            where=where,
            fix="give one count, or a count per entry of the total",
        )


def _array(x: Any, name: str, where: str) -> np.ndarray:
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as err:
        raise MetricError(f"{name!r} cannot be read as an array: {err}", where=where) from err


def _number(x: Any, name: str, where: str) -> tuple[Any, int]:
    """Return the value as int, float, int64 or float64 array, with a bound on the size of its integers."""
    if type(x) is int or type(x) is float:
        return x, 0
    array = _array(x, name, where)
    kind, dtype = array.dtype.kind, array.dtype.name
    # The extended types of ml_dtypes (bfloat16, float8, int4) call themselves void.
    if kind in "biu" or (kind == "V" and dtype.lstrip("u").startswith("int")):
        if array.ndim == 0:
            return int(array), 0
        bound = max(abs(int(array.max())), abs(int(array.min()))) if array.size else 0
        return (array.astype(np.int64) if bound < _INT64_LIMIT else array), bound
    if kind == "f" or (kind == "V" and dtype.lstrip("b").startswith("float")):
        return (float(array) if array.ndim == 0 else array.astype(np.float64)), 0
    given = type(x).__name__ if array.dtype == object else f"array of dtype {dtype}"
    raise MetricError(
        f"{name!r} is a {given}, not a real number or an array of them.",
        where=where,
        fix="return numbers; Concat takes any array with one entry per sample",
    )


def _join(kept: _Leaf | None, new: _Leaf, name: str, where: str) -> _Leaf:
    """Return `new` combined with what was kept; `kept` itself is not changed."""
    if kept is None:
        _check_bound(new, name, where)
        return new
    if new.mode is Concat:
        _check_dtypes(kept.parts[0], new.parts[0], name, where)
        return new
    if new.mode is Max or new.mode is Min:
        pick = (np.maximum if new.mode is Max else np.minimum) if new.shape else (_max if new.mode is Max else _min)
        new.value = pick(kept.value, new.value)
        new.bound = max(kept.bound, new.bound)
    else:
        new.bound += kept.bound
        new.count_bound += kept.count_bound
        _check_bound(new, name, where)
        new.value = kept.value + new.value
        if new.mode is Mean:
            new.count = kept.count + new.count
    return new


def _max(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


def _min(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


def _check_bound(leaf: _Leaf, name: str, where: str) -> None:
    if max(leaf.bound, leaf.count_bound) >= _INT64_LIMIT:
        raise MetricError(
            f"The integers of {name!r} no longer fit 64 bits.", where=where, fix="return floating-point numbers"
        )


def _check_dtypes(first: np.ndarray, new: np.ndarray, name: str, where: str) -> None:
    if first.dtype == new.dtype or first.dtype.kind == new.dtype.kind != "V":
        return
    if first.dtype.kind in "biuf" and new.dtype.kind in "biuf":
        return
    raise MetricError(
        f"{name!r} has entries of dtype {new.dtype} here and had {first.dtype} before.",
        where=where,
        why="joining them would convert one into the other",
        fix="return one dtype for all batches",
    )


def _divide(leaf: _Leaf, name: str, where: str) -> Any:
    zero = np.equal(leaf.count, 0)
    if not np.any(zero):
        return leaf.value / leaf.count
    if np.all(zero) or np.any(np.broadcast_to(zero, leaf.shape) & np.not_equal(leaf.value, 0)):
        raise MetricError(
            f"The count of {name} is zero over the whole split.",
            where=where,
            why="its mean is undefined",
            fix="count what the total sums over, or report the total as Sum(x)",
        )
    warnings.warn(
        f"{int(np.sum(zero))} of {np.size(zero)} counts of {name} are zero over the whole split ({where}); "
        "those entries are NaN.",
        NitroWarning,
        stacklevel=4,
    )
    with np.errstate(invalid="ignore"):
        return np.divide(leaf.value, leaf.count)
