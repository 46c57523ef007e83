"""An instance from its two sides, sums over many pairs, and accounts that are kept."""

from dataclasses import replace

import pytest
import torch

from dasmil.attribution import Account, explain
from dasmil.attribution.kept import account_key, read_account, write_account
from dasmil.attribution.verdict import pair_verdict
from dasmil.models import create_model
from dasmil.types import Bag

N = 11


def bag(n=N, sections=False, kinds=None, seed=0, names=("immune", "tumour", "stroma")):
    generator = torch.Generator().manual_seed(seed)
    return Bag(
        torch.randn(n, 6, generator=generator, dtype=torch.float64),
        torch.rand(n, 2, generator=generator) * 1000,
        "um",
        "b",
        section=torch.arange(n) % 2 if sections else None,
        instance_labels=None if kinds is None else torch.arange(n) % kinds,
        metadata={"instance_label_names": list(names)} if kinds else {},
    )


def model(pooling="max", **options):
    torch.manual_seed(1)
    made = create_model("das-mil", in_features=6, out_features=8, heads=2, pooling=pooling, unit="um",
                        distance_scale=250.0, **options)  # fmt: skip
    return made.double()


@pytest.mark.parametrize("pooling", ["max", "mean", "sum"])
@pytest.mark.parametrize("sections", [False, True])
def test_who_looks_at_an_instance_and_what_that_gave(pooling, sections):
    account = Account(model(pooling), bag(sections=sections))
    e = account.explain(top=10**6)
    for j in (0, 5):
        expected = {(p.i, p.head): p for p in e.pairs if p.j == j}
        found = account.watchers(j, top=10**6)
        assert {(p.j, p.head) for p in found} == set(expected)
        for p in found:
            same = expected[p.j, p.head]
            assert p.contribution == pytest.approx(same.contribution, abs=1e-12)
            assert p.weight == pytest.approx(same.weight, abs=1e-12)
            assert (p.distance is None) == (same.distance is None)
            assert p.distance == pytest.approx(same.distance, abs=1e-4)
            assert p.phi == pytest.approx(same.phi, abs=1e-6)
        sizes = [abs(p.contribution) for p in found]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_half_of_either_side_is_the_contribution(pooling):
    account = Account(model(pooling), bag())
    contributions = account.explain().contributions
    for i in range(N):
        sides = account.sides(i)
        assert (sides.looks + sides.looked_at) / 2 == pytest.approx(float(contributions[i]), abs=1e-10)
    assert sides.watchers == account.rows_computed()


@pytest.mark.parametrize("sections", [False, True])
def test_sums_over_kinds_places_and_distances_are_those_of_the_pairs(sections):
    b = bag(n=240, kinds=3, sections=sections)
    e = explain(model(), b, top=10**7)
    total = sum(p.contribution for p in e.pairs)
    assert total == pytest.approx(e.logit - e.bias, abs=1e-9)
    assert set(e.sums) == {"types", "neighbourhoods", "distance"}
    for parts in e.sums.values():
        assert sum(part.contribution for part in parts) == pytest.approx(total, abs=1e-9)
    mixed = sum(p.contribution for p in e.pairs if {p.i % 3, p.j % 3} == {0, 1})
    found = {frozenset(part.between): part.contribution for part in e.sums["types"]}
    assert found[frozenset(("immune", "tumour"))] == pytest.approx(mixed, abs=1e-10)
    own = sum(p.contribution for p in e.pairs if p.i == p.j)
    assert e.sums["distance"][0].between == ("with itself",)
    assert e.sums["distance"][0].contribution == pytest.approx(own, abs=1e-10)
    titles = {part.between[0]: part.contribution for part in e.sums["distance"]}
    first = e.sums["distance"][1].between[0]
    low, high = map(float, first.removesuffix(" µm").split(" to "))  # nothing lies nearer
    assert all(p.distance >= low for p in e.pairs if p.i != p.j and p.distance is not None)
    near = [p.contribution for p in e.pairs if p.i != p.j and p.distance is not None and p.distance < high]
    assert titles[first] == pytest.approx(sum(near), abs=1e-9)
    assert ("other section" in titles) == sections


def test_bands_of_distance_that_no_pair_has_are_left_out():
    y, x = torch.meshgrid(torch.arange(15), torch.arange(16), indexing="ij")
    tiles = replace(bag(n=240, kinds=3), coords=256.0 * torch.stack([x, y], -1).reshape(-1, 2).double())
    titles = [part.between[0] for part in explain(model(), tiles).sums["distance"]]
    assert titles == ["with itself", "200 to 500 µm", "500 to 1,000 µm", "1,000 to 2,000 µm", "over 2,000 µm"]


def test_a_pair_that_decided_is_named_and_one_among_thousands_is_not():
    few = explain(model(), bag(n=4))
    assert pair_verdict(few).decided
    assert pair_verdict(few).text == ""
    many = explain(model("mean"), bag(n=900))
    verdict = pair_verdict(many)
    assert not verdict.decided
    assert verdict.text.startswith("No single pair decided: the strongest gave")
    assert [title for title, _ in verdict.sums] == ["Pairs by neighbourhood, added up", "Pairs by distance, added up"]


@pytest.mark.parametrize("pooling", ["max", "mean", "sum"])
def test_a_kept_account_is_the_same_and_answers_the_same(pooling, tmp_path, monkeypatch):
    m, b = model(pooling), bag(kinds=3)
    account = Account(m, b)
    e = account.explain()
    path = tmp_path / "kept" / f"{account_key(m, b)}.safetensors"
    write_account(path, e, account.logits(), account.deciding)
    kept = read_account(path)
    assert kept is not None
    assert kept.explanation.pairs == e.pairs
    assert kept.explanation.sums == e.sums
    assert (kept.explanation.logit, kept.explanation.bias) == (e.logit, e.bias)
    for name, values in e.scores.items():
        assert torch.equal(kept.explanation.scores[name], values)
    again = Account(m, b)
    assert kept.rows
    again.restore(kept.winners, kept.rows, kept.explanation.target)
    monkeypatch.setattr(Account, "explain", None)  # nothing is computed again
    assert again.watchers(3) == account.watchers(3)
    assert again.sides(3) == account.sides(3)
    assert again.partners(3) == account.partners(3)


def test_another_weight_or_feature_never_finds_the_old_account():
    m, b = model(), bag()
    key = account_key(m, b)
    assert account_key(model(), bag()) == key
    assert account_key(m, bag(seed=1)) != key
    assert account_key(m, bag(kinds=3)) != key
    with torch.no_grad():
        next(m.parameters()).add_(1e-9)
    assert account_key(m, b) != key


def test_a_damaged_account_is_made_again(tmp_path):
    path = tmp_path / "a.safetensors"
    assert read_account(path) is None
    path.write_bytes(b"not an account")
    assert read_account(path) is None
