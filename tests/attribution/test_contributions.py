"""The split of a weighted sum of attention outputs, against the dense reference in float64."""

import itertools
from dataclasses import replace

import pytest
import torch

from dasmil.attribution.contributions import both_ways, pooling_weights, split_layer
from dasmil.attribution.rows import PairAttention
from dasmil.ops import das_attention
from dasmil.ops.das_attention.reference import pair_distances
from dasmil.types import Pair

N, D, OUT, H = 13, 5, 4, 3


def layer(
    *,
    seed=0,
    n=N,
    embeddings="kqv",
    phi="sigmoid",
    product_term=False,
    self_pair=True,
    section=False,
    dtype=torch.float64,
):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    return PairAttention(
        query=draw(H, n, D),
        key=draw(H, n, D),
        value=draw(H, n, OUT),
        coords=100 * draw(n, 2),
        scale=D**-0.5,
        distance_scale=150.0,
        theta=torch.tensor([0.3, 0.6, 1.1], dtype=dtype),
        beta=torch.tensor([4.0, -3.0, 9.0], dtype=dtype),
        phi=phi,
        key_embed=draw(H, 2, D) if "k" in embeddings else None,
        query_embed=draw(H, 2, D) if "q" in embeddings else None,
        value_embed=draw(H, 2, OUT) if "v" in embeddings else None,
        product_term=product_term,
        self_pair=self_pair,
        section=torch.arange(n) % 2 if section else None,
    )


def dense(a: PairAttention):
    return das_attention(
        a.query, a.key, a.value, a.coords, theta=a.theta, beta=a.beta, key_embed=a.key_embed, query_embed=a.query_embed,
        value_embed=a.value_embed, phi=a.phi, scale=a.scale, distance_scale=a.distance_scale,
        product_term=a.product_term, self_pair=a.self_pair, section=a.section, return_weights=True, backend="reference",
    )  # fmt: skip


def dense_pairs(a: PairAttention, weights):
    """Features part and distance part of every pair [h, n, n], with the vectors b_ij written out."""
    _, alpha = dense(a)
    features = alpha * torch.einsum("hio,hjo->hij", weights, a.value)
    if a.value_embed is None:
        return features, torch.zeros_like(features)
    from dasmil.ops.das_attention.phi import PHI

    delta = pair_distances(a.coords) / a.distance_scale
    f = PHI[a.phi]((delta - a.theta[:, None, None]) * a.beta[:, None, None])[..., None]
    b = f * a.value_embed[:, 0, None, None] + (1 - f) * a.value_embed[:, 1, None, None]
    related = torch.ones(a.n, a.n, dtype=torch.float64)
    if a.section is not None:
        related = (a.section[:, None] == a.section).double()
    if not a.self_pair:
        related = related * (1 - torch.eye(a.n, dtype=torch.float64))
    return features, alpha * related * torch.einsum("hio,hijo->hij", weights, b)


OPTIONS = [
    {"embeddings": e, "product_term": p, "self_pair": s, "section": c, "phi": f}
    for e, p, s, c, f in itertools.product(
        ["", "k", "v", "kq", "kqv"], [False, True], [False, True], [False, True], ["sigmoid", "gaussian"]
    )
    if not (p and "kq" not in e)
]


@pytest.mark.parametrize("pooling", ["max", "mean", "sum"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_split_is_exact_and_agrees_with_the_dense_computation(options, pooling, monkeypatch):
    monkeypatch.setattr("dasmil.attribution.rows.CHUNK_ELEMENTS", 4 * N)  # several blocks of rows
    a = layer(**options)
    z, alpha = dense(a)
    w = torch.linspace(-2, 1, H * OUT, dtype=torch.float64)
    pooled = z.transpose(0, 1).reshape(N, H * OUT)
    total = w @ {"max": pooled.amax(0), "mean": pooled.mean(0), "sum": pooled.sum(0)}[pooling]
    weights = pooling_weights(pooled, w, pooling).reshape(N, H, OUT).transpose(0, 1)

    split = split_layer(a, weights, top=7, below=True)
    assert abs(float((split.features + split.distance).sum() - total)) < 1e-10

    by_features, by_distance = dense_pairs(a, weights)
    torch.testing.assert_close(split.features, by_features.sum((0, 1)), rtol=0, atol=1e-12)
    torch.testing.assert_close(split.distance, by_distance.sum((0, 1)), rtol=0, atol=1e-12)
    pair = by_features + by_distance
    for score, half in (
        (split.features_both, by_features / 2),
        (split.distance_both, by_distance / 2),
        (split.strength, pair.abs() / 2),
        (split.support, pair.clamp(min=0) / 2),
    ):
        torch.testing.assert_close(score, half.sum((0, 1)) + half.sum((0, 2)), rtol=0, atol=1e-12)
    assert abs(float((split.features_both + split.distance_both).sum() - total)) < 1e-10
    assert split.absolute_features == pytest.approx(float(by_features.abs().sum()), abs=1e-12)
    assert split.absolute_distance == pytest.approx(float(by_distance.abs().sum()), abs=1e-12)
    torch.testing.assert_close(split.below, alpha.transpose(1, 2) @ weights, rtol=0, atol=1e-12)

    expected = pair.abs().flatten().sort(descending=True).values[:7]
    assert [abs(p.contribution) for p in split.pairs] == pytest.approx(expected.tolist(), abs=1e-12)
    for p in split.pairs:
        assert p.contribution == pytest.approx(float(pair[p.head, p.i, p.j]), abs=1e-12)
        assert p.distance_part == pytest.approx(float(by_distance[p.head, p.i, p.j]), abs=1e-12)
        assert p.weight == pytest.approx(float(alpha[p.head, p.i, p.j]), abs=1e-12)
        if options["section"] and (p.i - p.j) % 2:
            assert p.distance is None
            assert p.phi is None
        else:
            assert p.distance == pytest.approx(float(torch.dist(a.coords[p.i], a.coords[p.j])), abs=1e-9)


def test_only_the_rows_that_won_are_computed(monkeypatch):
    a = layer()
    z, _ = dense(a)
    pooled = z.transpose(0, 1).reshape(N, H * OUT)
    weights = (
        pooling_weights(pooled, torch.ones(H * OUT, dtype=torch.float64), "max").reshape(N, H, OUT).transpose(0, 1)
    )
    seen = []
    original = PairAttention.rows
    monkeypatch.setattr(
        PairAttention, "rows", lambda self, h, i: (seen.append((h, i.tolist())), original(self, h, i))[1]
    )
    split_layer(a, weights)
    winners = z.argmax(1)
    assert {h: set(i) for h, i in seen} == {h: set(winners[h].tolist()) for h in range(H)}
    assert sum(len(i) for _, i in seen) <= H * OUT < H * N


def test_float32_sums_to_one_part_in_100000():
    a = layer(dtype=torch.float32, n=400)
    z, _ = dense(a)
    pooled = z.transpose(0, 1).reshape(400, H * OUT)
    w = torch.linspace(-1, 1, H * OUT)
    weights = pooling_weights(pooled, w, "max").reshape(400, H, OUT).transpose(0, 1)
    split = split_layer(a, weights)
    assert float((split.features + split.distance).sum()) == pytest.approx(float(w @ pooled.amax(0)), abs=1e-5)


@pytest.mark.parametrize("options", OPTIONS[::3], ids=lambda o: "-".join(str(v) for v in o.values()))
def test_attention_received_is_the_mean_column_of_the_weights(options):
    a = layer(**options)
    _, alpha = dense(a)
    torch.testing.assert_close(a.attention_received(), alpha.mean((0, 1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("product_term", [False, True])
def test_binned_distances_choose_one_embedding(product_term):
    base = layer(section=True, self_pair=False)
    g = torch.Generator().manual_seed(5)
    bins = 6
    ke, qe = (torch.randn(H, bins, D, generator=g, dtype=torch.float64) for _ in range(2))
    ve = torch.randn(H, bins, OUT, generator=g, dtype=torch.float64)

    def bin_of(delta):
        return (delta * bins).long().clamp(max=bins - 1)

    a = replace(
        base,
        theta=None,
        beta=None,
        bin_of=bin_of,
        key_embed=ke,
        query_embed=qe,
        value_embed=ve,
        product_term=product_term,
    )
    index = bin_of(pair_distances(a.coords) / a.distance_scale)
    related = (a.section[:, None] == a.section).double() * (1 - torch.eye(N, dtype=torch.float64))
    bk, bq, bv = (e[:, index] * related[..., None] for e in (ke, qe, ve))
    e = torch.einsum("hid,hjd->hij", a.query, a.key)
    e = e + torch.einsum("hid,hijd->hij", a.query, bk) + torch.einsum("hjd,hijd->hij", a.key, bq)
    if product_term:
        e = e + (bk * bq).sum(-1)
    alpha = (e * a.scale).softmax(-1)
    z = alpha @ a.value + torch.einsum("hij,hijo->hio", alpha, bv)
    weights = torch.randn(H, N, OUT, generator=g, dtype=torch.float64)
    split = split_layer(a, weights)
    assert float((split.features + split.distance).sum()) == pytest.approx(float((weights * z).sum()), abs=1e-10)
    torch.testing.assert_close(split.distance, torch.einsum("hij,hio,hijo->j", alpha, weights, bv), rtol=0, atol=1e-12)
    torch.testing.assert_close(a.attention_received(), alpha.mean((0, 1)), rtol=0, atol=1e-12)


def test_far_from_the_origin_distances_keep_their_digits():
    a = layer(dtype=torch.float32)
    moved = replace(a, coords=a.coords.round() + 60_000.0)
    here = replace(a, coords=a.coords.round())
    torch.testing.assert_close(
        moved.rows(0, torch.arange(N)).distance, here.rows(0, torch.arange(N)).distance, rtol=0, atol=0
    )


def test_both_directions_of_a_pair_are_one():
    found = [Pair(2, 5, 0, 1.0, 0.25, 0.5, 10.0, 0.3), Pair(1, 1, 0, 9.0, 0.0, 1.0, 0.0, None),
             Pair(0, 3, 0, -1.8, 0.0, 0.4, 7.0, 0.2), Pair(5, 2, 1, 1.0, -1.0, 0.75, 10.0, 0.4)]  # fmt: skip
    strongest, second = both_ways(found)
    assert (strongest.i, strongest.j, strongest.contribution, strongest.distance_part) == (2, 5, 2.0, -0.75)
    assert (strongest.weight, strongest.distance) == (0.75, 10.0)
    assert (second.i, second.j, second.contribution) == (0, 3, -1.8)
