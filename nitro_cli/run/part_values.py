"""Values that parts of an experiment leave open: filled in from the data and from what other parts say, or restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from nitro_cli.data import Split
from nitro_cli.errors import ConfigError
from nitro_cli.experiment import (
    Experiment,
    HookTable,
    RowSpec,
    agreed,
    check_graphconst,
    compile_view,
    device_array,
    device_names,
    field_value,
    narrowed_dtype,
    part_fields,
    parts_of,
    same_content,
    with_unset,
)
from nitro_cli.run.description import described
from nitro_cli.run.plan import Settings
from nitro_cli.run.report import SetupReport
from nitro_cli.run.restore import Source

__all__ = ["with_filled_parts", "with_restored_parts"]


def with_restored_parts(settings: Settings, source: Source | None, *, serving: bool) -> Settings:
    """The settings before there is data: what was filled in where the weights were trained, or what is to be filled in
    open again.

    Args:
        settings: the configuration.
        source: where the weights come from; a resume fills in anew.
        serving: there is no data to fill anything in from.
    """
    e = settings.experiment
    if not parts_of(e):
        return settings
    if source is not None and source.kind != "resume":
        open_leaves = {leaf.path for leaf in part_fields(e) if leaf.value is None}
        found = {name: value for name, value in (source.derived or {}).items() if name in open_leaves}
        return _with(settings, found)
    return settings if serving else _with_experiment(settings, settings.resolved.with_open_parts())


def with_filled_parts(
    settings: Settings, sources: Mapping[str, Any], splits: Mapping[str, Split], report: SetupReport
) -> Settings:
    """Ask the parts for what they leave open, until none has another value.

    Args:
        settings: with the derived values.
        sources: the data.
        splits: its first batches.
        report: gets a row per value.

    Raises:
        ConfigError: two parts disagree, or they find no end.
    """
    e = settings.experiment
    parts = parts_of(e)
    if not parts:
        return settings
    split = splits.get("train") or next(iter(splits.values()), None)
    batch = {} if split is None else _prepared_rows(settings.hooks, e, split)
    filled: dict[str, Any] = {}
    for _ in range(len(parts) + 2):
        declared = agreed({path: part.declares(sources) for path, part in parts.items()})
        asked = {path: part.fills(sources, batch, declared) for path, part in parts.items()}
        found = {f"{path}.{name}": value for path, values in asked.items() for name, value in values.items()}
        new = {name: value for name, value in found.items() if not same_content(field_value(e, name), value)}
        if not new:
            break
        e, filled = with_unset(e, new), filled | new
        parts = parts_of(e)
    else:
        raise ConfigError(
            f"the parts of {type(e).__name__} fill in {', '.join(new)} again and again",
            why="each changes what another goes by",
            fix="write one of them",
        )
    noted = {path: part.notes(sources) for path, part in parts.items()}
    report.add("parts", [{"part": path, **notes} for path, notes in noted.items() if notes])
    settings = _with(settings, {name: field_value(e, name) for name in filled})
    rows = [{"field": name, "derived": (text := described(value)), "used": text} for name, value in filled.items()]
    if rows:
        report.add("filled in", [{**row, "origin": settings.resolved.origin_text(row["field"])} for row in rows])
        check_graphconst(settings.experiment)
    return settings


def _with(settings: Settings, values: Mapping[str, Any]) -> Settings:
    if not values:
        return settings
    settings = _with_experiment(settings, settings.resolved.with_filled_parts(values))
    return replace(settings, derived={**settings.derived, **values})


def _with_experiment(settings: Settings, resolved: Any) -> Settings:
    if resolved.experiment is settings.experiment:
        return settings
    # What a part is called with may follow from what was filled in.
    return replace(settings, resolved=resolved, hooks=HookTable(resolved.experiment))


def _prepared_rows(hooks: HookTable, e: Experiment, split: Split) -> dict[str, RowSpec]:
    """The rows of a split's batches as the model sees them: as devices hold them, behind `prepare`."""
    held = {
        name: jax.ShapeDtypeStruct((split.batch_size, *spec.shape), narrowed_dtype(spec.dtype) or spec.dtype)
        for name, spec in split.fields.items()
        if spec.dtype.kind in "biufcV"
    }
    if hooks.has("prepare"):
        arrays = {name: device_array(field_value(e, name)) for name in device_names(e)}

        def prepare(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            changed: Mapping[str, Any] = hooks.call(compile_view(e, values), "prepare", inputs, False, None)
            return changed

        held |= jax.eval_shape(prepare, arrays, held)
    return {name: RowSpec(tuple(x.shape[1:]), np.dtype(x.dtype).name) for name, x in held.items()}
