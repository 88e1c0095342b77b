"""Which arguments a model's call takes, read from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CallArguments"]

# True: the argument says "training"; False: it says the opposite.
_MODES = {"train": True, "training": True, "deterministic": False, "use_running_average": False, "inference": False}


@dataclass(frozen=True)
class CallArguments:
    """The parameters of a call that are still free once the user's own arguments are in place.

    Attributes:
        free: names of parameters that can be passed by keyword and are not taken.
        required: those of them that have no default.
        any_keyword: the call takes `**keywords`.
    """

    free: frozenset[str]
    required: frozenset[str] = frozenset()
    any_keyword: bool = False

    @classmethod
    def of(
        cls, function: Callable[..., Any], inputs: tuple[Any, ...], keywords: Mapping[str, Any] | None = None
    ) -> CallArguments:
        """Read the signature of `function`; one that cannot be read has no free parameter."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return cls(frozenset())
        try:
            taken = set(signature.bind_partial(*inputs, **(keywords or {})).arguments)
        except TypeError:  # the call itself will say it better
            taken = set(keywords or {})
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {name: p.default for name, p in signature.parameters.items() if p.kind in by_keyword}
        catch_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
        free = frozenset(named.keys() - taken)
        required = frozenset(name for name in free if named[name] is inspect.Parameter.empty)
        return cls(free, required, catch_all)

    def mode(self, train: bool) -> dict[str, bool]:
        """The mode arguments the call takes, with their values."""
        return {name: train is on for name, on in _MODES.items() if name in self.free}
