"""How the processes of a run write one checkpoint: all see one directory, the main one says where, each reports."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from nitro_cli.checkpoints import WrittenPart
from nitro_cli.distributed.peers import Peers, peers
from nitro_cli.distributed.processes import gather_bytes, is_main, main_says
from nitro_cli.errors import ConfigError, StorageError

__all__ = ["begin_with_others", "check_common_directory", "directory_of_main", "reporter"]

SEEN_SECONDS = 10.0
"""How long a network file system may take to show one machine what another has written."""


def check_common_directory(run_path: Path) -> None:
    """Refuse to train where the processes do not all see one directory; every process must call it.

    Args:
        run_path: the run's directory, made by the main process.

    Raises:
        StorageError: some processes do not see it, or it cannot be written; in every process.
    """
    token = main_says(f".tmp-{secrets.token_hex(8)}")
    file = run_path / token
    problem = ""
    if is_main():
        try:
            file.touch()
        except OSError as error:
            problem = str(error)
    said = main_says(problem)
    seen = not said and (is_main() or _appears(file))
    blind = [index for index, answer in enumerate(gather_bytes(b"1" if seen else b"")) if not answer]
    if is_main():
        file.unlink(missing_ok=True)
    if said:
        raise StorageError("the run's directory cannot be written", where=str(run_path), why=said)
    if blind:
        names = f"{'process' if len(blind) == 1 else 'processes'} {', '.join(map(str, blind))}"
        raise StorageError(
            f"{names} of the run cannot see the directory that process 0 writes to",
            where=str(run_path),
            why="a file that process 0 made there does not appear: the directory is one machine's own, or a relative "
            "run_dir was taken from another working directory",
            fix="set run_dir to a directory that all machines share, the same for every process",
        )


def _appears(file: Path) -> bool:
    deadline = time.monotonic() + SEEN_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def begin_with_others(temporary: Path) -> Callable[[], list[WrittenPart]]:
    """In the main process: tell the others where to write; what is returned waits for their reports."""
    watch = _watch()
    main_says(temporary.name)
    return lambda: [WrittenPart.from_json(json.loads(body)) for body in watch.reports(temporary.name)]


def directory_of_main(run_path: Path) -> Path:
    """In the other processes: where the main one says to write."""
    _watch()
    return run_path / "checkpoints" / str(main_says(None))


def reporter(temporary: Path) -> Callable[[WrittenPart], None]:
    """In the other processes: what tells the main one that the part is written."""
    watch = _watch()
    return lambda part: watch.report(temporary.name, json.dumps(part.as_json()).encode())


def _watch() -> Peers:
    found = peers()
    if found is None:
        raise ConfigError(
            "the processes of the run were joined without a watch over each other",
            why="a checkpoint whose arrays lie in several processes must end with an error when one of them is gone",
            fix="call nitro_cli.setup_distributed in place of jax.distributed.initialize",
        )
    return found
