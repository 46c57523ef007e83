"""Figures of merit and their uncertainty, for classes, survival and numbers; resampling of patients, curves."""

from dasmil.stats.brier import (
    brier_at,
    calibration_at,
    default_grid,
    default_horizons,
    integrated,
    kaplan_meier_brier,
)
from dasmil.stats.chance import (
    auroc_to_find,
    c_index_to_tell,
    correlation_to_tell,
    hanley_mcneil,
    mann_whitney,
    smallest_auroc,
)
from dasmil.stats.concordance import auroc_at, harrell, uno
from dasmil.stats.curves import Roc, confusion_counts, roc_curve, wilson
from dasmil.stats.differences import mean_difference
from dasmil.stats.follow_up import FollowUp, KaplanMeier, in_groups, kaplan_meier, log_rank, risk_cuts
from dasmil.stats.metrics import (
    METRICS,
    bootstrap_difference,
    calibration_curve,
    choose_threshold,
    mean_interval,
    score,
    summarise,
)
from dasmil.stats.numeric import NUMERIC_METRICS, bland_altman, numeric_scores
from dasmil.stats.ranking import auroc, average_precision, probabilities
from dasmil.stats.resample import interval, mean_over_patients, patient_numbers, resampled
from dasmil.stats.sets import (
    SURVIVAL_METRICS,
    ScoredSet,
    class_set,
    numeric_set,
    survival_scores,
    survival_set,
)
from dasmil.stats.small import FEWEST, auroc_interval, class_patients, honest_interval
from dasmil.stats.summaries import difference_of_sets, mean_over_sets, summarise_set, summarise_targets

__all__ = [
    "FEWEST", "METRICS", "NUMERIC_METRICS", "SURVIVAL_METRICS", "FollowUp", "KaplanMeier", "Roc", "ScoredSet",
    "auroc", "auroc_at", "auroc_interval", "auroc_to_find", "average_precision", "bland_altman",
    "bootstrap_difference", "brier_at", "c_index_to_tell", "calibration_at", "calibration_curve", "choose_threshold",
    "class_patients", "class_set", "confusion_counts", "correlation_to_tell", "default_grid", "default_horizons",
    "difference_of_sets", "hanley_mcneil", "harrell", "honest_interval", "in_groups", "integrated", "interval",
    "kaplan_meier", "kaplan_meier_brier", "log_rank", "mann_whitney", "mean_difference", "mean_interval",
    "mean_over_patients", "mean_over_sets", "numeric_scores", "numeric_set", "patient_numbers", "probabilities",
    "resampled", "risk_cuts", "roc_curve", "score", "smallest_auroc", "summarise", "summarise_set", "summarise_targets",
    "survival_scores", "survival_set", "uno", "wilson",
]  # fmt: skip
