"""The model of a run: built, and filled from the source of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from nitro_cli.checkpoints import SourceOfWeights
from nitro_cli.distributed import process_count
from nitro_cli.experiment import device_array, device_names, field_value, host_view
from nitro_cli.optim import build_layout
from nitro_cli.programs import trace_model
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.decay_reference import decay_reference
from nitro_cli.run.devices import Placement
from nitro_cli.run.plan import ModelPlan, Settings
from nitro_cli.run.report import SetupReport
from nitro_cli.run.restore import restored
from nitro_cli.run.start import Start

__all__ = ["BuiltModel", "build_model", "place_device_fields"]


@dataclass(frozen=True)
class BuiltModel:
    """A model with its numbers.

    Attributes:
        plan: the model without them.
        params, state: on the device, the source's where there is one.
        w0: makes the parameters that decay pulls to, where it does.
        w0_source: which loaded weights those are, if any.
    """

    plan: ModelPlan
    params: Any
    state: Any
    w0: Callable[[], Any]
    w0_source: SourceOfWeights | None


def place_device_fields(settings: Settings, placement: Placement) -> dict[str, jax.Array]:
    """The experiment's Device fields as arrays on the devices."""
    e = settings.experiment
    # Copies: on the CPU the device would read the user's own arrays, which they may change.
    arrays = {name: np.array(device_array(field_value(e, name))) for name in device_names(e)}
    placed: dict[str, jax.Array] = placement.put(arrays)
    return placed


def build_model(
    settings: Settings,
    start: Start,
    placement: Placement,
    device: Mapping[str, jax.Array],
    compiler: Compiler,
    report: SetupReport,
) -> BuiltModel:
    """Call `build_model`, and put the source's weights in the place of the fresh ones.

    Raises:
        HookError: the hook returned no model.
        IncompatibleError: the source's weights do not fit it.
    """
    e = settings.experiment

    def build(values: Mapping[str, jax.Array], key: jax.Array) -> Any:
        return settings.hooks.call(host_view(e, values), "build_model", key)

    layout, source = placement.layout, start.source
    traced = trace_model(
        build,
        settings.seed,
        # With several processes each computes the same by itself, from values of its own.
        device if process_count() == 1 else jax.tree.map(np.asarray, device),
        options=compiler.options,
        on_compile=compiler.announce,
        place=layout.keep if layout is not None and layout.fsdp else None,
    )
    if source is None:
        built = traced.compute()
        params, state, key = placement.put_parameters(built.params), placement.put(built.state), built.key
        row: dict[str, str] = {"initialised": built.mode, "because": built.reason or ""}
    else:
        params, state = restored(e, source, (traced.params, traced.state), placement, load_ema=start.load_ema)
        key = traced.key()
        row = {"initialised": "no", "because": f"the arrays are those of {source.text}"}
    report.add("model", [{"library": traced.adapted.library, **row}])

    def fresh() -> Any:
        return params if source is None else placement.put_parameters(traced.compute().params)

    w0, w0_source = decay_reference(start, fresh, params, placement)
    plan = ModelPlan(traced.adapted, build_layout(e, params), placement.put(key))
    return BuiltModel(plan, params, state, w0, w0_source)
