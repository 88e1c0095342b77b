"""Names that a package loads when they are first asked for, so that nobody pays for what they do not use."""

from __future__ import annotations

import builtins
import importlib
import sys

TYPE_CHECKING = False  # without `typing`, which takes longer to load than the rest of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["lazy_names"]


class lazy_names:
    """A block of imports that are done when their names are first asked for.

    It stands in the `__init__.py` of a package, whose `__getattr__`, `__dir__` and `__all__` follow from it. Type
    checkers and editors read the imports as they are written:

        with lazy_names(__name__):
            from nitro_cli.metrics.history import History

    Args:
        package: its `__name__`. No name of the block may be that of a module in it: importing that would hide it.
        elsewhere: finds a name that the block does not have, as `elsewhere(name)`; None where it finds none.
    """

    def __init__(
        self,
        package: str,
        elsewhere: Callable[[str], Any] | None = None,
    ) -> None:
        self._package = package
        self._scope = vars(sys.modules[package])
        self._elsewhere = elsewhere
        self._homes: dict[str, _Later] = {}

    def __enter__(self) -> None:
        self._import = builtins.__import__
        builtins.__import__ = self._noted

    def _noted(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if globals is not self._scope or not fromlist:  # another thread's, or one that is wanted now
            return self._import(name, globals, locals, fromlist, level)
        return _LaterModule(f"{self._package}.{name}" if level else name)

    def __exit__(self, *_: object) -> None:
        if builtins.__import__ == self._noted:
            builtins.__import__ = self._import
        self._homes = {name: value for name, value in self._scope.items() if isinstance(value, _Later)}
        for name in self._homes:
            del self._scope[name]
        self._scope |= {"__getattr__": self._find, "__dir__": self._listed, "__all__": sorted(self._homes)}

    def _find(self, name: str) -> Any:
        later = self._homes.get(name)
        if later is None:
            found = None if self._elsewhere is None or name.startswith("_") else self._elsewhere(name)
            if found is None:
                raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
            self._scope[name] = found
            return found
        value = getattr(importlib.import_module(later.module), later.name)
        self._scope[name] = value
        return value

    def _listed(self) -> list[str]:
        return sorted(self._homes)


class _Later:
    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name


class _LaterModule:
    """Stands for a module while the block is read: every name of it is one to load later."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Later:
        return _Later(self._module, name)
