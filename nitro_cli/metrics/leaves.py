"""Reading what a metric hook returned for one batch: every leaf with its mode, as host numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nitro_cli.errors import MetricError
from nitro_cli.metrics.values import INT64_LIMIT, MODES, Concat, Mean, _Value

__all__ = ["EXAMPLE", "CombinedLeaf", "batch_leaf", "flatten_values", "joined_name"]

LARGEST = int(np.finfo(np.float64).max)
EXAMPLE = "Mean(total, count) for a mean, Sum(x), Max(x), Min(x), or Concat(x) with one entry per sample"


@dataclass
class CombinedLeaf:
    """What has been combined so far for one leaf."""

    mode: type[_Value]
    shape: tuple[int, ...]
    count_shape: tuple[int, ...] = ()
    value: Any = None
    count: Any = None
    bound: int = 0
    count_bound: int = 0
    parts: list[np.ndarray] = field(default_factory=list)


def joined_name(path: tuple[str, ...]) -> str:
    """Return the name a nested metric is reported under."""
    return "/".join(path)


def flatten_values(
    tree: Mapping[Any, Any], path: tuple[str, ...], hook: str, where: str
) -> Iterator[tuple[tuple[str, ...], _Value]]:
    """Yield `(path, value)` with every mode pushed down to single leaves."""
    if path and not tree:
        raise MetricError(
            f"{joined_name(path)!r} is an empty mapping.", where=where, fix="leave the name out, or give it values"
        )
    for key, value in tree.items():
        if not isinstance(key, str) or not key:
            raise MetricError(f"A metric is named {key!r}.", where=where, fix="name metrics by non-empty strings")
        here = (*path, key)
        if isinstance(value, MODES):
            yield from _leaves_of(value, here, where)
        elif isinstance(value, Mapping):
            yield from flatten_values(value, here, hook, where)
        else:
            raise _bare(value, joined_name(here), hook, where)


def _bare(value: Any, name: str, hook: str, where: str) -> MetricError:
    shown = repr(value)
    shown = f"{type(value).__name__} {shown}" if len(shown) <= 40 else f"value of type {type(value).__name__}"
    return MetricError(
        f"{name!r} of `{hook}` is a bare {shown}; what is its denominator?",
        where=where,
        why="how it combines over batches of different size cannot be guessed",
        fix=f"return {name!r} as {EXAMPLE}",
    )


def _leaves_of(value: _Value, path: tuple[str, ...], where: str) -> Iterator[tuple[tuple[str, ...], _Value]]:
    inner = value.value
    if isinstance(inner, MODES):
        raise MetricError(
            f"{joined_name(path)!r} has two modes: {type(inner).__name__} inside {type(value).__name__}.",
            where=where,
            why="a mode covers every leaf below it, and each leaf has exactly one",
            fix="keep one of the two",
        )
    if not isinstance(inner, Mapping):
        yield path, value
        return
    if not inner:
        raise MetricError(
            f"{joined_name(path)!r} is an empty mapping.", where=where, fix="leave the name out, or give it values"
        )
    counts = value.count if isinstance(value, Mean) else None
    if isinstance(counts, Mapping) and set(counts) != set(inner):
        raise MetricError(
            f"The counts of {joined_name(path)!r} are named {sorted(map(str, counts))}, "
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


def batch_leaf(value: _Value, name: str, where: str, samples: int | None) -> CombinedLeaf:
    """Return one batch's value as host numbers: exact integers, float64, or the entries of a Concat."""
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
        return CombinedLeaf(Concat, entries.shape[1:], parts=[entries.copy()])
    total, bound = _number(value.value, name, where)
    leaf = CombinedLeaf(type(value), np.shape(total), value=total, bound=bound)
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
        if isinstance(x, int) and abs(x) > LARGEST:
            raise MetricError(
                f"{name!r} is an integer of {x.bit_length()} bits, beyond every floating-point number.",
                where=where,
                fix="return a number that a float can hold",
            )
        return x, 0
    array = _array(x, name, where)
    kind, dtype = array.dtype.kind, array.dtype.name
    # The extended types of ml_dtypes (bfloat16, float8, int4) call themselves void.
    if kind in "biu" or (kind == "V" and dtype.lstrip("u").startswith("int")):
        if array.ndim == 0:
            return int(array), 0
        bound = max(abs(int(array.max())), abs(int(array.min()))) if array.size else 0
        return (array.astype(np.int64) if bound < INT64_LIMIT else array), bound
    if kind == "f" or (kind == "V" and dtype.lstrip("b").startswith("float")):
        return (float(array) if array.ndim == 0 else array.astype(np.float64)), 0
    given = type(x).__name__ if array.dtype == object else f"array of dtype {dtype}"
    raise MetricError(
        f"{name!r} is a {given}, not a real number or an array of them.",
        where=where,
        fix="return numbers; Concat takes any array with one entry per sample",
    )
