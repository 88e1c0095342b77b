"""What predictions are worth, from files: metrics, calibration, abstention, slices, figures.

NumPy and SciPy in float64; nothing here imports JAX.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.analysis.applied import applied_scores, check_artefacts
    from nitro_cli.analysis.artefact_file import newest_artefact, save_text
    from nitro_cli.analysis.calibration_methods import CALIBRATORS, CalibrationMethod, FitFailure, register_calibrator
    from nitro_cli.analysis.calibrator import (
        AcceptedMismatch,
        Calibrated,
        CalibrationFit,
        Calibrator,
        SplitUsed,
        fit_calibrator,
    )
    from nitro_cli.analysis.classification import (
        ClassScores,
        accuracy,
        balanced_accuracy,
        class_scores,
        classification_report,
        confusion_matrix,
        label_scores,
        largest_confusions,
        mcc,
        mean_score,
        top_k,
    )
    from nitro_cli.analysis.coverage import Coverage
    from nitro_cli.analysis.figures import (
        confusion_figure,
        group_colors,
        precision_recall_figure,
        projection_figure,
        reliability_figure,
        residual_figure,
        risk_coverage_figure,
        roc_figure,
        save_figures,
        score_figure,
    )
    from nitro_cli.analysis.held_out import CalibrationReport, CalibrationScores, calibration_report
    from nitro_cli.analysis.identity import array_identity, data_identity, model_id
    from nitro_cli.analysis.link_functions import sigmoid, softmax
    from nitro_cli.analysis.markdown import analysis_markdown
    from nitro_cli.analysis.metric_table import MetricTable, metrics_of
    from nitro_cli.analysis.output_file import OutputFile
    from nitro_cli.analysis.policy import AbstentionPolicy, Decisions, Verdict
    from nitro_cli.analysis.prediction import Entries, Prediction, PredictionOrigin, concatenate
    from nitro_cli.analysis.prediction_file import (
        FILE_NAMES,
        PredictionMeta,
        TaskMeta,
        check_file_name,
        load_predictions,
        meta_array,
    )
    from nitro_cli.analysis.probabilities import KINDS, Probabilities
    from nitro_cli.analysis.ranking import auroc, average_precision
    from nitro_cli.analysis.regression import mae, max_error, mse, r2, residual_quantiles, rmse
    from nitro_cli.analysis.reliability import (
        ReliabilityBin,
        brier,
        ece,
        label_brier,
        label_nll,
        nll,
        reliability_bins,
    )
    from nitro_cli.analysis.report import MOST_CLASSES, Analysis, analyze
    from nitro_cli.analysis.risk_curve import CurvePoint, RiskCoverage, aurc, risk_coverage
    from nitro_cli.analysis.scores import scores_of
    from nitro_cli.analysis.slices import Slice, SliceTable, slice_table, wilson_interval
    from nitro_cli.analysis.stream import PredictionStream
    from nitro_cli.analysis.threshold import ThresholdSelection, binomial_upper_bound, select_threshold
    from nitro_cli.metrics.ranking_curves import ThresholdCurve, threshold_curve
