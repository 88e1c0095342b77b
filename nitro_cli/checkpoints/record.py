"""One checkpoint on disk: its metadata in record.json, its arrays beside it, all verified when arrays are loaded."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError, IntegrityError, NitroError, StorageError
from nitro_cli.installation import nitro_version, version_of
from nitro_cli.text import fsync_directory, user_path

from . import migrations
from .array_store import read_arrays, write_arrays
from .durable import file_digest, remove_tree
from .json_text import dump_sealed, encode_value
from .leaves import ARRAYS, host_arrays, join_leaves, split_leaves
from .names import contained_path
from .record_metadata import MOST_BYTES, RECORD_FILE, RecordInfo, damaged, no_checkpoint, record_info, record_meta
from .transient import storage_error, with_retry

if TYPE_CHECKING:
    from .record_meta import RecordMeta

__all__ = [
    "CheckpointRecord",
    "commit_record",
    "load_checkpoint",
    "prepare_record",
    "read_record",
    "verify_record",
    "write_record",
]


@dataclass(slots=True)
class CheckpointRecord:
    """Everything a checkpoint holds, as host values.

    Attributes:
        meta: what it says beside them.
        arrays: path text, such as `params/dense/kernel`, to numpy array or Python value, in the order of saving.
    """

    meta: RecordMeta
    arrays: dict[str, Any] = field(default_factory=dict)

    def meta_as_json(self) -> dict[str, Any]:
        """The metadata as plain JSON data, with the number of its format: for a store of one's own.

        Raises:
            ConfigError: a value in it has no JSON form.
        """
        return {"format": migrations.RECORD_FORMAT, **encode_value(self.meta.as_json(), "meta")}

    @classmethod
    def from_json(cls, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> CheckpointRecord:
        """The record whose metadata `meta_as_json` gave, in this version of nitro or one before.

        Raises:
            IntegrityError: `meta` does not fit.
            IncompatibleError: a newer nitro wrote it.
        """
        held = {name: value for name, value in meta.items() if name != "format"}
        file = Path("meta")
        document = {"format": meta.get("format", 2), "meta": held}  # 2 was kept without its number
        document = migrations.migrated(document, migrations.RECORD_FORMAT, migrations.RECORD_MIGRATIONS, file)
        return cls(record_meta(document, file), dict(arrays))


def write_record(
    path: Path | str,
    meta: RecordMeta,
    arrays: Mapping[str, Any],
    *,
    entry: Mapping[str, Any] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Path:
    """Write a checkpoint: whole under its name, or not at all.

    Everything goes to a temporary directory beside `path` and is made durable, record.json last; then one rename
    publishes it.

    Args:
        path: the new directory.
        meta: what it says beside its arrays.
        arrays: path text to array (numpy or jax, any dtype and shape) or Python bool, int, float, str or None.
        entry: the facts a manifest holds of it.
        sleep: stands in for `time.sleep` between tries after transient errors.

    Returns:
        The path.

    Raises:
        ConfigError: something exists at `path`, or a value cannot be saved.
        StorageError: the disk is full, read-only or failing; nothing is left at `path`.
    """
    prepared = prepare_record(meta, arrays, entry or {})
    final = user_path(path)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "the checkpoint could not be written", final) from error
    return commit_record(final, prepared, sleep=sleep)


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """A record ready to be written by another thread: nothing in it changes any more.

    Attributes:
        document: record.json but for the list of files.
        stored: key to array of this process's array store.
    """

    document: dict[str, Any]
    stored: dict[str, Any]

    def with_entry(self, facts: Mapping[str, Any]) -> PreparedRecord:
        """The record with these facts in its entry."""
        return replace(self, document={**self.document, "entry": {**self.document["entry"], **facts}})


def prepare_record(meta: RecordMeta, arrays: Mapping[str, Any], entry: Mapping[str, Any]) -> PreparedRecord:
    """Copy the metadata, bring device arrays to the host and check that everything can be saved.

    Numpy arrays are taken as they are: the caller does not write to them until the record is committed.

    Raises:
        ConfigError: a value cannot be saved; it is named.
    """
    specs, stored = split_leaves(host_arrays(arrays))
    document = {
        "format": migrations.RECORD_FORMAT,
        "framework": nitro_version(),
        "versions": {name: version_of(name) for name in ("jax", "orbax-checkpoint", "optax", "numpy")},
        "written": time.time(),
        "entry": encode_value(dict(entry), "entry"),
        "meta": encode_value(meta.as_json(), "meta"),
        "leaves": {leaf: spec.as_json() for leaf, spec in specs.items()},
    }
    return PreparedRecord(document, stored)


def commit_record(final: Path, prepared: PreparedRecord, *, sleep: Callable[[float], None] | None = None) -> Path:
    """Write a prepared record to `final`, whose folder is there; arguments, result and errors as `write_record`."""
    if os.path.lexists(final):
        raise ConfigError(
            "the checkpoint would overwrite what is there",
            where=str(final),
            fix="choose another path, or delete it first",
        )

    def attempt() -> None:
        temporary = temporary_beside(final)
        try:
            _stage(temporary, prepared.document, prepared.stored)
            os.rename(temporary, final)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(temporary)
            raise
        fsync_directory(final.parent)

    try:
        with_retry(attempt, f"writing {final.name}", sleep=sleep)
    except NitroError:
        raise
    except Exception as error:
        raise storage_error(error, "the checkpoint could not be written", final) from error
    return final


def temporary_beside(final: Path) -> Path:
    """A name for what is to become `final`, which a later start removes if nobody renames it."""
    return final.with_name(f".tmp-{secrets.token_hex(4)}-{final.name}"[:200])


def _stage(temporary: Path, document: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Write the whole content of a record into a temporary directory, and make it durable."""
    temporary.mkdir()
    seal_record(temporary, document, write_store(temporary, ARRAYS, stored))


def write_store(temporary: Path, store: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Write an array store of a record and make it durable; returns the size and digest of each of its files."""
    files: dict[str, Any] = {}
    if not stored:
        return files
    write_arrays(temporary / store, stored)
    for base, _, names in os.walk(temporary / store, topdown=False):
        for name in names:
            file = Path(base, name)
            size, digest = file_digest(file, sync=True)
            files[file.relative_to(temporary).as_posix()] = {"size": size, "sha256": digest}
        fsync_directory(Path(base))
    return files


def seal_record(temporary: Path, document: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Write record.json, which lists the files of all stores, and make the directory durable."""
    content = dump_sealed({**document, "files": dict(sorted(files.items()))})
    if len(content) > MOST_BYTES:
        raise ConfigError(
            f"{RECORD_FILE} would have {len(content)} bytes, and is read up to {MOST_BYTES}",
            where=temporary.name,
            fix="keep what is large out of the metadata: arrays belong in `state`, and not into every row of metrics",
        )
    with open(temporary / RECORD_FILE, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    fsync_directory(temporary)


def verify_record(path: Path | str) -> RecordInfo:
    """Check size and SHA-256 of every file of a checkpoint; needs neither JAX nor orbax.

    Returns:
        What record.json says.

    Raises:
        IntegrityError: a file is missing, has another size or digest, is a link, or lies outside the directory.
        CheckpointNotFoundError, IncompatibleError, StorageError: as `record_info`.
    """
    info = record_info(path)
    _check_plain(info)
    for name, (size, digest) in info.files.items():
        file = contained_path(info.path, name, info.path / RECORD_FILE)
        try:
            found = file.lstat()
            if not stat.S_ISREG(found.st_mode):
                raise _damaged_at(info, name, "it is not a plain file")
            if found.st_size != size:
                raise _damaged_at(info, name, f"it has {found.st_size} bytes, {size} were written")
            if with_retry(functools.partial(file_digest, file), f"reading {file}") != (size, digest):
                raise _damaged_at(info, name, "its SHA-256 is not that of what was written")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _damaged_at(info, name, "the file is missing") from error
        except OSError as error:
            raise storage_error(error, "the checkpoint could not be read", file) from error
    return info


def _check_plain(info: RecordInfo) -> None:
    """Check that a record is made of directories and plain files: what reads arrays follows links, and waits at pipes.

    Raises:
        IntegrityError: it holds something else.
    """
    folders = [info.path]
    while folders:
        try:
            with os.scandir(folders.pop()) as listing:
                for item in listing:
                    if item.is_dir(follow_symlinks=False):
                        folders.append(Path(item.path))
                    elif not item.is_file(follow_symlinks=False):
                        name = Path(item.path).relative_to(info.path).as_posix()
                        raise _damaged_at(info, name, "it is no plain file: a link, a pipe or a device")
        except FileNotFoundError:
            # Rotation is deleting it; what is listed and missing is told below.
            continue
        except OSError as error:
            raise storage_error(error, "the checkpoint could not be read", info.path) from error


def _damaged_at(info: RecordInfo, name: str, why: str) -> IntegrityError:
    error = damaged(info.path / RECORD_FILE, why)
    error.where = str(info.path / name)
    return error


def read_record(path: Path | str, arrays: bool = True, *, prefixes: Iterable[str] | None = None) -> CheckpointRecord:
    """Load a checkpoint, verified.

    Args:
        path: the checkpoint's directory.
        arrays: False loads the metadata alone, unverified but for record.json's own digest.
        prefixes: load only the leaves whose paths start with one of these, for instance `("params/", "state/")`.

    Raises:
        IntegrityError: a file or a leaf is not what was written.
        CheckpointNotFoundError, IncompatibleError, StorageError: as `record_info`.
    """
    if not arrays:
        return CheckpointRecord(record_info(path).meta)
    try:
        return _read_verified(path, prefixes)
    except (IntegrityError, StorageError) as error:
        if os.path.lexists(path):
            raise
        # Rotation renames the whole directory away: no file of it is damaged.
        raise no_checkpoint(Path(path), "it was deleted while it was read") from error


load_checkpoint = read_record
"""Its name outside this room."""


def _read_verified(path: Path | str, prefixes: Iterable[str] | None) -> CheckpointRecord:
    info = verify_record(path)
    chosen = tuple(prefixes) if prefixes is not None else ("",)
    specs = {leaf: spec for leaf, spec in info.leaves.items() if leaf.startswith(chosen)}

    def read(store: str, keys: list[str]) -> Mapping[str, Any]:
        folder = contained_path(info.path, store, info.path / RECORD_FILE)
        if not any(name.startswith(f"{store}/") for name in info.files):
            raise _damaged_at(info, store, "record.json lists no file of it, so nothing in it was verified")
        try:
            return with_retry(lambda: read_arrays(folder, keys), f"reading {folder}")
        except OSError as error:
            raise storage_error(error, "the checkpoint could not be read", folder) from error
        except (ValueError, KeyError) as error:
            raise _damaged_at(info, store, f"orbax cannot read it: {error}") from error

    return CheckpointRecord(info.meta, join_leaves(specs, read, str(info.path)))
