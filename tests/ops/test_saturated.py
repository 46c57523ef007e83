"""Where the softmax saturates: what float32 still promises, as this operator's README states it."""

from __future__ import annotations

import importlib

import pytest
import torch

import dasmil
from dasmil.ops import das_attention
from tests.baselines.rare_pairs import rare_pairs

native = importlib.import_module("dasmil.ops.das_attention.native")
needs_kernel = pytest.mark.skipif(not native.available(), reason="the kernel was not built: no C++ compiler")


def saturated(problem, **options):
    """Logits in the thousands: almost every row gives all its weight to one column."""
    case = problem(40, lead=(2,), phi="identity", **options)
    case.coords = (case.coords * 5000).round()
    case.tensors["beta"] = torch.ones(2, dtype=torch.float64)
    return case


def test_chunked_is_as_exact_as_plain_float32(problem):
    case = saturated(problem)
    exact, plain, found = (
        case.run("reference"),
        case.run("reference", torch.float32),
        case.run("chunked", torch.float32),
    )
    for name, tensor in exact.items():
        largest = tensor.abs().max()
        own = (plain[name] - tensor).abs().max() / largest
        assert (found[name] - tensor).abs().max() / largest <= 4 * own + 1e-5, name


@needs_kernel
@pytest.mark.parametrize("options", [{}, {"section": True}, {"dropout_p": 0.3}, {"mask": True}, {"self_pair": False}])
def test_gradients_of_saturated_rows_are_as_exact_as_plain_float32(problem, options):
    """The native backend leaves them to chunked, dropout and all."""
    case = saturated(problem, **options)
    exact, plain, found = (
        case.run("reference"),
        case.run("reference", torch.float32),
        case.run("native", torch.float32),
    )
    assert set(found) == set(exact)
    for name, tensor in exact.items():
        largest = tensor.abs().max().clamp(min=1e-6)
        own = (plain[name] - tensor).abs().max() / largest
        assert (found[name] - tensor).abs().max() / largest <= 4 * own + 1e-5, name


@needs_kernel
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_one_instance_tells_queries_and_keys_nothing(problem, size):
    case = problem(1, lead=(2,))
    case.tensors["value"] = size * case.tensors["value"]
    found = case.run("native", torch.float32)
    for name in ("query", "key", "key_embed", "query_embed"):
        assert not found[name].any(), name
    assert found["value"].any()


@needs_kernel
@pytest.mark.parametrize("shape", [(0, 1, 4), (2, 0, 4)])
def test_nothing_to_compute_has_empty_gradients(shape):
    heads = shape[1]
    query, key, value = (torch.zeros(*shape, 3, requires_grad=True) for _ in range(3))
    theta, beta = torch.ones(heads, requires_grad=True), torch.ones(heads, requires_grad=True)
    embeds = {name: torch.ones(heads, 2, 3, requires_grad=True) for name in ("key_embed", "query_embed", "value_embed")}
    coords = torch.zeros(shape[0], shape[2], 2)
    options = {"theta": theta, "beta": beta, "scale": 1.0, "distance_scale": 1.0, "phi": "identity", **embeds}
    out = das_attention(query, key, value, coords, **options, backend="native")
    assert isinstance(out, torch.Tensor)
    for gradient, leaf in zip(torch.autograd.grad(out.sum(), [query, theta]), [query, theta], strict=True):
        assert gradient.shape == leaf.shape
        assert not gradient.any()


@needs_kernel
def test_ordinary_logits_stay_with_the_kernel(problem, monkeypatch):
    """Training too: only what saturates is left to chunked."""
    asked = []
    judge = native.saturates

    def listen(*given):
        asked.append(judge(*given))
        return asked[-1]

    monkeypatch.setattr(native, "saturates", listen)
    problem(40, lead=(2,)).run("native", torch.float32)
    dasmil.fit("das-mil", rare_pairs(32), epochs=3, starts=2, restarts=0, progress=False)
    assert len(asked) > 30
    assert not any(asked)
    saturated(problem).run("native", torch.float32)
    assert asked[-1]


@pytest.fixture
def kernel_alone(monkeypatch):
    """The kernel computes every backward pass."""
    monkeypatch.setattr(native, "saturates", lambda *_: False)


@needs_kernel
@pytest.mark.usefixtures("kernel_alone")
@pytest.mark.parametrize("options", [{}, {"section": True}, {"dropout_p": 0.3}])
def test_the_kernel_keeps_its_bound(problem, options):
    """dL/de is exact to a few roundings of |dz| |v|; the gradients inherit that, times what e depends on."""
    case = saturated(problem, **options)
    exact, found = case.run("reference"), case.run("native", torch.float32)
    t = case.tensors
    size = 2e-6 * float(
        (
            case.d_out.norm(dim=-1).amax(-1)
            * (t["value"].norm(dim=-1).amax(-1) + 1e4 * t["value_embed"].norm(dim=-1).amax(-1))
        ).max()
    )
    phi = float(torch.cdist(case.coords, case.coords).max())
    bound = {
        "query": 0.4 * (t["key"].norm(dim=-1).max() + phi * t["key_embed"].norm(dim=-1).max()),
        "key": 0.4 * 40 * (t["query"].norm(dim=-1).max() + phi * t["query_embed"].norm(dim=-1).max()),
    }
    for name, factor in bound.items():
        assert (found[name] - exact[name]).abs().max() <= size * factor, name
    for name in ("output", "value", "value_embed"):  # no difference is taken for these
        torch.testing.assert_close(
            found[name].double(), exact[name], rtol=1e-4, atol=1e-5 * float(exact[name].abs().max())
        )


@needs_kernel
@pytest.mark.usefixtures("kernel_alone")
def test_weights_of_large_logits_sum_to_one_in_the_backward_pass_too(problem):
    """The gradient of the values under ones is the sum of the weights that the backward pass computes again."""
    case = problem(50, absent=("theta", "beta", "key_embed", "query_embed", "value_embed"), d=8, o=1)
    case.tensors["query"] = 4096 * torch.ones_like(case.tensors["query"])
    case.tensors["key"] = 64 + case.tensors["key"] / 4096  # logits near 850,000 that differ by a few
    case.d_out = torch.ones_like(case.d_out)
    weights = case.run("native", torch.float32)["value"]
    assert abs(float(weights.sum()) / 50 - 1) < 1e-5


def sizes_of_terms(case):
    """What each gradient is the sum of, in absolute values: p (|dz| |v|, and its mean) times what moves a logit."""
    t = {name: tensor.detach() for name, tensor in case.tensors.items()}
    far = torch.cdist(case.coords, case.coords).unsqueeze(-3) - t["theta"][..., None, None]
    phi = (far * t["beta"][..., None, None]).unsqueeze(-1)

    def rows(name):
        return t[name][..., 0, None, None, :], t[name][..., 1, None, None, :]

    def between(name):
        u, v = rows(name)
        return phi * u + (1 - phi) * v

    def parts(name):
        u, v = rows(name)
        return (phi * u).abs() + ((1 - phi) * v).abs()

    def both(name):
        u, v = rows(name)
        return u.abs() + v.abs()

    query, key, told = t["query"].unsqueeze(-2), t["key"].unsqueeze(-3), case.d_out.abs().unsqueeze(-2)
    logits = (query * (key + between("key_embed"))).sum(-1) + (key * between("query_embed")).sum(-1)
    weights = (0.4 * logits).softmax(-1)
    each = (told * (t["value"].abs().unsqueeze(-3) + parts("value_embed"))).sum(-1)
    moved = weights * (each + (weights * each).sum(-1, keepdim=True))
    w, query, key = 0.4 * moved.unsqueeze(-1), query.abs(), key.abs()
    bent = 0.4 * moved * (query * both("key_embed") + key * both("query_embed")).sum(-1)
    bent = bent + weights * (told * both("value_embed")).sum(-1)
    sizes = {
        "query": (w * (key + parts("key_embed"))).sum(-2),
        "key": (w * (query + parts("query_embed"))).sum(-3),
        "key_embed": torch.stack([(w * part * query).sum((-2, -3)) for part in (phi.abs(), (1 - phi).abs())], -2),
        "query_embed": torch.stack([(w * part * key).sum((-2, -3)) for part in (phi.abs(), (1 - phi).abs())], -2),
        "theta": (bent * t["beta"][..., None, None].abs()).sum((-1, -2)),
        "beta": (bent * far.abs()).sum((-1, -2)),
    }
    return {name: size.sum_to_size(t[name].shape) for name, size in sizes.items()}


@needs_kernel
@pytest.mark.usefixtures("kernel_alone")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("far", [1.0, 100.0, 5000.0])
def test_errors_are_a_few_roundings_of_the_terms_of_a_gradient(problem, seed, far):
    """Where the terms cancel, the exact gradient is smaller than that: then nothing in float32 could tell it."""
    case = problem(40, lead=(2,), phi="identity", seed=seed)
    case.coords = (case.coords * far).round()
    exact, found = case.run("reference"), case.run("native", torch.float32)
    for name, size in sizes_of_terms(case).items():
        roundings = (found[name] - exact[name]).abs().max() / (2**-24 * size.max())
        assert roundings < 4, name


@pytest.mark.skipif(not native.available(), reason="the kernel was not built: no C++ compiler")
@pytest.mark.parametrize("jump", [0.0, 40.0])
def test_values_up_to_1e15_do_not_overflow_the_kernel_and_larger_ones_not_chunked(jump):
    """A running sum may be 2^64 times its last size before the kernel takes a new shift: n |v| below 1.8e19 fits."""
    n = 600
    generator = torch.Generator().manual_seed(0)
    query, key = torch.ones(1, n, 1), torch.rand(1, n, 1, generator=generator)
    key[:, n // 2 :] += jump  # later tiles have logits that much larger
    value, coords = torch.randn(1, n, 3, generator=generator), torch.rand(n, 2, generator=generator)
    exact = das_attention(query.double(), key.double(), value.double(), coords.double(), scale=1.0, backend="reference")
    assert isinstance(exact, torch.Tensor)
    for backend, size in (("native", 1e15), ("chunked", 1e15), ("chunked", 1e37)):
        found = das_attention(query, key, size * value, coords, scale=1.0, backend=backend)
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found.double() / size, exact, rtol=1e-4, atol=1e-6)
