"""A new model is one file and one registry line: it answers for itself what training and explanation ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import pytest
import torch
from torch import Tensor, nn
from toy import toy_bags

import dasmil
from dasmil.models import MODELS
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Length
from dasmil.train.job import Given, Outline, prepare


class NearSum(nn.Module):
    """Each instance counts with the share of the others that lie within a learned length."""

    def __init__(self, reach: float, distance_scale: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([reach]))
        self.distance_scale = distance_scale

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        delta = torch.cdist(coords, coords) / self.distance_scale
        near = torch.sigmoid(10 * (self.theta.unsqueeze(-1) - delta)).mean(-1)
        return near.unsqueeze(-1) * z

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        return Aggregated(self.parts(z, coords, section).sum(-2))


class Near(MILModel):
    """A model as somebody else would write it."""

    name = "near"
    paper = "none"
    position = "relative"
    learns_lengths = True
    stackable = False

    def __init__(self, *, reach: Length | None = None, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.aggregator = NearSum(0.5 if reach is None else reach, self.distance_scale)
        self.classifier = self.make_classifier(self.encoded)

    @classmethod
    def for_feature_vectors(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"encoder": "identity"}

    @classmethod
    def seeks_length(cls, options: Mapping[str, Any]) -> bool:
        return "reach" not in options

    @classmethod
    def starting_at(
        cls, options: Mapping[str, Any], length_at: Callable[[float], float], share: float
    ) -> dict[str, Any]:
        return {"reach": length_at(share) / options["distance_scale"], **options}


def test_a_model_of_ones_own_is_trained_from_several_lengths_and_explained(monkeypatch):
    monkeypatch.setitem(MODELS, "near", Near)
    bags = toy_bags(12)
    run = dasmil.fit("near", bags, epochs=2, starts=3, starts_until=1e-9, starts_share=1.0, restarts=0)[0]
    attempt = run.attempts[0]
    assert len(attempt.rivals) == 2
    assert run.model.distance_scale > 1
    assert isinstance(run.model.encoder, type(MODELS["near"](in_features=4).encoder))
    account = dasmil.explain(run.model, bags[0])
    assert "gradient" not in account.method
    assert float(account.contributions.sum() + account.bias) == pytest.approx(float(account.logit), abs=1e-5)
    given = dasmil.fit("near", bags, epochs=1, starts=3, restarts=0, model_options={"reach": 0.3})[0]
    assert given.attempts[0].rivals == []


def test_a_bias_by_distance_gets_the_scale_of_the_bags():
    bags = toy_bags(12)
    plain = dasmil.fit("sa", bags, epochs=1)[0].model
    biased = dasmil.fit("sa", bags, epochs=1, model_options={"bias": "gaussian"})[0].model
    assert plain.distance_scale == 1.0
    farthest = max(float(torch.cdist(bag.coords, bag.coords).max()) for bag in bags)
    assert 0.8 * farthest < biased.distance_scale <= farthest * 1.001
    job = prepare("sa", Outline(12, (4,), "um"), Given(options={"bias": "linear"}))
    assert job.position == "relative"


def test_every_model_says_what_suits_feature_vectors():
    found = {name: cls.for_feature_vectors({}) for name, cls in MODELS.items()}
    assert found["das-mil"] == {"encoder": "whitened", "out_features": 16, "self_pair": False}
    assert found["disc-rel-sa"] == found["das-mil"]
    assert found["sa"] == {"encoder": "whitened", "out_features": 16}
    assert found["mean-pool"] == {"encoder": "whitened"}
    assert [name for name, cls in MODELS.items() if cls.learns_lengths] == ["das-mil"]
