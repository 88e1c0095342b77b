"""Whether a resume goes on over the data that its record was written over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nitro_cli.distributed import is_main
from nitro_cli.errors import IncompatibleError, warn

if TYPE_CHECKING:
    from nitro_cli.data import Split
    from nitro_cli.run.restore import Source

__all__ = ["check_resumed_data"]


def check_resumed_data(source: Source, splits: Mapping[str, Split], *, accum: int, seed: int) -> None:
    """Compare the splits with the facts in the record: inside an epoch `train` must be cut as it was.

    Records of versions that kept no facts of the data are compared by `accum` and the number of batches alone.

    Args:
        source: the record to resume.
        splits: the inspected splits.
        accum: micro-batches per optimizer step of this handle.
        seed: seed of the run, which is the record's.

    Raises:
        IncompatibleError: the record lies inside an epoch, and `train` is other data or is cut another way.
    """
    meta = source.resumed
    assert meta is not None
    held = meta.data
    changed = {name: _changes(split, held.get(name, {}), seed) for name, split in splits.items()}
    train = splits.get("train")
    if train is not None:
        if (meta.accum, meta.batches) != (accum, train.batches):
            changed["train"].insert(
                0,
                f"accum {meta.accum} and {meta.batches} batches in the checkpoint, {accum} and {train.batches} here",
            )
        if changed["train"] and not meta.epoch_closed:
            raise IncompatibleError(
                "the checkpoint lies inside an epoch, and the epoch would be cut another way now",
                where=source.text,
                why="split `train`: " + "; ".join(changed["train"]),
                fix="resume with the checkpoint's accum and data, or from the end of an epoch",
            )
    gone = [f"split `{name}` is not there now" for name in held if name not in splits and name in ("train", "val")]
    sentences = [f"split `{name}`: {'; '.join(texts)}" for name, texts in changed.items() if texts] + gone
    if sentences:
        warn(f"the resumed run goes on over other data, or takes its steps another way: {'. '.join(sentences)}")


def _changes(split: Split, held: Mapping[str, Any], seed: int) -> list[str]:
    """What is not as the record says, in sentences."""
    if not is_main():  # which wrote the record, of its own part where each process has one
        return []
    found = split.identity.changed_from(held)
    if split.train:
        found.pop("batches", None)  # named beside `accum`
    if list(found) == ["first_batch"] and not split.begins_alike(seed):
        # Its contents vary from draw to draw, so they say nothing.
        return []
    return list(found.values())
