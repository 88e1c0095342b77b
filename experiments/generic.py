"""Experiments whose data, network and task are parts: a preset says them all, and no Python is needed."""

from __future__ import annotations

from nitro_cli import Experiment
from nitro_cli.data.sets import DataSet, Mnist
from nitro_cli.data.splits import SplitPlan
from nitro_cli.networks import MLP, Network
from nitro_cli.optim import Optim
from nitro_cli.tasks import Categorical, Regression, Task

__all__ = ["Classify", "Regress"]


class FromParts(Experiment):
    """What both share."""

    data: DataSet
    """The data set, such as `{ kind = "sklearn", name = "iris" }`; `nitro list data` shows those there are."""

    split: SplitPlan | None = None
    """How the rows of a set without splits are split, such as `{ strategy = "group", by = "customer" }`; unset, 0.7,
    0.15, 0.15 of each class."""

    network: Network = MLP(hidden=(64,))
    """The network, such as `{ kind = "mlp", hidden = [64, 32] }`; `nitro list networks` shows those there are."""

    optim: Optim = Optim("adam")
    """The optimizer, such as `{ name = "adamw", b1 = 0.95 }`; `nitro list optimizers` shows those there are."""

    eval_loss = True


class Classify(FromParts):
    """Classes of any data set with labels, by any network."""

    data: DataSet = Mnist()
    """The data set, such as `{ kind = "sklearn", name = "iris" }`; `nitro list data` shows those there are."""

    task: Task = Categorical()
    """What outputs mean: `categorical`, or `multilabel`."""


class Regress(FromParts):
    """Numbers of any data set with a target, by any network."""

    task: Task = Regression()
    """What outputs mean."""
