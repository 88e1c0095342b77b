"""From logits to probabilities: the softmax and the sigmoid, without overflow."""

from __future__ import annotations

from typing import Any

from nitro_cli.metrics import library_of

__all__ = ["sigmoid", "softmax"]


def softmax(logits: Any, axis: int = -1) -> Any:
    """`exp(z) / sum exp(z)` over an axis, shifted by the largest so that nothing overflows.

    Of JAX arrays a JAX array.
    """
    shifted = library_of(logits).exp(logits - logits.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def sigmoid(logits: Any) -> Any:
    """`1 / (1 + exp(-x))`, from `exp(-|x|)` so that nothing overflows; of JAX arrays a JAX array."""
    xp = library_of(logits)
    small = xp.exp(-xp.abs(logits))
    return xp.where(logits >= 0, 1 / (1 + small), small / (1 + small))
