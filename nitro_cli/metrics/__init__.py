"""Metrics, how their values combine over a split, and the history of a run. Works without JAX, which a metric imports
where it computes in a program."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.metrics.accumulate import SplitAccumulator
    from nitro_cli.metrics.decisions import (
        F1,
        Accuracy,
        BalancedAccuracy,
        Confusion,
        ElementAccuracy,
        Mcc,
        Precision,
        Recall,
        SubsetAccuracy,
        TopK,
        averaged_score,
    )
    from nitro_cli.metrics.history import History
    from nitro_cli.metrics.history_file import history_difference, leading_rows, settled_rows
    from nitro_cli.metrics.likelihoods import EPSILON, Brier, Ece, Nll, bin_gaps, bin_places
    from nitro_cli.metrics.metric import (
        METRICS,
        EntryMean,
        Metric,
        kept_entries,
        register_metric,
        with_classes,
    )
    from nitro_cli.metrics.ranking_curves import ThresholdCurve, threshold_curve
    from nitro_cli.metrics.rankings import Auroc, AveragePrecision
    from nitro_cli.metrics.reported import RESERVED, check_reported, check_scalar, flatten_scalars
    from nitro_cli.metrics.residuals import R2, Mae, MaxError, Mse, Rmse
    from nitro_cli.metrics.rows import decode_row, encode_row
    from nitro_cli.metrics.thinning import thin_rows
    from nitro_cli.metrics.totals import library_of
    from nitro_cli.metrics.undefined import Undefined
    from nitro_cli.metrics.values import MODES, Concat, Max, Mean, Min, Sum
