"""Plain functions as models: `f(params, state, *inputs, train=, key=)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from nitro_cli.errors import HookError
from nitro_cli.programs.models.adapted import AdaptedModel, PyTree
from nitro_cli.programs.models.call_arguments import CallArguments

__all__ = ["FunctionModel", "adapt_function"]


@dataclass(frozen=True, eq=False)
class FunctionModel(AdaptedModel):
    """A function of parameters, state and inputs."""

    library: ClassVar[str] = "function"

    def apply(
        self,
        params: PyTree,
        state: PyTree,
        inputs: tuple[Any, ...],
        *,
        train: bool,
        key: jax.Array | None,
        keywords: Mapping[str, Any] | None = None,
    ) -> tuple[PyTree, PyTree]:
        keywords = dict(keywords or {})
        takes = CallArguments.of(self.module, (params, state, *inputs), keywords)
        extra: dict[str, Any] = takes.mode(train)
        if "train" in takes.free or (takes.any_keyword and "train" not in keywords):
            extra["train"] = train
        if "key" in takes.free or (takes.any_keyword and "key" not in keywords):
            extra["key"] = key
        returned = self.module(params, state, *inputs, **{**extra, **keywords})
        outputs, new_state = _outputs_and_state(returned, state, self.module)
        return outputs, new_state if train else state


def adapt_function(function: Any, params: PyTree, state: PyTree) -> FunctionModel:
    """Adapt a function; its parameters and state are whatever trees of arrays `build_model` returned."""
    return FunctionModel(function, {} if params is None else params, {} if state is None else state)


def _outputs_and_state(returned: Any, state: PyTree, function: Any) -> tuple[PyTree, PyTree]:
    structure: Any = jax.tree.structure(state)
    if type(returned) is tuple and len(returned) == 2 and jax.tree.structure(returned[1]) == structure:
        return returned
    if not jax.tree.leaves(state) and not (type(returned) is tuple and len(returned) == 2):
        return returned, state
    name = getattr(function, "__name__", type(function).__name__)
    what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
    raise HookError(
        f"the model function `{name}` returned {what} that is not (outputs, new_state)",
        why=f"the new state must have the structure of the given one, {structure}",
        fix="return (outputs, state); a function with an empty state may return its outputs alone",
    )
