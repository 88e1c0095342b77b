"""The handle: setup in order, the loop, phases, stop rules, devices."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names
from nitro_cli.run.devices import DeviceReport, setup_devices
from nitro_cli.run.facts import fields_by_kind, versions
from nitro_cli.run.handle import Nitro, set_exporter, train
from nitro_cli.run.own_store import load_own
from nitro_cli.run.phases import Phase, PhaseName, register_phase_monitor, unregister_phase_monitor
from nitro_cli.run.progress import (
    Reporter,
    progress_counter,
    progress_note,
    set_default_reporter,
    set_progress_reporter,
)
from nitro_cli.run.report import Band, SetupReport
from nitro_cli.run.signals import NothingToSave, set_leave, signals, stop_again
from nitro_cli.run.snapshot import flatten, unflatten

with lazy_names(__name__):  # training needs neither
    from nitro_cli.run.forecast import DiskNeed, DryRun, ProgramUse, dry_run
    from nitro_cli.run.profiling import PhaseTime, Profile, profile

__all__ = [
    "Band",
    "DeviceReport",
    "DiskNeed",
    "DryRun",
    "Nitro",
    "NothingToSave",
    "Phase",
    "PhaseName",
    "PhaseTime",
    "Profile",
    "ProgramUse",
    "Reporter",
    "SetupReport",
    "dry_run",
    "fields_by_kind",
    "flatten",
    "load_own",
    "profile",
    "progress_counter",
    "progress_note",
    "register_phase_monitor",
    "set_default_reporter",
    "set_exporter",
    "set_leave",
    "set_progress_reporter",
    "setup_devices",
    "signals",
    "stop_again",
    "train",
    "unflatten",
    "unregister_phase_monitor",
    "versions",
]
