"""Figures: what is drawn of which kind, with which numbers."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import sklearn.metrics as oracle
from sklearn.decomposition import PCA

from nitro_cli.analysis import (
    analysis_markdown,
    analyze,
    confusion_figure,
    group_colors,
    precision_recall_figure,
    projection_figure,
    reliability_figure,
    risk_coverage_figure,
    roc_figure,
    save_figures,
)
from nitro_cli.errors import ConfigError, DataError, StorageError
from tests.analysis.conftest import scored_rows


def test_groups_have_equidistant_hues():
    found = [colorsys.rgb_to_hsv(*color) for color in group_colors(5)]
    np.testing.assert_allclose([hue for hue, _, _ in found], np.arange(5) / 5, atol=1e-12)
    np.testing.assert_allclose([rest for _, *rest in found], [[0.6, 0.95]] * 5)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("categorical", ["reliability", "roc", "precision-recall", "scores", "confusion", "risk-coverage", "pca"]),
        ("bernoulli", ["reliability", "roc", "precision-recall", "scores"]),
        ("continuous", ["residuals"]),
    ],
)
def test_every_kind_has_its_figures(predicted, tmp_path, kind, names):
    logits, target = scored_rows(60, 3, 0)
    given = target if kind == "categorical" else np.eye(3)[target] if kind == "bernoulli" else logits + 1
    made = save_figures(analyze(predicted(logits, given, kind=kind)), tmp_path / "out")
    assert [path.stem for path in made] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)


def test_figures_are_svg_where_asked_and_a_name_is_no_formula(predicted, tmp_path):
    logits, target = scored_rows(40, 3, 0)
    found = analyze(predicted(logits, target, labels=("a$b$", "<b>", "c_d")))
    made = save_figures(found, tmp_path, suffix=".svg")
    assert all(b"<svg" in path.read_bytes() for path in made)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        save_figures(found, tmp_path / "file" / "inner")


def test_curves_are_scikit_learns(predicted):
    logits, target = scored_rows(80, 3, 0)
    made = predicted(logits, target)
    shares = made.probabilities[:, 0]
    wanted = oracle.roc_curve(target == 0, shares, drop_intermediate=False)
    line = roc_figure(made).axes[0].lines[1]
    np.testing.assert_allclose(line.get_xdata(), wanted[0], atol=1e-12)
    np.testing.assert_allclose(line.get_ydata(), wanted[1], atol=1e-12)
    precision, recall, _ = oracle.precision_recall_curve(target == 0, shares)
    drawn = precision_recall_figure(made).axes[0].lines[0]
    held = dict(zip(np.round(recall[:-1], 9), precision[:-1], strict=True))
    for x, y in zip(drawn.get_xdata(), drawn.get_ydata(), strict=True):
        assert np.round(x, 9) in held
        assert 0 <= y <= 1
    np.testing.assert_allclose(drawn.get_ydata(), precision[:-1][::-1], atol=1e-12)


def test_a_reliability_figure_has_the_bins_with_rows_and_all_counts(predicted):
    logits, target = scored_rows(80, 3, 0)
    bins = analyze(predicted(logits, target)).reliability
    upper, lower = reliability_figure(bins).axes
    assert upper.lines[1].get_ydata().tolist() == [one.accuracy for one in bins if one.count]
    assert [bar.get_height() for bar in lower.patches] == [one.count for one in bins]


def test_a_confusion_figure_tells_every_count():
    confusion = np.array([[5, 1], [0, 3]])
    texts = [text.get_text() for text in confusion_figure(confusion, ("a", "b")).axes[0].texts]
    assert texts == ["5", "1", "0", "3"]


def test_a_risk_coverage_figure_is_the_curve_by_hand(predicted):
    p = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.55, 0.45], [0.3, 0.7]]
    line = risk_coverage_figure(predicted(np.log(p), [0, 1, 1, 0, 1])).axes[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [1, 0.8, 0.6, 0.4, 0.2])
    np.testing.assert_allclose(line.get_ydata(), [0.2, 0.25, 1 / 3, 0.5, 0])


def test_principal_components_are_scikit_learns_up_to_their_sign(predicted):
    logits, target = scored_rows(50, 4, 0)
    axis = projection_figure(predicted(logits, target)).axes[0]
    wanted = PCA(2).fit_transform(logits)
    for index, line in enumerate(axis.lines):
        points = np.stack([line.get_xdata(), line.get_ydata()], axis=1)
        np.testing.assert_allclose(np.abs(points), np.abs(wanted[target == index]), atol=1e-9)


def test_t_sne_is_the_same_every_time_and_other_projections_are_refused(predicted):
    logits, target = scored_rows(30, 3, 0)
    made = predicted(logits, target)
    first, second = (projection_figure(made, "tsne").axes[0].lines[0].get_xdata() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ConfigError, match="no projection 'umap'"):
        projection_figure(made, "umap")
    with pytest.raises(DataError, match="t-SNE needs more"):
        projection_figure(predicted(logits[:3], target[:3]), "tsne")
    with pytest.raises(DataError, match="no class"):
        projection_figure(predicted(logits, logits, kind="continuous"))


def test_a_report_in_markdown_has_every_table_and_no_name_breaks_one(predicted):
    logits, target = scored_rows(60, 3, 0)
    fields = {"town": np.array(["A|B", "C"])[np.arange(60) % 2]}
    made = predicted(logits, target, labels=("a|b", "\x1b[2J", "c"), fields=fields)
    text = analysis_markdown(analyze(made, slices=["town"]))
    for heading in ("Metrics", "Classes", "Confusion", "Reliability", "By town", "Mistakes"):
        assert f"## {heading}" in text
    assert "\x1b" not in text
    assert r"a\|b" in text
    rows = [line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    assert len(widths) > 30
    assert "| accuracy |" in text
