"""The formulas of the named schedules, in float64 on the host.

Every function maps `count` (float64[n], 0 at the first optimizer step) to values (float64[n]). `total` is the horizon
in optimizer steps; a length that is left at None takes what remains of it. Parameter names and values are those of
optax's schedules of the same kind, and of PyTorch's `OneCycleLR` for `one_cycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nitro_cli.errors import ScheduleError

__all__ = ["CURVES", "Curve", "Values"]

Values = npt.NDArray[np.float64]
Curve = Callable[..., Values]


def _constant(count: Values, total: int, *, value: float) -> Values:
    """`optax.constant_schedule`."""
    return np.full(count.shape, float(value))


def _polynomial(
    count: Values,
    total: int,
    *,
    init_value: float,
    end_value: float,
    power: float,
    transition_steps: int | None = None,
    transition_begin: int = 0,
) -> Values:
    """`optax.polynomial_schedule`: `(init - end) * (1 - t/T)^power + end`."""
    steps = transition_steps if transition_steps is not None else max(total - transition_begin, 1)
    if steps <= 0:
        return np.full(count.shape, float(init_value))
    progress = np.clip(count - max(transition_begin, 0), 0.0, steps) / steps
    return (init_value - end_value) * (1.0 - progress) ** power + end_value


def _linear(
    count: Values,
    total: int,
    *,
    init_value: float,
    end_value: float,
    transition_steps: int | None = None,
    transition_begin: int = 0,
) -> Values:
    """`optax.linear_schedule`."""
    return _polynomial(
        count,
        total,
        init_value=init_value,
        end_value=end_value,
        power=1.0,
        transition_steps=transition_steps,
        transition_begin=transition_begin,
    )


def _cosine(
    count: Values,
    total: int,
    *,
    init_value: float,
    decay_steps: int | None = None,
    alpha: float = 0.0,
    exponent: float = 1.0,
) -> Values:
    """`optax.cosine_decay_schedule` (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts)."""
    steps = decay_steps if decay_steps is not None else max(total, 1)
    if steps <= 0:
        raise ScheduleError(f"decay_steps is {steps}", why="the cosine needs at least one step to decay over")
    decay = 0.5 * (1.0 + np.cos(np.pi * np.minimum(count, steps) / steps))
    return init_value * ((1.0 - alpha) * decay**exponent + alpha)


def _warmup_cosine(
    count: Values,
    total: int,
    *,
    peak_value: float,
    warmup_steps: int,
    init_value: float = 0.0,
    decay_steps: int | None = None,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Values:
    """`optax.warmup_cosine_decay_schedule`; `decay_steps` counts the warmup."""
    steps = decay_steps if decay_steps is not None else total
    if steps <= warmup_steps:
        raise ScheduleError(
            f"decay_steps is {steps} and warmup_steps is {warmup_steps}",
            why="decay_steps is the whole length, warmup included, so nothing is left to decay over",
            fix="give fewer warmup_steps, or train for more steps",
        )
    warm = _linear(count, total, init_value=init_value, end_value=peak_value, transition_steps=warmup_steps)
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    cosine = _cosine(
        count - warmup_steps,
        total,
        init_value=peak_value,
        decay_steps=steps - warmup_steps,
        alpha=alpha,
        exponent=exponent,
    )
    return np.where(count < warmup_steps, warm, cosine)


def _exponential(
    count: Values,
    total: int,
    *,
    init_value: float,
    decay_rate: float,
    transition_steps: int | None = None,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Values:
    """`optax.exponential_decay`: `init * rate^(t/T)`, bounded by `end_value`."""
    steps = transition_steps if transition_steps is not None else max(total, 1)
    if steps <= 0 or decay_rate == 0:
        return np.full(count.shape, float(init_value))
    elapsed = count - max(transition_begin, 0)
    power = np.floor(elapsed / steps) if staircase else elapsed / steps
    # the exponent is cut at 0: before the beginning the power could overflow, and its value is not used
    values = np.where(elapsed <= 0, init_value, init_value * np.power(float(decay_rate), np.maximum(power, 0.0)))
    if end_value is None:
        return values
    return np.maximum(values, end_value) if decay_rate < 1.0 else np.minimum(values, end_value)


def _piecewise(
    count: Values,
    total: int,
    *,
    init_value: float,
    boundaries_and_scales: Mapping[int, float] | None = None,
    interpolate_type: str | None = None,
) -> Values:
    """`optax.piecewise_constant_schedule`: every boundary reached multiplies its scale in.

    With `interpolate_type` the value moves from one product to the next, as `optax.piecewise_interpolate_schedule`.
    """
    ordered = sorted((boundaries_and_scales or {}).items())
    levels = np.cumprod(np.asarray([init_value, *(scale for _, scale in ordered)], np.float64))
    bounds = np.asarray([boundary for boundary, _ in ordered], np.float64)
    reached = np.searchsorted(bounds, count, side="right")
    if interpolate_type is None or not ordered:
        return np.asarray(levels[reached], np.float64)
    begins = np.concatenate([[0.0], bounds])
    following = np.minimum(reached + 1, len(ordered))
    width = np.maximum(begins[following] - begins[reached], 1.0)
    progress = (count - begins[reached]) / width
    return _anneal(interpolate_type, levels[reached], levels[following], progress)


def _inverse_sqrt(
    count: Values, total: int, *, peak_value: float, warmup_steps: int, init_value: float = 0.0
) -> Values:
    """Linear warmup, then `peak * sqrt(warmup / count)` (Vaswani et al. 2017, arXiv:1706.03762, equation 3)."""
    knee = max(warmup_steps, 1)
    warm = _linear(count, total, init_value=init_value, end_value=peak_value, transition_steps=warmup_steps)
    decayed = peak_value * np.sqrt(knee / np.maximum(count, knee))
    return np.where(count < warmup_steps, warm, decayed)


def _one_cycle(
    count: Values,
    total: int,
    *,
    max_lr: float,
    total_steps: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Values:
    """`torch.optim.lr_scheduler.OneCycleLR` (Smith and Topin 2018, arXiv:1708.07120).

    From `max_lr / div_factor` up to `max_lr` over the first `pct_start` of the steps, then down to
    `max_lr / (div_factor * final_div_factor)`; with `three_phase` down to the initial value first, as long as the way
    up took. The last value is kept after the horizon, where PyTorch raises.
    """
    steps = total_steps if total_steps is not None else max(total, 1)
    initial, final = max_lr / div_factor, max_lr / div_factor / final_div_factor
    up = float(pct_start * steps) - 1.0
    if three_phase:
        ends = [up, float(2 * pct_start * steps) - 2.0, steps - 1.0]
        levels = [initial, max_lr, initial, final]
    else:
        ends = [up, steps - 1.0]
        levels = [initial, max_lr, final]
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
        values[here] = _anneal(anneal_strategy, levels[index], levels[index + 1], progress)
        done |= here
        start = end
    return values


def _anneal(strategy: str, start: Any, end: Any, progress: Values) -> Values:
    if strategy in ("cos", "cosine"):
        return end + (start - end) / 2.0 * (np.cos(np.pi * progress) + 1.0)
    return (end - start) * progress + start


CURVES: dict[str, Curve] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "warmup_cosine": _warmup_cosine,
    "one_cycle": _one_cycle,
    "exponential": _exponential,
    "polynomial": _polynomial,
    "piecewise": _piecewise,
    "inverse_sqrt": _inverse_sqrt,
}
