"""Checkpoints and runs on disk: records, the manifest, retention, sources, averaging.

A directory of runs, such as `runs/MnistMLP`, holds `manifest.json` and one directory per run; each run's
`checkpoints/` holds its records. Everything but the reading and writing of arrays works without JAX.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.checkpoints.averaging import average, average_checkpoints
    from nitro_cli.checkpoints.comparison import ComparedRun, Comparison, compare_runs
    from nitro_cli.checkpoints.disk import check_disk, disk_need
    from nitro_cli.checkpoints.entries import Manifest, ManifestEntry, RunInfo
    from nitro_cli.checkpoints.fallback import load_with_fallback, quarantine, without_quarantine
    from nitro_cli.checkpoints.json_text import encode_value
    from nitro_cli.checkpoints.leaf_differences import tree_difference
    from nitro_cli.checkpoints.leaves import record_bytes
    from nitro_cli.checkpoints.locks import run_in_use, run_is_locked
    from nitro_cli.checkpoints.manifest import load_manifest, read_manifest
    from nitro_cli.checkpoints.names import check_run_dir_name, contained_path, quarantined_records
    from nitro_cli.checkpoints.pieces import ArrayPieces
    from nitro_cli.checkpoints.pruning import prune
    from nitro_cli.checkpoints.rebuilding import rescan
    from nitro_cli.checkpoints.reconcile import unlisted_runs, warn_about_unlisted
    from nitro_cli.checkpoints.record import CheckpointRecord, load_checkpoint, read_record, verify_record, write_record
    from nitro_cli.checkpoints.record_meta import (
        AveragedFrom,
        EpochLoss,
        LoggerFacts,
        RecordedClass,
        RecordedComponent,
        RecordedField,
        RecordedTotals,
        RecordMeta,
        ResumeMeta,
        RuleStates,
        SourceOfWeights,
    )
    from nitro_cli.checkpoints.record_metadata import check_stop_counters, checkpoint_info, record_info, resume_meta
    from nitro_cli.checkpoints.recorded_history import read_history
    from nitro_cli.checkpoints.references import AverageRef, CheckpointRef
    from nitro_cli.checkpoints.retention import Retention
    from nitro_cli.checkpoints.retention_checks import check_averaged, check_retention
    from nitro_cli.checkpoints.run_file import read_run_file, write_kept_files
    from nitro_cli.checkpoints.shared_record import PartWriter, WrittenPart
    from nitro_cli.checkpoints.source_names import named_pair, placed_pair
    from nitro_cli.checkpoints.sources import resolve_resume, resolve_source
    from nitro_cli.checkpoints.store import RunStore
    from nitro_cli.checkpoints.summaries import RunSummary, best_entry, runs, summarize
    from nitro_cli.checkpoints.verification import verify
