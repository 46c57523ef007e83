"""Bags whose instances all lie at one place: every model trains, and says what it does without distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dasmil
from dasmil.data.distances import lies_apart
from dasmil.models import MODELS, create_model
from dasmil.types import Bag

SMALL = {"2dmamba-mil": {"features": 8},
         "gabmil": {"features": 8, "hidden": 4}, "long-mil": {"features": 16, "heads": 4, "layers": 1},
         "stamp-vit": {"features": 16, "heads": 4, "mlp": 8}, "slide-transformer": {"layers": 1, "heads": 2},
         "camil": {"heads": 2, "head_features": 4, "landmarks": 4, "local_features": 8, "hidden": 8}}  # fmt: skip


def bags(count: int = 16, apart: bool = False) -> list[Bag]:
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        x = rng.normal(size=(int(rng.integers(2, 6)), 4)).astype(np.float32)
        x[0, 0] += 4 * (number % 2)
        places = rng.uniform(size=(len(x), 2)) if apart else np.full((len(x), 2), 7.0)
        found.append(Bag(x, places.astype(np.float32), "um", f"b{number}", label=number % 2))
    return found


@pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if cls.position == "relative"])
def test_every_model_that_looks_at_distances_trains_and_says_that_there_are_none(name: str) -> None:
    heard: list[str] = []
    runs = dasmil.fit(name, bags(), epochs=1, model_options=SMALL.get(name), progress=False, note=heard.append)
    assert np.isfinite(runs[0].predict(bags())).all()
    assert any(f"No two instances of a training bag lie apart, so {name} " in text for text in heard)


def test_das_mil_is_then_plain_self_attention() -> None:
    """The logits are those of `sa` with the same weights, and there is no length to show."""
    heard: list[str] = []
    (run,) = dasmil.fit("das-mil", bags(), epochs=3, progress=False, note=heard.append)
    assert any("plain self-attention" in text for text in heard)
    assert run.model.learned_distances() == []
    config = {k: v for k, v in run.model.config.items() if k in MODELS["sa"].options()}
    plain = create_model("sa", **config).eval()
    plain.load_state_dict(run.model.state_dict())
    for bag in bags(apart=True):
        torch.testing.assert_close(run.model(bag.features, bag.coords).logit, plain(bag.features, bag.coords).logit)


def test_bags_with_distances_keep_them() -> None:
    heard: list[str] = []
    some = [*bags(15), *bags(16, apart=True)[15:]]
    (run,) = dasmil.fit("das-mil", some, epochs=1, simple_starts=0, starts=1, progress=False, note=heard.append)
    assert run.model.learned_distances()
    assert not any("lie apart" in text for text in heard)


def test_places_are_compared_within_a_section() -> None:
    x, places = torch.zeros(3, 2), torch.tensor([[0.0, 0], [0, 0], [5, 5]])
    assert lies_apart(Bag(x, places, "um", "a"))
    assert not lies_apart(Bag(x, places, "um", "a", section=torch.tensor([0, 0, 1])))
    assert not lies_apart(Bag(x[:1], places[:1], "um", "a"))
