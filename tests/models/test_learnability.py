"""A bag whose label depends on nothing but a distance: models that know distances learn it, the others cannot.

Every bag has the same six instances, two of them marked (A and B); it is positive if A and B are closer than 30 px.
The 200 bags for training and the 200 for testing differ in nothing but the positions.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dasmil import create_model

N_BAGS, N = 200, 6


def bags(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    coords = torch.rand(4000, N, 2, generator=generator) * 100
    distance = (coords[:, 0] - coords[:, 1]).norm(dim=-1)
    near, far = (torch.nonzero(side).flatten()[: N_BAGS // 2] for side in (distance < 30, distance > 30))
    chosen = torch.cat([near, far])
    kinds = F.one_hot(torch.tensor([0, 1, 2, 2, 2, 2]), 3).float()
    return kinds.expand(N_BAGS, N, 3), coords[chosen], (distance[chosen] < 30).float()


def balanced_accuracy(name: str) -> tuple[float, float]:
    """On the test bags; and how much the logits differ between them."""
    torch.manual_seed(2)
    options = {"encoder": "linear-relu", "encoder_features": 16, "distance_scale": 180.0}  # 30 px: between two bins
    model = create_model(name, in_features=3, **options)
    features, coords, labels = bags(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(250):
        loss = F.binary_cross_entropy_with_logits(model(features, coords).logit, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features, coords, labels = bags(1)
    with torch.no_grad():
        logit = model.eval()(features, coords).logit
    right = ((logit > 0) == labels.bool()).float()
    return (right[labels == 1].mean() + right[labels == 0].mean()).item() / 2, logit.std().item()


@pytest.mark.parametrize("name", ["das-mil", "disc-rel-sa"])
def test_relative_models_learn_a_distance(name: str) -> None:
    accuracy, _ = balanced_accuracy(name)
    assert accuracy > 0.95


@pytest.mark.parametrize("name", ["sa", "ab-mil", "max-pool"])
def test_models_without_positions_cannot(name: str) -> None:
    accuracy, spread = balanced_accuracy(name)
    assert accuracy == 0.5
    assert spread < 1e-6
