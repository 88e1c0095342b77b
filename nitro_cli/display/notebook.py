"""Progress in a notebook: epoch lines that stay in the cell, and a display of the moment that comes and goes."""

from __future__ import annotations

import html
import io
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nitro_cli.display.live import RunDisplay
from nitro_cli.display.plain import PlainReporter
from nitro_cli.display.progress_state import Clock, ProgressState

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

__all__ = ["NotebookReporter"]

_SECONDS = 0.5
_WIDTH = 100


class NotebookReporter:
    """Writes a line per epoch, and draws what is in progress with the kernel's own updates of a display.

    No widget library is needed. What is over within half a second is never drawn.

    Args:
        clock: seconds, monotonic.
        drawing: whether a thread draws; without it `tick` can be called by hand.
    """

    def __init__(self, clock: Clock = time.monotonic, *, drawing: bool = True) -> None:
        self._lines = PlainReporter(lambda text: print(text, flush=True), clock, heartbeat=False)
        self._state = ProgressState(clock)
        self._drawing = drawing
        self._display: DisplayHandle | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch starts."""
        self._lines.begin(label, total, epoch, max_epochs)
        self._state.begin(label, total, epoch, max_epochs)
        self._start()

    def step(self, n: int, values: Mapping[str, float] | None) -> None:
        """Units are finished."""
        self._lines.step(n, values)
        self._state.done += n
        if values is not None:
            self._state.values = values

    def end(self, values: Mapping[str, Any] | None) -> None:
        """A stretch is over."""
        self._lines.end(values)
        self._state.end(values)
        self._rest()

    def phase(self, name: str | None) -> None:
        """Work without units starts, or is over."""
        self._lines.phase(name)
        self._state.set_phase(name)
        if name is None:
            self._rest()
        else:
            self._start()

    def note(self, text: str | None) -> None:
        """What the user's code is doing."""
        self._state.note = text

    def line(self, text: str) -> None:
        """One line that stays."""
        self._lines.line(text)

    def done(self, text: str) -> None:
        """The entry point is over: take the display away."""
        self.close()
        self._lines.done(text)

    def close(self) -> None:
        """Take the display away; may be called at any time."""
        self._halt()
        self._lines.close()
        self._state = ProgressState(self._state.clock)

    def tick(self) -> None:
        """Draw the display as it is now."""
        from IPython.display import DisplayHandle

        forms = _forms(_text(self._state))
        if self._display is None:
            self._display = DisplayHandle()
            self._display.display(forms, raw=True)
        else:
            self._display.update(forms, raw=True)

    def _rest(self) -> None:
        """Take the display away between entry points."""
        if self._state.idle:
            self._halt()

    def _start(self) -> None:
        if self._drawing and self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._draw, args=(self._stop,), name="nitro-progress", daemon=True)
            self._thread.start()

    def _halt(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        shown, self._display = self._display, None
        if shown is not None:
            shown.update(_forms(""), raw=True)

    def _draw(self, stop: threading.Event) -> None:
        while not stop.wait(_SECONDS):
            self.tick()


def _text(state: ProgressState) -> str:
    console = Console(
        file=io.StringIO(), width=_WIDTH, force_terminal=True, force_jupyter=False, color_system=None,
        legacy_windows=False,
    )  # fmt: skip
    with console.capture() as captured:
        console.print(RunDisplay(state))
    return captured.get().rstrip()


def _forms(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>" if text else ""}
