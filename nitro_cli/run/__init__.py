"""The handle: setup in order, the loop, phases, stop rules, devices."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.run.callbacks import UpdateEvent
    from nitro_cli.run.compiling import Compiler
    from nitro_cli.run.components import ResumeStatus
    from nitro_cli.run.description import fields_by_kind, versions
    from nitro_cli.run.devices import DeviceReport, setup_devices
    from nitro_cli.run.evaluation import Evaluator
    from nitro_cli.run.events import Diverged, EpochBegan, EpochDone, Event, Observer, SaveDue, StepsDone, Stopped
    from nitro_cli.run.forecast import DiskNeed, DryRun, ProgramUse, dry_run
    from nitro_cli.run.handle import Handle
    from nitro_cli.run.kept_files import kept_digests
    from nitro_cli.run.loop import train_events
    from nitro_cli.run.output_meaning import OutputMeaning, meaning_of
    from nitro_cli.run.own_evaluation import EvaluatedRun
    from nitro_cli.run.phases import Phase, PhaseName, PhaseState, register_phase_monitor, unregister_phase_monitor
    from nitro_cli.run.plan import Plan
    from nitro_cli.run.position import Position
    from nitro_cli.run.prediction_rows import PredictedBatch, RowSource, RowsRead, SplitRows, predicted_batches
    from nitro_cli.run.predictions import LoadedFrom, prediction_origin, read_prediction, weights_id, write_predictions
    from nitro_cli.run.progress import (
        Reporter,
        progress_counter,
        progress_note,
        set_progress_reporter,
    )
    from nitro_cli.run.rendering import render
    from nitro_cli.run.report import Band, SetupReport
    from nitro_cli.run.signals import NothingToSave, ServedSignals, stop_again
    from nitro_cli.run.snapshot import flatten, unflatten
    from nitro_cli.run.state import RunState
    from nitro_cli.run.stopping import StopRequest
    from nitro_cli.run.training import Training
    from nitro_cli.run.user_checkpointer import load_own
