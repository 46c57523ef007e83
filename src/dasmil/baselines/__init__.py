"""What needs no network: simple rules that every trained model is measured against, and that training starts from."""

from dasmil.baselines.rivals import BASELINES, Baseline, FittedBaselines, fit_baselines

__all__ = ["BASELINES", "Baseline", "FittedBaselines", "fit_baselines"]
