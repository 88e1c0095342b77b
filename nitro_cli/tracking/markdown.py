"""Tables as Markdown, for trackers that show text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["confusion_markdown", "mapping_markdown"]


def mapping_markdown(mapping: Mapping[str, Any]) -> str:
    """A two-column table of names and values."""
    return _table(["name", "value"], ([name, value] for name, value in mapping.items()))


def confusion_markdown(matrix: Any, labels: Sequence[Any]) -> str:
    """A confusion matrix `[classes, classes]` as a table, rows the true classes."""
    rows = matrix.tolist() if hasattr(matrix, "tolist") else matrix
    return _table(["true \\ predicted", *labels], ([label, *row] for label, row in zip(labels, rows, strict=True)))


def _table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(c).replace('|', chr(92) + '|') for c in line)} |" for line in lines)
