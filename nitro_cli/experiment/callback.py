"""`Callback`: what watches a run while it trains, and the catalogue that holds such."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.text import Catalogue

from .kinds import FieldKind
from .part import Part

__all__ = ["CALLBACKS", "Callback", "CallbacksKnob", "register_callback"]

CALLBACKS: Catalogue[type[Callback]] = Catalogue(
    "callback",
    "nitro.callbacks",
    key="id",
    shipped={"save_predictions": "nitro_cli.run.saved_predictions:SavePredictions"},
)
"""The callbacks by (id, version): nitro's own, those of `register_callback`, and those of the entry points
`nitro.callbacks`."""


class Callback(Part):
    """Watches a run. A subclass has options as fields, counters in private attributes, and any of the methods below.

    Each handle works on a copy of its own. With `state()` and `load_state(state, version)` it is a component: every
    checkpoint keeps what `state` returns. The `run` that each method gets reads where the run stands, and may ask for a
    stop, log, and set Device fields; it cannot change weights. What a method raises fails the run.

    Raises:
        ConfigError: when the class is made: a method `on_...` that nothing calls, or one of `state` and `load_state`
            without the other.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = CALLBACKS
    unmarked: ClassVar[FieldKind] = FieldKind.HOST
    on_host: ClassVar[bool] = True

    everywhere: ClassVar[bool] = False
    """Whether every process of several calls it, not the main one alone; `run.set_device` needs it."""

    every: int = Field(default=1, ge=1)
    """`on_update` comes at every so many optimizer steps that were taken."""

    def on_train_start(self, run: Any) -> None:
        """Before the first step of a `train()`."""

    def on_epoch_start(self, run: Any) -> None:
        """An epoch begins, or a resume goes on with one."""

    def on_update(self, run: Any, event: Any) -> None:
        """An optimizer step was taken; comes one dispatch late, in order, with its numbers in an `UpdateEvent`."""

    def on_evaluate(self, run: Any, split: str, metrics: Mapping[str, Any]) -> None:
        """A split was evaluated at the end of an epoch."""

    def on_epoch_end(self, run: Any, row: Mapping[str, Any]) -> None:
        """An epoch is in the history; its checkpoint is not written yet, and will have the callback's state."""

    def on_checkpoint(self, run: Any, path: Path | None) -> None:
        """A checkpoint is on its way to `path`; None where a checkpointer of one's own keeps it."""

    def on_train_end(self, run: Any, reason: str) -> None:
        """Training ended, for a stop reason or with `error`; the last that started is told first."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        called = [name for name in vars(Callback) if name.startswith("on_") and name != "on_host"]
        unknown = next(
            (n for n, x in vars(cls).items() if n.startswith("on_") and callable(x) and n not in called), None
        )
        if unknown is not None:
            raise ConfigError(
                f"nothing calls {cls.__name__}.{unknown}",
                where=cls.__qualname__,
                why=f"the methods of a callback are {', '.join(called)}",
                fix="correct the name, or call it otherwise if it is a method of your own",
                nearest=nearest(unknown, called),
            )
        pair = [name for name in ("state", "load_state") if callable(getattr(cls, name, None))]
        if len(pair) == 1:
            other = "load_state(self, state, version)" if pair == ["state"] else "state(self)"
            raise ConfigError(
                f"the callback {cls.__name__} has {pair[0]} without {other.partition('(')[0]}",
                where=cls.__qualname__,
                why="what a checkpoint keeps is given back on a resume",
                fix=f"write {other} too, or leave {pair[0]} out",
            )

    def has(self, method: str) -> bool:
        """Whether its class writes a method."""
        return getattr(type(self), method) is not getattr(Callback, method)


def _listed(value: Any) -> Any:
    """Refuse what is easily written in the place of a list of callbacks."""
    if isinstance(value, str):
        told = f'should be a list: [{{ id = "{value}" }}]'
        raise PydanticCustomError("callbacks", "{told}", {"told": told})
    if isinstance(value, Mapping | Callback):
        raise PydanticCustomError("callbacks", "should be a list: put [ ] around it")
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, type) and issubclass(item, Callback):
            told = f"{item.__name__} is a class, and a callback is an instance: {item.__name__}()"
            raise PydanticCustomError("callbacks", "{told}", {"told": told})
    return value


CallbacksKnob = Annotated[tuple[Callback, ...], BeforeValidator(_listed)]
"""What the knob `callbacks` takes."""

register_callback = CALLBACKS.register
"""`@register_callback(id, version=1)`: a class decorator that makes a callback known as `{ id = id }`."""
