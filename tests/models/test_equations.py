"""Each model against a few lines that compute its equations another way, in float64, for a bag of ten instances."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dasmil import create_model
from dasmil.models import MILModel
from dasmil.ops import discrete_attention

N, FEATURES, SCALE = 10, 8, 100.0
Parameters = dict[str, Tensor]
Equation = Callable[[Parameters, Tensor, Tensor], Tensor]


def bag(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, FEATURES, generator=generator, dtype=torch.float64)
    return features, torch.rand(n, 2, generator=generator, dtype=torch.float64) * 90


def make(name: str, **options: Any) -> MILModel:
    torch.manual_seed(4)
    return create_model(name, in_features=FEATURES, distance_scale=SCALE, **options).double().eval()


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", torch.zeros(()))


def classify(p: Parameters, z: Tensor) -> Tensor:
    return linear(p, "classifier", z)[0]


def distances(c: Tensor) -> Tensor:
    return torch.tensor([[math.dist(a, b) / SCALE for b in c.tolist()] for a in c.tolist()], dtype=torch.float64)


def max_pool(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    return classify(p, torch.stack([column.max() for column in x.T]))


def mean_pool(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    return classify(p, sum(x[i] for i in range(N)) / N)  # pyright: ignore[reportArgumentType]


def ab_mil(p: Parameters, x: Tensor, c: Tensor, gated: bool = False) -> Tensor:
    total, z = 0.0, torch.zeros(FEATURES, dtype=torch.float64)
    for row in x:
        h = torch.tanh(linear(p, "aggregator.tanh", row))
        if gated:
            h = h / (1 + torch.exp(-linear(p, "aggregator.gate", row)))
        weight = torch.exp(linear(p, "aggregator.weight", h)[0])
        total, z = total + weight, z + weight * row
    return classify(p, z / total)


def gated_ab_mil(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    return ab_mil(p, x, c, gated=True)


def attention_row(
    p: Parameters, x: Tensor, i: int, b: Callable[[str, int, int], Tensor], layer: str = "aggregator.layers.0",
    qk: int = 1,
) -> Tensor:  # fmt: skip
    """Row i of eqs. (das:output), (das:compatibility:impl); b(which, i, j) is b_ij; q.k counts qk times."""
    q = linear(p, f"{layer}.query", x[i])
    keys, values = linear(p, f"{layer}.key", x), linear(p, f"{layer}.value", x)
    e = [qk * (q @ keys[j]) + q @ b("key", i, j) + keys[j] @ b("query", i, j) for j in range(len(x))]
    a = torch.softmax(torch.stack(e) / math.sqrt(x.shape[1]), 0)
    return torch.stack([a[j] * (values[j] + b("value", i, j)) for j in range(len(x))]).sum(0)


def nothing(which: str, i: int, j: int) -> Tensor:
    return torch.zeros((), dtype=torch.float64).expand(10 if which != "value" else FEATURES)


def sa(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    zero = {name: torch.zeros(p[f"aggregator.layers.0.{name}.weight"].shape[0]).double() for name in ("query", "value")}
    rows = [attention_row(p, x, i, lambda which, *_: zero["value" if which == "value" else "query"]) for i in range(N)]
    return classify(p, torch.stack(rows).max(0).values)


def sa_axial(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    encoded = x.clone()
    for i, (left, top) in enumerate(c.tolist()):
        for feature in range(FEATURES):
            angle = (left, top)[feature % 4 // 2] / 10_000 ** (4 * (feature // 4) / FEATURES)
            encoded[i, feature] += (math.sin, math.cos)[feature % 2](angle)
    return sa(p, encoded, c)


def sa_fourier(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    angle = c @ p["aggregator.encoding.frequency.weight"].T
    h = linear(p, "aggregator.encoding.hidden", torch.cat([torch.cos(angle), torch.sin(angle)], 1) / 4)
    h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    return sa(p, x + linear(p, "aggregator.encoding.output", h), c)


def das_mil(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    layer, delta = "aggregator.layers.0", distances(c)
    theta, beta = p[f"{layer}.theta"].item(), p[f"{layer}.beta"].item()

    def b(which: str, i: int, j: int) -> Tensor:
        phi = 1 / (1 + math.exp(-(delta[i, j] - theta) * beta))
        u, v = p[f"{layer}.{which}_embed"][0]
        return phi * u + (1 - phi) * v

    return classify(p, torch.stack([attention_row(p, x, i, b) for i in range(N)]).max(0).values)


def disc_rel_sa(p: Parameters, x: Tensor, c: Tensor, qk: int = 1) -> Tensor:
    delta = distances(c)

    def b(which: str, i: int, j: int) -> Tensor:
        return p[f"aggregator.layers.0.{which}_embed"][0, min(9, round(9 * delta[i, j].item()))]

    return classify(p, torch.stack([attention_row(p, x, i, b, qk=qk) for i in range(N)]).max(0).values)


def gcn(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    a = distances(c) + torch.eye(N)
    normal = torch.diag(a.sum(1) ** -0.5) @ a @ torch.diag(a.sum(1) ** -0.5)
    for layer in ("aggregator.layers.0", "aggregator.layers.1"):
        x = torch.relu(normal @ x @ p[f"{layer}.lin.weight"].T + p[f"{layer}.bias"])
    return classify(p, x.max(0).values)


def gat(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    for layer in ("aggregator.layers.0", "aggregator.layers.1"):
        h = x @ p[f"{layer}.lin.weight"].T
        source, target = h @ p[f"{layer}.att_src"].flatten(), h @ p[f"{layer}.att_dst"].flatten()
        rows = [torch.softmax(F.leaky_relu(source + target[i], 0.2), 0) @ h for i in range(N)]
        x = torch.relu(torch.stack(rows) + p[f"{layer}.bias"])
    return classify(p, x.max(0).values)


def mil_gnn(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    def sage(name: str, own: Tensor, mean_of_neighbours: Tensor) -> Tensor:
        name = f"aggregator.{name}"
        h = mean_of_neighbours @ p[f"{name}.lin_rel.weight"].T + linear(p, f"{name}.lin_root", own)
        return F.leaky_relu(h)

    h = sage("embed1", x, (x.sum(0) - x) / (N - 1))
    pooled = h.sum(0)  # one cluster: every instance belongs to it wholly, and its only neighbour is itself
    z = sage("embed2", pooled, pooled)
    return linear(p, "classifier.lin2", F.leaky_relu(linear(p, "classifier.lin1", z)))[0]


def mab(p: Parameters, name: str, x: Tensor, y: Tensor) -> Tensor:
    name = f"aggregator.{name}"
    q, k, v = (linear(p, f"{name}.{part}", s) for part, s in (("query", x), ("key", y), ("value", y)))
    a = torch.exp(q @ k.T / math.sqrt(q.shape[1]))
    h = q + a / a.sum(1, keepdim=True) @ v
    return h + torch.relu(linear(p, f"{name}.output", h))


def set_transformer(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    x = mab(p, "blocks.0.mab", x, x)
    x = mab(p, "blocks.1.mab", x, x)
    return classify(p, mab(p, "pooling", p["aggregator.seed.vectors"], x)[0])


def iset_transformer(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    for block in ("blocks.0", "blocks.1"):
        gathered = mab(p, f"{block}.gather", p[f"aggregator.{block}.inducing.vectors"], x)
        x = mab(p, f"{block}.spread", x, gathered)
    return classify(p, mab(p, "pooling", p["aggregator.seed.vectors"], x)[0])


def transmil(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    """With 32 features: 8 heads of size 4, 16 landmarks; the 17 tokens are padded in front to 32 = 16 pairs."""

    def norm(name: str, t: Tensor) -> Tensor:
        t = (t - t.mean(1, keepdim=True)) / torch.sqrt(t.var(1, unbiased=False, keepdim=True) + 1e-5)
        return t * p[f"{name}.weight"] + p[f"{name}.bias"]

    def attend(name: str, t: Tensor) -> Tensor:
        padded = torch.cat([torch.zeros(32 - len(t), 32, dtype=torch.float64), norm(f"{name}.norm", t)])
        qkv = linear(p, f"{name}.attention.to_qkv", padded).view(32, 3, 8, 4)
        heads = []
        for head in range(8):
            q, k, v = qkv[:, 0, head] / 2, qkv[:, 1, head], qkv[:, 2, head]
            q_mean, k_mean = q.view(16, 2, 4).mean(1), k.view(16, 2, 4).mean(1)
            heads.append((torch.softmax(q @ k_mean.T, 1), torch.softmax(q_mean @ k_mean.T, 1), q_mean, k, v))
        middle = torch.stack([head[1] for head in heads])
        inverse = middle.mT / (middle.sum(-1).max() * middle.sum(-2).max())
        one = torch.eye(16, dtype=torch.float64)
        for _ in range(6):
            product = middle @ inverse
            inverse = inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product))) / 4
        out = []
        for head, (left, _, q_mean, k, v) in enumerate(heads):
            kernel = p[f"{name}.attention.res_conv.weight"][head].view(1, 1, 33)
            residual = F.conv1d(v.T.unsqueeze(1), kernel, padding=16)[:, 0].T
            out.append(left @ inverse[head] @ (torch.softmax(q_mean @ k.T, 1) @ v) + residual)
        return t + linear(p, f"{name}.attention.to_out.0", torch.cat(out, 1))[-len(t) :]

    h = torch.relu(linear(p, "aggregator.reduce", x))
    h = torch.cat([p["aggregator.token"][0], h, h[:6]])  # ten instances fill a square of 4 x 4 with six repeated
    h = attend("aggregator.layer1", h)
    square = h[1:].T.reshape(1, 32, 4, 4)
    for size in (7, 5, 3):
        name = f"aggregator.position.conv{size}"
        square = square + F.conv2d(
            h[1:].T.reshape(1, 32, 4, 4), p[f"{name}.weight"], p[f"{name}.bias"], padding=size // 2, groups=32
        )
    h = attend("aggregator.layer2", torch.cat([h[:1], square.reshape(32, 16).T]))
    return classify(p, norm("aggregator.norm", h)[0])


def sa_alibi(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    """Two heads with the slopes 2^-4 and 2^-8 for each 10 px."""
    q, k, v = (linear(p, f"aggregator.layers.0.{name}", x).chunk(2, 1) for name in ("query", "key", "value"))
    heads = [
        torch.softmax(q[h] @ k[h].T / math.sqrt(x.shape[1]) - slope * SCALE / 10 * distances(c), 1) @ v[h]
        for h, slope in enumerate((2**-4, 2**-8))
    ]
    return classify(p, torch.cat(heads, 1).max(0).values)


def sa_rope(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    """Twelve numbers: three pairs turn with the first axis, three with the second."""
    q, k, v = (linear(p, f"aggregator.layers.0.{name}", x) for name in ("query", "key", "value"))

    def turned(rows: Tensor) -> Tensor:
        out = []
        for row, place in zip(rows, c.tolist()):
            numbers = []
            for pair in range(6):
                wave = SCALE / 8 * 64 ** (pair % 3 / 2)
                angle = 2 * math.pi * place[pair // 3] / wave
                a, b = row[2 * pair], row[2 * pair + 1]
                numbers += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
            out.append(torch.stack(numbers))
        return torch.stack(out)

    weights = torch.softmax(turned(q) @ turned(k).T / math.sqrt(x.shape[1]), 1)
    return classify(p, (weights @ v).max(0).values)


def slide_transformer(p: Parameters, x: Tensor, c: Tensor) -> Tensor:
    """Two blocks of two heads of size 8; the class token comes first and has no place."""

    def norm(name: str, t: Tensor) -> Tensor:
        t = (t - t.mean(1, keepdim=True)) / torch.sqrt(t.var(1, unbiased=False, keepdim=True) + 1e-5)
        return t * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = torch.cat([p["aggregator.token"][None], linear(p, "aggregator.enter", x)])
    delta = F.pad(distances(c), (1, 0, 1, 0))
    for block in ("aggregator.blocks.0", "aggregator.blocks.1"):
        q, k, v = linear(p, f"{block}.qkv", norm(f"{block}.norm1", x)).chunk(3, 1)
        heads = []
        for head, slope in enumerate((2**-4 * SCALE / 10, 2**-8 * SCALE / 10)):
            own = slice(8 * head, 8 * head + 8)
            heads.append(torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(8) - slope * delta, 1) @ v[:, own])
        x = x + linear(p, f"{block}.out", torch.cat(heads, 1))
        h = linear(p, f"{block}.up", norm(f"{block}.norm2", x))
        x = x + linear(p, f"{block}.down", h * 0.5 * (1 + torch.erf(h / math.sqrt(2))))
    return classify(p, norm("aggregator.norm", x)[0])


SMALL: dict[str, dict[str, Any]] = {
    "transmil": {"features": 32},
    "sa-alibi": {"heads": 2, "step": 10.0},
    "slide-transformer": {"layers": 2, "heads": 2, "head_features": 8, "step": 10.0}
}  # fmt: skip

EQUATIONS: dict[str, Equation] = {
    "max-pool": max_pool, "mean-pool": mean_pool, "ab-mil": ab_mil, "gated-ab-mil": gated_ab_mil, "mil-gnn": mil_gnn,
    "mil-gnn-ds": mil_gnn, "gat": gat, "gcn": gcn, "set-transformer": set_transformer,
    "iset-transformer": iset_transformer, "sa": sa, "sa-axial": sa_axial, "sa-fourier": sa_fourier,
    "disc-rel-sa": disc_rel_sa, "transmil": transmil, "das-mil": das_mil, "sa-alibi": sa_alibi, "sa-rope": sa_rope,
    "slide-transformer": slide_transformer,
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
def test_equations(name: str) -> None:
    model = make(name, **SMALL.get(name, {}))
    features, coords = bag()
    features.requires_grad_()
    parameters = {key: value.detach() for key, value in model.named_parameters()}
    expected, found = EQUATIONS[name](parameters, features, coords), model(features, coords).logit
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(value, features)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


def test_disc_rel_sa_can_count_qk_twice_as_the_published_program_did() -> None:
    model, once = make("disc-rel-sa", qk_twice=True), make("disc-rel-sa")
    once.load_state_dict(model.state_dict())
    features, coords = bag()
    parameters = {key: value.detach() for key, value in model.named_parameters()}
    found = model(features, coords).logit
    torch.testing.assert_close(found, disc_rel_sa(parameters, features, coords, qk=2), rtol=1e-10, atol=1e-10)
    assert (found - once(features, coords).logit).abs() > 1e-4


def test_encoder_of_the_appendix() -> None:
    torch.manual_seed(0)
    encoder = create_model("max-pool", preset="mnist-collage").double().eval().encoder
    p = {key: value.detach() for key, value in encoder.named_parameters()}
    digits = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    h = F.max_pool2d(torch.relu(F.conv2d(digits, p["conv1.weight"], p["conv1.bias"])), 2)
    h = F.max_pool2d(torch.relu(F.conv2d(h, p["conv2.weight"], p["conv2.bias"])), 2)
    torch.testing.assert_close(encoder(digits), torch.relu(linear(p, "linear", h.flatten(1))))
    encoder.train()
    torch.manual_seed(1)
    channels = (encoder(digits) == encoder(digits)).all()
    assert not channels, "in training mode dropout must change the features from one call to the next"


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 2, "theta_init": [0.2, 0.6], "beta_init": [5.0, -8.0]},
        {"layers": 2, "out_features": 6, "pooling": "mean"},
        {"embeddings": "kq", "product_term": True, "self_pair": False},
        {"phi": "identity", "theta_init": 0.0, "beta_init": 1.0, "train_phi": False, "pooling": "sum"},
        {"embeddings": "v", "phi": "gaussian"},
    ],
    ids=["two heads", "two layers", "product term", "identity phi", "gaussian"],
)
def test_options_of_das_mil(options: dict[str, Any]) -> None:
    """Every head and layer of eqs. (das:output), (das:compatibility), written as loops over pairs."""
    model = make("das-mil", **options)
    x, coords = bag(5)
    section = torch.tensor([0, 0, 1, 1, 1])
    p: Parameters = {key: value.detach() for key, value in model.state_dict().items()}
    heads, delta = model.config["heads"], distances(coords)
    phi_of = {
        "sigmoid": lambda t: 1 / (1 + math.exp(-t)),
        "identity": lambda t: t,
        "gaussian": lambda t: math.exp(-t * t / 2),
    }[model.config["phi"]]
    z = x
    for number in range(model.config["layers"]):
        layer = f"aggregator.layers.{number}"
        joined = []
        for head in range(heads):
            theta, beta = p[f"{layer}.theta"][head].item(), p[f"{layer}.beta"][head].item()
            q, k, v = (linear(p, f"{layer}.{part}", z).chunk(heads, 1)[head] for part in ("query", "key", "value"))
            rows = []
            for i in range(5):
                scores, values = [], []
                for j in range(5):
                    related = section[i] == section[j] and (i != j or model.config["self_pair"])
                    phi = phi_of((delta[i, j].item() - theta) * beta)

                    def b(which: str, size: int) -> Tensor:
                        table = p.get(f"{layer}.{which}_embed")  # noqa: B023
                        if table is None or not related:  # noqa: B023
                            return torch.zeros(size, dtype=torch.float64)
                        return phi * table[head][0] + (1 - phi) * table[head][1]  # noqa: B023

                    b_key, b_query, b_value = b("key", 10), b("query", 10), b("value", v.shape[1])
                    e = (q[i] + b_query) @ (k[j] + b_key)
                    scores.append(e if model.config["product_term"] else e - b_query @ b_key)
                    values.append(v[j] + b_value)
                a = torch.softmax(torch.stack(scores) / math.sqrt(z.shape[1]), 0)
                rows.append(a @ torch.stack(values))
            joined.append(torch.stack(rows))
        z = torch.cat(joined, 1)
    pooled = {"max": z.max(0).values, "mean": z.mean(0), "sum": z.sum(0)}[model.config["pooling"]]
    found = model(x, coords, section=section).logit
    torch.testing.assert_close(found, classify(p, pooled), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("self_pair", [True, False])
def test_disc_rel_sa_in_chunks_is_exact(monkeypatch: pytest.MonkeyPatch, self_pair: bool) -> None:
    """Rows computed chunk after chunk, and again in the backward pass: the same output, gradients and dropout."""
    model = make("disc-rel-sa", heads=2, self_pair=self_pair, dropout=0.3).train()
    features, coords = bag(13)
    mask, section = torch.arange(13) < 11, torch.arange(13) % 3
    results = []
    for pairs in (10_000, 2 * 13 * 4):
        monkeypatch.setattr(discrete_attention, "PAIRS_AT_ONCE", pairs)
        for training in (False, True):
            model.train(training)
            torch.manual_seed(0)
            x = features.clone().requires_grad_()
            logit = model(x, coords, mask, section).logit
            results.append((logit, *torch.autograd.grad(logit, [x, *model.parameters()])))
    for whole, chunked in ((0, 2), (1, 3)):
        for a, b in zip(results[whole], results[chunked]):
            torch.testing.assert_close(b, a)
    assert (results[0][0] - results[1][0]).abs() > 1e-6, "dropout was not applied"


def test_pieces_of_the_mlp_without_gradients_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = create_model("slide-transformer", in_features=5, layers=2, heads=2, head_features=4).eval()
    features, coords = torch.randn(2, 23, 5), torch.rand(2, 23, 2)
    whole = model(features, coords).logit.detach()
    monkeypatch.setattr("dasmil.models.slide_transformer.PIECE", 7)
    kept = features.clone()
    with torch.no_grad():
        torch.testing.assert_close(model(features, coords).logit, whole, rtol=0, atol=1e-6)
    assert torch.equal(features, kept)
