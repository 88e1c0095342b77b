"""From logits to probabilities: the softmax and the sigmoid, without overflow."""

from __future__ import annotations

import numpy as np

__all__ = ["sigmoid", "softmax"]


def softmax(logits: np.ndarray, axis: int = -1) -> np.ndarray:
    """`exp(z) / sum exp(z)` over an axis, shifted by the largest so that nothing overflows."""
    shifted = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """`1 / (1 + exp(-x))`, from `exp(-|x|)` so that nothing overflows."""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1 / (1 + small), small / (1 + small))
