"""Rows of a language model from encoded documents. Targets are shifted already, and each stands in one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["IGNORED", "EncodedDocument", "PackedRows", "Packing", "packed"]

Packing = Literal["stream", "documents", "pad"]
"""How documents become rows."""

IGNORED = -100
"""The label of what is not scored."""


@dataclass(frozen=True)
class EncodedDocument:
    """A document as ids, without specials.

    Args:
        ids: all of it, the prompt first.
        unscored: how many of the first ids are no targets.
        size: UTF-8 bytes of its text.
    """

    ids: Sequence[int]
    unscored: int
    size: int


@dataclass(frozen=True)
class PackedRows:
    """Rows by field.

    Args:
        arrays: `tokens`, `label` int32 (rows, block), `ended_bytes` int32 (rows,): bytes of the documents that end in
            the row; and of `documents` packing `segment`, `position` int32 (rows, block).
        cut: how many documents lost their end.
    """

    arrays: Mapping[str, np.ndarray]
    cut: int = 0


def packed(documents: Sequence[EncodedDocument], packing: Packing, block: int, ids: Mapping[str, int]) -> PackedRows:
    """Documents as rows.

    Args:
        documents: in their order.
        packing: `stream`, all in a row, an end between them, cut every `block` tokens; `documents`, as many whole ones
            as fit a row; `pad`, one a row.
        block: tokens of a row.
        ids: of `pad`, `eos` and, but for `stream`, `bos`.
    """
    return _PACKERS[packing](documents, block, ids)


def _stream(documents: Sequence[EncodedDocument], block: int, ids: Mapping[str, int]) -> PackedRows:
    sizes = [len(document.ids) + 1 for document in documents]
    targets = sum(sizes)
    rows = max(1, -(-targets // block))
    tokens = np.full(rows * block, ids["pad"], np.int32)
    label = np.full(rows * block, IGNORED, np.int32)
    ended = np.zeros(rows, np.int32)
    tokens[0] = ids["eos"]
    at = 0
    for document, size in zip(documents, sizes, strict=True):
        following = np.asarray([*document.ids, ids["eos"]], np.int32)
        label[at + document.unscored : at + size] = following[document.unscored :]
        kept = min(size, targets - at - 1)  # the last end of all is a target alone
        tokens[at + 1 : at + 1 + kept] = following[:kept]
        at += size
        ended[(at - 1) // block] += document.size
    shape = (rows, block)
    return PackedRows({"tokens": tokens.reshape(shape), "label": label.reshape(shape), "ended_bytes": ended})


def _documents(documents: Sequence[EncodedDocument], block: int, ids: Mapping[str, int]) -> PackedRows:
    pieces = []
    for document in documents:
        tokens, label = _pairs(document, ids)
        for start in range(0, len(tokens), block):
            ends = document.size if start + block >= len(tokens) else 0
            pieces.append((tokens[start : start + block], label[start : start + block], ends))
    places, row, filled = [], 0, 0
    for tokens, _, _ in pieces:
        if filled + len(tokens) > block:
            row, filled = row + 1, 0
        places.append((row, filled))
        filled += len(tokens)
    shape = (row + 1, block)
    arrays = _empty(shape, ids["pad"]) | {"segment": np.zeros(shape, np.int32), "position": np.zeros(shape, np.int32)}
    last = np.zeros(shape[0], np.int32)
    for (row, start), (tokens, label, ends) in zip(places, pieces, strict=True):
        place = (row, slice(start, start + len(tokens)))
        last[row] += 1
        arrays["tokens"][place] = tokens
        arrays["label"][place] = label
        arrays["segment"][place] = last[row]
        arrays["position"][place] = np.arange(len(tokens))
        arrays["ended_bytes"][row] += ends
    return PackedRows(arrays)


def _pad(documents: Sequence[EncodedDocument], block: int, ids: Mapping[str, int]) -> PackedRows:
    arrays = _empty((max(1, len(documents)), block), ids["pad"])
    cut = 0
    for row, document in enumerate(documents):
        tokens, label = _pairs(document, ids)
        kept = min(len(tokens), block)
        arrays["tokens"][row, :kept] = tokens[:kept]
        arrays["label"][row, :kept] = label[:kept]
        arrays["ended_bytes"][row] = document.size
        cut += len(tokens) > block
    return PackedRows(arrays, cut)


def _pairs(document: EncodedDocument, ids: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets of a document from its beginning to its end."""
    whole = np.asarray([ids["bos"], *document.ids, ids["eos"]], np.int32)
    label = whole[1:].copy()
    label[: document.unscored] = IGNORED
    return whole[:-1], label


def _empty(shape: tuple[int, int], pad: int) -> dict[str, np.ndarray]:
    return {
        "tokens": np.full(shape, pad, np.int32),
        "label": np.full(shape, IGNORED, np.int32),
        "ended_bytes": np.zeros(shape[0], np.int32),
    }


_PACKERS: Mapping[Packing, Callable[[Sequence[EncodedDocument], int, Mapping[str, int]], PackedRows]] = {
    "stream": _stream,
    "documents": _documents,
    "pad": _pad,
}
