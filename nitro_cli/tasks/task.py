"""The family of tasks, and the catalogue that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from nitro_cli.experiment import Part
from nitro_cli.text import Catalogue

__all__ = ["TASKS", "Task", "register_task"]

_TaskClass = TypeVar("_TaskClass", bound="type[Task]")

TASKS: Catalogue[type[Task]] = Catalogue(
    "task",
    "nitro.tasks",
    shipped={
        "categorical": "nitro_cli.tasks.categorical:Categorical",
        "multilabel": "nitro_cli.tasks.multilabel:Multilabel",
        "regression": "nitro_cli.tasks.regression:Regression",
    },
)
"""The tasks by (id, version): nitro's own, those of `register_task`, and those of the entry points `nitro.tasks`."""


class Task(Part):
    """A part that says once what outputs and targets mean, and supplies the hooks that follow: `loss`, `metrics`.

    A field of this type holds any task; in TOML it is a table with the task's `kind`.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = TASKS
    precedence: ClassVar[int] = 30


def register_task(id: str, version: int = 1, *, replace: bool = False) -> Callable[[_TaskClass], _TaskClass]:
    """A class decorator that makes a task known as `{ kind = id }`.

    Args:
        id: the name that configurations write.
        version: 1 or more; a configuration without one means 1.
        replace: whether it may take the place of one that is there.

    Raises:
        ConfigError: the id or version cannot be one, or there is one already.
    """
    register: Callable[[Any], Any] = TASKS.register(id, version, replace=replace)
    return register
