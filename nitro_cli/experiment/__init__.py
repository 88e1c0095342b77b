"""What a user writes: the three kinds of field, the hooks and their defaults, views, routing by name.

Nothing here imports JAX, and each name is resolved on first use: the light commands read selectors without
pydantic. Presets are found by the registry, which lies above: `nitro_cli.Experiment` is the class of that room.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .batch_problem import BatchProblem
    from .callback import CALLBACKS, Callback, register_callback
    from .configuration import check_configuration
    from .content import content_digest, same_content
    from .declared import Declared, RowSpec, agreed
    from .device_values import device_array
    from .experiment import (
        KNOBS,
        Experiment,
        device_names,
        field_value,
        part_fields,
        unset_device_names,
        validation_problems,
    )
    from .hook_table import HookTable, check_hooks
    from .hooks import HOOKS, default_no_decay, sanitize_metric_name
    from .identity import check_graphconst, check_knob_kinds, graphconst_fingerprint
    from .judging import monitor_of, monitor_policy, of_training, own_store, selection_of
    from .kinds import Device, FieldKind, GraphConst, Host, Private
    from .knobs import EMA, Checkpointer, Criterion, EarlyStopping, Monitor, parse_duration
    from .loggers import JSONLogger, MLflowLogger, Tee, TensorBoardLogger, TrackioLogger, WandbLogger
    from .metadata import NO_DEFAULT, FieldMeta, config_metadata, fields_of_kind, type_text
    from .narrowing import first_lost, narrowed_dtype
    from .part import Hook, Part
    from .part_leaves import PartField, graphconst_value, parts_of
    from .problems import Problem
    from .protocols import CheckpointStore, Logger, StopRule
    from .routing import VALID, Routing, resolve_routing
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
        Schedule,
        WarmupCosine,
        parse_schedules,
        schedule_problems,
    )
    from .selectors import Average, Best, Epochs, Every, Last, Mode, Selector, parse_selector, rank
    from .sentinel import StrippedHost
    from .signatures import BatchField
    from .source import source_facts
    from .strict_model import StrictModel
    from .term import Term
    from .views import compile_view, host_view, with_unset
