"""The account of a logit: exact sums for every model and option, and partners that are the rows of the attention."""

import itertools

import pytest
import torch

import dasmil
from dasmil.attribution import Account, explain, partners
from dasmil.attribution.distance import told_distances
from dasmil.errors import DataError, InputError
from dasmil.models import create_model, list_models
from dasmil.types import Bag

N, F = 9, 6
EXACT = [
    "max-pool", "mean-pool", "ab-mil", "gated-ab-mil", "sa", "sa-axial", "sa-fourier", "disc-rel-sa", "das-mil",
    "sa-alibi", "sa-rope", "clam-sb", "clam-mb", "dsmil", "dtfd-mil", "sm-abmil", "psa-mil", "camil", "rrt-mil",
    "mean-mlp", "feather", "acmil", "aem", "nnmil", "abmilx", "gabmil", "snuffy",
    "mamba-mil",
]  # fmt: skip

SMALL = {  # as published they have hundreds of features, far too slow for a test
    "clam-sb": {"features": 16, "hidden": 8},
    "clam-mb": {"features": 16, "hidden": 8},
    "dtfd-mil": {"features": 16, "hidden": 8},
    "ilra-mil": {"features": 16, "heads": 2},
    "transformer-mil": {"features": 16, "heads": 2},
    "stamp-vit": {"features": 16, "heads": 2, "mlp": 8},
    "long-mil": {"features": 16, "layers": 2, "step": 60.0},
    "psa-mil": {"heads": 2, "head_features": 8, "tile": 60.0},
    "patch-gcn": {"features": 8},
    "camil": {"heads": 2, "head_features": 4, "landmarks": 4, "local_features": 8, "hidden": 8},
    "wikg": {"features": 16},
    "rrt-mil": {"features": 16, "heads": 2, "cross_heads": 2, "hidden": 8},
    "mean-mlp": {"hidden": 16, "pooling": "max-mean"},
    "feather": {"features": 16, "hidden": 8},
    "acmil": {"features": 16, "hidden": 8},
    "aem": {"features": 16, "hidden": 8},
    "nnmil": {"hidden": 4},
    "abmilx": {"features": 16, "heads": 2},
    "gabmil": {"features": 16, "hidden": 8, "tile": 60.0},
    "snuffy": {"heads": 2, "chosen": 4},
    "mamba-mil": {"features": 8, "rate": 3},
    "2dmamba-mil": {"features": 8, "tile": 60.0},
    "span": {"features": 8, "heads": 2, "tile": 60.0},
    "dgr-mil": {"features": 16, "vectors": 3},
}
STEEP = {"mamba-mil"}
"""Twice its weights make it change within a thousandth of the path from zero features, where it normalises."""
JUMP = {"wikg"}
"""Its neighbours are chosen by the features, so that the logit jumps along the path: the residual tells how much."""


def bag(n=N, features=F, seed=0, unit="um", section=False):
    g = torch.Generator().manual_seed(seed)
    return Bag(
        features=torch.randn(n, features, generator=g),
        coords=400 * torch.rand(n, 2, generator=g),
        unit=unit,
        bag_id="a",
        section=torch.arange(n) % 2 if section else None,
    )


def model(name="das-mil", seed=3, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    relative = {"distance_scale": 250.0, "unit": "um"}
    if name == "transmil":
        options["features"] = 16  # as published it has 512, far too slow for a test
    if name == "sa-alibi":
        options = {"heads": 2} | options
    if name == "slide-transformer":
        options |= {"layers": 1, "heads": 2, "head_features": 8}
    options = SMALL.get(name, {}) | options
    made = create_model(name, in_features=F, **relative, **options).to(dtype).eval()
    if name in EXACT and name not in STEEP:
        with torch.no_grad():
            for p in made.parameters():  # larger than at the start, so that attention is far from uniform
                p.mul_(2.0)
    return made


def forward(m, b):
    p = next(m.parameters())
    return m(b.features.to(p), b.coords.to(p), section=b.section).logit.detach()


OPTIONS = [
    {"embeddings": e, "heads": h, "layers": layers, "pooling": pooling, "self_pair": s}
    for e, h, layers, pooling, s in itertools.product(
        ["", "k", "kq", "v", "kqv"], [1, 3], [1, 2], ["max", "mean", "sum"], [True, False]
    )
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_contributions_and_bias_sum_to_the_logit(options):
    m, b = model(**options), bag(section=options["heads"] == 3)
    e = explain(m, b)
    logit = float(forward(m, b))
    assert e.method == "exact"
    assert e.logit == pytest.approx(logit, abs=1e-10)
    assert float(e.contributions.sum()) + e.bias == pytest.approx(logit, abs=1e-10)
    assert float(e.scores["taken"].sum()) + e.bias == pytest.approx(logit, abs=1e-10)
    assert e.bias == float(m.classifier.bias.detach())
    if "v" not in options["embeddings"]:
        assert e.distance_share == 0
        assert not e.distance_part.any()
    else:
        assert 0 < e.distance_share < 1
    # All pairs of the last layer sum to the logit as well (ask for more pairs than there are).
    if options["layers"] == 1:
        every = explain(m, b, top=10**6).pairs
        assert sum(p.contribution for p in every) + e.bias == pytest.approx(logit, abs=1e-10)
        assert sum(p.distance_part for p in every) == pytest.approx(float(e.distance_part.sum()), abs=1e-10)
        ends, distance, looked_at = torch.zeros(3, N, dtype=torch.float64)
        for p in every:
            for end in (p.i, p.j):
                ends[end] += p.contribution / 2
                distance[end] += p.distance_part / 2
            looked_at[p.j] += p.contribution
        torch.testing.assert_close(e.contributions, ends, rtol=0, atol=1e-10)
        torch.testing.assert_close(e.distance_part, distance, rtol=0, atol=1e-10)
        torch.testing.assert_close(e.scores["taken"], looked_at, rtol=0, atol=1e-10)


def test_two_layers_agree_with_the_dense_matrices():
    """With both attention matrices held, z'' = A2 A1 x W1 W2 is linear, so gradient times input is the account."""
    m, b = model(layers=2, embeddings="kq"), bag()
    e = explain(m, b)
    account = Account(m, b)
    dense = []
    for layer in account.structure.layers:
        dense.append(torch.stack([layer.rows(h, torch.arange(N)).weights for h in range(layer.heads)])[0].detach())
    x = b.features.double().clone().requires_grad_()
    w1, w2 = (layer.value.weight for layer in m.aggregator.layers)
    z = dense[1] @ (dense[0] @ (x @ w1.T)) @ w2.T
    logit = m.classifier(z.amax(0))[0]
    (gradient,) = torch.autograd.grad(logit, x)
    torch.testing.assert_close(e.scores["taken"], (gradient * x).sum(1).detach(), rtol=0, atol=1e-10)
    # The same as pairs of the first layer, half to each end.
    first = (dense[0] @ (x @ w1.T)).detach().requires_grad_()
    (to_first,) = torch.autograd.grad(m.classifier((dense[1] @ first @ w2.T).amax(0))[0], first)
    pairs = dense[0] * (to_first @ (x @ w1.T).T).detach()
    torch.testing.assert_close(e.contributions, (pairs.sum(0) + pairs.sum(1)) / 2, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", EXACT)
def test_float32_sums_are_right_to_one_part_in_100000(name):
    m, b = model(name, dtype=torch.float32), bag(n=300)
    e = explain(m, b)
    assert float(e.contributions.double().sum()) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-5)
    assert abs(e.residual) < 1e-5


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("target", [None, 0, 3])
def test_every_class_has_its_own_account(name, target):
    m, b = model(name, n_classes=4), bag()
    e = explain(m, b, target=target)
    logits = forward(m, b)
    assert e.target == (int(logits.argmax()) if target is None else target)
    assert e.logit == pytest.approx(float(logits[e.target]), abs=1e-10)
    assert float(e.contributions.sum()) + e.bias == pytest.approx(e.logit, abs=1e-10)


def test_class_zero_of_two_is_the_negative():
    m, b = model(), bag()
    one, zero = explain(m, b), explain(m, b, target=0)
    assert zero.logit == pytest.approx(-one.logit, abs=1e-12)
    torch.testing.assert_close(zero.contributions, -one.contributions, rtol=0, atol=1e-12)
    torch.testing.assert_close(zero.scores["pairs"], one.scores["pairs"], rtol=0, atol=1e-12)


def test_attention_models_give_their_attention():
    b = bag()
    ab = model("ab-mil")
    e = explain(ab, b)
    a = ab(b.features.double(), b.coords.double()).instance_scores
    torch.testing.assert_close(e.scores["attention"], a.detach(), rtol=0, atol=1e-12)
    x = b.features.double()
    torch.testing.assert_close(e.contributions, (a * (x @ ab.classifier.weight[0])).detach(), rtol=0, atol=1e-12)
    das = explain(model(heads=3), b)
    assert float(das.scores["attention"].sum()) == pytest.approx(1, abs=1e-12)
    assert "attention" not in explain(model(), b, attention=False).scores


def test_max_pool_gives_each_feature_to_its_winner():
    m, b = model("max-pool"), bag()
    e = explain(m, b)
    x, w = b.features.double(), m.classifier.weight[0].detach()
    expected = torch.zeros(N, dtype=torch.float64)
    for f in range(F):
        i = int(x[:, f].argmax())
        expected[i] += w[f] * x[i, f]
    torch.testing.assert_close(e.contributions, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("section", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"name": "sa", "bias": "linear", "bias_init": 2.0}, {"name": "sa", "radius": 120.0},
        {"name": "sa", "bias": "gaussian", "bias_init": [0.3, 1.0], "heads": 2},
        {"bias": "cauchy", "radius": 200.0, "layers": 2}, {"bias": "bins", "self_pair": False},
        {"name": "sa-alibi", "heads": 2, "step": 20.0, "radius": 150.0},
        {"name": "sa-rope", "heads": 2, "pooling": "mean"},
    ],
    ids=str,
)  # fmt: skip
def test_bias_radius_and_rotary_positions_split_exactly(options, section):
    given = {"out_features": 6} | options
    m, b = model(**given), bag(section=section)
    e = explain(m, b, top=10**6)
    assert e.method == "exact"
    assert float(e.contributions.sum()) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-10)
    assert sum(p.contribution for p in e.pairs) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-10)
    if "radius" in options:  # nothing comes from farther away
        assert all(p.contribution == 0 for p in e.pairs if p.distance is None or p.distance > options["radius"])
    torch.testing.assert_close(e.scores["attention"].sum(), torch.ones((), dtype=e.scores["attention"].dtype))


def test_learned_biases_as_lengths():
    assert model("sa").learned_biases() == []
    (row,) = create_model("sa", in_features=F, bias="gaussian", bias_init=0.5, distance_scale=200.0).learned_biases()
    assert (row["bias"], row["unit"]) == ("gaussian", "um")
    assert row["length"] == pytest.approx(100.0)
    transformer = create_model("slide-transformer", in_features=F, layers=2, heads=2, head_features=4, step=256.0)
    rows = transformer.learned_biases()
    assert [(r["layer"], r["head"]) for r in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert rows[0]["slope"] == pytest.approx(2**-4 / 256)
    assert len(create_model("sa", in_features=F, bias="bins").learned_biases()[0]["table"]) == 16


def told(name: str, **options) -> list[str]:
    made = create_model(name, in_features=F, **options)
    return told_distances(made.learned_biases(), made.config, made.unit)


def test_what_a_bias_and_a_radius_say_in_micrometres():
    assert told("sa") == told("das-mil") == []
    linear = {"bias": "linear", "bias_init": 2.0, "distance_scale": 100.0}  # 2 / 100 um: half every ln(2) * 50 um
    assert told("sa", **linear, radius=250.0) == [
        "A weight halves every 34.7 µm of distance.",
        "Instances more than 250 µm apart do not see each other.",
    ]
    assert told("sa", bias="gaussian", bias_init=0.5, distance_scale=200.0) == [
        "A weight is half as large at 118 µm (gaussian, length 100 µm)."
    ]
    assert told("sa", bias="cauchy", bias_init=[0.5, 1.0], heads=2, out_features=6, distance_scale=200.0) == [
        "A weight is half as large at 100 to 200 µm (cauchy, length 100 to 200 µm) (2 heads)."
    ]
    assert told("slide-transformer", layers=2, heads=2, head_features=4, step=256.0) == [
        f"Layer {layer}: a weight halves every 2,840 to 45,400 µm of distance (2 heads)." for layer in (0, 1)
    ]
    bins = create_model("sa", in_features=F, bias="bins", bias_init=0.0, distance_scale=160.0)
    bins.aggregator.layers[0].bias_table.data[0, 3] = 0.693147
    bins.aggregator.layers[0].bias_table.data[0, 5] = -0.693147
    assert told_distances(bins.learned_biases(), bins.config, bins.unit) == [
        "A weight at 30 to 40 µm is 4 times that at 50 to 60 µm."
    ]
    flat = told("sa", bias="linear", bias_init=[0.0, -1.0], heads=2, out_features=6)
    assert flat == ["A weight does not fall with the distance in 2 of 2 heads."]


@pytest.mark.parametrize("name", list_models())
def test_integrated_gradients_are_complete(name):
    m, b = model(name), bag()
    e = explain(m, b, method="integrated-gradients")
    empty = Bag(torch.zeros(N, F), b.coords, "um", "empty")
    assert e.bias == pytest.approx(float(forward(m, empty)), abs=1e-12)
    assert e.logit == pytest.approx(float(forward(m, b)), abs=1e-12)
    assert float(e.contributions.sum()) + e.bias + e.residual == pytest.approx(e.logit, abs=1e-9)
    if name not in JUMP:
        assert abs(e.residual) <= 0.01 * max(1, abs(e.logit - e.bias))


def test_integrated_gradients_of_a_linear_model_are_its_exact_split():
    m, b = model("mean-pool"), bag()
    torch.testing.assert_close(
        explain(m, b, method="integrated-gradients").contributions, explain(m, b).contributions, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("embeddings", ["", "kq", "kqv"])
@pytest.mark.parametrize("self_pair", [True, False])
@pytest.mark.parametrize("qk_twice", [True, False])
def test_binned_distances_split_exactly(heads, embeddings, self_pair, qk_twice):
    m = model("disc-rel-sa", heads=heads, embeddings=embeddings, self_pair=self_pair, qk_twice=qk_twice, bins=5)
    b = bag(section=True)
    e = explain(m, b, top=10**6)
    assert float(e.contributions.sum()) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-10)
    assert sum(p.contribution for p in e.pairs) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-10)
    assert (e.distance_share > 0) == ("v" in embeddings)
    assert all(p.phi is None for p in e.pairs)


@pytest.mark.parametrize("name", sorted(set(list_models()) - set(EXACT)))
def test_other_models_are_explained_by_integrated_gradients(name):
    m, b = model(name), bag()
    e = explain(m, b)
    assert e.method == "integrated-gradients"
    assert e.logit == pytest.approx(float(forward(m, b)), abs=1e-10)
    with pytest.raises(InputError, match="has no exact split"):
        explain(m, b, method="exact")


@pytest.mark.parametrize("section", [False, True])
def test_partners_are_the_strongest_weights_of_the_row(section):
    m, b = model(heads=2, out_features=6), bag(section=section)
    account = Account(m, b)
    a = account.structure.layers[-1]
    from dasmil.ops import das_attention

    _, alpha = das_attention(
        a.query, a.key, a.value, a.coords, theta=a.theta, beta=a.beta, key_embed=a.key_embed, query_embed=a.query_embed,
        value_embed=a.value_embed, scale=a.scale, distance_scale=a.distance_scale, section=a.section,
        return_weights=True, backend="reference",
    )  # fmt: skip
    found = partners(m, b, 4, top=5)
    expected = alpha[:, 4].flatten().sort(descending=True).values[:5]
    assert [p.weight for p in found] == pytest.approx(expected.tolist(), abs=1e-12)
    for p in found:
        assert p.weight == pytest.approx(float(alpha[p.head, 4, p.j].detach()), abs=1e-12)
        assert p.contribution is None
        if section and (p.j - 4) % 2:
            assert (p.distance, p.phi) == (None, None)
        else:
            d = float(torch.dist(b.coords[4].double(), b.coords[p.j].double()))
            assert p.distance == pytest.approx(d, abs=1e-9)
            x = (d / 250.0 - float(a.theta[p.head])) * float(a.beta[p.head])
            assert p.phi == pytest.approx(float(torch.sigmoid(torch.tensor(x))), abs=1e-6)


def test_partners_of_a_winning_row_carry_their_contributions():
    m, b = model(), bag()
    account = Account(m, b)
    e = account.explain(top=10**6)
    known = {(p.i, p.j, p.head): p.contribution for p in e.pairs}
    winner = e.pairs[0].i
    for p in account.partners(winner, top=N):
        assert p.contribution == pytest.approx(known[winner, p.j, p.head], abs=1e-12)
    # What explains the row comes first: the largest parts, not the largest weights.
    of_row = sorted((abs(value) for (i, _, _), value in known.items() if i == winner), reverse=True)[:3]
    assert [abs(p.contribution) for p in account.partners(winner, top=3)] == pytest.approx(of_row, abs=1e-12)
    by_weight = sorted(account.partners(winner, top=N), key=lambda p: -p.weight)
    assert [p.j for p in by_weight[:3]] != [p.j for p in account.partners(winner, top=3)]
    loser = next(i for i in range(N) if i not in {p.i for p in e.pairs})
    assert all(p.contribution == 0 for p in account.partners(loser))


def test_public_name_is_the_verb():
    m, b = model(), bag()
    assert dasmil.explain(m, b).logit == pytest.approx(float(forward(m, b)), abs=1e-10)
    assert dasmil.explain(m, b, target=0).target == 0


def test_wrong_fits_have_one_clear_message():
    m = model()
    with pytest.raises(InputError, match=r"features of shape \(7,\).*trained on \(6,\)"):
        explain(m, bag(features=7))
    with pytest.raises(InputError, match=r"coordinates in px.*measures in um"):
        explain(m, bag(unit="px"))
    explain(model("max-pool"), bag(unit="px"))  # no positions, so the unit does not matter
    with pytest.raises(InputError, match=r"target is class 2.*0 to 1"):
        explain(m, bag(), target=2)
    with pytest.raises(InputError, match=r"unknown method 'exakt'.*'exact'"):
        explain(m, bag(), method="exakt")
    with pytest.raises(InputError, match=r"instance 9 does not exist.*0 to 8"):
        partners(m, bag(), 9)
    with pytest.raises(InputError, match="max-pool has no attention between instances"):
        partners(model("max-pool"), bag(), 0)


@pytest.mark.parametrize("name", list_models())
def test_nan_features_are_one_clear_error(name: str) -> None:
    spoiled = bag()
    spoiled.features[2, 1] = float("nan")
    with pytest.raises(DataError, match="bag 'a': 1 of 9 instances have NaN or infinite features"):
        explain(model(name), spoiled)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("theta", [-3.0, 0.4])
def test_no_share_comes_from_distance_where_phi_is_the_same_at_every_distance(theta, layers):
    """phi of theta -3, beta 20 is 1 at every distance: its embedding of the values is a constant, not a distance."""
    m, b = model(embeddings="kqv", layers=layers, theta_init=theta, beta_init=20.0), bag()
    with torch.no_grad():
        for layer in m.aggregator.layers:
            layer.theta.fill_(theta)
            layer.beta.fill_(20.0)
    e = explain(m, b, top=10**6)
    assert float(e.contributions.sum()) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-10)
    assert float(e.scores["taken"].sum()) + e.bias == pytest.approx(float(forward(m, b)), abs=1e-10)
    uses = theta > 0
    assert (e.distance_share > 0) == uses
    assert bool(e.distance_part.any()) == ("distance" in e.scores) == ("distance" in e.sums) == uses
    assert any(p.distance_part for p in e.pairs) == any(p.phi is not None for p in e.pairs) == uses


def test_pairs_are_added_up_by_distance_only_where_the_model_can_use_it():
    assert "distance" not in explain(model("sa"), bag()).sums
    for name in ("das-mil", "sa-alibi", "sa-rope", "disc-rel-sa"):
        assert "distance" in explain(model(name, **({"hidden": 8} if name == "sa-rope" else {})), bag()).sums
