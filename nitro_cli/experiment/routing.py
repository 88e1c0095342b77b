"""Which batch fields each hook wants: its keyword-only parameters."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nitro_cli.errors import RoutingError, nearest

from .hooks import has_hook

__all__ = ["HookSignature", "Routing", "resolve_routing"]

_POSITIONAL: dict[str, tuple[str, ...]] = {
    "forward": ("model", "params", "state"),
    "loss": ("outputs",),
    "metrics": ("outputs",),
    "train_metrics": ("outputs",),
    "visualize": ("outputs",),
    "train_step": ("model", "params", "opt_state", "state"),
}


@dataclass(frozen=True)
class HookSignature:
    """The batch fields that a hook declares.

    Args:
        hook: its name.
        required: keywords without a default.
        optional: keywords with one.
        takes_all: whether it ends in `**fields`, which receives the whole batch.
    """

    hook: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_all: bool

    @classmethod
    def of(cls, e: Any, hook: str) -> HookSignature:
        """Read the signature of a hook of an experiment.

        Raises:
            RoutingError: the hook is not written, or its positional parameters are not the ones it is called with.
        """
        if not has_hook(e, hook):
            raise RoutingError(f"{_owner(e)} does not define the hook {hook!r}")
        parameters = list(inspect.signature(getattr(e, hook)).parameters.values())
        if isinstance(e, type):
            parameters = parameters[1:]
        _check_positional(e, hook, parameters)
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        return cls(
            hook,
            tuple(p.name for p in keywords if p.default is p.empty),
            tuple(p.name for p in keywords if p.default is not p.empty),
            any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def fields_for(self, batch_fields: Collection[str], where: str = "the batch") -> tuple[str, ...]:
        """The fields the hook receives from a batch that has `batch_fields`, in the batch's order.

        Raises:
            RoutingError: a required keyword is missing; it names hook, keyword, the fields there are, the nearest.
        """
        missing = [name for name in self.required if name not in batch_fields]
        if missing:
            raise self._missing(missing, batch_fields, where)
        if self.takes_all:
            return tuple(batch_fields)
        wanted = {*self.required, *self.optional}
        return tuple(name for name in batch_fields if name in wanted)

    def _missing(self, missing: Sequence[str], batch_fields: Collection[str], where: str) -> RoutingError:
        free = [name for name in batch_fields if name not in self.required]
        listed = ", ".join(repr(name) for name in missing)
        return RoutingError(
            f"the hook {self.hook} declares {listed}, which {where} does not have",
            where=f"{self.hook}(*, {', '.join([*self.required, *(f'{o}=...' for o in self.optional)])})",
            why=f"the batch has the fields {', '.join(batch_fields) or '(none)'}",
            fix=f"rename the keyword or the batch's field, or give {missing[0]!r} a default to make it optional",
            nearest=dict.fromkeys(close for name in missing for close in nearest(name, free)),
        )


def _owner(e: Any) -> str:
    return (e if isinstance(e, type) else type(e)).__name__


def _check_positional(e: Any, hook: str, parameters: Sequence[inspect.Parameter]) -> None:
    expected = _POSITIONAL.get(hook)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if expected is None or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    wanted = f"def {hook}(self, {', '.join(expected)}, *, <batch fields>)"
    if len(positional) > len(expected):
        extra = [p.name for p in positional[len(expected) :]]
        raise RoutingError(
            f"the hook {hook} takes {', '.join(repr(n) for n in extra)} by position",
            where=f"{_owner(e)}.{hook}",
            why="batch fields are routed by name, so they are keyword-only parameters",
            fix=f"put a `*` before {extra[0]!r}: `{wanted}`",
        )
    if len(positional) < len(expected):
        raise RoutingError(
            f"the hook {hook} takes {len(positional)} arguments by position and is called with {len(expected)}",
            where=f"{_owner(e)}.{hook}",
            fix=f"write `{wanted}`",
        )


@dataclass(frozen=True)
class Routing:
    """Which batch fields go to which hook, and which of them to the device.

    Args:
        signatures: hook name to its signature.
        batch_fields: the fields of the batch it was resolved from, in its order.
        traced: the hooks that run inside a program.
    """

    signatures: Mapping[str, HookSignature]
    batch_fields: tuple[str, ...]
    traced: tuple[str, ...]
    _fields: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @property
    def hooks(self) -> tuple[str, ...]:
        """The routed hooks."""
        return tuple(self.signatures)

    @property
    def device_fields(self) -> frozenset[str]:
        """The fields that some traced hook declares; only these are moved to the device."""
        return frozenset(name for hook in self.traced for name in self._fields[hook])

    def fields_for(self, hook: str) -> tuple[str, ...]:
        """The fields a hook receives, in the batch's order.

        Raises:
            RoutingError: the hook was not routed.
        """
        if hook not in self._fields:
            raise RoutingError(f"the hook {hook!r} is not routed", nearest=nearest(hook, self._fields))
        return self._fields[hook]

    def kwargs(self, hook: str, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a hook from a batch, which may lack fields that other hooks declare.

        Raises:
            RoutingError: the batch lacks a field the hook requires.
        """
        names = self.fields_for(hook)
        if all(name in batch for name in names) and not self.signatures[hook].takes_all:
            return {name: batch[name] for name in names}
        return {name: batch[name] for name in self.signatures[hook].fields_for(list(batch))}


def resolve_routing(
    e: Any,
    batch_fields: Collection[str],
    hooks: Sequence[str] = (),
    *,
    traced: Sequence[str] = (),
    host: Sequence[str] = (),
) -> Routing:
    """Resolve, once, which batch fields each hook receives.

    Args:
        e: the experiment, a view of it, or its class.
        batch_fields: the fields of the first batch, in its order.
        hooks: further hooks to route, counted as traced; the same as `traced`.
        traced: hooks that run inside a program; the fields they declare are moved to the device.
        host: hooks that run on the host.

    Raises:
        RoutingError: a hook requires a field that the batch lacks, or cannot be called as it is declared.
    """
    inside = tuple(dict.fromkeys([*hooks, *traced]))
    signatures = {hook: HookSignature.of(e, hook) for hook in dict.fromkeys([*inside, *host])}
    fields = {hook: signature.fields_for(batch_fields) for hook, signature in signatures.items()}
    return Routing(signatures, tuple(batch_fields), inside, fields)
