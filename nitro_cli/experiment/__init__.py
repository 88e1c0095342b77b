"""What a user writes: the three kinds of field, the hooks and their defaults, views, routing by name.

Nothing here imports JAX, and each name is resolved on first use: the light commands read selectors without
pydantic. Presets come from the registry, which lies above: it calls `set_preset_loader(f)` when it
is imported, `f(cls, name, values) -> Experiment`, and `nitro_cli/__init__.py` arranges that resolving
`nitro_cli.Experiment` installs a loader that imports the registry on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.lazy_names import lazy_names

if TYPE_CHECKING:
    from .content import content_digest, same_content
    from .device_values import device_array
    from .experiment import KNOBS, Experiment, set_preset_loader, validation_problems
    from .hook_table import HookTable, check_hooks
    from .hooks import HOOKS, REQUIRED_HOOKS, default_no_decay, sanitize_metric_name
    from .identity import check_graphconst, check_knob_kinds, graphconst_fingerprint
    from .judging import monitor_of, own_store, selection_of
    from .kinds import Device, FieldKind, GraphConst, Host, Private
    from .knobs import EMA, Checkpointer, EarlyStopping, EvalWeights, Monitor, parse_duration
    from .loggers import JSONLogger, MLflowLogger, Tee, TensorBoardLogger, TrackioLogger, WandbLogger
    from .metadata import NO_DEFAULT, FieldMeta, config_metadata, fields_of_kind, type_text
    from .narrowing import first_lost, narrowed_dtype
    from .problems import Problem, config_error
    from .protocols import CheckpointStore, Logger, StopRule
    from .routing import Routing, resolve_routing
    from .schedules import (
        SCHEDULE_KINDS,
        Constant,
        Cosine,
        Exponential,
        InverseSqrt,
        Linear,
        OneCycle,
        Piecewise,
        PlateauConfig,
        Polynomial,
        ScheduleConfig,
        WarmupCosine,
        parse_schedules,
        schedule_problems,
    )
    from .selector_text import parse_selector
    from .selectors import Average, Best, Entry, Epochs, Every, Last, Mode, Selector, rank
    from .sentinel import StrippedHost
    from .signatures import BatchField, HookSignature
    from .strict_model import StrictModel
    from .views import compile_view, host_view, with_unset

__all__ = [
    "EMA",
    "HOOKS",
    "KNOBS",
    "NO_DEFAULT",
    "REQUIRED_HOOKS",
    "SCHEDULE_KINDS",
    "Average",
    "BatchField",
    "Best",
    "CheckpointStore",
    "Checkpointer",
    "Constant",
    "Cosine",
    "Device",
    "EarlyStopping",
    "Entry",
    "Epochs",
    "EvalWeights",
    "Every",
    "Experiment",
    "Exponential",
    "FieldKind",
    "FieldMeta",
    "GraphConst",
    "HookSignature",
    "HookTable",
    "Host",
    "InverseSqrt",
    "JSONLogger",
    "Last",
    "Linear",
    "Logger",
    "MLflowLogger",
    "Mode",
    "Monitor",
    "OneCycle",
    "Piecewise",
    "PlateauConfig",
    "Polynomial",
    "Private",
    "Problem",
    "Routing",
    "ScheduleConfig",
    "Selector",
    "StopRule",
    "StrictModel",
    "StrippedHost",
    "Tee",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
    "WarmupCosine",
    "check_graphconst",
    "check_hooks",
    "check_knob_kinds",
    "compile_view",
    "config_error",
    "config_metadata",
    "content_digest",
    "default_no_decay",
    "device_array",
    "fields_of_kind",
    "first_lost",
    "graphconst_fingerprint",
    "host_view",
    "monitor_of",
    "narrowed_dtype",
    "own_store",
    "parse_duration",
    "parse_schedules",
    "parse_selector",
    "rank",
    "resolve_routing",
    "same_content",
    "sanitize_metric_name",
    "schedule_problems",
    "selection_of",
    "set_preset_loader",
    "type_text",
    "validation_problems",
    "with_unset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "content": "content_digest same_content",
        "device_values": "device_array",
        "experiment": "KNOBS Experiment set_preset_loader validation_problems",
        "hook_table": "HookTable check_hooks",
        "hooks": "HOOKS REQUIRED_HOOKS default_no_decay sanitize_metric_name",
        "identity": "check_graphconst check_knob_kinds graphconst_fingerprint",
        "judging": "monitor_of own_store selection_of",
        "kinds": "Device FieldKind GraphConst Host Private",
        "knobs": "EMA Checkpointer EarlyStopping EvalWeights Monitor parse_duration",
        "loggers": "JSONLogger MLflowLogger Tee TensorBoardLogger TrackioLogger WandbLogger",
        "narrowing": "first_lost narrowed_dtype",
        "metadata": "NO_DEFAULT FieldMeta config_metadata fields_of_kind type_text",
        "problems": "Problem config_error",
        "protocols": "CheckpointStore Logger StopRule",
        "routing": "Routing resolve_routing",
        "schedules": (
            "SCHEDULE_KINDS Constant Cosine Exponential InverseSqrt Linear OneCycle Piecewise PlateauConfig "
            "Polynomial ScheduleConfig WarmupCosine parse_schedules schedule_problems"
        ),
        "selector_text": "parse_selector",
        "selectors": "Average Best Entry Epochs Every Last Mode Selector rank",
        "sentinel": "StrippedHost",
        "signatures": "BatchField HookSignature",
        "strict_model": "StrictModel",
        "views": "compile_view host_view with_unset",
    },
)
