"""Fixed numbers of a bag: exact sums over instances, blind to order and padding, with values known by hand."""

import numpy as np
import pytest
import torch

from dasmil.attribution import explain
from dasmil.models import create_model, read_model
from dasmil.models.bag_summary import RARE, BagSummary
from dasmil.models.combined import ModelSum
from dasmil.types import Bag

SUMMARIES = ("mean", "spread", "types", "moments", "neighbours", "contacts", "near", "within")


def model(summary: str, seed: int = 0) -> BagSummary:
    torch.manual_seed(seed)
    made = BagSummary(in_features=5, summary=summary, within=3, types=4, neighbours=2, lengths=2).double().eval()  # pyright: ignore
    if len(made.aggregator.centres):  # pyright: ignore
        made.aggregator.centres.normal_()  # pyright: ignore
    made.aggregator.lengths.copy_(torch.tensor([20.0, 60.0])[: len(made.aggregator.lengths)])  # pyright: ignore
    return made


def some(n: int = 23, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator).double(), 100 * torch.rand(n, 2, generator=generator).double()


@pytest.mark.parametrize("summary", SUMMARIES)
def test_numbers_are_sums_over_instances(summary: str) -> None:
    found, (z, coords) = model(summary).aggregator, some()
    torch.testing.assert_close(found.parts(z, coords, None).sum(0), found.numbers(z, coords, None))


@pytest.mark.parametrize("summary", SUMMARIES)
def test_order_and_padding_do_not_matter(summary: str) -> None:
    found, (z, coords) = model(summary), some()
    order = torch.randperm(len(z))
    torch.testing.assert_close(found(z[order], coords[order]).logit, found(z, coords).logit)
    padded = torch.cat([z, z[:4]])[None], torch.cat([coords, coords[:4]])[None]
    mask = (torch.arange(len(z) + 4) < len(z))[None]
    torch.testing.assert_close(found(*padded, mask).logit[0], found(z, coords).logit)


@pytest.mark.parametrize("summary", ["neighbours", "contacts", "near", "within"])
def test_sections_are_no_neighbours(summary: str) -> None:
    found, (z, coords) = model(summary), some()
    section = torch.arange(len(z)) % 2
    far = coords + 1e6 * section[:, None]
    torch.testing.assert_close(found(z, coords, None, section).logit, found(z, far).logit)


def test_quantiles_and_spread_are_those_of_numpy() -> None:
    z, coords = some(17)
    numbers = model("spread").aggregator.numbers(z, coords, None).numpy()
    x = z.numpy()
    expected = [x.mean(0), *np.quantile(x, (0.1, 0.5, 0.9), axis=0), x.max(0), x.std(0)]
    np.testing.assert_allclose(numbers, np.concatenate(expected))


def test_shares_and_contacts_by_hand() -> None:
    """Three instances in a row, of types 0, 0, 1, each with one neighbour."""
    made = BagSummary(in_features=2, summary="types", types=2).double()
    contacts = BagSummary(in_features=2, summary="contacts", types=2, neighbours=1).double()
    for one in (made, contacts):
        one.aggregator.centres.copy_(torch.eye(2))  # pyright: ignore
    z = torch.tensor([[1.0, 0], [1, 0], [0, 1]]).double()
    coords = torch.tensor([[0.0, 0], [1, 0], [2.5, 0]]).double()
    shares = made.aggregator.numbers(z, coords, None)  # pyright: ignore
    expected = [2 / 3, 1 / 3, np.log1p(2 / 3 / RARE), np.log1p(1 / 3 / RARE)]
    np.testing.assert_allclose(shares.numpy(), expected)
    # neighbours: 0 -> 1, 1 -> 0, 2 -> 1; pairs of types 00: 2 of 3, 01: half of the one of 3, 11: none
    found = contacts.aggregator.numbers(z, coords, None)  # pyright: ignore
    np.testing.assert_allclose(found.numpy(), np.sqrt([2 / 3, 1 / 6, 0]), atol=1e-6)


def test_a_sum_of_models_is_explained_exactly_and_kept_whole(tmp_path) -> None:
    torch.manual_seed(0)
    z, coords = some()
    parts = [
        (0.3, model("neighbours").float()),
        (0.5, create_model("das-mil", in_features=5, distance_scale=40.0)),
        (0.2, create_model("gated-ab-mil", in_features=5, encoder="linear-relu", encoder_features=8)),
    ]
    made = ModelSum.of(parts, torch.tensor([0.7]), {"in_features": 5})
    bag = Bag(z.float(), coords.float(), "um", "bag")
    alone = sum(w * m.eval()(bag.features, bag.coords).logit for w, m in parts) + 0.7
    torch.testing.assert_close(made(bag.features, bag.coords).logit, alone)
    for target in (0, 1):
        found = explain(made, bag, target=target)
        assert found.method == "exact"
        assert abs(found.residual) < 1e-5
        assert found.pairs
        total = float(found.contributions.double().sum()) + found.bias
        assert total == pytest.approx(found.logit, abs=1e-5)
    made.save(tmp_path / "model.safetensors")
    again = read_model(tmp_path / "model.safetensors")
    torch.testing.assert_close(again(bag.features, bag.coords).logit, made(bag.features, bag.coords).logit)


def test_distances_and_counts_are_those_of_all_pairs() -> None:
    z, coords = some(40)
    made = model("near")
    kinds = torch.cdist(z[:, :3], made.aggregator.centres).argmin(1)  # pyright: ignore
    apart = torch.cdist(coords, coords).fill_diagonal_(float("inf"))
    pairs = [(a, b) for a in range(4) for b in range(a, 4)]
    smallest = torch.stack([apart[kinds == a][:, kinds == b].min() for a, b in pairs])
    expected = (60 / smallest).log().clamp_min(0)
    torch.testing.assert_close(made.aggregator.numbers(z, coords, None), expected)  # pyright: ignore
    parts = made.aggregator.parts(z, coords, None)  # pyright: ignore
    first = parts[:, 1].nonzero()[:, 0]
    assert sorted(kinds[first].tolist()) == [0, 1]
    shares = torch.stack(
        [
            ((kinds == a) & (apart[:, kinds == b].min(1).values <= length)).double().mean().sqrt()
            for a in range(4)
            for b in range(4)
            for length in (20.0, 60.0)
        ]
    )
    counting = model("within").aggregator
    counting.centres.copy_(made.aggregator.centres)  # pyright: ignore
    torch.testing.assert_close(counting.numbers(z, coords, None), shares)  # pyright: ignore
