"""What is said about a run: the facts in its records, its log and its run.json."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.experiment import KNOBS, Experiment, FieldKind, config_metadata, graphconst_value, part_fields
from nitro_cli.installation import DISTRIBUTION
from nitro_cli.registry import NotWritable, home_fields, natural_form
from nitro_cli.run.snapshot import named_leaves, share_of
from nitro_cli.run.step_plan import trains_resident

if TYPE_CHECKING:
    from nitro_cli.checkpoints import ArrayPieces, RecordMeta
    from nitro_cli.programs import Program, TrainState
    from nitro_cli.run.plan import Plan

__all__ = [
    "derived_values",
    "described",
    "fields_by_kind",
    "logged_parameters",
    "program_facts",
    "record_arrays",
    "record_leaves",
    "recorded_parameters",
    "versions",
]

VERSIONS = (DISTRIBUTION, "jax", "jaxlib", "optax", "orbax-checkpoint", "numpy", "flax", "equinox")
LONGEST_TEXT = 200


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that a run depends on."""
    return dict(_versions())


@functools.cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def described(value: Any) -> Any:
    """A field's value as JSON-ready data; an array as dtype, shape and digest."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        digest = (
            hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16] if array.nbytes < 2**20 else None
        )
        return {"dtype": str(array.dtype), "shape": list(array.shape), "sha256": digest}
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def fields_by_kind(e: Experiment, *, exported: bool = False) -> dict[str, dict[str, Any]]:
    """Every field's value under `graphconst`, `device` and `host`.

    Args:
        e: the experiment.
        exported: whether they go into a checkpoint or an artefact, which leaves out those that stay at home.
    """
    fields: dict[str, dict[str, Any]] = {str(kind): {} for kind in FieldKind}
    home = home_fields(e) if exported else ()
    for name, meta in config_metadata(type(e)).items():
        if name not in home:
            fields[str(meta.kind)][name] = described(graphconst_value(getattr(e, name)))
    for leaf in part_fields(e):
        if leaf.kind is not FieldKind.GRAPHCONST and leaf.path.partition(".")[0] not in home:
            fields[str(leaf.kind)][leaf.path] = described(leaf.value)
    return fields


def logged_parameters(plan: Plan) -> dict[str, Any]:
    """The hyperparameters of a run, flat, for `log_params`: fields, knobs, and how each split is fed."""
    e, preset = plan.experiment, plan.settings.resolved.preset
    logged: dict[str, Any] = {"experiment": type(e).__name__}
    if preset is not None:
        logged["preset"] = preset
    for name, meta in config_metadata(type(e)).items():
        if meta.private:
            continue
        value = described(graphconst_value(getattr(e, name)))
        if name in KNOBS or not isinstance(value, Mapping):
            logged[name] = value
    logged |= {leaf.path: described(leaf.value) for leaf in part_fields(e)}
    logged["seed"] = plan.settings.seed
    logged["total_steps"] = plan.optim.total_steps
    for name, split in plan.splits.items():
        prefetch = split.prefetch
        fed = "resident" if name == "train" and trains_resident(plan) else prefetch.path
        logged[f"prefetch_{name}"] = f"{fed}, {prefetch.workers} workers, {prefetch.device_batches} staged, " + (
            "ordered" if prefetch.ordered else "unordered"
        )
    return logged


def recorded_parameters(meta: RecordMeta) -> dict[str, Any]:
    """The parameters that a record says the run had, by the names that `logged_parameters` gives them.

    Without where the run lies and what belongs to one call, which may differ and change nothing.
    """
    fields = {name: value for kind in meta.fields.values() for name, value in kind.items()}
    held = {**fields, "seed": meta.seed, "total_steps": meta.total_steps}
    return {name: value for name, value in held.items() if name not in ("run_dir", "max_time")}


def program_facts(program: Program) -> dict[str, Any]:
    """A compiled program's key, where it came from, seconds, and the compiler's cost and memory figures."""
    return {
        "key": program.key,
        "source": program.source,
        "seconds": round(program.seconds, 4),
        "trace_seconds": round(program.trace_seconds, 4),
        "callback": program.has_callback,
        **program.cost.as_dict(),
    }


def derived_values(derived: Mapping[str, Any]) -> dict[str, Any]:
    """The derived values as a record's metadata holds them; None for an array, which is among its leaves."""
    return {name: None if _is_array(value) else _plain(value) for name, value in derived.items()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _plain(value: Any) -> Any:
    try:
        return natural_form(value)
    except NotWritable:
        return value  # the record names what has no form of its own


def record_leaves(train: TrainState, derived: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a checkpoint holds as arrays, where it lies."""
    leaves = {
        **named_leaves("params", train.params),
        **named_leaves("state", train.state),
        **named_leaves("opt", train.opt),
    }
    if train.ema is not None:
        leaves |= named_leaves("ema", train.ema)
    arrays = {name: np.asarray(value) for name, value in derived.items() if _is_array(value)}
    return leaves | {f"extra/derived/{name}": value for name, value in arrays.items()}


def record_arrays(train: TrainState, derived: Mapping[str, Any]) -> dict[str, np.ndarray | ArrayPieces]:
    """This process's share of a checkpoint, copied to the host: the step loop pays for this copy and no more."""
    return share_of(record_leaves(train, derived))
