"""Forks children that each run one `nitro` command and meet a signal at a chosen instant of it.

A program of its own: it imports JAX and orbax once and starts no backend, so that a child costs a second.
Reads one JSON request per line: `words`, `cwd`, `at` (which instant: its number, or its label and which of those, none
by default), `numbers` (the signals sent then), `seconds` (send them this long after the command began instead),
`call_seconds` (what a call of the training program may take), `environment`. Answers with the exit code; what the child
wrote is in `<cwd>/said`, the instants it passed in `<cwd>/instants`, the steps committed in `<cwd>/committed`.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Clock:
    """Counts the instants of a command, and strikes at one of them."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.at = request.get("at")
        self.numbers = request.get("numbers", [signal.SIGKILL])
        self.count = 0
        self.seen: dict[str, int] = {}
        self.lock = threading.Lock()
        self.file = os.open("instants", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def tick(self, label: str) -> None:
        with self.lock:
            strikes = self.strikes_next(label)
            self.count += 1
            self.seen[label] = self.seen.get(label, 0) + 1
            os.write(self.file, f"{label}\n".encode())
        if strikes:
            self.strike()

    def strikes_next(self, label: str) -> bool:
        return self.at in (self.count + 1, [label, self.seen.get(label, 0) + 1])

    def strike(self) -> None:
        for number in self.numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.001)

    def around(self, owner: Any, name: str, label: str, when: Callable[..., bool] = lambda *a: True) -> None:
        """Tick before and after each call of `owner.name` for which `when` of its arguments holds."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(*args: Any, **words: Any) -> Any:
            if not when(*args):
                return real(*args, **words)
            self.tick(f"before {label}")
            result = real(*args, **words)
            self.tick(f"after {label}")
            return result

        setattr(owner, name, call)


def instrument(clock: Clock) -> None:
    """Put an instant before and after everything that a kill could cut."""
    from nitro_cli.checkpoints import RunStore, record, store
    from nitro_cli.run import compiling, recording
    from nitro_cli.run.dispatch import Pending
    from nitro_cli.tracking import JsonLinesWriter
    from tests.faults.subject import Subject

    clock.around(Subject, "build_data", "setup")
    clock.around(compiling, "compile_program", "compile")
    clock.around(Pending, "rows", "step")
    clock.around(Subject, "finalize_metrics", "evaluation")
    clock.around(recording, "record_arrays", "copy")
    clock.around(record, "write_arrays", "write")
    clock.around(record, "file_digest", "digest")
    clock.around(os, "rename", "rename")
    clock.around(os, "replace", "manifest", lambda source, target: Path(target).name == "manifest.json")
    clock.around(RunStore, "create", "creation")
    clock.around(RunStore, "set_status", "status")
    real_rmtree, real_commit, real_write = shutil.rmtree, store.commit_record, JsonLinesWriter.write_text

    def rmtree(path: Any, *args: Any, **words: Any) -> None:
        clock.tick("before deletion")
        for found in sorted(Path(path).rglob("*"))[:1]:
            if found.is_file():
                found.unlink()
        clock.tick("inside deletion")
        real_rmtree(path, *args, **words)
        clock.tick("after deletion")

    def write_text(writer: Any, line: str) -> None:
        if clock.strikes_next("log") and clock.numbers == [signal.SIGKILL]:
            writer.size()
            with open(writer.path, "ab") as torn:
                torn.write(line.encode()[: len(line) // 2])
        clock.tick("log")
        real_write(writer, line)

    def update(*args: Any, **words: Any) -> Any:
        result = real_update(*args, **words)
        os.write(committed, f"{max((e.step for e in result.entries), default=0)}\n".encode())
        return result

    committed = os.open("committed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    real_update = store.update_manifest
    store.update_manifest = update
    shutil.rmtree = rmtree  # type: ignore[assignment]
    JsonLinesWriter.write_text = write_text  # type: ignore[method-assign]
    assert real_commit is not None


def child(request: dict[str, Any]) -> None:
    """Run the command; does not return."""
    from nitro_cli.run import dispatch

    os.chdir(request["cwd"])
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.get("environment", {}))
    sys.argv = ["nitro", *request["words"]]
    clock = Clock(request)
    # How many steps a call takes follows the time they took; here it is the same each time.
    dispatch.SECONDS = request.get("call_seconds", dispatch.SECONDS)
    if request.get("instants", True):
        instrument(clock)
    if "seconds" in request:
        timer = threading.Timer(request["seconds"], clock.strike)
        timer.daemon = True
        timer.start()
    if request.get("prepare"):
        exec(request["prepare"], {"clock": clock})
    from nitro_cli.cli.app import main

    try:
        main()
    except SystemExit as stop:
        sys.stdout.flush()
        # As a process does: threads and what is registered for the exit are waited for.
        threading._shutdown()  # type: ignore[attr-defined]
        os._exit(int(stop.code or 0))
    os._exit(70)


def serve() -> None:
    """Answer requests until the input ends."""
    import warnings

    import jax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import rich.live
    import rich.table  # noqa: F401
    import typer  # noqa: F401

    import nitro_cli.cli.app
    import nitro_cli.cli.training
    import nitro_cli.run.handle  # noqa: F401
    import tests.faults.subject  # noqa: F401

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                child(request)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(71)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
