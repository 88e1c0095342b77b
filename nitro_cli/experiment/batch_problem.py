"""`BatchProblem`: what a `check_batch` hook finds wrong with a batch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchProblem"]


@dataclass(frozen=True)
class BatchProblem:
    """Something in a batch that no step may see; where the batch is from is told beside it.

    Args:
        what: what is wrong, with the value.
        row: which sample of the batch; None where it is the whole batch.
        why: what it should be.
        fix: what to do about it.
    """

    what: str
    row: int | None = None
    why: str | None = None
    fix: str | None = None
