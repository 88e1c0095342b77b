"""What a run leaves on disk: its directory, configuration, log, history and checkpoints.

Nothing here is made before the first `train()`; no other entry point makes a run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nitro_cli.checkpoints import (
    CheckpointRecord,
    EpochLoss,
    LoggerFacts,
    RecordedClass,
    RecordedComponent,
    RecordedTotals,
    RecordMeta,
    RuleStates,
    RunStore,
    best_entry,
    record_bytes,
    write_kept_files,
)
from nitro_cli.distributed import (
    FollowedStore,
    UnwrittenHistory,
    begin_with_others,
    main_says,
)
from nitro_cli.experiment import Checkpointer, content_digest, own_store, source_facts
from nitro_cli.metrics import encode_row, flatten_scalars
from nitro_cli.registry import exported_config, holds_machine_path, write_config
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.description import (
    derived_values,
    fields_by_kind,
    logged_parameters,
    program_facts,
    record_arrays,
    record_leaves,
    recorded_parameters,
    versions,
)
from nitro_cli.run.kept_files import kept_digests
from nitro_cli.run.line_files import HISTORY, LOG, cut_lines, line_lengths
from nitro_cli.run.plan import Plan
from nitro_cli.run.run_place import RunPlace
from nitro_cli.run.state import RunState
from nitro_cli.run.user_checkpointer import save_own
from nitro_cli.tracking import JsonLinesWriter, logger_identity, open_logger, reattach_logger

__all__ = ["Recorder"]


class Recorder:
    """The run on disk. Opened by `train()`.

    Attributes:
        store: the run's directory, locked.
        logger: the live logger, or None.
        history: the file of history rows.
        place: where the run is, and what it was before.
        configured: whether config.toml says the configuration: in a resumed run it does from the first new record on.

    A continued run's log and history are first cut to what its record counted. Its configuration and provenance stay
    as they are until there is a new record, so that a resume that trains nothing changes nothing.

    Args:
        plan: of the run.
        state: where it stands.
        compiler: whose programs run.json tells of.
        place: where the run is.

    Raises:
        StorageError: the directory cannot be written, or the disk is too small for what retention keeps.
    """

    def __init__(self, plan: Plan, state: RunState, compiler: Compiler, place: RunPlace) -> None:
        self.place = place
        self.store = place.store
        self.logger: Any = None
        self.history: JsonLinesWriter | UnwrittenHistory = UnwrittenHistory()
        self.configured = False
        self.checkpoint_path: Path | None = None
        self._plan = plan
        self._compiler = compiler
        self._config = ""
        self._told = set(compiler.programs)
        self._began = state.rules.began
        if not isinstance(self.store, FollowedStore):
            self._begin(state)

    def _begin(self, state: RunState) -> None:
        """Write what a run has from its first moment: configuration, provenance, the log's head."""
        plan, store, place, e = self._plan, self.store, self.place, self._plan.experiment
        meta = place.resumed.record.meta if place.resumed is not None and place.continued else None
        self.logger = logger = open_logger(e.logger, store.path / LOG)
        self.history = history = JsonLinesWriter(store.path / HISTORY)
        if meta is not None and meta.log_bytes is not None:
            cut_lines(store.path, meta.log_bytes, state.history, logger, history)
        if meta is not None and meta.logger is not None and logger is not None:
            reattach_logger(logger, meta.logger.type, meta.logger.state)
        # Every record carries it, so that a copied checkpoint says what it is of.
        self._config = exported_config(plan.settings.recorded)
        if not place.continued:
            write_kept_files(store.path, plan.settings.kept)
        if place.resumed is None or not place.continued:
            self._write_configuration()
        store.check_disk(record_bytes(record_leaves(state.train, plan.settings.derived)), e.max_epochs)
        if not place.continued:
            for row in state.history:
                history.write(encode_row(row))
            if logger is not None:
                logger.log_params(logged_parameters(plan))
                logger.log_other("setup_report", str(plan.report))

    def log_changes(self) -> None:
        """Tell the logger the parameters again where a resume trains on with others than its record did."""
        resumed = self.place.resumed if self.place.continued else None
        if self.logger is None or resumed is None:
            return
        parameters = logged_parameters(self._plan)
        before = recorded_parameters(resumed.record.meta)
        if any(before[name] != value for name, value in parameters.items() if name in before):
            self.logger.log_params(parameters)

    def tell_programs(self) -> None:
        """Add the cost of programs compiled since to the run's record and log, once per purpose."""
        programs = self._compiler.programs
        if len(programs) == len(self._told):
            return
        new = [purpose for purpose in programs if purpose not in self._told]
        self._told.update(new)
        self._write_run_json()
        for purpose in new:
            if self.logger is not None:
                self.logger.log_other(f"program/{purpose}", program_facts(programs[purpose]))

    def _write_configuration(self) -> None:
        """Write config.toml and run.json, once."""
        if not self.configured:
            write_config(self.store.path / "config.toml", self._plan.settings.recorded)
            self._write_run_json()
            self.configured = True

    def check_in_place(self) -> None:
        """Check, before something is written by its path, that the run's directory is where it was.

        Raises:
            StorageError: it was moved, removed or replaced.
        """
        if isinstance(self.store, RunStore):
            self.store.check_in_place()

    def _write_run_json(self, stop_cause: str | None = None) -> None:
        """Write provenance, environment and the setup report as they are now."""
        settings = self._plan.settings
        document = {
            "schema": 1,
            "id": self.store.id,
            "experiment": settings.import_path,
            "preset": settings.resolved.preset,
            "fields": fields_by_kind(settings.experiment),
            "origins": settings.resolved.recorded_origins(),
            "command": sys.argv,
            "directory": os.getcwd(),
            "host": platform.node(),
            # platform.platform() would start a process to ask for the processor's name.
            "platform": f"{platform.system()}-{platform.release()}-{platform.machine()}",
            "pid": os.getpid(),
            "versions": versions(),
            "source": source_facts(type(settings.experiment)),
            "resume": asdict(self._began),
            "report": self._plan.report.as_json(),
            "programs": {name: program_facts(program) for name, program in self._compiler.programs.items()},
            "stop_cause": stop_cause,
        }
        if settings.kept:
            document["kept"] = kept_digests(settings.kept)
        self.store.write_info(document)

    def save(
        self,
        state: RunState,
        *,
        metrics: Mapping[str, Any],
        score: float | None,
        resume_point: bool,
        stop_reason: str | None = None,
    ) -> bool:
        """Write a checkpoint of the run as it is, if the rules keep it; returns whether they do.

        Args:
            state: of the run.
            metrics: of the epoch's validation.
            score: what it is ranked by; None without one.
            resume_point: whether it is kept whatever the rules say.
            stop_reason: why the run ends here, if it does.
        """
        plan, at, selection = self._plan, state.position, self._plan.settings.selection
        checkpointer = plan.experiment.checkpointer
        if checkpointer is None:
            return False
        own = own_store(checkpointer)
        if not isinstance(self.store, FollowedStore):
            self._write_configuration()
        metric = selection.metric if selection is not None else None
        if own is None and not resume_point and not self._admitted(state, score):
            return False
        components, extra = state.rules.components()
        arrays = record_arrays(state.train, plan.settings.derived) | extra
        if isinstance(self.store, FollowedStore):
            if own is None:
                self.store.save(arrays)
            return True
        if own is not None:
            record = CheckpointRecord(self._meta(state, components, metrics, stop_reason), arrays)
            return save_own(own, record, epoch=at.epoch, step=at.step, score=score)
        words: dict[str, Any] = {"epoch": at.epoch, "step": at.step, "metric": metric, "score": score}
        name = plan.settings.hooks.call(state.host_view(), "checkpoint_filename", **words)
        self.checkpoint_path = self.store.save(
            self._meta(state, components, metrics, stop_reason),
            arrays,
            epoch=at.epoch,
            step=at.step,
            name=name,
            score=score,
            resume_point=resume_point,
            others=begin_with_others,
        )
        return True

    def _admitted(self, state: RunState, score: float | None) -> bool:
        admitted = self.store.admits(state.position.epoch, score, step=state.position.step)
        return admitted if isinstance(self.store, FollowedStore) else bool(main_says(admitted))

    def _meta(
        self,
        state: RunState,
        components: Mapping[str, RecordedComponent],
        metrics: Mapping[str, Any],
        stop_reason: str | None,
    ) -> RecordMeta:
        plan, settings, at, e = self._plan, self._plan.settings, state.position, self._plan.experiment
        train, totals = self._compiler.programs.get("train"), at.totals
        return RecordMeta(
            experiment=RecordedClass(name=type(e).__name__, import_=settings.import_path),
            fields=fields_by_kind(e, exported=True),
            origins=settings.resolved.recorded_origins(),
            config=self._config,
            graphconst={name: repr(value) for name, value in e.graphconst_items().items()},
            graphconst_sha256={name: content_digest(value) for name, value in e.graphconst_items().items()},
            preset=settings.resolved.preset,
            seed=settings.seed,
            run=self.store.id,
            epoch=at.epoch,
            step=at.step,
            position=at.batch,
            epoch_closed=at.closed,
            stream_state=None if at.closed else at.stream_state,
            epoch_loss=EpochLoss(sum=totals.loss_sum, count=totals.loss_count),
            epoch_totals=RecordedTotals(terms=dict(totals.terms), metrics=dict(totals.metrics), skipped=totals.skipped),
            updates=at.updates,
            failed=at.failed,
            batches=plan.splits["train"].batches,
            data={name: split.identity.as_json() for name, split in plan.splits.items()},
            batch_fields=plan.data.recorded_fields,
            accum=e.accum,
            steps_per_dispatch=at.steps_per_dispatch,
            total_steps=plan.optim.total_steps,
            log_bytes=line_lengths(self.store.path),
            derived=derived_values(settings.derived),
            metrics=flatten_scalars(metrics)[0],
            history=state.history.json_rows(),
            rules=RuleStates(**state.rules.state()),
            components=dict(components),
            logger=self._logger_facts(),
            anchors=dict(plan.optim.anchor_checksums),
            w0=plan.optim.w0_source,
            stop_reason=stop_reason,
            program=train.key if train is not None else None,
            versions=versions(),
        )

    def _logger_facts(self) -> LoggerFacts | None:
        logger = self.logger
        if logger is None:
            return None
        url = logger.run_url
        return LoggerFacts(
            type=logger_identity(logger),
            state=logger.state(),
            run_id=logger.run_id,
            run_url=None if holds_machine_path(url) else url,
        )

    def best(self) -> dict[str, Any] | None:
        """Score, metric, mode and path of the best checkpoint kept, or None."""
        selection = self._plan.settings.selection
        if selection is None or not isinstance(self._plan.experiment.checkpointer, Checkpointer):
            return None
        metric, mode = selection
        chosen = best_entry(self.store.entries, metric, mode)
        if chosen is None:
            return None
        path = str(self._plan.settings.run_dir / chosen.path)
        return {"score": chosen.score, "metric": metric, "mode": mode, "checkpoint": path, "epoch": chosen.epoch}

    def close(self, status: str | None, stop_cause: str | None = None) -> None:
        """Wait for the last write, record how the run ended, and let go of the files.

        Args:
            status: the stop reason; None for a run that was interrupted, which stays `running` with its lock free.
                A resume that trained nothing leaves the status that the run had, where its record was not an end.
            stop_cause: what asked the run to stop, which run.json then says.

        Raises:
            StorageError: the last checkpoint could not be written.
            Exception: what the logger's `finish` raised. With either the run ends as `error`.
        """
        problems: list[BaseException] = []
        if self._unchanged():
            status = self.place.status or status

        def attempt(step: Callable[..., object], *args: Any) -> None:
            try:
                step(*args)
            except BaseException as problem:  # signals are held back here: it is what the user's logger raised
                problems.append(problem)

        attempt(self.store.wait)
        if problems:
            status = "error"
        if self.logger is not None:
            attempt(self.logger.finish, status or "interrupted")
        attempt(self.history.close)
        if problems:
            status = "error"
        if stop_cause is not None and self.configured:
            attempt(self._write_run_json, stop_cause)
        if status is not None:
            attempt(self.store.set_status, status)
        attempt(self.store.close)
        if problems:
            raise problems[0]

    def _unchanged(self) -> bool:
        """Whether the run is as the resume found it, stopped in the middle."""
        resumed = self.place.resumed
        return not self.configured and resumed is not None and not resumed.record.meta.stop_reason

    def discard(self) -> None:
        """Remove a run that never finished a step."""
        if self.logger is not None:
            with contextlib.suppress(Exception):
                self.logger.finish("error")
        self.history.close()
