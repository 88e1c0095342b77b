"""Which batch fields go to which hook, resolved once from the first batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nitro_cli.errors import RoutingError, nearest

from .hook_table import HookTable
from .signatures import HookSignature

__all__ = ["VALID", "Routing", "resolve_routing"]

VALID = "valid"
"""What a traced hook declares that wants to know which rows of a batch are no padding, bool[batch]."""


@dataclass(frozen=True)
class Routing:
    """Which batch fields go to which hook, and which of them to the device.

    Args:
        table: the hooks of the experiment.
        signatures: hook name to its signature.
        batch_fields: the fields of the batch it was resolved from, in its order.
        traced: the hooks that run inside a program.
        routed: hook name to the fields it receives, in the batch's order.
        padded: the traced hooks that receive beside them which rows are no padding.
    """

    table: HookTable
    signatures: Mapping[str, HookSignature]
    batch_fields: tuple[str, ...]
    traced: tuple[str, ...]
    routed: Mapping[str, tuple[str, ...]]
    padded: frozenset[str] = frozenset()

    @property
    def hooks(self) -> tuple[str, ...]:
        """The routed hooks."""
        return tuple(self.signatures)

    @property
    def device_fields(self) -> frozenset[str]:
        """The fields that some traced hook declares; only these are moved to the device."""
        return frozenset(name for hook in self.traced for name in self.routed[hook])

    def fields_for(self, hook: str) -> tuple[str, ...]:
        """The fields a hook receives, in the batch's order.

        Raises:
            RoutingError: the hook was not routed.
        """
        if hook not in self.routed:
            raise RoutingError(f"the hook {hook!r} is not routed", nearest=nearest(hook, self.routed))
        return self.routed[hook]

    def taken(self, hook: str, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What a routed hook receives of a batch, which may lack fields and may say which rows are no padding."""
        names = (*self.fields_for(hook), VALID) if hook in self.padded else self.fields_for(hook)
        return {name: batch[name] for name in names if name in batch}

    def kwargs(self, hook: str, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a hook from a batch, which may lack fields that other hooks declare.

        Raises:
            RoutingError: the batch lacks a field the hook requires.
        """
        names, signature = self.fields_for(hook), self.signatures[hook]
        if hook in self.padded:
            names = (*names, VALID)
        elif self.padded:
            batch = {name: value for name, value in batch.items() if name != VALID}
        if all(name in batch for name in names) and not signature.takes_all:
            return signature.arguments({name: batch[name] for name in names})
        return signature.arguments(batch)

    def call(self, view: Any, hook: str, *args: Any, batch: Mapping[str, Any]) -> Any:
        """Call a routed hook with the fields that it receives of a batch.

        Args:
            view: what it receives as `self`.
            hook: its name.
            args: its positional arguments.
            batch: the batch, which may lack fields that other hooks declare.

        Raises:
            RoutingError: the batch lacks a field the hook requires.
        """
        return self.table.call(view, hook, *args, **self.kwargs(hook, batch))


def resolve_routing(
    table: HookTable,
    batch_fields: Collection[str],
    *,
    traced: Sequence[str] = (),
    host: Sequence[str] = (),
) -> Routing:
    """Resolve, once, which batch fields each hook receives.

    Args:
        table: the hooks of the experiment.
        batch_fields: the fields of the first batch, in its order.
        traced: hooks that run inside a program; the fields they declare are moved to the device.
        host: hooks that run on the host.

    Raises:
        RoutingError: a hook requires a field that the batch lacks, or cannot be called as it is declared.
    """
    inside = tuple(dict.fromkeys(traced))
    signatures = {hook: table.fields(hook) for hook in dict.fromkeys([*inside, *host])}
    padded = frozenset(hook for hook in inside if signatures[hook].declares(VALID))
    if padded and VALID in batch_fields:
        raise RoutingError(
            f"the batch has a field {VALID!r}, which {' and '.join(sorted(padded))} would not get",
            why=f"a traced hook that declares {VALID!r} is told which rows of the batch are no padding",
            fix="rename the field",
        )
    # It is not the batch's to give.
    signatures |= {hook: signatures[hook].with_optional(VALID) for hook in padded}
    routed = {hook: signature.fields_for(batch_fields) for hook, signature in signatures.items()}
    return Routing(table, signatures, tuple(batch_fields), inside, routed, padded)
