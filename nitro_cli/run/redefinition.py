"""Noticing that code was edited after a handle was built: the handle keeps what it has, and says so."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from nitro_cli.experiment import HOOKS, Experiment, Part, part_fields

__all__ = ["CodeSnapshot"]

_LIBRARIES = tuple(str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("purelib", "platlib", "stdlib"))
_OWN = str(Path(__file__).resolve().parent.parent)


class CodeSnapshot:
    """The code of an experiment's hooks, of its parts, and of the user's functions they call, as it was.

    Args:
        e: the experiment.
    """

    def __init__(self, e: Experiment) -> None:
        self._cls = type(e)
        self._classes = [self._cls, *dict.fromkeys(field.owner for field in part_fields(e))]
        self._then = self._now(lambda cls: cls)

    def _now(self, meant: Callable[[type[Any]], type[Any]]) -> dict[str, Any]:
        return dict(described for cls in self._classes for described in _described(meant(cls)))

    def changes(self) -> list[str]:
        """What was redefined since, in words; empty when nothing was."""
        now = self._now(_current)
        changed = [name for name, code in self._then.items() if name in now and now[name] != code]
        gone = [name for name in self._then if name not in now and name.startswith("hook ")]
        return [*changed, *(f"{name} (gone)" for name in gone)]

    def report(self) -> str | None:
        """One sentence naming what changed and how to pick it up, or None."""
        changed = self.changes()
        if not changed:
            return None
        return (
            f"redefined since this handle of {self._cls.__name__} was built: {', '.join(changed)}; the handle keeps "
            "running what it was built with. Build a new Nitro to use the new code: only what changed is compiled"
        )


def _current(cls: type[Any]) -> type[Any]:
    """The class that its name means now: another object after its definition ran again."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Experiment | Part) else cls


def _described(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    is_part = issubclass(cls, Part)
    # As `inspect.getattr_static` finds them, which took a tenth of a short pass.
    held = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for name in held if is_part else HOOKS:
        function = held.get(name)
        if isinstance(function, FunctionType) and _is_users(function):
            yield f"{name} of the part {cls.__name__}" if is_part else f"hook {name}", _identity(function.__code__)
            yield from _helpers(function, seen)


def _helpers(function: FunctionType, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(function) in seen:
        return
    seen.add(id(function))
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        label = f"{function.__module__}.{name}"
        target = getattr(value, "__wrapped__", value)
        if isinstance(target, FunctionType):
            if _is_users(target):
                yield label, _identity(target.__code__)
                yield from _helpers(target, seen)
        elif isinstance(value, bool | int | float | str) and not name.startswith("__"):
            yield label, value


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _identity(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_identity(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return (code.co_code, constants, code.co_names, code.co_varnames)


def _is_users(function: FunctionType) -> bool:
    return _is_users_file(function.__code__.co_filename)


@functools.cache
def _is_users_file(file: str) -> bool:
    # Every entry point asks this of every function: resolving paths each time made `predict` slow.
    if file.startswith("<"):
        return True
    return not str(Path(file).resolve()).startswith((_OWN, *_LIBRARIES))
