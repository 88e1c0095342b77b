"""`HookTable`: which hooks an experiment has, who supplies each, and which batch fields each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nitro_cli.errors import ConfigError, HookError, RoutingError, nearest

from .hooks import HOOKS, REQUIRED_HOOKS, Hooks
from .kinds import FieldKind
from .part import Part
from .part_leaves import parts_in
from .signatures import HookSignature

__all__ = ["HookTable", "check_hooks"]

_DEFAULT = "default"


@dataclass(frozen=True)
class _Supplied:
    """A hook that a part supplies: the part's dotted name in the experiment, how reports call it, and what it takes."""

    path: str
    owner: str
    precedence: int
    signature: HookSignature
    residency: str | None
    follows: str | None


class HookTable:
    """The hooks of one experiment: the class's own methods, or else those of its parts, or else the defaults.

    It is resolved once per experiment, at setup, and holds for every view of it. Whoever wants to know whether there is
    a hook, or to call one, asks here.

    Args:
        e: the experiment, or a view of it.

    Raises:
        ConfigError: two parts supply one hook, a part supplies none that is used, or one that does not exist.
        RoutingError: what a part supplies cannot be called as the hook.
    """

    def __init__(self, e: Any) -> None:
        self._cls: type[Any] = type(e)
        kinds = getattr(self._cls, "__nitro_kinds__", {})
        parts = getattr(self._cls, "__nitro_parts__", ())
        self._names: tuple[str, ...] = tuple(name for name in parts if kinds[name] is not FieldKind.HOST)
        self._supplied = self._from_parts(e) if self._names else {}

    def _from_parts(self, e: Any) -> dict[str, _Supplied]:
        listed = list(parts_in(e, self._names))
        parts, paths = dict(listed), [path for path, _ in listed]
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"two parts of {self._cls.__name__} are both called {twice}",
                why="a part in a list is named by its kind",
                fix="keep one of them",
            )
        used: dict[str, _Supplied] = {}
        for path, part in parts.items():
            owner = path if path.rpartition(".")[2] == part.label else f"{path} ({part.label})"
            for name, hook in part.hooks().items():
                _check_name(name, owner)
                if self._written(name):
                    continue
                signature = hook.signature(name, owner)
                found = _Supplied(path, owner, type(part).precedence, signature, hook.residency, hook.follows)
                used[name] = _stronger(name, used.get(name), found)
        for name, found in list(used.items()):
            before = None if found.follows is None else used.get(found.follows)
            if found.follows is not None and (before is None or before.path != found.path):
                del used[name]  # it would take what another hook made
        taken = {found.path for found in used.values()}
        for path, part in parts.items():
            if path not in taken:
                self._refuse_unused(path, part)
        return used

    def _refuse_unused(self, path: str, part: Part) -> None:
        supplied = list(part.hooks())
        raise ConfigError(
            f"the part {path} ({part.label}) of {self._cls.__name__} is not used",
            where=f"{self._cls.__name__}.{path}",
            why=f"what it supplies is supplied by others: {', '.join(f'{n} by {self._other(n)}' for n in supplied)}"
            if supplied
            else "it supplies no hook",
            fix=f"drop {path}, or the methods that stand in its place",
        )

    def _other(self, name: str) -> str:
        return self._writer(name) if self._written(name) else "a stronger part"

    def _written(self, name: str) -> bool:
        written = getattr(self._cls, name, None)
        return written is not None and written is not getattr(Hooks, name, None)

    def _writer(self, name: str) -> str:
        return next(cls.__name__ for cls in self._cls.__mro__ if name in vars(cls))

    def has(self, name: str) -> bool:
        """Whether the experiment supplies a hook itself, so that more than the default is there.

        Raises:
            ConfigError: there is no such hook.
        """
        _check_name(name)
        return name in self._supplied or self._written(name)

    def owner(self, name: str) -> str:
        """Who supplies a hook: the class that writes it, a part by its field and kind, or `default`.

        Raises:
            ConfigError: there is no such hook.
        """
        _check_name(name)
        if name in self._supplied:
            return self._supplied[name].owner
        return self._writer(name) if self._written(name) else _DEFAULT

    def part_of(self, name: str) -> str | None:
        """The dotted name of the part that supplies a hook; None where a class or the default does."""
        _check_name(name)
        return self._supplied[name].path if name in self._supplied else None

    def owners(self) -> dict[str, str]:
        """The hooks that are not left to their defaults, each with who supplies it."""
        return {name: self.owner(name) for name in HOOKS if self.has(name)}

    def bound(self, view: Any, name: str) -> Any:
        """What is called for a hook, with `view` as its `self`; None where there is neither a hook nor a default.

        Args:
            view: the experiment that the table was made of, or a view of it.
            name: the hook.
        """
        _check_name(name)
        if name not in self._supplied:
            return getattr(view, name, None)
        hook = dict(parts_in(view, self._names))[self._supplied[name].path].hooks()[name]
        return partial(hook.function, view) if hook.with_experiment else hook.function

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
        if name in self._supplied:
            return self._supplied[name].signature
        # Bound to no values: a signature depends on none.
        function: Callable[..., Any] = getattr(object.__new__(self._cls), name)
        return HookSignature.of(name, list(inspect.signature(function).parameters.values()), self._cls.__name__)

    def residency(self, e: Any, name: str) -> Any:
        """Where a metric hook runs, as `metrics_residency` says; where the class does not write that, as the part that
        supplies the hook says."""
        supplied = self._supplied.get(name)
        if supplied is not None and supplied.residency is not None and not self.has("metrics_residency"):
            return supplied.residency
        return self.call(e, "metrics_residency", name)

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


def _check_name(name: str, supplier: str | None = None) -> None:
    if name not in HOOKS:
        raise ConfigError(f"there is no hook {name!r}", where=supplier, nearest=nearest(name, HOOKS))


def _stronger(name: str, held: _Supplied | None, found: _Supplied) -> _Supplied:
    if held is not None and held.precedence == found.precedence:
        raise ConfigError(
            f"two parts supply the hook {name}",
            where=f"{held.owner} and {found.owner}",
            why="a hook has one owner",
            fix=f"drop one of them, or write {name} in the class and call there what is meant",
        )
    return found if held is None or found.precedence > held.precedence else held


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
