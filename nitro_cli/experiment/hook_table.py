"""`HookTable`: which hooks an experiment has, who supplies each, and which batch fields each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from nitro_cli.errors import ConfigError, HookError, RoutingError, nearest

from .hooks import HOOKS, REQUIRED_HOOKS, Hooks
from .signatures import HookSignature

__all__ = ["HookTable", "check_hooks"]

_DEFAULT = "default"


class HookTable:
    """The hooks of one experiment: the class's own methods, or else the defaults.

    It is resolved once per experiment, at setup, and holds for every view of it. Whoever wants to know whether there is
    a hook, or to call one, asks here.

    Args:
        e: the experiment, or a view of it.
    """

    def __init__(self, e: Any) -> None:
        self._cls: type[Any] = type(e)

    def has(self, name: str) -> bool:
        """Whether the experiment supplies a hook itself, so that more than the default is there.

        Raises:
            ConfigError: there is no such hook.
        """
        _check_name(name)
        written = getattr(self._cls, name, None)
        return written is not None and written is not getattr(Hooks, name, None)

    def owner(self, name: str) -> str:
        """Who supplies a hook: the class that writes it, or `default`.

        Raises:
            ConfigError: there is no such hook.
        """
        if not self.has(name):
            return _DEFAULT
        return next(cls.__name__ for cls in self._cls.__mro__ if name in vars(cls))

    def bound(self, view: Any, name: str) -> Any:
        """What is called for a hook, with `view` as its `self`; None where there is neither a hook nor a default.

        Args:
            view: the experiment that the table was made of, or a view of it.
            name: the hook.
        """
        _check_name(name)
        return getattr(view, name, None)

    def call(self, view: Any, name: str, *args: Any, batch: Mapping[str, Any] | None = None, **words: Any) -> Any:
        """Call a hook.

        Args:
            view: what it receives as `self`: the experiment that the table was made of, or a view of it.
            name: the hook.
            args: its positional arguments.
            batch: the batch of which it gets the fields that it declares.
            words: further arguments by name.

        Raises:
            HookError: nobody supplies it, and it has no default.
            RoutingError: the batch lacks a field that it requires.
        """
        hook = self.bound(view, name)
        if hook is None:
            raise HookError(f"{self._cls.__name__} has no hook {name}")
        routed = {} if batch is None else self.fields(name).arguments(batch)
        return hook(*args, **routed, **words)

    def fields(self, name: str) -> HookSignature:
        """The batch fields that a hook declares.

        Raises:
            RoutingError: nobody supplies it, or its positional parameters are not the ones it is called with.
        """
        if not self.has(name):
            raise RoutingError(f"{self._cls.__name__} does not define the hook {name!r}")
        # Bound to no values: a signature depends on none.
        function: Callable[..., Any] = getattr(object.__new__(self._cls), name)
        return HookSignature.of(name, list(inspect.signature(function).parameters.values()), self._cls.__name__)

    def manual(self, e: Any) -> bool:
        """Whether the experiment takes the optimizer step into its own hands.

        Raises:
            HookError: `manual_training` returned no bool.
        """
        if not self.has("train_step"):
            return False
        wanted = self.call(e, "manual_training")
        if not isinstance(wanted, bool):
            raise HookError(
                f"`manual_training` returned {type(wanted).__name__}",
                fix="return True to train by train_step, False to decline while keeping it",
            )
        return wanted


def _check_name(name: str) -> None:
    if name not in HOOKS:
        raise ConfigError(f"there is no hook {name!r}", nearest=nearest(name, HOOKS))


def check_hooks(hooks: HookTable, e: Any) -> None:
    """Refuse an experiment that lacks a required hook. A `loss` is not asked of one that trains in manual mode.

    Raises:
        ConfigError: names every missing hook.
    """
    cls = type(e)
    manual = hooks.manual(e)
    missing = [name for name in REQUIRED_HOOKS if not hooks.has(name) and not (manual and name == "loss")]
    if manual and not hooks.has("setup_optimizers"):
        missing.append("setup_optimizers")
    if missing:
        raise ConfigError(
            f"{cls.__name__} lacks the required hook{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            why=f"an experiment writes at least {', '.join(REQUIRED_HOOKS)}",
            fix=f"define {missing[0]} on {cls.__name__}",
            nearest=[n for name in missing for n in nearest(name, [a for a in vars(cls) if a not in HOOKS], limit=1)],
        )
