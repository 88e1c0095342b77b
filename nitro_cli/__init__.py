"""nitro: an experiment runner with a preset registry, on a JAX training framework.

Public names are resolved on first use, so that importing the package loads neither JAX nor anything else heavy.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # without `typing`, which takes longer to load than the rest of this file
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_ROOMS = {
    "errors": (
        "ConfigError",
        "DataError",
        "DivergenceError",
        "ExitCode",
        "HookError",
        "IncompatibleError",
        "IntegrityError",
        "NitroError",
        "NitroWarning",
        "NotFoundError",
        "ProcessLostError",
    ),
    "experiment": (
        "EMA",
        "NO_DEFAULT",
        "Average",
        "Best",
        "Checkpointer",
        "Device",
        "EarlyStopping",
        "Epochs",
        "Every",
        "Experiment",
        "GraphConst",
        "Host",
        "JSONLogger",
        "Last",
        "MLflowLogger",
        "Private",
        "Selector",
        "Tee",
        "TensorBoardLogger",
        "TrackioLogger",
        "WandbLogger",
        "compile_view",
        "config_metadata",
        "default_no_decay",
    ),
    "metrics": ("Concat", "History", "Max", "Mean", "Min", "Sum"),
    "data": ("ArrayBatches", "Dist", "NoPrefetch", "Prefetch", "check_batch_at"),
    "optim": (
        "ASAM",
        "SAM",
        "PerturbRule",
        "Plateau",
        "SingleGrad",
        "constant",
        "cosine",
        "decay",
        "exponential",
        "inverse_sqrt",
        "linear",
        "one_cycle",
        "piecewise",
        "polynomial",
        "warmup_cosine",
    ),
    "checkpoints": (
        "CheckpointRecord",
        "average_checkpoints",
        "checkpoint_info",
        "load_checkpoint",
        "read_manifest",
        "runs",
    ),
    "export": ("BundleError", "ExportSpec", "export_provenance", "load_bundle"),
    "programs": ("cache_reset", "cache_stats"),
    "distributed": ("setup_distributed",),
    "run": (
        "Nitro",
        "dry_run",
        "profile",
        "progress_counter",
        "progress_note",
        "register_phase_monitor",
        "set_progress_reporter",
        "setup_devices",
        "train",
        "unregister_phase_monitor",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("nitro_cli.installation").nitro_version()
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'nitro_cli' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nitro_cli.{room}"), name)
    if name == "Experiment" and "nitro_cli.registry" not in sys.modules:
        importlib.import_module("nitro_cli.experiment").set_preset_loader(_load_preset)
    if room == "run":
        _connect()
    globals()[name] = value
    return value


def _load_preset(cls: Any, name: str, values: Mapping[str, Any]) -> Any:
    # `Experiment.from_preset` needs the registry, which installs its own loader in place of this one.
    importlib.import_module("nitro_cli.registry")
    return cls.from_preset(name, **values)


def _connect() -> None:
    """Give the handle what lies above its room: the exporter, and a display where nobody chose one."""
    run = importlib.import_module("nitro_cli.run")

    def export(*args: Any, **words: Any) -> Any:
        return importlib.import_module("nitro_cli.export").export(*args, **words)

    run.set_exporter(export)
    run.set_default_reporter(lambda: importlib.import_module("nitro_cli.cli.render.reporter").reporter_for_scripts())


def __dir__() -> list[str]:
    return __all__
