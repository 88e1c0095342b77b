"""Data: sources, batches, padding, prefetch. No JAX here: `prepare` moves batches to the device."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.data.adapters import adapt
    from nitro_cli.data.adapters.huggingface import HuggingFaceBatches
    from nitro_cli.data.agreement import check_batch_at
    from nitro_cli.data.arrays import ArrayBatches
    from nitro_cli.data.batches import (
        BatchCheck,
        FieldSpec,
        batch_length,
        check_device_fields,
        field_specs,
        pad_batch,
    )
    from nitro_cli.data.device_values import check_device_values, narrowed_fields
    from nitro_cli.data.dist import Dist
    from nitro_cli.data.first_batches import first_of_splits
    from nitro_cli.data.inspection import default_workers, inspect_split
    from nitro_cli.data.resident import ResidentArrays
    from nitro_cli.data.sources import BatchSource, EpochSource, IndexedSource
    from nitro_cli.data.split import Split, release_splits
    from nitro_cli.data.standardizer import Standardizer
    from nitro_cli.data.stream import BatchStream, StreamItem, WaitEnded
    from nitro_cli.data.windows import WindowItem, WindowPlan
    from nitro_cli.data.worker_processes import answer_fork_warnings, ignore_group_signals
    from nitro_cli.data.wrappers import NoPrefetch, Prefetch, WithLength
