"""What the outputs of a forward mean to whoever reads predictions: said by a task, or in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nitro_cli.analysis import Probabilities
from nitro_cli.errors import DataError, nearest
from nitro_cli.experiment import Experiment, parts_of
from nitro_cli.tasks import TARGETS, SupervisedTask

__all__ = ["OutputMeaning", "check_field", "meaning_of"]

_MASKED = -100
"""The target of a masked class, where the task marks none by itself."""


@dataclass(frozen=True)
class OutputMeaning:
    """What the outputs are, and which fields of the batches go with them.

    Args:
        spec: how the outputs become probabilities and decisions; None where nothing says it.
        output: the path of the leaf to read; None where there is one.
        target: the field of what was to be predicted; of several names the first that there is, or none; None keeps no
            target.
        ids: the field of the ids; None for positions.
        mask: the field that is True for what is to be judged.
        ignore_index: the target that marks what is not to be judged.
        decode: makes the decisions of the output, in the place of the spec's own.
    """

    spec: Probabilities | None
    output: str | None = None
    target: str | tuple[str, ...] | None = None
    ids: str | None = None
    mask: str | None = None
    ignore_index: int | None = None
    decode: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that must be there."""
        return tuple(name for name in (self.target, self.ids, self.mask) if isinstance(name, str))

    @property
    def optional_fields(self) -> tuple[str, ...]:
        """Fields that are read where they are there."""
        return self.target if isinstance(self.target, tuple) else ()

    def where_there(self, fields: Collection[str], said: Collection[str]) -> OutputMeaning:
        """The same without the target, ids and mask that the data does not have, unless a person named them.

        Args:
            fields: of the data.
            said: those that were named for this data.
        """

        def kept(name: str | None) -> str | None:
            return name if name in fields or name in said else None

        target = self.target if isinstance(self.target, tuple) else kept(self.target)
        return replace(self, target=target, ids=kept(self.ids), mask=kept(self.mask))

    def among(self, fields: Iterable[str], what: str) -> OutputMeaning:
        """The same with one target field, or none, for batches with these fields.

        Args:
            fields: of the batches.
            what: how an error calls them.

        Raises:
            DataError: a field is not there.
        """
        held = tuple(fields)
        for name in self.fields:
            check_field(name, held, what)
        if not isinstance(self.target, tuple):
            return self
        target = next((name for name in self.target if name in held), None)
        return replace(self, target=target, mask=self.mask if target is not None else None)

    def target_in(self, batch: Mapping[str, Any]) -> np.ndarray | None:
        """The targets of a batch, what its mask leaves out marked as not to be judged."""
        if not isinstance(self.target, str):
            return None
        target = np.asarray(batch[self.target])
        if self.mask is None:
            return target
        mask = np.asarray(batch[self.mask]).astype(bool)
        counts = mask.reshape(mask.shape + (1,) * (target.ndim - mask.ndim))
        if target.dtype.kind == "f" or self.spec is None or self.spec.kind != "categorical":
            return np.where(counts, target, np.nan).astype(np.result_type(target.dtype, np.float32))
        return np.where(counts, target, _MASKED if self.marked is None else self.marked)

    @property
    def marked(self) -> int | None:
        """The target that marks a class which is not to be judged, by the data or by a mask."""
        return _MASKED if self.ignore_index is None and self.mask is not None else self.ignore_index

    def of(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The output to read.

        Raises:
            DataError: there is no such output, or several and none is named.
        """
        name = self.output if self.output is not None or len(outputs) > 1 else next(iter(outputs))
        if name is not None and name in outputs:
            return outputs[name]
        raise DataError(
            "several outputs, and nothing says which to read" if name is None else f"there is no output {name}",
            why=f"forward gives {', '.join(outputs)}",
            nearest=[] if name is None else nearest(name, outputs),
            fix="name the logits: output=NAME, --logits NAME",
        )


def meaning_of(e: Experiment) -> OutputMeaning | None:
    """What the task of an experiment says; None without one task with targets.

    Args:
        e: the experiment, its Device fields readable.
    """
    tasks = [part for part in parts_of(e).values() if isinstance(part, SupervisedTask)]
    if len(tasks) != 1:
        return None
    task = tasks[0]
    read = task.replace(output=None)
    return OutputMeaning(
        Probabilities(task.prediction_kind, getattr(task, "class_axis", -1), task.labels),
        output=task.output,
        target=task.target if task.target is not None else TARGETS,
        ids=task.id,
        mask=task.mask,
        ignore_index=getattr(task, "ignore_index", None),
        decode=lambda leaf: np.asarray(read.decode(leaf)),
    )


def check_field(name: str, held: Iterable[str], what: str) -> None:
    """Check that a field is there.

    Args:
        name: the field.
        held: those there are.
        what: whose, for the error.

    Raises:
        DataError: it is not.
    """
    known = tuple(held)
    if name not in known:
        raise DataError(
            f"no field {name} in {what}", why=f"the fields are: {', '.join(known)}", nearest=nearest(name, known)
        )
