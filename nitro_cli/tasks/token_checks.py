"""What can be wrong with a batch of tokens, looked for on the host: a device would clamp an id in silence."""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_cli.experiment import BatchProblem
from nitro_cli.tasks.batch_values import width_problem

__all__ = ["attention_problem", "id_problem", "logits_problem"]


def logits_problem(outputs: Any, target: np.ndarray, vocab_size: int | None, *, shifts: bool) -> BatchProblem | None:
    """Refuse an output that is no logits over the ids at every position.

    Args:
        outputs: by shape and dtype.
        target: the labels.
        vocab_size: how many ids there are; None says nothing.
        shifts: whether labels are shifted, which takes two positions at least.
    """
    shape = tuple(outputs.shape)
    if len(shape) != 3 or not np.issubdtype(np.dtype(str(outputs.dtype).replace("bfloat16", "float32")), np.floating):
        return BatchProblem(f"the output is {outputs.dtype}{list(shape)}", why="logits are floats (B, T, V)")
    found = width_problem(shape[-1], "ids", {"vocab_size": vocab_size})
    if found is not None:
        return found
    if target.ndim != 2 or target.shape[1] != shape[1]:
        return BatchProblem(
            f"the labels have the shape {list(target.shape)}, the logits {list(shape)}",
            why="there is a label at every position: (B, T) and (B, T, V)",
        )
    if shifts and shape[1] < 2:
        return BatchProblem("rows have one token", why="shift_inputs predicts a token from those before it")
    return None


def id_problem(ids: np.ndarray, vocab_size: int, what: str, scored: np.ndarray | None) -> BatchProblem | None:
    """Refuse ids that are no whole numbers from 0 to `vocab_size` - 1.

    Args:
        ids: any shape, rows first.
        vocab_size: how many there are.
        what: what they are called.
        scored: those that are looked at; None is all.
    """
    if ids.dtype.kind not in "iu":
        return BatchProblem(
            f"the {what}s are {ids.dtype}",
            why="ids are whole numbers",
            fix="keep them as int32, as a tokenizer gives them",
        )
    wrong = (ids < 0) | (ids >= vocab_size)
    if scored is not None:
        wrong &= scored
    if not wrong.any():
        return None
    at = [int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape)]
    return BatchProblem(
        f"the {what} is {ids[tuple(at)]} at {at[1:]}",
        at[0],
        why=f"there are {vocab_size} ids, 0 to {vocab_size - 1}",
        fix="use the tokenizer that vocab_size is of, and mark what is not scored by ignore_index",
    )


def attention_problem(mask: np.ndarray, scored: np.ndarray) -> BatchProblem | None:
    """Refuse an attention mask that the model, which never sees it, would have needed.

    Args:
        mask: (B, T), 0 on padding.
        scored: bool (B, T), the labels that are scored, where they stand.
    """
    if mask.shape != scored.shape or mask.dtype.kind not in "biu":
        return BatchProblem(
            f"attention_mask is {mask.dtype}{list(mask.shape)}", why=f"it says of {list(scored.shape)} what is padding"
        )
    padding = mask == 0
    later = np.flip(np.logical_or.accumulate(np.flip(~padding, axis=1), axis=1), axis=1)
    left = padding & later
    if left.any():
        row, place = np.argwhere(left)[0]
        return BatchProblem(
            f"attention_mask pads position {place}, before a token",
            int(row),
            why="the model does not take it, and would read the padding as text",
            fix="pad on the right",
        )
    hidden = padding & scored
    if hidden.any():
        row, place = np.argwhere(hidden)[0]
        return BatchProblem(
            f"attention_mask pads position {place}, which is scored",
            int(row),
            why="padding would be learned as text",
            fix="give padding the label ignore_index, or name a mask",
        )
    return None
