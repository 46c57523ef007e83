"""The multiple-instance assumption as an option: ``monotone=True``, with which no instance can lower the logit."""

from __future__ import annotations

from torch import Tensor

from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.nn.evidence import NonNegativeLinear


def sum_of_evidence(scores: Tensor) -> Tensor:
    """sigmoid(log sum_i exp(s_i)) of scores [..., n, k]: nearly 1 as soon as one score is large."""
    return scores.logsumexp(-2).sigmoid()


def shares_of_evidence(scores: Tensor) -> Tensor:
    """What each instance gives to `sum_of_evidence` [..., n, k]: in proportion to exp(s_i), never below 0."""
    return scores.softmax(-2) * sum_of_evidence(scores).unsqueeze(-2)


def monotone_classifier(model: MILModel, concepts: int) -> NonNegativeLinear:
    """The classifier with weights above 0; refused where the outputs are logits of three classes or more."""
    if model.outputs is None and model.n_classes > 2:
        raise InputError(
            f"monotone=True with {model.n_classes} classes: evidence can only speak for one class against another; "
            "use two classes, or leave monotone out"
        )
    return NonNegativeLinear(concepts, model.n_logits)
