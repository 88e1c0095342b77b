"""run.json: what is known of a run beside its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nitro_cli.errors import IntegrityError
from nitro_cli.text import IrregularFileError, parse_json, read_regular, write_atomically

from .json_text import decode_value, encode_value
from .transient import storage_error, with_retry

__all__ = ["RUN_FILE", "read_run_file", "write_kept_files", "write_run_file"]

RUN_FILE = "run.json"
_MOST_BYTES = 1 << 26


def read_run_file(file: Path) -> dict[str, Any]:
    """Read a run.json.

    Raises:
        IntegrityError: it is damaged.
        OSError: it cannot be read.
    """
    from nitro_cli.text.documents import check_document

    from .documents import RunDocument

    what = "the run's description is damaged"
    try:
        document = decode_value(parse_json(read_regular(file, limit=_MOST_BYTES, follow=False)))
    except (ValueError, IrregularFileError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise IntegrityError(what, where=str(file), why=str(why)) from error
    check_document(RunDocument, document, file, what=what)
    return dict(document)


def write_run_file(file: Path, document: Mapping[str, Any], *, sleep: Callable[[float], None] | None = None) -> None:
    """Write a run.json whole.

    Raises:
        ConfigError: a value has no JSON form.
        StorageError: it cannot be written.
    """
    content = json.dumps(encode_value(document, RUN_FILE), indent=1).encode()
    try:
        with_retry(lambda: write_atomically(file, content), f"writing {file}", sleep=sleep)
    except OSError as error:
        raise storage_error(error, "the run's description could not be written", file) from error


def write_kept_files(run: Path, files: Mapping[str, bytes]) -> None:
    """Write files that a run keeps into its directory, each whole.

    Args:
        run: the directory.
        files: content by name.

    Raises:
        StorageError: one cannot be written.
    """
    for name, content in files.items():
        write = partial(write_atomically, run / name, content)
        try:
            with_retry(write, f"writing {run / name}")
        except OSError as error:
            raise storage_error(error, f"{name} could not be written", run / name) from error
