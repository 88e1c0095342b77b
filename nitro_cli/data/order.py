"""The random numbers of an epoch: functions of (seed, epoch) and of (seed, epoch, batch index)."""

from __future__ import annotations

import numpy as np

__all__ = ["batch_rng", "epoch_order", "order_in_words"]

_WORD = 1 << 64


def epoch_order(n: int, *, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Return the order in which an epoch visits `n` samples.

    Args:
        n: number of samples.
        seed: seed of the source or of the run; any integer.
        epoch: epoch from 1; 0 for an evaluation pass.
        shuffle: whether the order is a permutation drawn from (seed, epoch); else 0 to n - 1.

    Returns:
        int64 array of shape (n,).
    """
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    return np.random.default_rng(_sequence(seed, epoch)).permutation(n)


def order_in_words(shuffle: bool, seed: int | None) -> str:
    """Say what `epoch_order` follows: records keep it, and a resume compares it."""
    if not shuffle:
        return "as stored"
    return "shuffled by the run's seed" if seed is None else f"shuffled by the seed {seed}"


def batch_rng(*, seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of one batch, the same whichever thread builds the batch.

    Args:
        seed: seed of the source or of the run; any integer.
        epoch: epoch from 1; 0 for an evaluation pass.
        index: batch index from 0.
    """
    return np.random.default_rng(_sequence(seed, epoch, (index,)))


def _sequence(seed: int, epoch: int, key: tuple[int, ...] = ()) -> np.random.SeedSequence:
    # The index is a spawn key: as a third entropy word, index 0 would repeat the order's own stream.
    return np.random.SeedSequence((seed % _WORD, epoch % _WORD), spawn_key=key)
