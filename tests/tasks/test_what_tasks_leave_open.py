"""What a task leaves open follows from the data set, and the width of a network's output from the task."""

from __future__ import annotations

from typing import Any

import pytest

from nitro_cli.experiment import Declared
from nitro_cli.tasks import Categorical, Multilabel, Regression


@pytest.mark.parametrize(
    ("task", "said", "filled"),
    [
        (
            Categorical(),
            Declared(num_classes=3, labels=("a", "b", "c"), target="kind"),
            {"num_classes": 3, "labels": ("a", "b", "c"), "target": "kind"},
        ),
        (Categorical(3, labels=("a", "b", "c"), target="kind"), Declared(num_classes=3), {}),
        (Regression(), Declared(num_targets=2), {"num_targets": 2}),
        (Multilabel(), Declared(num_targets=4), {"num_labels": 4}),
        (Categorical(), Declared(), {}),
    ],
)
def test_it_fills_in_what_it_leaves_open(task: Any, said: Declared, filled: dict[str, Any]) -> None:
    assert task.fills({}, {}, said) == filled


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Categorical(5), Declared(num_classes=5, outputs=5)),
        (Categorical(labels=("no", "yes")), Declared(num_classes=2, outputs=2, labels=("no", "yes"))),
        (Regression(2), Declared(num_targets=2, outputs=2)),
        (Multilabel(4), Declared(num_targets=4, outputs=4)),
        (Categorical(), Declared()),
    ],
)
def test_it_declares_the_width_of_an_output(task: Any, said: Declared) -> None:
    assert task.declares({}) == said
