"""What the shipped recipes reach on the real MNIST; minutes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nitro_experiments import mnist

from nitro_cli import Nitro

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    def call(name: str, **knobs: Any) -> Nitro:
        return Nitro.from_preset(getattr(mnist, name), "baseline", run_dir=tmp_path, restore_best=True, **knobs).train()

    return call


def test_the_perceptron_reaches_98_percent_macro_recall_within_25_epochs(trained: Any) -> None:
    nitro = trained("MnistMLP")
    assert nitro.best["metric"] == "macro_recall"
    within = max(row["macro_recall"] for row in nitro.history if row["epoch"] <= 25)
    assert within >= 0.980
    assert nitro.evaluate("test")["acc"] >= 0.978


def test_the_convolutional_network_reaches_99_percent_test_accuracy_within_10_epochs(trained: Any) -> None:
    nitro = trained("MnistCNN")
    assert nitro.epoch <= 10
    assert nitro.evaluate("test")["acc"] >= 0.990
