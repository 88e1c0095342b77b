"""The networks in PyTorch, with the job's first values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .jobs import BLOCKS, CLASSES, EPSILON, HEADS, LEARNING_RATE, LENGTH, VOCABULARY, WIDTH, Job

__all__ = ["adam", "cross_entropy", "model_of", "tensors"]


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.mix = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Width in, width out."""
        n, length, _ = h.shape
        x = self.before(h)
        q, k, v = (
            part(x).view(n, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.mix(mixed.transpose(1, 2).reshape(n, length, WIDTH))
        return h + self.down(functional.gelu(self.up(self.between(h)), approximate="tanh"))


class Transformer(nn.Module):
    """Two causal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        for i in range(BLOCKS):
            self.add_module(f"block{i}", Block())
        self.last, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens in, logits out."""
        h = self.token(x) + self.place.weight
        for i in range(BLOCKS):
            h = getattr(self, f"block{i}")(h)
        return self.out(self.last(h))


class CNN(nn.Module):
    """Two convolutions and a dense layer; channels first, as PyTorch has them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.out = nn.Linear(16 * 7 * 7, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images in, logits out."""
        for layer in (self.one, self.two):
            x = functional.max_pool2d(functional.relu(layer(x)), 2)
        return self.out(x.flatten(1))


class MLP(nn.Module):
    """784-128-10."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("in", nn.Linear(784, 128))
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images in, logits out."""
        return self.out(functional.relu(self.get_submodule("in")(x)))


def model_of(job: Job) -> nn.Module:
    """The job's network."""
    model = {"mlp": MLP, "cnn": CNN, "transformer": Transformer}[job.name]()
    state = {}
    for name, value in job.weights().items():
        layer, _, kind = name.rpartition(".")
        if kind == "kernel" and value.ndim == 4:
            value = value.transpose(3, 2, 0, 1)
        elif kind == "kernel" and job.name == "cnn":
            value = value.reshape(7, 7, 16, CLASSES).transpose(3, 2, 0, 1).reshape(CLASSES, -1)
        elif kind == "kernel":
            value = value.T
        state[f"{layer}.{'bias' if kind == 'bias' else 'weight'}"] = torch.from_numpy(np.ascontiguousarray(value))
    model.load_state_dict(state)
    return model


def tensors(job: Job, data: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """The data, with the labels as PyTorch wants them."""
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]).long()
    return (x.permute(0, 3, 1, 2) if job.name == "cnn" else x), y


def adam(model: nn.Module) -> Any:
    """The optimizer of everyone."""
    return torch.optim.Adam(model.parameters(), LEARNING_RATE, eps=EPSILON)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean over the batch, and over the tokens if there are any."""
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())
