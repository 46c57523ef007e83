"""The bag loss: cross entropy with classes weighed by their inverse frequency in the training bags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import DataError
from dasmil.types import Output


@dataclass(frozen=True)
class BagLoss:
    """Loss per run; class_weights are relative to class 0 for two classes (the paper's positive weight)."""

    class_weights: Tensor
    constant_guess: float
    """The loss of the best guess that ignores the bag; a run that learned nothing ends there."""

    @staticmethod
    def of(labels: NDArray[np.int64], classes: int, balance: bool, device: torch.device) -> BagLoss:
        """From the training labels. Two classes: positive weight = negatives / positives, as in the paper."""
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        if (counts == 0).any() or classes < 2:
            found = ", ".join(f"{int(n)} of class {c}" for c, n in enumerate(counts))
            if classes <= 2:
                missing = "positive" if len(counts) < 2 or counts[1] == 0 else "negative"
                raise DataError(f"the training bags hold no {missing} bag ({found}): training needs both classes")
            raise DataError(f"a class has no training bag ({found}): every class 0 ... {classes - 1} needs some")
        if not balance:
            weights = np.ones(classes)
        elif classes == 2:
            weights = np.array([1.0, counts[0] / counts[1]])
        else:
            weights = counts.sum() / (classes * counts)
        mass = weights * counts
        guess = float(-(mass * np.log(mass / mass.sum())).sum() / counts.sum())
        return BagLoss(torch.tensor(weights, dtype=torch.float32, device=device), guess)

    def __call__(self, output: Output, labels: Tensor) -> Tensor:
        """Losses [*batch] of logits [*batch] (or [*batch, classes]) and labels [*batch].

        Auxiliary losses, the losses of side logits (deep supervision) and the one that belongs to the label are added.
        """
        loss = output.bag_weight * self._entropy(output.logit, labels)
        if output.side_logits is not None:
            sides = output.side_logits.shape[labels.ndim]
            each = self._entropy(output.side_logits, labels.unsqueeze(-1).expand(*labels.shape, sides))
            loss = loss + output.side_weight * each.sum(-1)
        if output.label_losses is not None:
            loss = loss + output.label_losses.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
        return loss if output.aux_loss is None else loss + output.aux_loss

    def _entropy(self, logit: Tensor, labels: Tensor) -> Tensor:
        logit = logit.float()
        if len(self.class_weights) == 2:
            target = labels.to(logit.dtype)
            return F.binary_cross_entropy_with_logits(logit, target, pos_weight=self.class_weights[1], reduction="none")
        rows, flat = logit.reshape(-1, logit.shape[-1]), labels.reshape(-1)
        return F.cross_entropy(rows, flat, weight=self.class_weights, reduction="none").view(labels.shape)
