"""The bag loss adds what a model says beyond its logit, each with its weight, and never more than that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from label_loss import LabelLoss
from torch.nn import functional as F

from dasmil.types import Output


def bag_loss(classes: int) -> LabelLoss:
    return LabelLoss(np.arange(2 * classes) % classes)


def test_the_loss_of_the_label_is_added() -> None:
    logit, labels = torch.tensor([0.3, -1.2]), torch.tensor([1, 0])
    plain = F.binary_cross_entropy_with_logits(logit, labels.float(), reduction="none")
    output = Output(logit, label_losses=torch.tensor([[1.0, 2.0], [3.0, 5.0]]), bag_weight=0.7)
    torch.testing.assert_close(bag_loss(2)(output, labels), 0.7 * plain + torch.tensor([2.0, 3.0]))


def test_side_logits_have_their_own_weight() -> None:
    logit, sides, labels = torch.tensor([0.3]), torch.tensor([[0.1, 2.0, -1.0]]), torch.tensor([1])
    found = bag_loss(2)(Output(logit, side_logits=sides, bag_weight=0.5, side_weight=0.25), labels)
    expected = 0.5 * F.softplus(torch.tensor(-0.3)) + 0.25 * F.softplus(-sides[0]).sum()
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_more_classes_and_stacked_runs() -> None:
    generator = torch.Generator().manual_seed(0)
    logit, losses = torch.randn(2, 3, 4, generator=generator), torch.rand(2, 3, 4, generator=generator)
    labels = torch.tensor([[0, 3, 1], [2, 2, 0]])
    found = bag_loss(4)(Output(logit, label_losses=losses), labels)
    for run in range(2):
        for bag in range(3):
            label = int(labels[run, bag])
            expected = -logit[run, bag].log_softmax(-1)[label] + losses[run, bag, label]
            assert found[run, bag].item() == pytest.approx(expected.item(), abs=1e-6)
