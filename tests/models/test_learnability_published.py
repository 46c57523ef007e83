"""The published models learn a small task that their equations can express, with their own losses.

Presence: a bag is positive if one of its instances is of a rare type. Company: all bags hold the same three types, two
of them in two clumps; it is positive if the third is mixed into the first clump, negative if into the second.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from label_loss import LabelLoss
from torch import Tensor
from torch.nn import functional as F

from dasmil import create_model
from dasmil.models import MILModel
from dasmil.nn.draws import Draws, drawing

N_BAGS, N, KINDS, BATCH = 64, 8, 4, 8
EACH = 6  # instances of each type in a bag of the second task
WITHOUT_POSITIONS: dict[str, dict[str, Any]] = {
    "clam-sb": {"features": 16, "hidden": 8, "sampled": 2},
    "clam-mb": {"features": 16, "hidden": 8, "sampled": 2},
    "dsmil": {"hidden": 32},
    "dtfd-mil": {"features": 16, "hidden": 8},
    "ilra-mil": {"features": 16, "heads": 2},
    "transformer-mil": {"features": 16, "heads": 2, "mlp": 16},
    "wikg": {"features": 16},
    "rrt-mil": {"features": 16, "heads": 2, "cross_heads": 2, "hidden": 8, "kernel": 3},
    "mean-mlp": {"hidden": 16, "pooling": "max-mean"},
    "feather": {"features": 16, "hidden": 8},
    "acmil": {"features": 16, "hidden": 8, "masked": 0},
    "aem": {"features": 16, "hidden": 8},
    "nnmil": {"hidden": 16},
    "abmilx": {"features": 16, "heads": 2},
    "snuffy": {"heads": 2, "chosen": 4},
    "mamba-mil": {"features": 16, "rate": 3},
    "dgr-mil": {"features": 16, "vectors": 3, "dropout": 0.0},
}
WITH_POSITIONS: dict[str, dict[str, Any]] = {
    "stamp-vit": {"features": 16, "heads": 2, "mlp": 16, "mlp_dropout": 0.0},
    "long-mil": {"features": 16, "heads": 2, "layers": 2, "step": 8.0, "dropout": 0.0},
    "psa-mil": {"heads": 2, "head_features": 8, "tile": 8.0},
    "sm-abmil": {"hidden": 16, "radius": 10.0},
    "patch-gcn": {"features": 16, "neighbours": 3, "layers": 3, "dropout": 0.0},
    "camil": {"heads": 2, "head_features": 8, "landmarks": 4, "local_features": 16, "hidden": 16},
    "gabmil": {"features": 16, "hidden": 8, "tile": 10.0, "dropout": 0.0},
    "2dmamba-mil": {"features": 16, "tile": 10.0, "dropout": 0.0},
    "span": {"features": 16, "heads": 2, "tile": 16.0, "dropout": 0.0},
}
ALL = {**WITHOUT_POSITIONS, **WITH_POSITIONS}
STEPS = {
    "dsmil": 200, "snuffy": 800, "stamp-vit": 60, "long-mil": 200, "psa-mil": 30, "sm-abmil": 60, "patch-gcn": 60,
    "camil": 120, "gabmil": 100, "mamba-mil": 40, "dgr-mil": 120, "2dmamba-mil": 100, "span": 80,
}  # fmt: skip
LR = {"stamp-vit": 0.003, "long-mil": 0.003, "patch-gcn": 0.003, "dgr-mil": 0.003}
"""Of Adam, 0.01 for the others."""


def presence(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features [bags, n, kinds], coordinates, labels; types 0 and 1 are common, 2 is rare, 3 occurs in all."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 2, (N_BAGS, N), generator=generator)
    kinds[:, 0] = 3
    labels = torch.arange(N_BAGS) % 2
    kinds[labels == 1, 1] = 2
    order = torch.rand(N_BAGS, N, generator=generator).argsort(1)
    features = F.one_hot(kinds.gather(1, order), KINDS).float()
    noise = 0.2 * torch.randn(N_BAGS, N, KINDS, generator=generator)
    return features + noise, 100 * torch.rand(N_BAGS, N, 2, generator=generator), labels


def company(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features [bags, 3 EACH, kinds] that are the same in all bags, coordinates, labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(N_BAGS) % 2
    first = torch.where(torch.rand(N_BAGS, generator=generator) < 0.5, 25.0, 75.0)
    along = torch.stack([first, 100 - first, torch.where(labels == 1, first, 100 - first)], 1)
    along = along.repeat_interleave(EACH, 1)
    coords = torch.stack([along, torch.full_like(along, 50.0)], -1)
    coords += 8 * torch.randn(coords.shape, generator=generator)
    features = F.one_hot(torch.arange(3).repeat_interleave(EACH), KINDS).float()
    return features.expand(N_BAGS, 3 * EACH, KINDS), coords, labels


def trained(name: str, bags: tuple[Tensor, Tensor, Tensor], steps: int) -> MILModel:
    torch.manual_seed(1)
    model = create_model(name, in_features=KINDS, distance_scale=20.0, **ALL[name]).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR.get(name, 0.01))
    loss = LabelLoss(bags[2].numpy(), balance=False)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.randperm(N_BAGS, generator=generator)[:BATCH]
        features, coords, labels = (part[rows] for part in bags)
        optimizer.zero_grad()
        with drawing(Draws.of([step])):
            loss(model(features, coords), labels).mean().backward()
        optimizer.step()
    return model.eval()


def balanced_accuracy(model: MILModel, bags: tuple[Tensor, Tensor, Tensor]) -> tuple[float, float]:
    """And how much the logits differ between the bags."""
    features, coords, labels = bags
    with torch.no_grad():
        logit = model(features, coords).logit
    right = ((logit > 0) == labels.bool()).float()
    return (right[labels == 1].mean() + right[labels == 0].mean()).item() / 2, logit.std().item()


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_a_model_without_positions_learns_that_a_type_is_there(name: str) -> None:
    accuracy, _ = balanced_accuracy(trained(name, presence(0), STEPS.get(name, 100)), presence(1))
    assert accuracy > 0.95


@pytest.mark.parametrize("name", WITH_POSITIONS)
def test_a_model_with_positions_learns_in_whose_company_a_type_is(name: str) -> None:
    accuracy, _ = balanced_accuracy(trained(name, company(0), STEPS[name]), company(1))
    assert accuracy > 0.9


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_one_without_positions_cannot(name: str) -> None:
    accuracy, spread = balanced_accuracy(trained(name, company(0), 3), company(1))
    assert accuracy == 0.5
    assert spread < 1e-6
