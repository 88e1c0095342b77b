"""Rules that go by a metric which cannot exist are refused at setup; nothing is trained for it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Checkpointer, EarlyStopping, Mean, Nitro
from nitro_cli.errors import ConfigError
from nitro_cli.optim import Plateau
from tests.tiny import Bare, points

RULES: dict[str, dict[str, Any]] = {
    "the monitor": {"monitor": ("acc", "max")},
    "the checkpointer": {"checkpointer": Checkpointer(metric="acc", mode="max")},
    "early stopping": {"early_stop": EarlyStopping(metric="acc", mode="max")},
    "the plateau on 'learning_rate'": {"schedules": {"learning_rate": Plateau(0.1, metric="acc", mode="max")}},
}


class Plain(Bare):
    """No metrics: the validation reports the loss."""

    samples = 16
    checkpointer = None
    logger = None


class Terms(Plain):
    def loss(self, outputs: Any, *, y: Any) -> Any:
        whole = super().loss(outputs, y=y)
        return whole + jnp.mean(outputs**2), {"ce": whole, "l2": jnp.mean(outputs**2)}


class OnDevice(Plain):
    """Traced metrics, one of them nested, one a mode around a mapping."""

    monitor = ("top/accuracy", "max")

    def metrics_residency(self, hook: str) -> Any:
        return "device"

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        hits = (outputs.argmax(-1) == y).sum()
        return {"top": {"accuracy": Mean(hits, y.size)}, "both": Mean({"a": hits, "b": hits}, y.size)}


class OnHost(Plain):
    """Metrics that are any Python: their names show when they run."""

    monitor = ("misspelt", "max")

    def metrics(self, outputs: np.ndarray, *, y: np.ndarray) -> Any:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


class OwnReport(Plain):
    """What is reported of the losses is made by the experiment."""

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        return {"acc": acc["loss"]}


@pytest.mark.parametrize("rule", RULES)
def test_without_metrics_a_rule_that_names_one_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Nitro(Plain(), **RULES[rule])
    assert refused.value.what == f"{rule} goes by 'acc', which the validation does not report"
    assert refused.value.why == "it reports loss: without a `metrics` hook that is the loss and its terms"


@pytest.mark.parametrize("rule", RULES)
def test_what_finalize_metrics_makes_of_the_losses_is_for_it_to_say(rule: str) -> None:
    assert Nitro(OwnReport(), **RULES[rule]).step == 0


def test_the_terms_of_the_loss_are_known_and_a_misspelt_one_is_refused_with_the_nearest() -> None:
    assert Nitro(Terms(monitor=("loss/ce", "min"))).monitor == ("loss/ce", "min")
    with pytest.raises(ConfigError, match="'loss/cce'") as refused:
        Nitro(Terms(monitor=("loss/cce", "min")))
    assert "loss/ce" in refused.value.nearest
    assert "loss, loss/ce, loss/l2" in str(refused.value.why)


def test_the_names_of_traced_metrics_are_known_with_nested_ones_joined_by_slashes() -> None:
    assert Nitro(OnDevice()).step == 0
    assert Nitro(OnDevice(early_stop=EarlyStopping(metric="both/b", mode="max"))).step == 0
    with pytest.raises(ConfigError) as refused:
        Nitro(OnDevice(monitor=("accuracy", "max")))
    assert refused.value.why == "it reports both/a, both/b, top/accuracy"
    assert Nitro(OnDevice(monitor=("loss", "min"), eval_loss=True)).step == 0


def test_metrics_on_the_host_are_not_run_to_learn_their_names() -> None:
    assert Nitro(OnHost()).step == 0


def test_a_handle_that_does_not_train_takes_any_rule() -> None:
    val = {"val": ArrayBatches(points(11, 2), 8)}
    for rule in RULES.values():
        assert "loss" in Nitro(Plain(), data=val, **rule).validate()


def test_early_stopping_on_a_loss_that_validation_cannot_compute_is_refused() -> None:
    class Unlabelled(Plain):
        def build_data(self, dist: Any) -> Any:
            data = super().build_data(dist)
            return {"train": data["train"], "val": ArrayBatches({"x": points(11, 2)["x"]}, 8)}

    with pytest.raises(ConfigError, match="its batches lack y, which `loss` takes"):
        Nitro(Unlabelled(early_stop=EarlyStopping()))
