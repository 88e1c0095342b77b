"""Tasks: the parts that say what a model's outputs and its targets mean.

Works without JAX: what a task computes is imported where it is called.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .accumulator import TaskAccumulator
    from .categorical import Categorical
    from .causal_lm import CausalLM
    from .multilabel import Multilabel
    from .regression import Regression
    from .supervised import TARGETS, SupervisedTask
    from .task import TASKS, Task, register_task
