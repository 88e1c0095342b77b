"""Which batch fields a hook wants: its keyword-only parameters, or what a part says of them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nitro_cli.errors import RoutingError, nearest

__all__ = ["BatchField", "HookSignature"]

_POSITIONAL: dict[str, tuple[str, ...]] = {
    "prepare": ("inputs", "train", "key"),
    "forward": ("model", "params", "state"),
    "loss": ("outputs",),
    "metrics": ("outputs",),
    "train_metrics": ("outputs",),
    "check_batch": ("outputs",),
    "export_head": ("outputs",),
    "visualize": ("outputs",),
    "train_step": ("model", "params", "opt_state", "state"),
}


@dataclass(frozen=True)
class BatchField:
    """A field of the batch that a hook takes.

    Args:
        names: what the batch may call it, the first that it has counts.
        required: whether a batch without it is refused.
    """

    names: tuple[str, ...]
    required: bool = True

    def found(self, batch_fields: Collection[str]) -> str | None:
        """Its name in a batch that has `batch_fields`; None where that lacks it."""
        return next((name for name in self.names if name in batch_fields), None)


@dataclass(frozen=True)
class HookSignature:
    """The batch fields that a hook declares.

    Args:
        hook: its name.
        keywords: the name of each keyword that it is called with, and the batch field that it stands for.
        takes_all: whether it ends in `**fields`, which receives the whole batch.
        owner: what supplies the hook, for errors; empty for the experiment's class.
    """

    hook: str
    keywords: Mapping[str, BatchField]
    takes_all: bool = False
    owner: str = ""

    @classmethod
    def of(cls, hook: str, parameters: Sequence[inspect.Parameter], where: str) -> HookSignature:
        """Read the signature of a hook.

        Args:
            hook: its name.
            parameters: those of the function, `self` left out.
            where: what writes it, for errors.

        Raises:
            RoutingError: the positional parameters are not the ones it is called with.
        """
        _check_positional(hook, parameters, where)
        keywords = {
            p.name: BatchField((p.name,), required=p.default is p.empty) for p in parameters if p.kind is p.KEYWORD_ONLY
        }
        return cls(hook, keywords, any(p.kind is p.VAR_KEYWORD for p in parameters))

    @property
    def required(self) -> tuple[str, ...]:
        """The fields that it cannot do without."""
        return tuple(field.names[0] for field in self.keywords.values() if field.required)

    @property
    def optional(self) -> tuple[str, ...]:
        """The fields that it takes where the batch has them."""
        return tuple(field.names[0] for field in self.keywords.values() if not field.required)

    def declares(self, field: str) -> bool:
        """Whether it takes a field by this name."""
        return any(taken.names == (field,) for taken in self.keywords.values())

    def with_optional(self, field: str) -> HookSignature:
        """The same, doing without a field."""
        keywords = {
            keyword: replace(taken, required=False) if taken.names == (field,) else taken
            for keyword, taken in self.keywords.items()
        }
        return replace(self, keywords=keywords)

    def lacking(self, batch_fields: Collection[str]) -> tuple[str, ...]:
        """The required fields that a batch with `batch_fields` lacks."""
        return tuple(
            " or ".join(field.names)
            for field in self.keywords.values()
            if field.required and field.found(batch_fields) is None
        )

    def fields_for(self, batch_fields: Collection[str], where: str = "the batch") -> tuple[str, ...]:
        """The fields the hook receives from a batch that has `batch_fields`, in the batch's order.

        Raises:
            RoutingError: a required field is missing; it names hook, field, the fields there are, the nearest.
        """
        if self.lacking(batch_fields):
            raise self._missing(batch_fields, where)
        if self.takes_all:
            return tuple(batch_fields)
        wanted = {field.found(batch_fields) for field in self.keywords.values()}
        return tuple(name for name in batch_fields if name in wanted)

    def arguments(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the hook, taken from a batch.

        Raises:
            RoutingError: a required field is missing.
        """
        taken = self.fields_for(list(batch))
        found = {keyword: name for keyword, field in self.keywords.items() if (name := field.found(taken)) is not None}
        rest = {name: batch[name] for name in taken if name not in found.values()}
        return {keyword: batch[name] for keyword, name in found.items()} | rest

    def _missing(self, batch_fields: Collection[str], where: str) -> RoutingError:
        absent = [f for f in self.keywords.values() if f.required and f.found(batch_fields) is None]
        names = [name for field in absent for name in field.names]
        free = [name for name in batch_fields if name not in self.required]
        listed = ", ".join(" or ".join(repr(name) for name in field.names) for field in absent)
        fix = f"rename the keyword or the batch's field, or give {names[0]!r} a default to make it optional"
        return RoutingError(
            f"the hook {self.hook} declares {listed}, which {where} does not have",
            where=f"{self.hook}(*, {', '.join([*self.required, *(f'{o}=...' for o in self.optional)])})",
            why=f"the batch has the fields {', '.join(batch_fields) or '(none)'}",
            fix=f"give {self.owner} the name of the batch's field, or rename the field" if self.owner else fix,
            nearest=dict.fromkeys(close for name in names for close in nearest(name, free)),
        )


def _check_positional(hook: str, parameters: Sequence[inspect.Parameter], where: str) -> None:
    expected = _POSITIONAL.get(hook)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if expected is None or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    wanted = f"def {hook}(self, {', '.join(expected)}, *, <batch fields>)"
    if len(positional) > len(expected):
        extra = [p.name for p in positional[len(expected) :]]
        raise RoutingError(
            f"the hook {hook} takes {', '.join(repr(n) for n in extra)} by position",
            where=f"{where}.{hook}",
            why="batch fields are routed by name, so they are keyword-only parameters",
            fix=f"put a `*` before {extra[0]!r}: `{wanted}`",
        )
    if len(positional) < len(expected):
        raise RoutingError(
            f"the hook {hook} takes {len(positional)} arguments by position and is called with {len(expected)}",
            where=f"{where}.{hook}",
            fix=f"write `{wanted}`",
        )
