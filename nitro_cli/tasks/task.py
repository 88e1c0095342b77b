"""The family of tasks, and the catalogue that holds them."""

from __future__ import annotations

from typing import Any, ClassVar

from nitro_cli.experiment import Part
from nitro_cli.text import Catalogue

__all__ = ["TASKS", "Task", "register_task"]

TASKS: Catalogue[type[Task]] = Catalogue(
    "task",
    "nitro.tasks",
    shipped={
        "categorical": "nitro_cli.tasks.categorical:Categorical",
        "causal_lm": "nitro_cli.tasks.causal_lm:CausalLM",
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


register_task = TASKS.register
"""`@register_task(id, version=1)`: a class decorator that makes a task known as `{ kind = id }`."""
