"""The next token of a text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from nitro_cli.data.sets.text_set import TEXT_BYTES, UNCOUNTED
from nitro_cli.experiment import BatchField, BatchProblem, Device, Hook, Term
from nitro_cli.metrics import Mean, Min, Sum, Undefined, library_of
from nitro_cli.tasks.entries import JudgedEntries, per_entry, spread_valid, widened
from nitro_cli.tasks.supervised import TARGETS, SupervisedTask
from nitro_cli.tasks.task import register_task
from nitro_cli.tasks.token_checks import attention_problem, id_problem, logits_problem
from nitro_cli.tasks.tokens_seen import TokensSeen

__all__ = ["CausalLM"]

_IDS = ("tokens", "input_ids")
_REPORTED = {"nll": "min", "perplexity": "min", "token_accuracy": "max", "bits_per_byte": "min"}


@register_task("causal_lm")
class CausalLM(SupervisedTask):
    """The next token: logits (B, T, V), labels int (B, T). It reports `nll`, `perplexity`, `token_accuracy` and
    `bits_per_byte`, and on the train lines `token_accuracy` and `tokens`, whose sum the history has as `tokens_seen`.

    A position counts where its label is neither `ignore_index` nor `pad_id`, its mask is True, and its row is no
    padding.
    """

    prediction_kind = "categorical"
    width_field = "vocab_size"
    width_declared = "vocab_size"

    vocab_size: Annotated[int, Field(ge=1)] | None = None
    """How many ids there are; unset, as the data set's tokenizer says."""

    alignment: Literal["pre_shifted", "shift_inputs"] = "pre_shifted"
    """`pre_shifted`: the label of a position is the token behind it. `shift_inputs`: labels stand where their tokens do
    (Hugging Face's way), and are shifted once; without labels the ids are the labels."""

    ignore_index: int = -100
    """The label of what is not scored."""

    pad_id: int | None = None
    """The id of padding, which is not scored either."""

    label_smoothing: Device[Annotated[float, Field(ge=0, lt=1)]] = 0.0
    """The share of a label that is spread over all ids, in [0, 1)."""

    def __init__(self, vocab_size: int | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if vocab_size is None else {"vocab_size": vocab_size}
        super().__init__(**given, **values)

    def terms(
        self, outputs: Any, target: Any, *, mask: Any = None, weight: Any = None, valid: Any = None
    ) -> dict[str, Term]:
        """`sum [(1-s) (-log p_y) + s/V sum_c (-log p_c)]` over the tokens that count, by their number; arguments as of
        `SupervisedTask.terms`."""
        import jax
        import jax.numpy as jnp

        logits, label, counts = self._aligned(outputs, target, mask, valid)
        total = jax.nn.logsumexp(logits, axis=-1)
        hit = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
        smoothing = jnp.asarray(self.label_smoothing, logits.dtype)
        # A logit of -inf has no part in what is not smoothed.
        spread = jnp.where(smoothing > 0, smoothing * (total - logits.mean(axis=-1)), 0)
        each = (1 - smoothing) * (total - hit) + spread
        scale = counts.astype(logits.dtype)
        if weight is not None:
            scale = scale * per_entry(weight.astype(logits.dtype), counts.shape)
        return {"cross_entropy": Term(jnp.where(counts, scale * each, 0).sum(), scale.sum())}

    def entries(self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None) -> JudgedEntries:
        """The tokens of a batch as metrics take them; arguments as of `SupervisedTask.terms`."""
        logits, label, counts = self._aligned(outputs, target, mask, valid)
        flat = logits.reshape(-1, logits.shape[-1])
        decoded = flat.argmax(axis=-1).astype(np.int32)
        return JudgedEntries(label.reshape(-1), counts.reshape(-1), flat, decoded, self._softmax(flat))

    def sums(
        self, outputs: Any, target: Any, *, mask: Any = None, valid: Any = None, text_bytes: Any = None
    ) -> dict[str, Any]:
        """What metrics are made of: the nll and the hits of the tokens that count, and the bytes of their text.

        Args:
            outputs, target, mask, valid: as of `SupervisedTask.terms`.
            text_bytes: int[B], the bytes of the documents that end in a row; negative where they say nothing.
        """
        found = super().sums(outputs, target, mask=mask, valid=valid)
        logits, label, counts = self._aligned(outputs, target, mask, valid)
        xp = library_of(logits)
        largest = logits.max(axis=-1, keepdims=True)
        total = xp.log(xp.exp(logits - largest).sum(axis=-1)) + largest[..., 0]
        nll = total - xp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
        found["nll"] = Sum(xp.where(counts, nll, 0).sum())
        found["hits"] = Sum((counts & (logits.argmax(axis=-1) == label)).sum())
        scored = self._labels(target) != self.ignore_index
        rows = scored if valid is None else scored & per_entry(valid.astype(bool), scored.shape)
        found["masked"] = Sum((rows & ~counts).sum())
        if text_bytes is not None:
            held = text_bytes if valid is None else xp.where(valid.astype(bool), text_bytes, 0)
            found["bytes"] = Sum(xp.maximum(held, 0).sum())
            found["uncounted"] = Min(held.min())
        return found

    def values(self, combined: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of a split; arguments as of `SupervisedTask.values`."""
        found = super().values(combined)
        count = found["count"]
        if not count:
            return found | dict.fromkeys(_REPORTED, Undefined("no token counts"))
        if combined["nan"]:
            return found | dict.fromkeys(_REPORTED, float("nan"))
        total = float(combined["nll"])
        nll = total / count
        found |= {"nll": nll, "perplexity": _exp(nll), "token_accuracy": float(combined["hits"]) / count}
        reason = _why_uncounted(combined)
        bits = None if reason is not None else total / math.log(2) / float(combined["bytes"])
        return found | {"bits_per_byte": Undefined(str(reason)) if bits is None else bits}

    def problem(self, outputs: Any, target: Any, counts: Any) -> BatchProblem | None:
        """What is wrong with the labels of a batch; arguments as of `SupervisedTask.problem`."""
        found = logits_problem(outputs, target, self.vocab_size, shifts=self.alignment == "shift_inputs")
        if found is not None:
            return found
        scored = self._scored(target, counts)
        return id_problem(target, outputs.shape[-1], "label", scored)

    def decode(self, outputs: Any) -> Any:
        """The most likely id behind each position, i32 (B, T)."""
        return self._output(outputs).argmax(axis=-1).astype(np.int32)

    def probabilities(self, outputs: Any) -> Any:
        """The softmax over the ids, in float32 at least."""
        return self._softmax(widened(self._output(outputs)))

    def directions(self) -> dict[str, str]:
        """The natural direction of each metric."""
        return {**super().directions(), **_REPORTED}

    def hooks(self) -> Mapping[str, Hook]:
        """What follows from the task."""
        names = TARGETS if self.target is None else (self.target,)
        if self.alignment == "shift_inputs":
            names = (*names, *_IDS)
        masked = {"mask": BatchField((self.mask or "loss_mask",), required=self.mask is not None)}
        fields = {"target": BatchField(names), "valid": BatchField(("valid",), required=False), **masked}
        weighted = fields if self.weight is None else {**fields, "weight": BatchField((self.weight,))}
        checked = {name: field for name, field in weighted.items() if name != "valid"}
        checked["ids"] = BatchField(_IDS, required=False)
        checked["attention_mask"] = BatchField(("attention_mask",), required=False)
        told = {**fields, "text_bytes": BatchField((TEXT_BYTES,), required=False)}
        return {
            "loss": Hook(self._loss, weighted),
            "check_batch": Hook(self._check_tokens, checked),
            "export_head": Hook(self.export_head),
            "train_metrics": Hook(self._train_metrics, fields, residency="device"),
            "metrics": Hook(self.sums, told, residency="device"),
            "finalize_metrics": Hook(self._finalize, follows="metrics"),
            "components": Hook(self._components),
        }

    def _components(self) -> dict[str, Any]:
        return {"task": TokensSeen()}

    def _train_metrics(self, outputs: Any, *, target: Any, mask: Any = None, valid: Any = None) -> Any:
        logits, label, counts = self._aligned(outputs, target, mask, valid)
        tokens = counts.sum()
        found = super()._train_metrics(outputs, target=target, mask=mask, valid=valid) if self.train_metrics else {}
        hits = (counts & (logits.argmax(axis=-1) == label)).sum()
        return {**found, "token_accuracy": Mean(hits, tokens), "tokens": Sum(tokens)}

    def _check_tokens(
        self,
        outputs: Any,
        *,
        target: Any,
        mask: Any = None,
        weight: Any = None,
        ids: Any = None,
        attention_mask: Any = None,
    ) -> BatchProblem | None:
        if ids is not None:
            found = id_problem(ids, self.vocab_size or self._output(outputs).shape[-1], "token", None)
            if found is not None:
                return found
        found = self.check(outputs, target, mask=mask, weight=weight)
        if found is None and attention_mask is not None:
            found = attention_problem(attention_mask, self._scored(target, mask))
        return found

    def _scored(self, target: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Which labels are scored, where they stand in the batch."""
        scored = target != self.ignore_index
        if self.pad_id is not None:
            scored &= target != self.pad_id
        if mask is not None:
            scored &= mask.reshape(mask.shape + (1,) * (target.ndim - mask.ndim))
        if self.alignment == "shift_inputs":
            scored[:, 0] = False
        return scored

    def _labels(self, target: Any) -> Any:
        return target[:, 1:] if self.alignment == "shift_inputs" else target

    def _aligned(self, outputs: Any, target: Any, mask: Any, valid: Any) -> tuple[Any, Any, Any]:
        """Logits, the labels of the same positions with 0 where none counts, and which count."""
        logits = widened(self._output(outputs))
        label = self._labels(target)
        if self.alignment == "shift_inputs":
            logits = logits[:, :-1]
            mask = mask if mask is None or mask.ndim < 2 else mask[:, 1:]
        counts = label != self.ignore_index
        if self.pad_id is not None:
            counts = counts & (label != self.pad_id)
        counts = spread_valid(counts, mask, valid)
        xp = library_of(logits)
        # What does not count may hold anything.
        return xp.where(counts[..., None], logits, 0), xp.where(counts, label, 0).astype(np.int32), counts

    def _softmax(self, logits: Any) -> Any:
        xp = library_of(logits)
        shifted = xp.exp(logits - logits.max(axis=-1, keepdims=True))
        return shifted / shifted.sum(axis=-1, keepdims=True)


def _exp(nll: float) -> float:
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def _why_uncounted(combined: Mapping[str, Any]) -> str | None:
    """Why a loss cannot be set against bytes; None where it can."""
    if "bytes" not in combined:
        return "the batches do not say how many bytes their text has"
    if int(combined["uncounted"]) < 0:
        return UNCOUNTED.get(int(combined["uncounted"]), "the bytes of the text are not known")
    if combined["masked"]:
        return "a mask or pad_id leaves tokens out"
    return None if combined["bytes"] else "the texts have no byte"
