"""Figures of merit and their uncertainty: metrics, AUROC, resampling of patients, ROC curves, Wilson's interval."""

from dasmil.stats.chance import auroc_to_find, hanley_mcneil, mann_whitney, smallest_auroc
from dasmil.stats.curves import Roc, confusion_counts, roc_curve, wilson
from dasmil.stats.differences import mean_difference
from dasmil.stats.metrics import (
    METRICS,
    bootstrap_difference,
    calibration_curve,
    choose_threshold,
    mean_interval,
    score,
    summarise,
)
from dasmil.stats.ranking import auroc, average_precision, probabilities
from dasmil.stats.resample import interval, mean_over_patients, patient_numbers, resampled
from dasmil.stats.small import FEWEST, auroc_interval, class_patients, honest_interval

__all__ = [
    "FEWEST", "METRICS", "Roc", "auroc", "auroc_interval", "auroc_to_find", "average_precision",
    "bootstrap_difference", "calibration_curve", "choose_threshold", "class_patients", "confusion_counts",
    "hanley_mcneil", "honest_interval", "interval", "mann_whitney", "mean_difference", "mean_interval",
    "mean_over_patients", "patient_numbers", "probabilities", "resampled", "roc_curve", "score", "smallest_auroc",
    "summarise", "wilson",
]  # fmt: skip
