"""Write torch_schedules.json: OneCycleLR and ReduceLROnPlateau of PyTorch under random arguments, in double precision.

Needs PyTorch (made with 2.13.0), which the tests do not. From the root of the repository:

    python tests/optim/figures/torch_schedules.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch


def rate_of(optimizer: Any) -> float:
    """The learning rate in hand."""
    return float(optimizer.param_groups[0]["lr"])


def some_optimizer(rate: float) -> Any:
    """An optimizer for a scheduler to hold."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, momentum=0.9)


def one_cycle(draw: random.Random) -> dict[str, Any]:
    """The rate of every step."""
    total = draw.randint(5, 60)
    options = {
        "max_lr": round(10 ** draw.uniform(-4, 1), 6),
        "pct_start": round(draw.uniform(0.22, 0.48), 3),
        "anneal_strategy": draw.choice(["cos", "linear"]),
        "div_factor": round(draw.uniform(1.5, 50), 2),
        "final_div_factor": round(10 ** draw.uniform(0.5, 5), 2),
        "three_phase": draw.random() < 0.5,
    }
    optimizer = some_optimizer(0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, total_steps=total, **options)
    rates = []
    for step in range(total):
        rates.append(rate_of(optimizer))
        optimizer.step()
        if step < total - 1:
            scheduler.step()
    return {"total": total, "options": options, "rates": rates}


def plateau(draw: random.Random) -> dict[str, Any]:
    """The rate, from 1, after each epoch of a noisy series that drifts the good way and has ties."""
    mode = draw.choice(["min", "max"])
    drift = -0.02 if mode == "min" else 0.02
    metrics, value = [], 1.0
    for _ in range(60):
        value = value + drift + draw.gauss(0, 0.06) if draw.random() < 0.8 else value
        metrics.append(round(value, 4))
    options = {
        "factor": round(draw.uniform(0.1, 0.9), 2),
        "patience": draw.randint(0, 4),
        "cooldown": draw.randint(0, 3),
        "threshold": round(draw.choice([0.0, 1e-4, 0.01, 0.1]), 4),
        "threshold_mode": draw.choice(["rel", "abs"]),
    }
    least = draw.choice([0.0, 0.0, 0.05])
    optimizer = some_optimizer(1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, min_lr=least, eps=0.0, **options)
    rates = []
    for metric in metrics:
        optimizer.step()
        scheduler.step(metric)
        rates.append(rate_of(optimizer))
    return {"mode": mode, "options": {**options, "min_scale": least}, "metrics": metrics, "rates": rates}


def main() -> None:
    """Write the figures beside this file."""
    draw = random.Random(11)
    figures = {
        "torch": torch.__version__.partition("+")[0],
        "one_cycle": [one_cycle(draw) for _ in range(16)],
        "plateau": [plateau(draw) for _ in range(30)],
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(figures) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
