"""``monotone=True``: the logit can only rise when an instance is added, and no contribution is below 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import dasmil
from dasmil.attribution import explain
from dasmil.attribution.account import Account
from dasmil.data.yardsticks import mil_test
from dasmil.errors import InputError
from dasmil.models import MODELS, MILModel, create_model
from dasmil.nn.evidence import PairEvidence
from dasmil.types import Bag

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ab-mil": ("ab-mil", {}),
    "gated-ab-mil": ("gated-ab-mil", {"concepts": 2}),
    "max-pool": ("max-pool", {}),
    "das-mil": ("das-mil", {"heads": 3}),
    "das-mil sum": ("das-mil", {"heads": 2, "pooling": "sum", "product_term": True, "self_pair": False}),
    "das-mil radius": ("das-mil", {"heads": 2, "embeddings": "", "bias": "gaussian", "radius": 40.0}),
}
EVERY = pytest.mark.parametrize("case", CASES)


def make(case: str, **more: Any) -> MILModel:
    """Random parameters that are large enough for every part of the model to matter."""
    name, options = CASES[case]
    torch.manual_seed(3)
    model = create_model(name, in_features=6, distance_scale=80.0, monotone=True, **options | more).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1.5 * torch.randn_like(parameter))
    return model


def bag(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    places = 100 * torch.rand(n, 2, generator=draw, dtype=torch.float64)
    return torch.randn(n, 6, generator=draw, dtype=torch.float64), places, torch.arange(n) % 2


@EVERY
@pytest.mark.parametrize("sections", [False, True])
def test_an_instance_can_only_raise_the_logit(case: str, sections: bool) -> None:
    model = make(case)
    for seed in range(5):
        x, coords, section = bag(25, seed)
        logits = [model(x[:n], coords[:n], section=section[:n] if sections else None).logit for n in range(1, 26)]
        steps = torch.stack(logits).diff()
        assert float(steps.detach().min()) >= -1e-12
        assert float(steps.detach().max()) > 1e-3


def test_without_the_option_they_can_lower_it() -> None:
    for name in ("ab-mil", "max-pool", "das-mil"):
        torch.manual_seed(0)
        model = create_model(name, in_features=6, distance_scale=80.0).double().eval()
        x, coords, _ = bag(25)
        logits = torch.stack([model(x[:n], coords[:n]).logit for n in range(1, 26)]).detach()
        assert float(logits.diff().min()) < -1e-4


@EVERY
def test_contributions_are_exact_and_never_below_zero(case: str) -> None:
    model = make(case)
    x, coords, section = bag(25)
    found = explain(model, Bag(x, coords, "um", "b", section=section))
    assert found.method == "exact"
    assert float(found.contributions.min()) >= 0
    assert abs(found.residual) < 1e-9
    assert float(found.contributions.sum()) + found.bias == pytest.approx(
        float(model(x, coords, section=section).logit), abs=1e-9
    )
    assert all(pair.contribution >= 0 for pair in found.pairs)
    against = explain(model, Bag(x, coords, "um", "b", section=section), target=0)
    torch.testing.assert_close(against.contributions, -found.contributions)


def test_the_evidence_of_pairs_is_a_log_sum_exp() -> None:
    """Against the equation, with the gradients of all parameters."""
    torch.manual_seed(0)
    layer = PairEvidence(6, heads=3, embeddings="kqv", hidden=4, dropout=0.0, distance_scale=50.0, self_pair=False)
    layer = layer.double()
    x, coords, section = bag(12)

    def equation() -> Tensor:
        query, key, _ = layer.project(x)
        assert layer.theta is not None
        assert layer.beta is not None
        delta = torch.cdist(coords, coords) / 50
        phi = torch.sigmoid((delta - layer.theta[:, None, None]) * layer.beta[:, None, None])
        related = (section[:, None] == section) & ~torch.eye(12, dtype=torch.bool)
        e = query @ key.mT
        for embed, own in ((layer.key_embed, query[:, :, None]), (layer.query_embed, key[:, None])):
            assert isinstance(embed, Tensor)
            b = phi[..., None] * embed[:, None, None, 0] + (1 - phi[..., None]) * embed[:, None, None, 1]
            e = e + related * (own * b).sum(-1)
        return torch.sigmoid((e / 6**0.5).logsumexp(-1) - layer.threshold[:, None]).T

    found, expected = layer(x, coords, None, section), equation()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn(12, 3, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), list(layer.parameters())) for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@EVERY
def test_padding_and_stacked_runs(case: str) -> None:
    models = [make(case), make(case)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(0.7)
    x, coords, _ = bag(9)
    alone = torch.stack([model(x, coords).logit for model in models])
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name] for m in models])
        for name, _ in models[0].named_parameters()
    }
    both = torch.func.functional_call(models[0], stacked, (torch.stack([x, x]), torch.stack([coords, coords])))
    torch.testing.assert_close(both.logit, alone)
    padded, places = torch.full((2, 11, 6), 7.0).double(), torch.zeros(2, 11, 2).double()
    padded[:, 2:], places[:, 2:], mask = x, coords, (torch.arange(11) >= 2).expand(2, 11)
    torch.testing.assert_close(models[0](padded, places, mask).logit, alone[:1].expand(2))


def test_what_a_row_took_can_be_asked_for_later() -> None:
    """The viewer keeps which rows decided, and asks for their parts afterwards."""
    model = make("das-mil")
    x, coords, _ = bag(25)
    first = Account(model, Bag(x, coords, "um", "b"))
    found = first.explain()
    assert first.deciding is not None
    later = Account(model, Bag(x, coords, "um", "b"))
    later.restore(first.deciding.winners, first.deciding.rows, found.target)
    row = int(first.deciding.rows[0][0][0])
    for side in ("looks", "looked_at"):
        assert getattr(later.sides(row), side) == pytest.approx(getattr(first.sides(row), side), abs=1e-12)
    sides = [first.sides(i) for i in range(25)]
    torch.testing.assert_close(
        torch.tensor([(s.looks + s.looked_at) / 2 for s in sides], dtype=torch.float64), found.contributions
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ab-mil", {"n_classes": 3}, "3 classes"),
        ("das-mil", {"layers": 2}, "layers=2"),
        ("das-mil", {"pooling": "mean"}, "pooling='mean'"),
        ("mean-pool", {}, "monotone"),
    ],
)
def test_what_cannot_be_monotone_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        create_model(name, in_features=4, monotone=True, **options)


def test_the_list_of_models_says_which_can() -> None:
    from dasmil.cli.models import describe

    can = {name for name in MODELS if describe(name)["multiple_instance_assumption"] != "no"}
    assert can == {"ab-mil", "gated-ab-mil", "max-pool", "das-mil"}


def test_das_mil_passes_the_test_of_false_frequency() -> None:
    """Trained where how often a type occurs is no hint, tested where it misleads.

    All tests and models: experiments/mil_tests.py, docs/results/mil-tests.json.
    """
    train, test = mil_test("false-frequency", 160), mil_test("false-frequency", 100, "test")
    labels = [bag.label for bag in test]
    options = {"encoder": "linear-relu", "encoder_features": 16}
    given = {"epochs": 25, "lr": 5e-3, "accumulate": 8, "progress": False}
    (run,) = dasmil.fit(
        "das-mil", train, model_options=options | {"monotone": True, "heads": 2, "dropout": 0.0}, **given
    )
    assert roc_auc_score(labels, run.predict(test)) > 0.95


@pytest.mark.parametrize("second", [[0.0, 1.0], [-1.0, 0.0]])
def test_a_start_finds_near_pairs_of_two_types(second: list[float]) -> None:
    """Before any training: instances 0 and 1 are of the two types, which may be opposites, near in one bag only."""
    model = create_model("das-mil", in_features=2, distance_scale=50.0, monotone=True, heads=2, dropout=0.0).eval()
    assert model.begin_near(torch.tensor([1.0, 0]), torch.tensor(second), 40.0, 30.0)
    x = torch.zeros(30, 2)
    x[0], x[1] = torch.tensor([1.0, 0]), torch.tensor(second)
    places = 500 + 300 * torch.rand(30, 2)
    evidence = []
    for apart in (20.0, 200.0):
        places[0], places[1] = torch.zeros(2), torch.tensor([apart, 0])
        evidence.append(float(model.aggregator(x, places, None, None).embedding[0].detach()))
    assert evidence[0] > 0.9
    assert evidence[1] < 0.1
