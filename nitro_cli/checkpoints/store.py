"""One run's place on disk while it trains: its id and lock, its asynchronous saves, retention and status."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from nitro_cli.errors import ConfigError, IntegrityError, NitroError, warn

from .disk import check_disk
from .entries import Manifest, ManifestEntry, RunInfo, latest_entry
from .held_directory import HeldDirectory
from .locks import RunLock, run_is_locked
from .manifest import load_manifest, update_manifest
from .names import CHECKPOINTS
from .reconcile import remove_displaced, without_entries
from .record import PreparedRecord, commit_record, prepare_record
from .retention import Retention
from .run_beginning import begun, taken_up
from .run_directory import new_record_path
from .run_file import RUN_FILE, read_run_file, write_run_file
from .shared_record import WrittenPart, begin_shared, commit_shared, written_in_pieces
from .summaries import best_entry
from .transient import storage_error
from .writer import BackgroundWriter

if TYPE_CHECKING:
    from nitro_cli.experiment import Checkpointer

    from .record_meta import RecordMeta

__all__ = ["RunStore"]


class RunStore:
    """A run's directory, held by this process alone. Make one with `create` or `reopen`.

    Attributes:
        root: the directory that several runs share.
        id: eight hexadecimal digits.
        path: `root / id`.
    """

    def __init__(
        self,
        root: Path,
        info: RunInfo,
        lock: RunLock,
        retention: Retention | None,
        sleep: Callable[[float], None] | None,
    ) -> None:
        self.root = root
        self.id = info.id
        self._info = info
        self.path = root / info.id
        self._lock = lock
        self._retention = retention
        self._sleep = sleep
        self._writer = BackgroundWriter(f"nitro-checkpoint-{info.id}")
        self._closed = False
        self._counted = info.sequence
        try:
            self._held = HeldDirectory(self.path)
        except OSError as error:
            lock.release()
            raise storage_error(error, "the run's directory cannot be opened", self.path) from error

    @classmethod
    def create(
        cls,
        root: Path | str,
        *,
        experiment: str,
        preset: str | None = None,
        parent: str | None = None,
        seed: int | None = None,
        checkpointer: Checkpointer | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> Self:
        """Begin a new run, with an id that no other run of the directory has, also when many begin at once.

        Args:
            root: the directory of the runs; made if it is not there.
            experiment: import path or name, for listings.
            preset: name of the preset.
            parent: the checkpoint that this run branches from.
            seed: the run's seed.
            checkpointer: what to keep; None switches saving off.
            metric, mode: the monitor, for a checkpointer that follows it.
            sleep: stands in for `time.sleep` between tries after transient errors.

        Raises:
            StorageError: the directory cannot be written.
            IntegrityError, IncompatibleError: its manifest is damaged, or of a newer nitro.
        """
        base = Path(root)
        retention = None if checkpointer is None else Retention.of(checkpointer, metric, mode)
        now = time.time()
        info = RunInfo("", experiment, preset, "running", parent, seed, created=now, written=now)
        info, lock = begun(base, info, retention, sleep)
        return cls(base, info, lock, retention, sleep)

    @classmethod
    def reopen(
        cls,
        root: Path | str,
        run_id: str,
        from_entry: ManifestEntry | None = None,
        *,
        checkpointer: Checkpointer | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> Self:
        """Continue a run. What a killed process left of it is cleaned up first.

        Args:
            root, checkpointer, metric, mode, sleep: as `create`.
            run_id: the whole id.
            from_entry: the checkpoint that training goes on from; must be the run's newest.

        Raises:
            RunNotFoundError: there is no such run.
            LockedError: another process is training it.
            IncompatibleError: `from_entry` is not the newest; a new run has to branch from it.
            StorageError, IntegrityError: as `create`; or the run is a link.
        """
        base = Path(root)
        retention = None if checkpointer is None else Retention.of(checkpointer, metric, mode)
        info, lock = taken_up(base, run_id, from_entry, retention, sleep)
        return cls(base, info, lock, retention, sleep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the run was let go of."""
        return self._closed

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """This run's committed checkpoints, in the order they were committed."""
        return load_manifest(self.root).of_run(self.id)

    @property
    def latest(self) -> ManifestEntry | None:
        """The newest committed checkpoint, resume points included."""
        return latest_entry(self.entries)

    @property
    def best(self) -> ManifestEntry | None:
        """The committed checkpoint with the best finite score under the checkpointer's metric."""
        if self._retention is None or self._retention.metric is None:
            return None
        return best_entry(self.entries, self._retention.metric, self._retention.mode)

    def check_in_place(self) -> None:
        """Check that the run's directory is the one that the run began in.

        Raises:
            StorageError: it was moved, removed or replaced.
        """
        self._held.check()

    def admits(self, epoch: int, score: float | None, *, step: int = 0) -> bool:
        """Whether some selector would keep a checkpoint of this epoch with this score.

        Waits for the save in flight, and raises what that ended with.
        """
        if self._retention is None:
            return False
        self.wait()
        manifest = load_manifest(self.root)
        entry = self._entry("", epoch, step, score, resume_point=False)
        return self._retention.admits(manifest.entries, replace(entry, sequence=manifest.counted + 1))

    def save(
        self,
        meta: RecordMeta,
        arrays: Mapping[str, Any],
        *,
        epoch: int,
        step: int,
        name: str,
        score: float | None = None,
        metric: str | None = None,
        mode: str | None = None,
        resume_point: bool = False,
        final: bool = False,
        others: Callable[[Path], Callable[[], list[WrittenPart]]] | None = None,
    ) -> Path:
        """Write a checkpoint in the background; what retention displaces is deleted once this one is committed.

        Returns when the metadata and any device arrays are copied; a save still in flight is waited for first.

        Args:
            meta: what it says beside its arrays.
            arrays: path text to array, or to the pieces of one. Numpy arrays are not copied: do not write to them
                afterwards.
            epoch, step: where training stands.
            name: of the directory, as `checkpoint_filename` gave it; a resume point gets `-resume` behind it.
            score: the monitored value; None when there is none. Not finite ranks last.
            metric, mode: what the score measures; None takes the checkpointer's.
            resume_point: an unscored checkpoint outside the selectors.
            final: wait until it is committed.
            others: where some leaves are in pieces, tells the other processes the directory to write theirs to, and
                returns what waits for them.

        Returns:
            The directory that it is committed to.

        Raises:
            ConfigError: the name collides or leads outside, or a value cannot be saved.
            StorageError: the save before could not be written, or with `final` this one.
        """
        if self._retention is None:
            raise ConfigError(
                "checkpoints are switched off for this run", where=str(self.path), fix="give it a Checkpointer"
            )
        if self._closed:
            raise ConfigError("the run's store is closed", where=str(self.path))
        self.wait()
        self._held.check()
        path = new_record_path(self.path, name, resume_point)
        entry = self._entry(f"{self.id}/{CHECKPOINTS}/{path.name}", epoch, step, score, resume_point=resume_point)
        if metric is not None and entry.score is not None:
            entry = replace(entry, metric=metric, mode=mode)
        entry = replace(entry, stop_reason=meta.stop_reason)
        about_run = {"experiment": self._info.experiment, "preset": self._info.preset, "seed": self._info.seed}
        prepared = prepare_record(meta, arrays, {**entry.as_json(), **about_run})
        write: Callable[..., object] = functools.partial(commit_record, path)
        if written_in_pieces(arrays):
            assert others is not None
            temporary = begin_shared(path, sleep=self._sleep)
            write = functools.partial(commit_shared, path, temporary, parts=others(temporary))
        self._writer.submit(lambda: self._commit(write, prepared, entry))
        if final:
            self.wait()
        return path

    def _entry(self, path: str, epoch: int, step: int, score: float | None, *, resume_point: bool) -> ManifestEntry:
        scored = score is not None and not resume_point
        return ManifestEntry(
            path=path,
            run=self.id,
            epoch=int(epoch),
            step=int(step),
            score=float(score) if score is not None and scored else None,
            metric=self._retention.metric if scored and self._retention else None,
            mode=self._retention.mode if scored and self._retention else None,
            written=time.time(),
            resume_point=resume_point,
            parent=self._info.parent,
        )

    def _commit(self, write: Callable[..., object], prepared: PreparedRecord, entry: ManifestEntry) -> None:
        """The background part of a save: record, then manifest, then deletion."""
        self._held.check()
        # A manifest that cannot be read stops the run when it is to be written; the record is whole before that.
        with contextlib.suppress(NitroError):
            self._counted = max(self._counted, load_manifest(self.root).counted)
        entry = replace(entry, sequence=self._counted + 1)
        try:
            write(prepared=prepared.with_entry({"sequence": entry.sequence}), sleep=self._sleep)
        finally:
            self._held.check()
        fresh: tuple[str, ...] = ()
        failure: Exception | None = None

        def add(old: Manifest) -> Manifest:
            nonlocal fresh, failure
            entries = (*old.entries, entry)
            rule = self._retention
            try:
                gone = [] if rule is None else rule.displaced(entries, self.id, live=self._is_live)
            except Exception as error:
                # A selector of one's own: the record is there, so it is listed; nothing is deleted on its word.
                gone, failure = [], error
            fresh = tuple(e.path for e in gone)
            info = old.runs.get(self.id, self._info)
            left = tuple(p for p in info.displaced if os.path.lexists(self.root / p))
            info = replace(info, written=entry.written, displaced=(*left, *fresh))
            return without_entries(replace(old, entries=entries).with_write(info), fresh)

        manifest = update_manifest(self.root, add, sleep=self._sleep)
        self._counted = manifest.counted
        remove_displaced(self.root, manifest, fresh)
        if failure is not None:
            raise failure

    def _is_live(self, run: str) -> bool:
        return run_is_locked(self.root / run)

    def wait(self) -> None:
        """Wait for the save in flight.

        Raises:
            StorageError: it could not be written; raised once.
        """
        self._writer.wait()

    def check_disk(self, bytes_per_record: int, max_epochs: int | None = None) -> None:
        """Compare the free space with what retention will need, before the first epoch.

        Args:
            bytes_per_record: of one checkpoint; `record_bytes(arrays)` estimates it.
            max_epochs: epochs of the run, for selectors without a bound of their own.

        Raises:
            StorageError: there is too little; both numbers are named.
        """
        if self._retention is None:
            return
        check_disk(self.root, self._retention, bytes_per_record, max_epochs)

    def write_info(self, document: Mapping[str, Any]) -> None:
        """Write run.json whole: provenance, environment, setup report; `status` is kept up to date from then on.

        Raises:
            ConfigError: a value has no JSON form.
            StorageError: it cannot be written.
        """
        self._held.check()
        write_run_file(self.path / RUN_FILE, {"status": "running", **document}, sleep=self._sleep)

    def set_status(self, status: str) -> None:
        """Record in the manifest, and in run.json where there is one, that the run runs or why it stopped.

        Args:
            status: "running", "completed", "early_stop", "requested" or "error".

        Raises:
            StorageError: it cannot be written.
        """
        self._held.check()

        def change(old: Manifest) -> Manifest:
            info = old.runs.get(self.id, self._info)
            return old.with_write(replace(info, status=status, written=time.time()))

        update_manifest(self.root, change, sleep=self._sleep)
        file = self.path / RUN_FILE
        try:
            document = read_run_file(file)
        except FileNotFoundError:
            return
        except IntegrityError as error:
            warn(f"{file} is not kept up to date: {error.why}")
            return
        except OSError as error:
            raise storage_error(error, "the run's description could not be read", file) from error
        self.write_info({**document, "status": status})

    def close(self) -> None:
        """Wait for the save in flight and let go of the run; twice is no error.

        Raises:
            StorageError: the last save could not be written.
        """
        self._closed = True
        try:
            self._writer.wait()
        finally:
            self._held.close()
            self._lock.release()

    def discard(self) -> None:
        """Remove the run with all its files, as if it had never begun: it failed before its first finished step.

        Raises:
            StorageError: it cannot be removed.
        """
        self._closed = True
        with contextlib.suppress(NitroError):
            self._writer.wait()
        try:
            self._held.check()
            update_manifest(self.root, lambda old: old.without_run(self.id), sleep=self._sleep)
            self._lock.release()
            shutil.rmtree(self.path)
        except OSError as error:
            raise storage_error(error, "the failed run could not be removed", self.path) from error
        finally:
            self._held.close()
            self._lock.release()
