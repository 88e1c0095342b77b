"""The formulas of the named schedules, in float64 on the host.

Every function maps a schedule's parameters and `count` (float64[n], 0 at the first optimizer step) to values
(float64[n]). `total` is the horizon in optimizer steps; a length that is left at None takes what remains of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nitro_cli.errors import ScheduleError
from nitro_cli.experiment import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    OneCycle,
    Piecewise,
    Polynomial,
    Schedule,
    WarmupCosine,
)

__all__ = ["CURVES", "Values"]

Values = npt.NDArray[np.float64]


def _constant(s: Constant, count: Values, total: int) -> Values:
    return np.full(count.shape, float(s.value))


def _polynomial(s: Polynomial, count: Values, total: int) -> Values:
    steps = s.transition_steps or max(total - s.transition_begin, 1)
    return _power(count - s.transition_begin, s.init_value, s.end_value, steps, s.power)


def _linear(s: Linear, count: Values, total: int) -> Values:
    steps = s.transition_steps or max(total - s.transition_begin, 1)
    return _power(count - s.transition_begin, s.init_value, s.end_value, steps)


def _power(count: Values, start: float, end: float, steps: int, power: float = 1.0) -> Values:
    """`(start - end) * (1 - count / steps)^power + end`; `start` before, and always where there are no steps."""
    if steps <= 0:
        return np.full(count.shape, float(start))
    progress = np.clip(count, 0.0, steps) / steps
    return (start - end) * (1.0 - progress) ** power + end


def _cosine(s: Cosine, count: Values, total: int) -> Values:
    return _half_wave(count, s.init_value, s.decay_steps or max(total, 1), s.alpha, s.exponent)


def _half_wave(count: Values, start: float, steps: int, alpha: float, exponent: float) -> Values:
    decay = 0.5 * (1.0 + np.cos(np.pi * np.minimum(count, steps) / steps))
    return start * ((1.0 - alpha) * decay**exponent + alpha)


def _warmup_cosine(s: WarmupCosine, count: Values, total: int) -> Values:
    steps = s.decay_steps if s.decay_steps is not None else total
    if steps <= s.warmup_steps:
        raise ScheduleError(
            f"decay_steps is {steps} and warmup_steps is {s.warmup_steps}",
            why="decay_steps is the whole length, warmup included, so nothing is left to decay over",
            fix="give fewer warmup_steps, or train for more steps",
        )
    warm = _power(count, s.init_value, s.peak_value, s.warmup_steps)
    alpha = 0.0 if s.peak_value == 0.0 else s.end_value / s.peak_value
    cosine = _half_wave(count - s.warmup_steps, s.peak_value, steps - s.warmup_steps, alpha, s.exponent)
    return np.where(count < s.warmup_steps, warm, cosine)


def _exponential(s: Exponential, count: Values, total: int) -> Values:
    """`init * rate^(t/T)`, bounded by `end_value`."""
    elapsed = count - s.transition_begin
    power = elapsed / (s.transition_steps or max(total, 1))
    if s.staircase:
        power = np.floor(power)
    # the exponent is cut at 0: before the beginning the power could overflow, and its value is not used
    grown = s.init_value * np.power(float(s.decay_rate), np.maximum(power, 0.0))
    values = np.where(elapsed <= 0, s.init_value, grown)
    if s.end_value is None:
        return values
    return np.maximum(values, s.end_value) if s.decay_rate < 1.0 else np.minimum(values, s.end_value)


def _piecewise(s: Piecewise, count: Values, total: int) -> Values:
    """Every boundary reached multiplies its scale in; interpolated, the value moves from one product to the next."""
    ordered = sorted((s.boundaries_and_scales or {}).items())
    levels = np.cumprod(np.asarray([s.init_value, *(scale for _, scale in ordered)], np.float64))
    bounds = np.asarray([boundary for boundary, _ in ordered], np.float64)
    reached = np.searchsorted(bounds, count, side="right")
    if s.interpolate_type is None or not ordered:
        return np.asarray(levels[reached], np.float64)
    begins = np.concatenate([[0.0], bounds])
    following = np.minimum(reached + 1, len(ordered))
    width = np.maximum(begins[following] - begins[reached], 1.0)
    progress = (count - begins[reached]) / width
    return _anneal(s.interpolate_type, levels[reached], levels[following], progress)


def _inverse_sqrt(s: InverseSqrt, count: Values, total: int) -> Values:
    warm = _power(count, s.init_value, s.peak_value, s.warmup_steps)
    decayed = s.peak_value * np.sqrt(s.warmup_steps / np.maximum(count, s.warmup_steps))
    return np.where(count < s.warmup_steps, warm, decayed)


def _one_cycle(s: OneCycle, count: Values, total: int) -> Values:
    """From `max_lr / div_factor` up to `max_lr` over the first `pct_start` of the steps, and down again.

    It ends at `max_lr / (div_factor * final_div_factor)`; with `three_phase` it falls to the initial value first, as
    long as the way up took. The last value is kept after the horizon, where PyTorch raises.
    """
    steps = s.total_steps or max(total, 1)
    initial, final = s.max_lr / s.div_factor, s.max_lr / s.div_factor / s.final_div_factor
    up = float(s.pct_start * steps) - 1.0
    if s.three_phase:
        ends = [up, float(2 * s.pct_start * steps) - 2.0, steps - 1.0]
        levels = [initial, s.max_lr, initial, final]
    else:
        ends = [up, steps - 1.0]
        levels = [initial, s.max_lr, final]
    at = np.minimum(count, steps - 1.0)
    values = np.empty(at.shape)
    done = np.zeros(at.shape, bool)
    start = 0.0
    for index, end in enumerate(ends):
        last = index == len(ends) - 1
        here = ~done if last else ~done & (at <= end)
        width = end - start
        # a phase shorter than one step has no width: it stands at its end
        progress = (at[here] - start) / width if width else np.ones(int(here.sum()))
        values[here] = _anneal(s.anneal_strategy, levels[index], levels[index + 1], progress)
        done |= here
        start = end
    return values


def _anneal(strategy: str, start: Any, end: Any, progress: Values) -> Values:
    if strategy in ("cos", "cosine"):
        return end + (start - end) / 2.0 * (np.cos(np.pi * progress) + 1.0)
    return (end - start) * progress + start


CURVES: dict[type[Schedule], Callable[[Any, Values, int], Values]] = {
    Constant: _constant,
    Linear: _linear,
    Cosine: _cosine,
    WarmupCosine: _warmup_cosine,
    OneCycle: _one_cycle,
    Exponential: _exponential,
    Polynomial: _polynomial,
    Piecewise: _piecewise,
    InverseSqrt: _inverse_sqrt,
}
