"""Checkpoints and runs on disk: records, the manifest, retention, sources, averaging.

A directory of runs, such as `runs/MnistMLP`, holds `manifest.json` and one directory per run; each run's
`checkpoints/` holds its records. Everything but the reading and writing of arrays works without JAX.
"""

from __future__ import annotations

from .averaging import average, average_checkpoints
from .disk import check_disk, disk_need
from .entries import Manifest, ManifestEntry, RunInfo, latest_entry
from .fallback import load_with_fallback, quarantine
from .leaves import LeafSpec, host_arrays, record_bytes
from .locks import run_is_locked
from .manifest import read_manifest
from .names import record_name
from .pruning import Prunable, prune
from .record import Record, RecordInfo, read_record, record_info, verify_record, write_record
from .references import AverageRef, CheckpointRef
from .rescan import rescan
from .retention import Retention, check_keep
from .sources import resolve_resume, resolve_source
from .store import RunStore
from .summaries import RunSummary, best_entry, runs
from .tree_difference import tree_difference
from .verification import Verification, verify

checkpoint_info = record_info

__all__ = [
    "AverageRef",
    "CheckpointRef",
    "LeafSpec",
    "Manifest",
    "ManifestEntry",
    "Prunable",
    "Record",
    "RecordInfo",
    "Retention",
    "RunInfo",
    "RunStore",
    "RunSummary",
    "Verification",
    "average",
    "average_checkpoints",
    "best_entry",
    "check_disk",
    "check_keep",
    "checkpoint_info",
    "disk_need",
    "host_arrays",
    "latest_entry",
    "load_with_fallback",
    "prune",
    "quarantine",
    "read_manifest",
    "read_record",
    "record_bytes",
    "record_info",
    "record_name",
    "rescan",
    "resolve_resume",
    "resolve_source",
    "run_is_locked",
    "runs",
    "tree_difference",
    "verify",
    "verify_record",
    "write_record",
]
