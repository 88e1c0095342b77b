"""Checkpoints and runs on disk: records, the manifest, retention, sources, averaging.

A directory of runs, such as `runs/MnistMLP`, holds `manifest.json` and one directory per run; each run's
`checkpoints/` holds its records. Everything but the reading and writing of arrays works without JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.lazy_names import lazy_names

if TYPE_CHECKING:
    from nitro_cli.checkpoints.averaging import average, average_checkpoints
    from nitro_cli.checkpoints.differences import tree_difference
    from nitro_cli.checkpoints.disk import check_disk, disk_need
    from nitro_cli.checkpoints.entries import Manifest, ManifestEntry, RunInfo, latest_entry
    from nitro_cli.checkpoints.fallback import load_with_fallback, quarantine, without_quarantine
    from nitro_cli.checkpoints.json_text import encode_value, plain_meta
    from nitro_cli.checkpoints.leaves import LeafSpec, host_arrays, record_bytes
    from nitro_cli.checkpoints.locks import run_in_use, run_is_locked
    from nitro_cli.checkpoints.manifest import load_manifest, read_manifest
    from nitro_cli.checkpoints.names import check_run_dir_name, contained_path, quarantined_records, record_name
    from nitro_cli.checkpoints.pieces import ArrayPieces
    from nitro_cli.checkpoints.pruning import Prunable, prune
    from nitro_cli.checkpoints.rebuilding import rescan
    from nitro_cli.checkpoints.reconcile import unlisted_runs, warn_about_unlisted
    from nitro_cli.checkpoints.record import (
        CheckpointRecord,
        load_checkpoint,
        read_record,
        verify_record,
        write_record,
    )
    from nitro_cli.checkpoints.record_metadata import (
        RecordInfo,
        check_meta,
        check_stop_counters,
        checkpoint_info,
        record_info,
    )
    from nitro_cli.checkpoints.recorded_history import run_history
    from nitro_cli.checkpoints.references import AverageRef, CheckpointRef
    from nitro_cli.checkpoints.retention import Retention
    from nitro_cli.checkpoints.run_file import read_run_file
    from nitro_cli.checkpoints.shared_record import PartWriter, WrittenPart
    from nitro_cli.checkpoints.source_names import named_pair, placed_pair
    from nitro_cli.checkpoints.sources import resolve_resume, resolve_source
    from nitro_cli.checkpoints.store import RunStore
    from nitro_cli.checkpoints.summaries import RunSummary, best_entry, runs, summarize
    from nitro_cli.checkpoints.verification import Verification, verify

__all__ = [
    "ArrayPieces",
    "AverageRef",
    "CheckpointRecord",
    "CheckpointRef",
    "LeafSpec",
    "Manifest",
    "ManifestEntry",
    "PartWriter",
    "Prunable",
    "RecordInfo",
    "Retention",
    "RunInfo",
    "RunStore",
    "RunSummary",
    "Verification",
    "WrittenPart",
    "average",
    "average_checkpoints",
    "best_entry",
    "check_disk",
    "check_meta",
    "check_run_dir_name",
    "check_stop_counters",
    "checkpoint_info",
    "contained_path",
    "disk_need",
    "encode_value",
    "host_arrays",
    "latest_entry",
    "load_checkpoint",
    "load_manifest",
    "load_with_fallback",
    "named_pair",
    "placed_pair",
    "plain_meta",
    "prune",
    "quarantine",
    "quarantined_records",
    "read_manifest",
    "read_record",
    "read_run_file",
    "record_bytes",
    "record_info",
    "record_name",
    "rescan",
    "resolve_resume",
    "resolve_source",
    "run_history",
    "run_in_use",
    "run_is_locked",
    "runs",
    "summarize",
    "tree_difference",
    "unlisted_runs",
    "verify",
    "verify_record",
    "warn_about_unlisted",
    "without_quarantine",
    "write_record",
]

# Resolved on first use: listing runs must not pay for what reads and writes arrays.

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "averaging": "average average_checkpoints",
        "disk": "check_disk disk_need",
        "entries": "Manifest ManifestEntry RunInfo latest_entry",
        "fallback": "load_with_fallback quarantine without_quarantine",
        "json_text": "encode_value plain_meta",
        "leaves": "LeafSpec host_arrays record_bytes",
        "locks": "run_in_use run_is_locked",
        "manifest": "load_manifest read_manifest",
        "names": "check_run_dir_name contained_path quarantined_records record_name",
        "pieces": "ArrayPieces",
        "pruning": "Prunable prune",
        "record": "CheckpointRecord load_checkpoint read_record verify_record write_record",
        "record_metadata": "RecordInfo check_meta check_stop_counters checkpoint_info record_info",
        "references": "AverageRef CheckpointRef",
        "rebuilding": "rescan",
        "reconcile": "unlisted_runs warn_about_unlisted",
        "recorded_history": "run_history",
        "run_file": "read_run_file",
        "retention": "Retention",
        "shared_record": "PartWriter WrittenPart",
        "source_names": "named_pair placed_pair",
        "sources": "resolve_resume resolve_source",
        "store": "RunStore",
        "summaries": "RunSummary best_entry runs summarize",
        "differences": "tree_difference",
        "verification": "Verification verify",
    },
)
