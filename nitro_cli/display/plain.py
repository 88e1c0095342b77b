"""Progress off a terminal: plain lines, no control codes, and a sign of life when nothing else happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from nitro_cli.display.progress_state import Clock, ProgressState, duration, scalars_text
from nitro_cli.text import visible

__all__ = ["PlainReporter"]

LONG_PHASE = 3.0
HEARTBEAT = 30.0
_TICK = 1.0


class PlainReporter:
    """Writes a line per epoch, per phase that takes long, and every half minute.

    Args:
        write: takes one line without its newline.
        clock: seconds, monotonic.
        heartbeat: whether a thread writes signs of life; without it `tick` can be called by hand.
        closing: whether the closing text is written; a command that says more itself leaves it out.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        clock: Clock = time.monotonic,
        *,
        heartbeat: bool = True,
        closing: bool = True,
    ) -> None:
        self._closing = closing
        self._write_line = write
        self._clock = clock
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._state = ProgressState(clock)
        self._last_line = clock()
        self._phase_said = False
        self._first_step, self._first_units = 0.0, 0
        self._epoch: tuple[int, int, float, str] | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        """A stretch starts; the epoch before it is over if this one trains."""
        if label == "train":
            self._close_epoch()
        self._state.begin(label, total, epoch, max_epochs)
        self._start()

    def step(self, n: int, values: Mapping[str, float] | None) -> None:
        """Units are finished."""
        state = self._state
        if state.values is None:
            # Until the first step of this process is over: it waits for its program, and a resume counts those before.
            self._first_step, self._first_units = self._clock(), state.done + n
        state.done += n
        if values is not None:
            state.values = values

    def end(self, values: Mapping[str, Any] | None) -> None:
        """A stretch is over; a line closes the epoch, or a pass that took long."""
        state = self._state
        label, epoch, since, done = state.label, state.epoch, state.stretch_since, state.done
        numbers = scalars_text((values or {}).items())
        in_epochs = state.in_epochs
        state.end(values)
        seconds = self._clock() - since if since is not None else 0.0
        if in_epochs and label == "train" and values is not None:
            running = self._clock() - self._first_step  # the first step waited for its program to be compiled
            counted = done - self._first_units
            speed = f"{counted / running:,.0f} steps/s" if counted > 0 and running > 0 else ""
            self._epoch = (epoch, state.max_epochs, seconds, "  ".join(p for p in (numbers, speed) if p))
        elif in_epochs and self._epoch is not None:
            number, last, spent, text = self._epoch
            self._epoch = (number, last, spent + seconds, f"{text}  {label}: {numbers}" if numbers else text)
            self._close_epoch()
        elif numbers and seconds >= LONG_PHASE:
            self.line(f"{label}: {done} batches, {duration(seconds)}")

    def phase(self, name: str | None) -> None:
        """Work without units starts, or is over; said when it takes long."""
        state = self._state
        now = self._clock()
        with self._lock:
            spent, was, said = now - state.phase_since, state.phase, self._phase_said
            state.set_phase(name)
            self._phase_said = False
        if was is not None and (said or spent >= LONG_PHASE):
            self.line(f"{was}: {duration(spent)}")
        if name is not None:
            self._start()

    def note(self, text: str | None) -> None:
        """What the user's code is doing; part of the next sign of life."""
        self._state.note = text

    def line(self, text: str) -> None:
        """One line."""
        with self._lock:
            self._last_line = self._clock()
            self._write_line(visible(text, keep=""))

    def done(self, text: str) -> None:
        """The entry point is over."""
        self._close_epoch()
        self.close()
        if text and self._closing:
            self.line(text)

    def close(self) -> None:
        """Stop the signs of life; may be called at any time."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._state = ProgressState(self._clock)

    def tick(self) -> None:
        """Write a sign of life if one is due."""
        now = self._clock()
        state = self._state
        if state.idle:
            return
        state.sample(now)
        with self._lock:
            long_phase = state.phase is not None and not self._phase_said and now - state.phase_since >= LONG_PHASE
            if long_phase:
                self._phase_said = True
        if long_phase or now - self._last_line >= HEARTBEAT:
            self.line(self._sign_of_life(now))

    def _sign_of_life(self, now: float) -> str:
        state = self._state
        parts = [state.position_text()]
        if state.stretch_since is not None and (state.total or state.done):
            parts[0] += f" {state.done}/{state.total}" if state.total else f" {state.done}"
        if state.phase:
            parts.append(f"{state.phase} for {duration(now - state.phase_since)}")
        if state.note:
            parts.append(state.note)
        numbers = scalars_text((state.values or {}).items())
        if numbers:
            parts.append(numbers)
        left = state.remaining(now)
        if left is not None:
            parts.append(f"{duration(left)} left")
        return ", ".join(parts)

    def _close_epoch(self) -> None:
        if self._epoch is None:
            return
        number, last, seconds, text = self._epoch
        self._epoch = None
        self.line(f"epoch {number}/{last}  {text}  ({duration(seconds)})")

    def _start(self) -> None:
        if not self._heartbeat or self._thread is not None:
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(self._stop,), name="nitro-progress", daemon=True)
        self._thread.start()

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(_TICK):
            self.tick()
