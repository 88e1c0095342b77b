"""Write torch_rules.json: weights after training with PyTorch's optimizers, in double precision.

Needs PyTorch (made with 2.13.0), which the tests do not. From the root of the repository:

    python tests/programs/figures/torch_rules.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FEATURES, OUTPUTS, BATCH, BATCHES, EPOCHS = 4, 3, 8, 5, 10
RATE, DECAY = 0.02, 0.1
RADAM_RATE = 0.001
"""The usual one: optax computes the rectification in single precision, and its first steps lose digits by that."""

RULES: dict[str, Callable[[list[Any]], Any]] = {
    "radam": lambda weights: torch.optim.RAdam(weights, lr=RADAM_RATE),
    "adam": lambda weights: torch.optim.Adam(weights, lr=RATE),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=RATE, momentum=0.9),
    "nesterov": lambda weights: torch.optim.SGD(weights, lr=RATE, momentum=0.9, nesterov=True),
}


def made() -> dict[str, Any]:
    """Rounded numbers: exact in single precision to more digits than any comparison needs."""
    draw = random.Random(5)

    def numbers(*shape: int) -> Any:
        if not shape:
            return round(draw.gauss(0, 1), 3)
        return [numbers(*shape[1:]) for _ in range(shape[0])]

    return {
        "x": numbers(BATCH * BATCHES, FEATURES),
        "y": numbers(BATCH * BATCHES, OUTPUTS),
        "kernel": numbers(FEATURES, OUTPUTS),
        "bias": numbers(OUTPUTS),
    }


def trained(data: dict[str, Any], rule: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Least squares of a tanh layer over the batches in order, epoch after epoch."""
    x, y, kernel, bias = (torch.tensor(data[name], dtype=torch.float64) for name in ("x", "y", "kernel", "bias"))
    kernel.requires_grad_()
    bias.requires_grad_()
    optimizer = rule([kernel, bias])
    for _ in range(EPOCHS):
        for rows in torch.arange(len(x)).split(BATCH):
            optimizer.zero_grad()
            torch.mean((torch.tanh(x[rows] @ kernel + bias) - y[rows]) ** 2).backward()
            optimizer.step()
    return {"kernel": kernel.tolist(), "bias": bias.tolist()}


def main() -> None:
    """Write the figures beside this file."""
    data = made()
    figures = {
        "torch": torch.__version__.partition("+")[0],
        "learning_rate": RATE,
        "radam_learning_rate": RADAM_RATE,
        "weight_decay": DECAY,
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "data": data,
        "trained": {name: trained(data, rule) for name, rule in RULES.items()},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(figures) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
