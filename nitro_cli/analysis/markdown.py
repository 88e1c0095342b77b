"""An analysis as Markdown, for a report that people read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nitro_cli.analysis.classification import largest_confusions
from nitro_cli.analysis.report import MOST_CLASSES, Analysis
from nitro_cli.text import visible

__all__ = ["analysis_markdown"]


def analysis_markdown(found: Analysis) -> str:
    """The whole analysis: metrics, classes, confusion, reliability, parts, mistakes."""
    origin = found.prediction.origin
    heading = f"# {origin.experiment or 'Predictions'}: {origin.split or 'rows'}"
    facts = [("rows", len(found.prediction)), ("judged", found.entries)]
    facts += [(name, getattr(origin, name)) for name in ("run", "checkpoint", "model_id", "data")]
    parts = [heading, _table(["", ""], facts)]
    metrics = [(name, value, found.metrics.reasons.get(name, "")) for name, value in found.metrics.values.items()]
    if found.aurc is not None:
        metrics.append(("aurc", found.aurc, ""))
    parts += ["## Metrics", _table(["metric", "value", "undefined because"], metrics)]
    if found.coverage is not None:
        parts += ["## Abstention", f"{found.coverage.summary}. The tables of classes are of accepted rows."]
    if found.calibration is not None:
        parts += ["## Calibration", f"{found.calibration.summary}. That no row was fitted on is "
                  f"{found.calibration.disjoint}."]  # fmt: skip
    parts += _report(found) + _confusion(found) + _reliability(found)
    for table in found.slices:
        rows = [
            (one.name, one.rows, one.score, one.difference, one.ece, _interval(one.interval)) for one in table.slices
        ]
        told = f"{table.compared} parts are compared: the worst of many is low by chance."
        parts += [f"## By {visible(table.by, keep='')}", told]
        parts.append(_table(["part", "rows", table.score, "difference", "ece", "95% interval"], rows))
    if found.errors:
        columns = list(found.errors[0])
        parts += ["## Mistakes", _table(columns, ([row[name] for name in columns] for row in found.errors))]
    return "\n\n".join(parts) + "\n"


def _report(found: Analysis) -> list[str]:
    quantiles = found.report.get("residual_quantiles")
    if quantiles is not None:
        return ["## Residuals", _table(["quantile", "residual"], quantiles.items())]
    columns = ("precision", "recall", "f1", "support")
    rows = [(row["name"], *(row[name] for name in columns)) for row in found.report["classes"]]
    rows += [(name, *(found.report[name][column] for column in columns)) for name in ("macro", "weighted")]
    return ["## Classes", _table(["class", *columns], rows)]


def _confusion(found: Analysis) -> list[str]:
    if found.confusion is None:
        return []
    names = found.prediction.names
    if len(names) <= MOST_CLASSES:
        rows = ([name, *row] for name, row in zip(names, found.confusion.tolist(), strict=True))
        return ["## Confusion", _table(["true \\ decoded", *names], rows)]
    largest = largest_confusions(found.confusion, names)
    return ["## Largest confusions", _table(["true", "decoded", "rows"], (list(row.values()) for row in largest))]


def _reliability(found: Analysis) -> list[str]:
    if not found.reliability:
        return []
    rows = [(f"{one.lower:g} to {one.upper:g}", one.count, one.confidence, one.accuracy) for one in found.reliability]
    return ["## Reliability", _table(["confidence", "rows", "mean confidence", "accuracy"], rows)]


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"


def _table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else visible(str(value), keep="")
    return text.replace("\\", "\\\\").replace("|", "\\|")
