"""Figures of an analysis, by matplotlib. Each function returns the figure and shows nothing."""

from __future__ import annotations

import colorsys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.analysis.prediction import Prediction
from nitro_cli.analysis.reliability import ReliabilityBin
from nitro_cli.analysis.report import MOST_CLASSES, Analysis
from nitro_cli.analysis.risk_curve import risk_coverage
from nitro_cli.errors import ConfigError, DataError, NitroWarning, StorageError, nearest
from nitro_cli.installation import import_extra
from nitro_cli.metrics import threshold_curve
from nitro_cli.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "PROJECTIONS",
    "confusion_figure",
    "group_colors",
    "precision_recall_figure",
    "projection_figure",
    "reliability_figure",
    "residual_figure",
    "risk_coverage_figure",
    "roc_figure",
    "save_figures",
    "score_figure",
]

PROJECTIONS = ("pca", "tsne")
_MOST_DRAWN = 5_000
_SEED = 0


def group_colors(count: int) -> list[tuple[float, float, float]]:
    """One color per group: equidistant hues, saturation 0.6, value 0.95."""
    return [colorsys.hsv_to_rgb(index / count, 0.6, 0.95) for index in range(count)]


def confusion_figure(confusion: np.ndarray, names: Sequence[str]) -> Figure:
    """A confusion matrix: rows true, columns decoded, shaded by the share of the row."""
    figure = _new((1.6 + 0.5 * len(names), 1.4 + 0.5 * len(names)))
    axis = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(*confusion.shape):
        dark = shares[row, column] > 0.5
        axis.text(column, row, str(confusion[row, column]), ha="center", va="center", color="w" if dark else "k")
    for place, label in ((axis.set_xticks, "decoded"), (axis.set_yticks, "true")):
        place(range(len(names)), [_shown(name) for name in names])
        (axis.set_xlabel if label == "decoded" else axis.set_ylabel)(label)
    axis.tick_params(axis="x", rotation=90)
    return figure


def reliability_figure(bins: Sequence[ReliabilityBin]) -> Figure:
    """Accuracy over confidence, with the counts below."""
    figure = _new((5, 5))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    held = [(one.confidence, one.accuracy) for one in bins if one.confidence is not None and one.accuracy is not None]
    upper.plot(*np.array(held).reshape(-1, 2).T, marker="o")
    upper.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    lower.bar(
        [one.lower for one in bins], [one.count for one in bins], [one.upper - one.lower for one in bins], align="edge"
    )
    lower.set(xlabel="confidence", ylabel="rows")
    return figure


def risk_coverage_figure(prediction: Prediction) -> Figure:
    """Selective risk over coverage, by the largest probability."""
    figure = _new((5, 4))
    axis = figure.subplots()
    curve = risk_coverage(prediction)
    axis.plot(curve.accepted / max(curve.rows, 1), curve.wrong / curve.accepted)
    axis.set(xlabel="coverage", ylabel="selective risk", xlim=(0, 1))
    axis.set_ylim(bottom=0)
    return figure


def roc_figure(prediction: Prediction) -> Figure:
    """Hits over false alarms, one class against the rest."""
    figure = _new((5, 5))
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for name, color, (positive, score) in _columns(prediction):
        curve = threshold_curve(positive, score)
        if curve.positives and curve.negatives:
            alarms, hits = curve.false_alarms / curve.negatives, curve.hits / curve.positives
            axis.plot(np.append(0, alarms), np.append(0, hits), color=color, label=_shown(name))
    axis.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))
    _legend(axis)
    return figure


def precision_recall_figure(prediction: Prediction) -> Figure:
    """Precision over recall, one class against the rest."""
    figure = _new((5, 5))
    axis = figure.subplots()
    for name, color, (positive, score) in _columns(prediction):
        curve = threshold_curve(positive, score)
        if curve.positives:
            precision = curve.hits / (curve.hits + curve.false_alarms)
            axis.step(curve.hits / curve.positives, precision, where="pre", color=color, label=_shown(name))
    axis.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.01))
    _legend(axis)
    return figure


def score_figure(prediction: Prediction) -> Figure:
    """How the probabilities of the decided or true class are spread, by class."""
    figure = _new((6, 4))
    axis = figure.subplots()
    for name, color, (positive, score) in _columns(prediction):
        if positive.any():
            axis.hist(score[positive], [i / 20 for i in range(21)], histtype="step", color=color, label=_shown(name))
    axis.set(xlabel="probability of the true class", ylabel="rows", xlim=(0, 1))
    _legend(axis)
    return figure


def residual_figure(prediction: Prediction) -> Figure:
    """Residuals over targets, and how they are spread."""
    figure = _new((8, 4))
    left, right = figure.subplots(1, 2)
    entries = prediction.entries
    for column, color in enumerate(group_colors(prediction.classes)):
        judged = ~np.isnan(entries.target[:, column])
        target = entries.target[judged, column]
        residual = entries.decoded[judged, column] - target
        left.plot(target, residual, ".", markersize=3, color=color, label=_shown(prediction.names[column]))
        right.hist(residual, _edges_of(residual), histtype="step", color=color)
    left.axhline(0, color="0.7", linewidth=1)
    left.set(xlabel="target", ylabel="residual")
    right.set(xlabel="residual", ylabel="entries")
    if prediction.classes > 1:
        _legend(left)
    return figure


def projection_figure(prediction: Prediction, projection: str = "pca") -> Figure:
    """The outputs in two dimensions, by class.

    Args:
        prediction: categorical, with targets.
        projection: `pca`, or `tsne` (extra `projection`, seed 0); of at most 5,000 rows, evenly spaced.

    Raises:
        ConfigError: an unknown projection.
        DataError: the prediction is not categorical, or has too few rows for t-SNE.
        MissingExtraError: scikit-learn is not installed.
    """
    if projection not in PROJECTIONS:
        close = nearest(projection, PROJECTIONS)
        raise ConfigError(
            f"there is no projection {projection!r}", nearest=close, fix=f"one of {', '.join(PROJECTIONS)}"
        )
    if prediction.kind != "categorical":
        raise DataError(f"outputs of a {prediction.kind} prediction have no class to be drawn by")
    entries = prediction.entries
    count = len(entries.logits)
    rows = np.linspace(0, count - 1, min(count, _MOST_DRAWN)).round().astype(int)
    logits, target = entries.logits[rows], entries.target[rows]
    points = _principal(logits) if projection == "pca" else _embedded(logits)
    figure = _new((6, 5))
    axis = figure.subplots()
    for index, (name, color) in enumerate(zip(prediction.names, group_colors(prediction.classes), strict=True)):
        inside = target == index
        if inside.any():
            axis.plot(*points[inside].T, ".", markersize=3, color=color, label=_shown(name))
    axis.set_title(f"outputs by {'principal components' if projection == 'pca' else 't-SNE'}", fontsize="medium")
    _legend(axis)
    return figure


def save_figures(found: Analysis, folder: Path, *, projection: str = "pca", suffix: str = ".png") -> list[Path]:
    """Draw every figure that the kind of an analysis allows.

    Args:
        found: the analysis.
        folder: where to write; made if it is not there.
        projection: `pca` or `tsne`.
        suffix: `.png` or `.svg`.

    Returns:
        The files, in order.

    Raises:
        StorageError: they cannot be written.
    """
    import_extra("matplotlib.figure", use="Drawing figures")
    prediction = found.prediction
    drawn: dict[str, Figure] = {}
    if not found.entries:
        warnings.warn("no row has a target: nothing is drawn", NitroWarning, stacklevel=2)
    elif prediction.kind == "continuous":
        drawn["residuals"] = residual_figure(prediction)
    else:
        drawn["reliability"] = reliability_figure(found.reliability)
        drawn["roc"], drawn["precision-recall"] = roc_figure(prediction), precision_recall_figure(prediction)
        drawn["scores"] = score_figure(prediction)
    if found.entries and prediction.kind == "categorical":
        if found.confusion is not None and prediction.classes <= MOST_CLASSES:
            drawn["confusion"] = confusion_figure(found.confusion, prediction.names)
        drawn["risk-coverage"] = risk_coverage_figure(prediction)
        drawn[projection] = projection_figure(prediction, projection)
    made = []
    for name, figure in drawn.items():
        path = folder / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150)
        except OSError as error:
            why = error.strerror or str(error)
            raise StorageError(f"cannot write {path}", where=str(error.filename or folder), why=why) from error
        made.append(path)
    return made


def _new(size: tuple[float, float]) -> Figure:
    figure = import_extra("matplotlib.figure", use="Drawing figures").Figure(figsize=size, layout="constrained")
    return figure


def _columns(prediction: Prediction) -> Any:
    """Per class: its name, its color, and which rows are of it with the scores for it."""
    entries = prediction.entries
    assert entries.probabilities is not None
    for index, (name, color) in enumerate(zip(prediction.names, group_colors(prediction.classes), strict=True)):
        if prediction.kind == "categorical":
            yield name, color, (entries.target == index, entries.probabilities[:, index])
        else:
            judged = ~np.isnan(entries.target[:, index])
            yield name, color, (entries.target[judged, index] == 1, entries.probabilities[judged, index])


def _edges_of(values: np.ndarray, count: int = 40) -> list[float]:
    """Edges of equal width around values, which may be all alike."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    margin = 1e-6 * max(1.0, abs(low), abs(high))
    return np.linspace(low - margin, high + margin, count + 1).tolist()


def _principal(logits: np.ndarray) -> np.ndarray:
    """The first two principal components; the sign is that of the largest loading."""
    centered = logits - logits.mean(0)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    axes = axes[:2] if len(axes) > 1 else np.vstack([axes, np.zeros_like(axes)])
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    return centered @ (axes * np.where(signs == 0, 1, signs)[:, None]).T


def _embedded(logits: np.ndarray) -> np.ndarray:
    if len(logits) < 4:
        raise DataError(f"t-SNE needs more than {len(logits)} rows", fix="--projection pca")
    manifold = import_extra("sklearn.manifold", use="t-SNE")
    perplexity = min(30.0, (len(logits) - 1) / 3)
    return manifold.TSNE(random_state=_SEED, init="pca", perplexity=perplexity).fit_transform(logits)


def _legend(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="small", ncols=2 if len(axis.get_legend_handles_labels()[0]) > 10 else 1)


def _shown(name: str) -> str:
    return visible(name, keep="").replace("$", r"\$")
