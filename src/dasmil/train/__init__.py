"""Training: many runs at once, resumable, with honest metrics."""

from __future__ import annotations

from dasmil.train.config import TrainingConfig
from dasmil.train.fit import TrainedRun, fit
from dasmil.train.loop import Progress, RunSpec

__all__ = ["Progress", "RunSpec", "TrainedRun", "TrainingConfig", "fit"]
