"""The plain PyTorch loop: eager steps on rows of the tensors, the losses added up and read once per epoch."""

from __future__ import annotations

import numpy as np
import torch

from .jobs import Job
from .torch_models import adam, cross_entropy, model_of, tensors
from .watch import Watch

__all__ = ["loop"]


def loop(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """Train."""
    torch.manual_seed(0)
    model = model_of(job)
    optimizer = adam(model)
    x, y = tensors(job, data)
    for _ in range(epochs):
        watch.begin()
        total = torch.zeros(())
        for rows in torch.randperm(job.samples).view(job.steps, job.batch):
            optimizer.zero_grad()
            loss = cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
            watch.first()
        watch.end(float(total) / job.steps)
