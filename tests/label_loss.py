"""The loss of classification as a function of an output and the labels of its bags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dasmil.tasks import classification
from dasmil.train.loss import Loss
from dasmil.types import Output


class LabelLoss:
    """Losses [*batch] of outputs for labels [*batch], with weights from the training labels."""

    def __init__(self, labels: Any, *, balance: bool = True) -> None:
        values = np.asarray(labels, dtype=np.float64)[:, None]
        self.loss = Loss(classification().fitted(values), values, balance=balance)
        self.weights = self.loss.parts[0].weights  # type: ignore[attr-defined]

    def __call__(self, output: Output, labels: Tensor) -> Tensor:
        flat = labels.reshape(-1).numpy()
        facts: Any = SimpleNamespace(targets=flat[:, None].astype(np.float64), labels=flat.astype(np.int64))
        lesson = self.loss.lesson(facts, lambda: np.zeros(0), torch.device("cpu"))
        return lesson(output, torch.arange(len(flat)).reshape(labels.shape), None)
