"""One schedule over a known horizon: its values by absolute optimizer step, computed on the host.

Values come in blocks of `BLOCK` steps that begin at fixed steps, so that a step's value is the same bit for bit
whatever step a run starts or resumes at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import HookError, ScheduleError
from nitro_cli.optim.curves import Values
from nitro_cli.optim.named_schedules import NamedCurve, NamedSchedule, schedule_from_config
from nitro_cli.optim.plateau import Plateau
from nitro_cli.text import exception_text

__all__ = ["BLOCK", "ValueSource", "resolve_schedule"]

BLOCK = 256

# the context manager moved to the top level in newer JAX
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # type: ignore[attr-defined]


class ValueSource:
    """The values of one schedule, a float64 per optimizer step, before a plateau's scale.

    Attributes:
        text: how reports name the schedule.
        constant: the value when it never changes, else None.
    """

    def __init__(self, key: str, text: str, block: Callable[[np.ndarray], Values], constant: float | None) -> None:
        self.key = key
        self.text = text
        self.constant = constant
        self._block = block
        self._kept: dict[int, Values] = {}

    def values(self, start: int, count: int) -> Values:
        """float64[count], the values at optimizer steps `start`, `start + 1`, ... (the first step is 1)."""
        if self.constant is not None:
            return np.full(count, self.constant)
        if start < 1:
            raise ValueError(f"optimizer steps are counted from 1, not {start}")
        first, last = (start - 1) // BLOCK, (start + count - 2) // BLOCK
        joined = np.concatenate([self._values_of_block(index) for index in range(first, last + 1)])
        offset = start - 1 - first * BLOCK
        return joined[offset : offset + count]

    def _values_of_block(self, index: int) -> Values:
        if index not in self._kept:
            steps = np.arange(index * BLOCK + 1, (index + 1) * BLOCK + 1)
            values = np.asarray(self._block(steps), np.float64)
            if not np.isfinite(values).all():
                at = int(np.flatnonzero(~np.isfinite(values))[0])
                raise ScheduleError(
                    f"schedule {self.key!r} is {values[at]} at step {steps[at]}",
                    where=self.text,
                    why="a hyperparameter must be a finite number",
                )
            if len(self._kept) >= 4:
                self._kept.pop(next(iter(self._kept)))
            self._kept[index] = values
        return self._kept[index]


def resolve_schedule(key: str, entry: Any, total: int) -> tuple[ValueSource, Plateau | None]:
    """The values of one entry of a schedules mapping over `total` optimizer steps.

    An entry is a number, a named schedule (object, table or model), an optax schedule, or a factory of the horizon.
    The last two are told apart by what comes back from `entry(total)`: a callable is the curve of a factory, a
    function of the upcoming step counted from 1; a number means that the entry was itself a schedule, a function of
    the count from 0 as optax's are. A function that optax made is taken as an optax schedule at once, and so is one
    that a factory returns: both are evaluated from count 0 at the first step.

    Args:
        key: the schedule's key, for errors.
        entry: what the user gave.
        total: optimizer steps of the whole run, at least 1.

    Returns:
        The values, and the plateau that scales them, if any.

    Raises:
        ScheduleError: the entry is no schedule, or a value is not a finite real number.
        HookError: its factory raises.
    """
    if isinstance(entry, Mapping) or hasattr(entry, "model_dump"):
        entry = schedule_from_config(entry, key)
    plateau = entry if isinstance(entry, Plateau) else None
    inner = entry.inner if plateau is not None else entry
    if isinstance(inner, Mapping) or hasattr(inner, "model_dump"):
        inner = schedule_from_config(inner, key)
    source = _source(key, inner, max(total, 1))
    if plateau is not None:
        source.text = f"plateau({source.text})"
    return source, plateau


def _source(key: str, entry: Any, total: int) -> ValueSource:
    number = _as_number(entry)
    if number is not None:
        if not math.isfinite(number):
            raise ScheduleError(f"schedule {key!r} is {number}", why="a hyperparameter must be a finite number")
        return ValueSource(key, f"{number:g}", lambda steps: np.full(len(steps), number), number)
    if not callable(entry):
        raise ScheduleError(
            f"schedule {key!r} is {type(entry).__name__}, which is not a schedule",
            fix="give a number, an optax schedule, a named schedule, or a factory `total -> (step -> value)`",
        )
    if _made_by_optax(entry):
        return _optax_source(key, entry)
    try:
        made = entry(total)
    except ScheduleError as error:
        raise ScheduleError(f"schedule {key!r}: {error.what}", why=error.why, fix=error.fix) from error
    except Exception as error:
        raise HookError(
            f"schedule {key!r} could not be built",
            where=_name(entry),
            why=f"calling it with the horizon of {total} steps raised {exception_text(error)}",
            fix="a factory takes the total number of optimizer steps and returns a function of the step",
        ) from error
    if isinstance(made, NamedSchedule):
        made = made(total)
    if isinstance(made, NamedCurve):
        constant = float(made(1)) if made.kind == "constant" else None
        return ValueSource(key, repr(entry) if isinstance(entry, NamedSchedule) else made.kind, made.values, constant)
    if callable(made):
        if _made_by_optax(made):
            return _optax_source(key, made)
        return ValueSource(key, _name(entry), _step_by_step(key, made, total, offset=0), None)
    if _as_number(made) is not None:
        return ValueSource(key, _name(entry), _step_by_step(key, entry, total, offset=-1), None)
    raise ScheduleError(
        f"schedule {key!r} returned {type(made).__name__} for the horizon of {total} steps",
        where=_name(entry),
        why="a factory returns a function of the step, an optax schedule a number",
    )


def _optax_source(key: str, schedule: Callable[[Any], Any]) -> ValueSource:
    """An optax schedule, evaluated in float64 by one vectorised call per block where it can be traced."""

    @jax.jit
    @jax.vmap
    def vectorised(count: Any) -> Any:
        return schedule(count)

    def block(steps: np.ndarray) -> Values:
        with _double_on_host():
            try:
                return np.asarray(vectorised(steps - 1), np.float64)
            except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, TypeError):
                # it holds a user's function with ordinary control flow
                return np.asarray([_evaluate(key, schedule, int(step), -1) for step in steps])
            except Exception as error:
                raise _failed(key, schedule, f"between the steps {steps[0]} and {steps[-1]}", error) from error

    text = f"optax.{getattr(schedule, '__qualname__', type(schedule).__name__).split('.')[0]}"
    constant = _evaluate(key, schedule, 1, -1) if text == "optax.constant_schedule" else None
    return ValueSource(key, text, block, constant)


def _step_by_step(key: str, schedule: Callable[[int], Any], total: int, *, offset: int) -> Callable[..., Values]:
    def block(steps: np.ndarray) -> Values:
        # steps beyond the horizon are never run; the last value stands there so that the block has its length
        return np.asarray([_evaluate(key, schedule, min(int(step), total), offset) for step in steps], np.float64)

    return block


def _evaluate(key: str, schedule: Callable[[int], Any], step: int, offset: int) -> float:
    try:
        value = schedule(step + offset)
    except Exception as error:
        raise _failed(key, schedule, f"at step {step}", error) from error
    return _finite_or_fail(key, value, step)


def _failed(key: str, schedule: Any, when: str, error: Exception) -> HookError:
    """A schedule that raises is code of the experiment's that fails, as any other hook."""
    return HookError(f"schedule {key!r} failed {when}", where=_name(schedule), why=exception_text(error))


def _finite_or_fail(key: str, value: Any, step: int) -> float:
    number = _as_number(value)
    if number is None:
        raise ScheduleError(
            f"schedule {key!r} is {type(value).__name__} at step {step}, not a real number",
            fix="return a float for every step",
        )
    return number


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool | str | bytes | complex):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0:
        kind = np.asarray(value).dtype
        if jax.numpy.issubdtype(kind, np.floating) or jax.numpy.issubdtype(kind, np.integer):
            return float(value)
    return None


def _made_by_optax(function: Any) -> bool:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    return isinstance(module, str) and module.startswith("optax.") and "<locals>" in name


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name}(...)" if name != "<lambda>" else "a lambda"


@contextmanager
def _double_on_host() -> Iterator[None]:
    """Float64 on the CPU, so that a row does not depend on the accelerator."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        device = None
    with _enable_x64(True), jax.default_device(device):
        yield
