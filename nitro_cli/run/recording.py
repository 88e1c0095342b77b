"""What a run leaves on disk: its directory, configuration, log, history and checkpoints.

Nothing here is made before the first `train()`; no other entry point makes a run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.checkpoints import (
    CheckpointRecord,
    EpochLoss,
    LoggerFacts,
    RecordedClass,
    RecordMeta,
    RuleStates,
    RunStore,
    best_entry,
    record_bytes,
    runs,
)
from nitro_cli.distributed import (
    FollowedStore,
    UnwrittenHistory,
    begin_with_others,
    check_common_directory,
    is_main,
    main_says,
    process_count,
)
from nitro_cli.experiment import Checkpointer, content_digest, own_store
from nitro_cli.metrics import check_scalar, encode_row, flatten_scalars
from nitro_cli.registry import exported_config, holds_machine_path, write_config
from nitro_cli.run.facts import (
    derived_values,
    fields_by_kind,
    logged_parameters,
    program_facts,
    record_arrays,
    record_leaves,
    recorded_parameters,
    versions,
)
from nitro_cli.run.identity import source_facts
from nitro_cli.run.line_files import HISTORY, LOG, cut_lines, line_lengths
from nitro_cli.run.own_store import save_own
from nitro_cli.tracking import JsonLinesWriter, logger_identity, open_logger, reattach_logger

if TYPE_CHECKING:
    from nitro_cli.run.handle import Nitro
    from nitro_cli.run.loop import EpochSums
    from nitro_cli.run.restore import Source

__all__ = ["Recorder", "RunPlace", "continued_run"]


@dataclass(frozen=True)
class RunPlace:
    """Where a run is written: made or taken over, locked, and nothing in it changed yet.

    Attributes:
        store: the run's directory, locked.
        continued: whether the run was there before.
        resumed: the source of a resume, whose record the run goes on from; None for a handle that trains again.
        status: of a run that was there before, how it ended; None for one that was killed.
    """

    store: RunStore | FollowedStore
    continued: bool
    resumed: Source | None
    status: str | None = None

    @classmethod
    def open(cls, nitro: Nitro, own_run: str | None) -> RunPlace:
        """Make a new run, or take one over.

        A resume continues the run whose newest record it starts from, and branches a new run off any other; a handle
        that trains again continues its own run, `own_run`.

        Raises:
            LockedError: another process is at work on the run.
            StorageError: the directory cannot be written, or several processes do not all see it.
        """
        if is_main():
            place = cls._open(nitro, own_run)
            main_says([place.store.id, place.continued])
        else:
            run_id, continued = main_says(None)
            place = cls(FollowedStore(nitro.run_dir, run_id), continued, None)
        if process_count() > 1 and nitro.parts.experiment.checkpointer is not None:
            try:
                check_common_directory(place.store.path)
            except BaseException:
                let_go = place.store.close if place.continued else place.store.discard
                let_go()
                raise
        return place

    @classmethod
    def _open(cls, nitro: Nitro, own_run: str | None) -> RunPlace:
        parts = nitro.parts
        metric, mode = parts.selection or (None, None)
        rule = parts.experiment.checkpointer
        kept = rule if isinstance(rule, Checkpointer) else None
        words: dict[str, Any] = {"checkpointer": kept, "metric": metric, "mode": mode}
        if own_run is not None:
            return cls(RunStore.reopen(nitro.run_dir, own_run, **words), True, None)
        source = parts.source
        resumed = source if source is not None and source.kind == "resume" else None
        continued = continued_run(resumed, nitro.run_dir)
        if continued is not None:
            status = next((run.status for run in runs(nitro.run_dir) if run.id == continued), None)
            entry = resumed.ref.entry if resumed is not None and resumed.ref is not None else None
            store = RunStore.reopen(nitro.run_dir, continued, entry, **words)
            return cls(store, True, resumed, None if status in ("running", "interrupted") else status)
        parent = None
        if resumed is not None:
            parent = resumed.text if resumed.ref is None else resumed.ref.parent_of_run_in(nitro.run_dir)
        words |= {"experiment": nitro.import_path, "preset": parts.preset, "parent": parent, "seed": parts.seed}
        return cls(RunStore.create(nitro.run_dir, **words), False, resumed)


@dataclass
class Recorder:
    """The run on disk. Opened by `train()`.

    Attributes:
        store: the run's directory, locked.
        logger: the live logger, or None.
        history: the file of history rows.
        continued: whether the run was there before.
        config: the text of its config.toml, which every record carries, so that a copied checkpoint says what it is of.
        place: where the run is, and what it was before.
        configured: whether config.toml says `config`: in a resumed run it does from the first new record on.
    """

    store: RunStore | FollowedStore
    logger: Any
    history: JsonLinesWriter | UnwrittenHistory
    continued: bool
    config: str = ""
    place: RunPlace | None = None
    configured: bool = False

    @classmethod
    def open(cls, nitro: Nitro, place: RunPlace) -> Recorder:
        """Write what a run has from its first moment: configuration, provenance, the log's head.

        A continued run's log and history are first cut to what its record counted. Its configuration and provenance
        stay as they are until there is a new record, so that a resume that trains nothing changes nothing.

        Raises:
            StorageError: the directory cannot be written, or the disk is too small for what retention keeps.
        """
        store, continued = place.store, place.continued
        parts, e = nitro.parts, nitro.parts.experiment
        if isinstance(store, FollowedStore):
            return cls(store, None, UnwrittenHistory(), continued)
        meta = place.resumed.record.meta if place.resumed is not None and continued else None
        logger = open_logger(e.logger, store.path / LOG)
        history = JsonLinesWriter(store.path / HISTORY)
        recorder = cls(store, logger, history, continued, place=place)
        if meta is not None and meta.log_bytes is not None:
            cut_lines(store.path, meta.log_bytes, nitro.history, logger, history)
        if meta is not None and meta.logger is not None and logger is not None:
            reattach_logger(logger, meta.logger.type, meta.logger.state)
        recorder.config = exported_config(nitro.resolved)
        if place.resumed is None or not continued:
            recorder.write_configuration(nitro)
        store.check_disk(record_bytes(record_leaves(nitro.carry, parts.derived)), e.max_epochs)
        if not continued:
            for row in nitro.history:
                recorder.history.write(encode_row(row))
            if logger is not None:
                logger.log_params(logged_parameters(parts))
                logger.log_other("setup_report", str(parts.report))
        return recorder

    def log_changes(self, nitro: Nitro) -> None:
        """Tell the logger the parameters again where a resume trains on with others than its record did."""
        resumed = self.place.resumed if self.place is not None and self.continued else None
        if self.logger is None or resumed is None:
            return
        parameters = logged_parameters(nitro.parts)
        before = recorded_parameters(resumed.record.meta)
        if any(before[name] != value for name, value in parameters.items() if name in before):
            self.logger.log_params(parameters)

    def write_configuration(self, nitro: Nitro) -> None:
        """Write config.toml and run.json, once."""
        if not self.configured:
            write_config(self.store.path / "config.toml", nitro.resolved)
            self.write_run_json(nitro)
            self.configured = True

    def check_in_place(self) -> None:
        """Check, before something is written by its path, that the run's directory is where it was.

        Raises:
            StorageError: it was moved, removed or replaced.
        """
        if isinstance(self.store, RunStore):
            self.store.check_in_place()

    def write_run_json(self, nitro: Nitro) -> None:
        """Write provenance, environment and the setup report as they are now."""
        document = {
            "schema": 1,
            "id": self.store.id,
            "experiment": nitro.import_path,
            "preset": nitro.parts.preset,
            "fields": fields_by_kind(nitro.parts.experiment),
            "origins": nitro.parts.resolved.recorded_origins(),
            "command": sys.argv,
            "directory": os.getcwd(),
            "host": platform.node(),
            # platform.platform() would start a process to ask for the processor's name.
            "platform": f"{platform.system()}-{platform.release()}-{platform.machine()}",
            "pid": os.getpid(),
            "versions": versions(),
            "source": source_facts(type(nitro.parts.experiment)),
            "report": nitro.parts.report.as_json(),
            "programs": {name: program_facts(program) for name, program in nitro.programs.items()},
            "stop_cause": nitro.stop_cause,
        }
        self.store.write_info(document)

    def save(
        self,
        nitro: Nitro,
        sums: EpochSums,
        *,
        rules: Mapping[str, Any],
        metrics: Mapping[str, Any],
        resume_point: bool,
        stop_reason: str | None = None,
    ) -> bool:
        """Write a checkpoint of the handle as it is, if the rules keep it; returns whether they do."""
        parts = nitro.parts
        checkpointer = parts.experiment.checkpointer
        if checkpointer is None:
            return False
        own = own_store(checkpointer)
        if not isinstance(self.store, FollowedStore):
            self.write_configuration(nitro)
        metric = parts.selection.metric if parts.selection is not None else None
        score = None
        if not resume_point and metric is not None and metrics:
            score = check_scalar(metrics.get(metric), f"the checkpointer's metric {metric!r}", metrics)
        if own is None and not resume_point and not self._admitted(nitro, score):
            return False
        arrays = record_arrays(nitro.carry, parts.derived)
        if isinstance(self.store, FollowedStore):
            if own is None:
                self.store.save(arrays)
            return True
        if own is not None:
            record = CheckpointRecord(self._meta(nitro, sums, rules, metrics, stop_reason), arrays)
            return save_own(own, record, epoch=parts.epoch, step=parts.step, score=score)
        name = parts.hooks.call(
            parts.host_view(), "checkpoint_filename", epoch=parts.epoch, step=parts.step, metric=metric, score=score
        )
        self.store.save(
            self._meta(nitro, sums, rules, metrics, stop_reason),
            arrays,
            epoch=parts.epoch,
            step=parts.step,
            name=name,
            score=score,
            resume_point=resume_point,
            others=begin_with_others,
        )
        return True

    def _admitted(self, nitro: Nitro, score: float | None) -> bool:
        admitted = self.store.admits(nitro.parts.epoch, score, step=nitro.step)
        return admitted if isinstance(self.store, FollowedStore) else bool(main_says(admitted))

    def _meta(
        self,
        nitro: Nitro,
        sums: EpochSums,
        rules: Mapping[str, Any],
        metrics: Mapping[str, Any],
        stop_reason: str | None,
    ) -> RecordMeta:
        parts = nitro.parts
        e = parts.experiment
        train = nitro.programs.get("train")
        return RecordMeta(
            experiment=RecordedClass(name=type(e).__name__, import_=nitro.import_path),
            fields=fields_by_kind(e, exported=True),
            origins=parts.resolved.recorded_origins(),
            config=self.config,
            graphconst={name: repr(value) for name, value in e.graphconst_items().items()},
            graphconst_sha256={name: content_digest(value) for name, value in e.graphconst_items().items()},
            preset=parts.preset,
            seed=parts.seed,
            run=self.store.id,
            epoch=parts.epoch,
            step=parts.step,
            position=parts.position,
            epoch_closed=parts.epoch_closed,
            stream_state=None if parts.epoch_closed else parts.stream_state,
            epoch_loss=EpochLoss(sum=sums.total, count=sums.count),
            batches=parts.splits["train"].batches,
            data={name: split.identity.as_json() for name, split in parts.splits.items()},
            batch_fields=parts.recorded_fields(),
            accum=e.accum,
            steps_per_dispatch=parts.steps_per_dispatch,
            total_steps=parts.total_steps,
            log_bytes=line_lengths(self.store.path),
            derived=derived_values(parts.derived),
            metrics=flatten_scalars(metrics)[0],
            history=nitro.history.json_rows(),
            rules=RuleStates(**rules),
            logger=self._logger_facts(),
            anchors=parts.anchor_checksums,
            w0=parts.w0_source,
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

    def best(self, nitro: Nitro) -> dict[str, Any] | None:
        """Score, metric, mode and path of the best checkpoint kept, or None."""
        selection = nitro.parts.selection
        if selection is None or not isinstance(nitro.parts.experiment.checkpointer, Checkpointer):
            return None
        metric, mode = selection
        chosen = best_entry(self.store.entries, metric, mode)
        if chosen is None:
            return None
        path = str(nitro.run_dir / chosen.path)
        return {"score": chosen.score, "metric": metric, "mode": mode, "checkpoint": path, "epoch": chosen.epoch}

    def close(self, status: str | None, asked: Nitro | None = None) -> None:
        """Wait for the last write, record how the run ended, and let go of the files.

        Args:
            status: the stop reason; None for a run that was interrupted, which stays `running` with its lock free.
                A resume that trained nothing leaves the status that the run had, where its record was not an end.
            asked: the handle of a run that was asked to stop: run.json then says what asked.

        Raises:
            StorageError: the last checkpoint could not be written.
            Exception: what the logger's `finish` raised. With either the run ends as `error`.
        """
        problems: list[BaseException] = []
        if self._unchanged() and self.place is not None:
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
        if asked is not None and self.configured:
            attempt(self.write_run_json, asked)
        if status is not None:
            attempt(self.store.set_status, status)
        attempt(self.store.close)
        if problems:
            raise problems[0]

    def _unchanged(self) -> bool:
        """Whether the run is as the resume found it, stopped in the middle."""
        resumed = self.place.resumed if self.place is not None else None
        return not self.configured and resumed is not None and not resumed.record.meta.stop_reason

    def discard(self) -> None:
        """Remove a run that never finished a step."""
        if self.logger is not None:
            with contextlib.suppress(Exception):
                self.logger.finish("error")
        self.history.close()


def continued_run(resumed: Source | None, run_dir: Path) -> str | None:
    """The run of this very directory that training goes on in, from its newest record; None starts a new run."""
    if resumed is None:
        return None
    if resumed.ref is not None:
        return resumed.ref.run if resumed.ref.continues(run_dir) else None
    return resumed.run if resumed.run is not None and (run_dir / resumed.run).is_dir() else None
