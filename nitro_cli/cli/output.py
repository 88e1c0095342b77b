"""Where a command writes: data to stdout, everything else to stderr.

Text of files, hooks and people leaves here made visible: whatever it holds, it moves no cursor and turns no line.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from nitro_cli.cli import json_document
from nitro_cli.cli.stop_signals import raise_if_stopped
from nitro_cli.display import OutputClosed, make_console
from nitro_cli.text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Output"]


@dataclass
class Output:
    """The streams and the verbosity of one invocation.

    Args:
        quiet: only results and errors.
        verbose: also the setup report and notes.
        debug: tracebacks in full.
        json: one JSON document on stdout, JSON lines on stderr.
        silent: another process shows results and progress; this one tells errors alone.
    """

    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    json: bool = False
    silent: bool = False

    def document(self, **keys: Any) -> None:
        """Write the one JSON document of the command."""
        self.text(json_document.dumps(json_document.document(**keys)))

    def line(self, text: str) -> None:
        """Write data that is one line, whatever the names in it hold."""
        self.text(visible(text, keep=""))

    def text(self, text: str) -> None:
        """Write data, made visible."""
        raise_if_stopped()
        if sys.stdout is None or self.silent:
            return
        try:
            sys.stdout.write(visible(text) + "\n")
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error

    def show(self, *renderables: RenderableType) -> None:
        """Write data with rich; plain text when stdout is no terminal."""
        raise_if_stopped()
        if self.silent:
            return
        console = make_console(stderr=False)
        if console.is_terminal:
            console.print(*renderables, sep="\n")
            return
        with console.capture() as captured:
            console.print(*renderables, sep="\n")
        self.text("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def note(self, text: str, *, always: bool = False) -> None:
        """Tell a person something on stderr; silent under `--quiet` and `--json` unless `always`."""
        if (always or not (self.quiet or self.json)) and not self.silent:
            self.complain(text)

    def complain(self, text: str) -> None:
        """Write to stderr, made visible; a stderr that is gone is nobody's problem."""
        self.complain_lines([visible(text)])

    def complain_line(self, text: str) -> None:
        """Write one line to stderr, whatever the names in it hold."""
        self.complain_lines([visible(text, keep="")])

    def complain_lines(self, lines: Iterable[str]) -> None:
        """Write lines that are made visible, and perhaps colored, already."""
        if sys.stderr is None:
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    def complain_json(self, value: Mapping[str, Any]) -> None:
        """Write one JSON line to stderr."""
        self.complain(json_document.dumps(json_document.document(**value), indent=None))

    @contextlib.contextmanager
    def hooks_to_stderr(self) -> Iterator[None]:
        """While inside, what a user's code prints goes to stderr: stdout holds the command's data and nothing else."""
        stream: TextIO | None = sys.stderr
        with contextlib.redirect_stdout(stream):
            yield
