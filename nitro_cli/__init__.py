"""nitro: an experiment runner with a preset registry, on a JAX training framework.

Errors are in `nitro_cli.errors`, schedules and gradient rules in `nitro_cli.optim`, trackers in `nitro_cli.tracking`.

Public names are resolved on first use, so that importing the package loads neither JAX nor anything else heavy.
"""

from __future__ import annotations

import importlib

from nitro_cli.lazy_names import lazy_names

TYPE_CHECKING = False  # without `typing`, which takes longer to load than the rest of this file
if TYPE_CHECKING:
    from typing import Any


def _moved(name: str) -> Any:
    """A name of a room that was offered here too."""
    for room in ("errors", "optim", "tracking"):
        module = importlib.import_module(f"nitro_cli.{room}")
        if name in module.__all__:
            warnings = importlib.import_module("warnings")
            warnings.warn(f"import {name} from nitro_cli.{room}", DeprecationWarning, stacklevel=3)
            return getattr(module, name)
    return None


with lazy_names(__name__, elsewhere=_moved):
    from nitro_cli.checkpoints import (
        CheckpointRecord as CheckpointRecord,
        average_checkpoints as average_checkpoints,
        checkpoint_info as checkpoint_info,
        compare_runs as compare_runs,
        load_checkpoint as load_checkpoint,
        read_manifest as read_manifest,
        runs as runs,
    )
    from nitro_cli.data import (
        ArrayBatches as ArrayBatches,
        Dist as Dist,
        NoPrefetch as NoPrefetch,
        Prefetch as Prefetch,
        check_batch_at as check_batch_at,
    )
    from nitro_cli.distributed import (
        setup_distributed as setup_distributed,
    )
    from nitro_cli.errors import (
        NitroError as NitroError,
        NitroWarning as NitroWarning,
    )
    from nitro_cli.experiment import (
        EMA as EMA,
        NO_DEFAULT as NO_DEFAULT,
        Average as Average,
        Best as Best,
        Callback as Callback,
        Checkpointer as Checkpointer,
        Device as Device,
        EarlyStopping as EarlyStopping,
        Epochs as Epochs,
        Every as Every,
        GraphConst as GraphConst,
        Host as Host,
        Last as Last,
        Private as Private,
        Selector as Selector,
        Term as Term,
        compile_view as compile_view,
        config_metadata as config_metadata,
        default_no_decay as default_no_decay,
    )
    from nitro_cli.export import (
        BundleError as BundleError,
        ExportSpec as ExportSpec,
        export_provenance as export_provenance,
        load_bundle as load_bundle,
    )
    from nitro_cli.installation import __version__ as __version__
    from nitro_cli.metrics import (
        Concat as Concat,
        History as History,
        Max as Max,
        Mean as Mean,
        Min as Min,
        Sum as Sum,
    )
    from nitro_cli.nitro import (
        Nitro as Nitro,
        train as train,
    )
    from nitro_cli.profiling import profile as profile
    from nitro_cli.programs import (
        cache_reset as cache_reset,
        cache_stats as cache_stats,
    )
    from nitro_cli.registry import Experiment as Experiment
    from nitro_cli.run import (
        dry_run as dry_run,
        progress_counter as progress_counter,
        progress_note as progress_note,
        register_phase_monitor as register_phase_monitor,
        set_progress_reporter as set_progress_reporter,
        setup_devices as setup_devices,
        unregister_phase_monitor as unregister_phase_monitor,
    )
    from nitro_cli.smoke_run import (
        smoke as smoke,
    )
