"""Progress in a terminal: one rich display for the whole run, drawn by rich's own thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nitro_cli.display.progress_state import Clock, ProgressState, duration
from nitro_cli.text import visible

__all__ = ["LiveReporter", "RunDisplay"]

REFRESH_PER_SECOND = 8
_BAR_WIDTH = 30


class LiveReporter:
    """Draws the run: the epoch with a bar and the time left, the newest numbers, the phase.

    `step` stores two values and returns; everything else happens at the next refresh.

    Args:
        console: where to draw.
        clock: seconds, monotonic.
        closing: whether the closing text is shown; a command that says more itself leaves it out.
    """

    def __init__(self, console: Console, clock: Clock = time.monotonic, *, closing: bool = True) -> None:
        self._console = console
        self._closing = closing
        self._state = ProgressState(clock)
        self._live: Live | None = None

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch starts."""
        self._state.begin(label, total, epoch, max_epochs)
        self._start()

    def step(self, n: int, values: Mapping[str, float] | None) -> None:
        """Units are finished."""
        state = self._state
        state.done += n
        if values is not None:
            state.values = values

    def end(self, values: Mapping[str, Any] | None) -> None:
        """A stretch is over."""
        self._state.end(values)
        self._rest()

    def phase(self, name: str | None) -> None:
        """Work without units starts, or is over."""
        self._state.set_phase(name)
        if name is not None:
            self._start()
        else:
            self._rest()

    def note(self, text: str | None) -> None:
        """What the user's code is doing."""
        self._state.note = text

    def line(self, text: str) -> None:
        """One line above the display that stays."""
        self._console.print(_text(text))

    def done(self, text: str) -> None:
        """Take the display away and leave the closing text."""
        self.close()
        if text and self._closing:
            self._console.print(_text(text))

    def close(self) -> None:
        """Release the terminal; may be called at any time."""
        self._halt()
        self._state = ProgressState(self._state.clock)

    def _rest(self) -> None:
        """Take the display away between entry points."""
        if self._state.idle:
            self._halt()

    def _halt(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _start(self) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, get_renderable=self._drawn, refresh_per_second=REFRESH_PER_SECOND, transient=True
            )
            self._live.start()

    def _drawn(self) -> RunDisplay:
        return RunDisplay(self._state)


class RunDisplay:
    """What is in progress at one moment: position with a bar, speed and numbers, the phase."""

    def __init__(self, state: ProgressState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state = self._state
        now = state.clock()
        state.sample(now)
        yield _position(state, now)
        speed = _speed(state)
        numbers = "   ".join(part for part in (speed, state.numbers_text()) if part)
        if numbers:
            yield _text(numbers, no_wrap=True, overflow="ellipsis", style="cyan")
        busy = _busy(state, now)
        if busy:
            yield _text(busy, no_wrap=True, overflow="ellipsis", style="yellow")


def _position(state: ProgressState, now: float) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(no_wrap=True, style="bold")
    line.add_column(width=_BAR_WIDTH)
    line.add_column(no_wrap=True)
    line.add_column(no_wrap=True, style="green")
    fraction = state.fraction()
    if fraction is None:
        bar = ProgressBar(total=None, width=_BAR_WIDTH, pulse=True, animation_time=now)
    else:
        bar = ProgressBar(total=1.0, completed=fraction, width=_BAR_WIDTH)
    count = f"{state.done}/{state.total}" if state.total else (str(state.done) if state.done else "")
    left = state.remaining(now)
    line.add_row(_text(state.position_text()), bar, count, f"{duration(left)} left" if left is not None else "")
    return line


def _text(text: str, **style: Any) -> Text:
    """One line as it stands, whatever a metric or a note is called: no markup, no control characters."""
    return Text(visible(text, keep=""), **style)


def _speed(state: ProgressState) -> str:
    rate = state.rate()
    if rate is None:
        return ""
    unit = "steps" if state.label == "train" else "batches"
    text = f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"
    wait = (state.values or {}).get("data_wait")
    return text if wait is None else f"{text}  data wait {100 * wait:.0f}%"


def _busy(state: ProgressState, now: float) -> str:
    parts = []
    if state.phase:
        parts.append(f"{state.phase} {duration(now - state.phase_since)}")
    if state.note:
        parts.append(state.note)
    return " · ".join(parts)
