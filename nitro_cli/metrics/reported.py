"""Checks on metric values that are reported: real scalars the run decides by, and what is logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nitro_cli.errors import MetricError, warn
from nitro_cli.metrics.undefined import Undefined
from nitro_cli.metrics.values import INT64_LIMIT, MODES, Concat

__all__ = ["RESERVED", "check_reported", "check_scalar", "flatten_metrics", "flatten_scalars"]

RESERVED = frozenset({"arrays", "context", "epoch", "monitor", "nonfinite", "step", "train_loss", "type"})
"""Names a reported metric may not have: the history's and the log lines' own keys."""


def _as_scalar(value: Any) -> int | float | None:
    """Return a real scalar of any library as a Python number, None for anything else."""
    kind = type(value)
    if kind is float or kind is int:
        return value
    if isinstance(value, str | bytes | list | tuple | Mapping) or value is None:
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        import numpy as np

        array = np.asarray(value)
        name = array.dtype.name.lstrip("u").lstrip("b")
        if array.dtype.kind == "b" or name.startswith("int"):
            return int(array)
        return float(array) if name.startswith("float") else None
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else None


def check_scalar(value: Any, what: str, metrics: Mapping[str, Any]) -> float:
    """Return a value the run decides by as a float; a non-finite one is returned as it is.

    Args:
        value: the value, None when it is missing.
        what: what it is for, such as `monitor 'acc'`.
        metrics: the metrics there are, for the message.

    Raises:
        MetricError: the value is missing or not a real number.
    """
    scalar = _as_scalar(value)
    if scalar is not None:
        try:
            return float(scalar)
        except OverflowError:
            raise MetricError(f"The {what} is an integer beyond every floating-point number.") from None
    there = _available(metrics)
    if value is None:
        raise MetricError(
            f"The {what} is missing.",
            why=there,
            fix='report it in every epoch, or say on_missing = "skip" in the monitor where it may be missing',
        )
    raise MetricError(
        f"The {what} is {_described(value)}, not a real number.",
        why=there,
        fix="reduce it to one number in `finalize_metrics`, or name another metric",
    )


def flatten_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping as one level, the names of a path joined by slashes.

    Raises:
        MetricError: two paths have one joined name.
    """
    out: dict[str, Any] = {}
    for name, value in _walk(metrics, ""):
        if name in out:
            raise MetricError(f"Two metrics are both named {name!r}.", fix="rename one of them")
        out[name] = value
    return out


def flatten_scalars(metrics: Mapping[str, Any]) -> tuple[dict[str, int | float], dict[str, Any]]:
    """Split metrics into `(scalars, others)`, each flat: the scalars as Python numbers, the others as they are.

    A None is a metric without a value, and in neither.
    """
    scalars: dict[str, int | float] = {}
    others: dict[str, Any] = {}
    for name, value in flatten_metrics(metrics).items():
        scalar = _as_scalar(value)
        if scalar is not None:
            scalars[name] = scalar
        elif value is not None:
            others[name] = value
    return scalars, others


def check_reported(
    reported: Any,
    *,
    concatenated: Mapping[str, Any] | None = None,
    split: str | None = None,
    hook: str = "finalize_metrics",
) -> dict[str, Any]:
    """Check what `finalize_metrics` returned and give it back flat, as host values.

    Args:
        reported: a mapping of names to real scalars, numeric arrays or `Undefined`; nested mappings allowed.
        concatenated: the `Concat` arrays it was handed (`SplitAccumulator.concatenated`), which it
            may not return as they are.
        split: the split's name, for messages.
        hook: the hook's name, for messages.

    Returns:
        Slash-joined names to Python numbers and numpy arrays; None for an `Undefined`, whose reason is warned about.

    Raises:
        MetricError: not a mapping, a value that is not a number or an array of numbers, a value
            with a mode still on it, an unreduced `Concat`, or a reserved name.
    """
    where = f"hook `{hook}`" + (f", split {split!r}" if split is not None else "")
    if not isinstance(reported, Mapping):
        raise MetricError(
            f"`{hook}` returned {_described(reported)}, not a mapping of names to values.",
            where=where,
            fix="return a dict such as {'acc': 0.97}",
        )
    out: dict[str, Any] = {}
    for name, value in flatten_metrics(reported).items():
        if isinstance(value, Undefined):
            warn(f"{name!r} has no value: {value.told()} ({where})")
            out[name] = None
            continue
        if name in RESERVED:
            raise MetricError(f"A metric may not be named {name!r}.", where=where, why="the run records use this name")
        for path, joined in (concatenated or {}).items():
            if _is_unreduced(value, joined):
                raise MetricError(
                    f"{name!r} is the unreduced Concat {path!r}, with an entry per sample.",
                    where=where,
                    why="reported values are logged every epoch and must not grow with the split",
                    fix="reduce it to numbers or a small array, or leave it out",
                )
        scalar = _as_scalar(value)
        if isinstance(scalar, int) and not -INT64_LIMIT <= scalar < INT64_LIMIT:
            raise MetricError(
                f"{name!r} is an integer that no longer fits 64 bits.",
                where=where,
                fix="return a floating-point number",
            )
        out[name] = _as_array(value, name, where) if scalar is None else scalar
    return out


def _walk(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if not isinstance(key, str) or not key:
            raise MetricError(f"A metric is named {key!r}.", fix="name metrics by non-empty strings")
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _is_unreduced(value: Any, joined: Any) -> bool:
    if value is joined:
        return True
    import numpy as np

    if isinstance(value, Concat):
        value = value.value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return False
    if array.size != joined.size or not joined.size:
        return False
    # A copy of it, a list or another dtype, grows with the split as well.
    return np.shares_memory(array, joined) or (len(joined) > 1 and np.array_equal(array.ravel(), joined.ravel()))


def _as_array(value: Any, name: str, where: str) -> Any:
    import numpy as np

    if isinstance(value, MODES):
        raise MetricError(
            f"{name!r} still has its mode: {type(value).__name__}.",
            where=where,
            why="`finalize_metrics` gets values already combined and returns plain ones",
            fix="return the number itself",
        )
    try:
        array = None if value is None or isinstance(value, str | bytes) else np.asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or not (array.dtype.kind in "biuf" or (array.dtype.kind == "V" and array.dtype.fields is None)):
        raise MetricError(
            f"{name!r} is {_described(value)}, not a real number or an array of real numbers.",
            where=where,
            fix="return numbers; other things belong in the logger's `log_other`",
        )
    # The records keep the extended types of ml_dtypes as float64, so the run has them so too.
    return array.astype(np.float64) if array.dtype.kind == "V" else array


def _available(metrics: Mapping[str, Any]) -> str:
    names = ", ".join(map(str, metrics))
    return f"the metrics are: {names}" if names else "there are no metrics"


def _described(value: Any) -> str:
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"an array of shape {tuple(shape)} and dtype {value.dtype}"
    shown = repr(value)
    return f"{type(value).__name__} {shown}" if len(shown) <= 40 else f"a {type(value).__name__}"
