"""Training: many runs at once, resumable, with honest metrics."""

from __future__ import annotations

from dasmil.train.config import TrainingConfig
from dasmil.train.fit import fit
from dasmil.train.state import Progress, RunSpec
from dasmil.train.trained import TrainedRun

__all__ = ["Progress", "RunSpec", "TrainedRun", "TrainingConfig", "fit"]
