"""An analysis for people: tables on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nitro_cli.cli.render.tables import number, table

if TYPE_CHECKING:
    from nitro_cli.analysis import Analysis, CalibrationReport
    from nitro_cli.cli.output import Output

__all__ = ["show_analysis", "show_calibration"]

_SCORES = ("precision", "recall", "f1")


def show_analysis(output: Output, found: Analysis) -> None:
    """Metrics, classes, confusions, parts and mistakes."""
    from nitro_cli.analysis import MOST_CLASSES, largest_confusions

    origin = found.prediction.origin
    rows = [[name, number(value, 6)] for name, value in found.metrics.values.items()]
    if found.aurc is not None:
        rows.append(["aurc", number(found.aurc, 6)])
    parts: list[Any] = [table([f"{origin.split or 'metric'} ({found.entries} rows)", "value"], rows, right=(1,))]
    if "residual_quantiles" in found.report:
        quantiles = [[name, number(value)] for name, value in found.report["residual_quantiles"].items()]
        parts.append(table(["quantile", "residual"], quantiles, right=(1,), title="\nresiduals"))
    else:
        parts.append(_classes(found))
    if found.confusion is not None and found.prediction.classes <= MOST_CLASSES:
        names = found.prediction.names
        cells = [[name, *row] for name, row in zip(names, found.confusion.tolist(), strict=True)]
        right = tuple(range(1, len(names) + 1))
        parts.append(table(["true \\ decoded", *names], cells, right=right, title="\nconfusion"))
    elif found.confusion is not None:
        largest = [list(row.values()) for row in largest_confusions(found.confusion, found.prediction.names)]
        parts.append(table(["true", "decoded", "rows"], largest, right=(2,), title="\nlargest confusions"))
    parts += [_slices(one) for one in found.slices]
    if found.errors:
        columns = list(found.errors[0])
        cells = [[number(row[name]) for name in columns] for row in found.errors]
        what = "largest residuals" if found.prediction.kind == "continuous" else "most confident mistakes"
        parts.append(table(columns, cells, right=(len(columns) - 1,), title=f"\n{what}"))
    output.show(*parts)
    for name, reason in found.metrics.reasons.items():
        output.note(f"{name} is undefined: {reason}")
    if found.slices:
        compared = sum(one.compared for one in found.slices)
        output.note(f"{compared} parts are compared: the worst of many is low by chance")
    if found.coverage is not None:
        output.line(f"abstention: {found.coverage.summary}; the tables of classes are of accepted rows")
    if found.calibration is not None:
        show_calibration(output, found.calibration)


def show_calibration(output: Output, report: CalibrationReport) -> None:
    """One line of outcome, and what is not known."""
    output.line(f"calibration {report.summary}")
    if report.disjoint == "unverified":
        output.note("that no row was fitted on is unverified: the data names its samples by position")


def _classes(found: Analysis) -> Any:
    rows = [[row["name"], *(number(row[name]) for name in _SCORES), row["support"]] for row in found.report["classes"]]
    rows += [
        [name, *(number(found.report[name][score]) for score in _SCORES), found.report[name]["support"]]
        for name in ("macro", "weighted")
    ]
    return table(["class", *_SCORES, "support"], rows, right=(1, 2, 3, 4), title="\nclasses")


def _slices(one: Any) -> Any:
    rows = [
        [
            part.name,
            part.rows,
            number(part.score),
            number(part.difference),
            "-" if part.interval is None else f"{part.interval[0]:.4f} to {part.interval[1]:.4f}",
            number(part.ece),
        ]
        for part in one.slices
    ]
    columns = ["part", "rows", one.score, "difference", "95% interval", "ece"]
    return table(columns, rows, right=(1, 2, 3, 5), title=f"\nby {one.by}")
