"""Taking apart what the traced hooks return, with an error that says what was wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import HookError
from nitro_cli.experiment import Term
from nitro_cli.metrics import RESERVED, Mean, Sum, check_scalar
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.programs.readback import LossParts, Pair
from nitro_cli.text import path_text

__all__ = [
    "batch_outputs",
    "check_same_tree",
    "host_metrics",
    "scalars",
    "split_loss",
    "split_metrics",
    "split_step",
]


SHOWN = 3
"""How many leaves an error names."""


def split_loss(returned: Any, hook: str = "loss") -> LossParts:
    """Take a loss hook's return apart: a scalar, a scalar with numbers to report, or the terms that it is made of.

    Names of a nested mapping are joined by slashes.

    Raises:
        HookError: the loss is no floating-point scalar, a number or a part of a term no real one, or the return is none
            of these forms.
    """
    if isinstance(returned, Mapping):
        return _terms(returned, hook)
    loss, reported = returned, {}
    if isinstance(returned, tuple):
        if len(returned) != 2 or not isinstance(returned[1], Mapping):
            what = "a Term" if isinstance(returned, Term) else f"a tuple of {len(returned)}"
            raise HookError(
                f"`{hook}` returned {what}",
                why="a loss is a scalar, a pair of the scalar and a mapping of numbers, or a mapping of names to terms",
                fix="return loss, or (loss, {'name': value}), or {'name': Term(numerator, denominator)}",
            )
        loss, reported = returned[0], named(returned[1], hook)
    mean = "take the mean over the batch: jnp.mean(...)"
    value = _differentiable(loss, f"`{hook}`", mean)
    terms = {name: Term(real_scalar(term, f"term {name!r} of `{hook}`", mean)) for name, term in reported.items()}
    return LossParts(value, terms)


def _terms(returned: Mapping[Any, Any], hook: str) -> LossParts:
    flat = named(returned, hook)
    odd = [f"{name!r} is {_kind(term)}" for name, term in flat.items() if not isinstance(term, Term)]
    if odd or not flat:
        raise HookError(
            f"`{hook}` returned a mapping in which {odd[0]}" if flat else f"`{hook}` returned no term",
            why="a loss that is a mapping is made of terms, each a sum and what it sums over",
            fix="return {'name': Term(numerator, denominator)}, or one scalar",
        )
    terms = {}
    for name, term in flat.items():
        what = f"of term {name!r} of `{hook}`"
        over = _differentiable(term.numerator, f"the numerator {what}", "add it up over the batch: jnp.sum(...)")
        under = term.denominator
        if under is not None:
            under = real_scalar(under, f"the denominator {what}", "add it up over the batch: jnp.sum(...)")
        weight = real_scalar(term.weight, f"the weight {what}", "a weight is one number")
        terms[name] = Term(over, under, weight)
    traced = tuple(name for name, term in flat.items() if isinstance(term.weight, jax.core.Tracer))
    return LossParts(None, terms, traced)


def _differentiable(loss: Any, what: str, fix: str) -> jax.Array:
    value = real_scalar(loss, what, fix)
    if isinstance(loss, int) or not jnp.issubdtype(value.dtype, jnp.floating):
        raise HookError(
            f"{what} is {_kind(loss)}, a floating-point scalar is wanted",
            why="the gradient of anything else is undefined",
            fix="return a number computed from the outputs: jnp.mean(...)",
        )
    return value


def named(values: Mapping[Any, Any], hook: str) -> dict[str, Any]:
    """Values by name, nested mappings flat: the names of a path joined by slashes.

    Raises:
        HookError: two paths have one name.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        below = named(value, hook) if isinstance(value, Mapping) else {"": value}
        for name, leaf in below.items():
            joined = f"{key}/{name}" if name else str(key)
            if joined in flat:
                raise HookError(f"`{hook}` returned two values named {joined!r}", fix="rename one of them")
            flat[joined] = leaf
    return flat


def real_scalar(value: Any, what: str, fix: str) -> jax.Array:
    """A real scalar that a hook returned, as an array.

    Args:
        value: what it returned.
        what: what it is, for errors.
        fix: what to do about a value of another shape.

    Raises:
        HookError: it is no real scalar.
    """
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None or not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        raise HookError(
            f"{what} is {_kind(value)}, a scalar is wanted",
            fix="return the value: the hook may lack its `return`" if value is None else "return a real number",
        )
    if array.shape != ():
        raise HookError(f"{what} has shape {array.shape}, a scalar is wanted", fix=fix)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise HookError(
            f"{what} is {_kind(value)}, a real scalar is wanted", fix="take its real part, or its size: jnp.abs(...)"
        )
    return array


def _kind(value: Any) -> str:
    """What a value is, for messages: None, its dtype where it has one, else its type."""
    if value is None:
        return "None"
    dtype = getattr(value, "dtype", None)
    return f"an array of dtype {dtype}" if dtype is not None else f"of type {type(value).__name__}"


def scalars(returned: Any, hook: str, taken: Collection[str] = ("loss",)) -> dict[str, jax.Array]:
    """The numbers that a traced hook returned for the train lines.

    Args:
        returned: a mapping of names to scalars; nested mappings are named by their path, joined by slashes.
        hook: what returned it, for errors.
        taken: names the step's line has already.

    Raises:
        HookError: it is no mapping, an entry is not a real scalar, or a name is taken.
    """
    return {
        name: real_scalar(value, f"`{hook}` entry {name!r}", "reduce it: jnp.mean(...)")
        for name, value in _entries(returned, hook, taken).items()
    }


def split_metrics(
    returned: Any, taken: Collection[str]
) -> tuple[dict[str, jax.Array], dict[str, tuple[jax.Array, jax.Array | None]]]:
    """What a traced `train_metrics` returned: plain numbers, and totals with what they are divided by.

    Args:
        returned: a mapping of names to scalars, to `Mean(total, count)` or to `Sum(total)`, which may be nested.
        taken: names the step's line has already.

    Raises:
        HookError: it is no mapping, an entry is neither, or a name is taken.
    """
    means: dict[str, jax.Array] = {}
    sums: dict[str, tuple[jax.Array, jax.Array | None]] = {}
    for name, value in _entries(returned, "train_metrics", taken).items():
        what = f"`train_metrics` entry {name!r}"
        if isinstance(value, Mean):
            total = real_scalar(value.total, f"the total of {what}", "add it up over the batch: jnp.sum(...)")
            sums[name] = total, real_scalar(value.count, f"the count of {what}", "give one count")
        elif isinstance(value, Sum):
            sums[name] = real_scalar(value.value, what, "add it up over the batch: jnp.sum(...)"), None
        else:
            means[name] = real_scalar(value, what, "reduce it: jnp.mean(...), or Mean(total, count)")
    return means, sums


def host_metrics(returned: Any, taken: Collection[str]) -> dict[str, Pair]:
    """What a `train_metrics` on the host returned, as pairs of a total and a count; a plain number counts once.

    Raises:
        HookError: it is no mapping, or a name is taken.
        MetricError: an entry is neither a real number nor a `Mean` of two.
    """
    flat = _entries(returned, "train_metrics", taken)

    def number(value: Any, name: str) -> float:
        return check_scalar(value, f"`train_metrics` entry {name!r}", flat)

    return {
        name: (number(value.total, name), number(value.count, name))
        if isinstance(value, Mean)
        else (number(value, name), 1.0)
        for name, value in flat.items()
    }


def _entries(returned: Any, hook: str, taken: Collection[str]) -> dict[str, Any]:
    if not isinstance(returned, Mapping):
        raise HookError(
            f"`{hook}` returned {type(returned).__name__}", fix="return a mapping of names to scalars, {} for none"
        )
    flat = named(returned, hook)
    for name in flat:
        if name in taken or name in RESERVED:
            raise HookError(
                f"`{hook}` entry {name!r} has the name of a number that the train line has already",
                why=f"the framework logs {', '.join(sorted({*taken, *RESERVED}))} itself",
                fix="rename the entry",
            )
    return flat


def batch_outputs(outputs: PyTree, rows: int) -> PyTree:
    """What `forward` returned, as arrays, each with the batch as its first axis.

    Args:
        outputs: the tree.
        rows: samples of the batch.

    Raises:
        HookError: a leaf is no array, or its first axis is not the batch.
    """

    def checked(path: tuple[Any, ...], leaf: Any) -> jax.Array:
        name = path_text(path)
        what = f"the output {name}" if name else "an output"
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError):
            raise HookError(f"`forward` returned {what} that is {_kind(leaf)}, an array is wanted") from None
        if array.ndim == 0 or array.shape[0] != rows:
            raise HookError(
                f"`forward` returned {what} of shape {array.shape} for a batch of {rows} samples",
                why="the first axis of an output is the batch: outputs are padded and sliced along it",
                fix="return one entry per sample; reduce in `loss` or `metrics`",
            )
        return array

    return jax.tree_util.tree_map_with_path(checked, outputs)


def split_step(returned: Any, params: PyTree, state: PyTree, opt_state: PyTree) -> tuple[Any, ...]:
    """Check what a `train_step` hook returned against the trees that it was given.

    Returns:
        `(loss, params, state, opt_state, numbers)`, the loss a scalar, the numbers those of its stats.

    Raises:
        HookError: it is not five values, the loss or a stat is not a scalar, or a tree has another structure, shape or
            dtype than the one given, so that the next step would need another program.
    """
    if not isinstance(returned, tuple) or len(returned) != 5:
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise HookError(
            f"`train_step` returned {type(returned).__name__}{size}",
            why="it must return loss, params, state, opt_state, stats",
            fix="return loss, params, state, opt_state, {}",
        )
    loss, terms, _ = split_loss(returned[0], "train_step")
    if loss is None or terms:
        raise HookError(
            "`train_step` returned loss terms beside its loss",
            why="it returns loss, params, state, opt_state, stats, and the loss is a scalar",
            fix="put the terms into the stats",
        )
    for name, given, new in zip(
        ("params", "state", "opt_state"), (params, state, opt_state), returned[1:4], strict=True
    ):
        check_same_tree("train_step", name, given, new)
    return loss, *returned[1:4], scalars(returned[4], "train_step stats")


def check_same_tree(hook: str, name: str, given: PyTree, new: PyTree) -> None:
    """Refuse a tree that a hook returned with another structure, shape or dtype than it was given.

    Raises:
        HookError: naming the first leaves that differ, with both sides.
    """
    before: Any = jax.tree.structure(given)
    after: Any = jax.tree.structure(new)
    if before != after:
        raise HookError(
            f"`{hook}` returned another structure of {name}",
            why=f"given {before}, returned {after}",
            fix="return the tree as it was given, with new values",
        )
    leaves = zip(jax.tree_util.tree_flatten_with_path(given)[0], jax.tree.leaves(new), strict=True)
    kinds = [(path, _described(old), _described(leaf)) for (path, old), leaf in leaves]
    changed = [f"{path_text(path)}: given {old}, returned {leaf}" for path, old, leaf in kinds if old != leaf]
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        raise HookError(
            f"`{hook}` returned {name} of another shape or dtype",
            why="; ".join(changed[:SHOWN]) + more,
            fix="keep both: optax.apply_updates casts to the parameters' dtype, .astype(old.dtype) does it by hand",
        )


def _described(leaf: Any) -> str:
    try:
        return f"{jnp.result_type(leaf).name}{list(jnp.shape(leaf))}"
    except (TypeError, ValueError, OverflowError):
        return _kind(leaf)
