"""Bias by distance, radius, tokens without a place: every backend equals the equations, output and every gradient."""

from __future__ import annotations

import importlib
import itertools
import os

import pytest
import torch

from dasmil.ops import das_attention

native = importlib.import_module("dasmil.ops.das_attention.native")
chunked = importlib.import_module("dasmil.ops.das_attention.chunked")
triton_backend = importlib.import_module("dasmil.ops.das_attention.triton_backend")
neighbours = importlib.import_module("dasmil.ops.das_attention.neighbours")
order = importlib.import_module("dasmil.ops.das_attention.order")

needs_kernel = pytest.mark.skipif(not native.available(), reason="the kernel was not built: no C++ compiler")
needs_two_sets = pytest.mark.skipif(
    not (native.has_instructions("avx2") and native.has_instructions("avx512")), reason="auto is AVX2 here, or nothing"
)
BACKENDS = [
    pytest.param("chunked", torch.float64, "auto", id="chunked-float64"),
    pytest.param("chunked", torch.float32, "auto", id="chunked-float32"),
    pytest.param("native", torch.float32, "auto", id="native", marks=needs_kernel),
    pytest.param("native", torch.float32, "portable", id="native-portable", marks=needs_kernel),
    pytest.param("native", torch.float32, "avx2", id="native-avx2", marks=needs_two_sets),
]
if os.environ.get("TRITON_INTERPRET") == "1":
    BACKENDS.append(pytest.param("triton", torch.float32, "auto", id="triton"))
BIASES = ("linear", "gaussian", "cauchy", "bins")
PLAIN = ("theta", "beta", "key_embed", "query_embed", "value_embed")


@pytest.fixture(autouse=True)
def instruction_set(request, monkeypatch):
    isa = request.node.callspec.params.get("isa", "auto") if hasattr(request.node, "callspec") else "auto"
    if isa != "auto":
        package, settings = importlib.import_module("dasmil.ops.das_attention"), native.Settings
        monkeypatch.setattr(package, "Settings", lambda *arguments: settings(*arguments, isa=isa))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks are left out in small bags too."""
    monkeypatch.setattr(native, "WORTH_ORDERING", 0)
    monkeypatch.setattr(triton_backend, "WORTH_ORDERING", 0)
    monkeypatch.setattr(chunked, "BLOCK", 300)
    monkeypatch.setattr(neighbours, "STRETCH", 4)
    monkeypatch.setattr(neighbours, "ROWS", 5)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("n", [1, 2, 63, 257])
def test_bias_at_odd_sizes(problem, assert_exact, n, bias, backend, dtype, isa):
    assert_exact(problem(n, bias=bias, absent=PLAIN), backend, dtype)
    if n < 64:
        assert_exact(problem(n, bias=bias, d=10, o=16, lead=(2, 3), seed=1), backend, dtype)


COMBINATIONS = [
    {"bias": bias, "radius": radius, **more}
    for (bias, radius), more in itertools.product(
        ((None, 0.6), ("linear", None), ("gaussian", 0.6), ("cauchy", 0.5), ("bins", 0.8)),
        (
            {"absent": PLAIN},
            {"tokens": 2},
            {"section": True, "tokens": 1, "mask": True, "lead": (2, 2)},
            {"self_pair": False, "product_term": True, "axes": 3, "distance_scale": 0.7},
            {"dropout_p": 0.3, "section": True, "absent": ("query_embed",)},
            {"dropout_p": 0.3, "mask": True, "tokens": 3, "absent": PLAIN, "lead": (2, 3), "shared": True},
            {"self_pair": False, "absent": ("key_embed", "query_embed"), "phi": "gaussian"},
        ),
    )
]


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize(
    "options", COMBINATIONS, ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items())
)
def test_combinations(problem, assert_exact, options, small_blocks, backend, dtype, isa):
    assert_exact(problem(53, **options), backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("radius", [0.0, 0.01, [0.1, 0.7], torch.tensor([float("inf"), 0.2]), 1e6])
@pytest.mark.parametrize("more", [{}, {"absent": PLAIN, "tokens": 1, "bias": "linear"}])
def test_radii(problem, assert_exact, radius, more, small_blocks, backend, dtype, isa):
    """None but itself, hardly anyone, one for each head, everyone."""
    assert_exact(problem(61, lead=(2,), radius=radius, **more), backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("bias", [None, *BIASES])
def test_all_in_one_place_and_two_far_clusters(problem, assert_exact, bias, small_blocks, backend, dtype, isa):
    case = problem(40, bias=bias, radius=0.5)
    case.coords[:] = 1.0
    assert_exact(case, backend, dtype)
    case.coords[:20] = 0.25 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0)).double()
    case.coords[20:] = 4096.0 + case.coords[:20].flip(0)
    case.coords = case.coords.float().double()
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_learned_slopes_at_zero_and_below(problem, assert_exact, backend, dtype, isa):
    case = problem(30, lead=(3,), bias="linear", absent=PLAIN)
    case.tensors["bias_scale"] = torch.tensor([0.0, -0.5, 2.0], dtype=torch.float64)
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_empty_bins_and_distances_on_an_edge(problem, assert_exact, backend, dtype, isa):
    case = problem(36, bias="bins", radius=2.0, distance_scale=0.5, absent=PLAIN)
    case.coords = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).double() / 2
    case.options["bias_edges"] = torch.tensor([0.25, 0.5, 1.0, 2.0])
    assert_exact(case, backend, dtype)
    assert case.run(backend, dtype)["bias_table"][0, 1] == 0  # no distance on this grid lies from 0.25 to 0.5
    case.options["bias_edges"] = torch.tensor([])
    case.tensors["bias_table"] = torch.zeros(1, 1, dtype=torch.float64)
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("axes", [2, 3])
def test_a_bag_that_is_really_cut_into_blocks(problem, assert_exact, axes, backend, dtype, isa):
    case = problem(700, radius=0.2, bias="linear", d=4, o=3, axes=axes, tokens=2, absent=PLAIN)
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize(("d", "o"), [(32, 16), (16, 7), (9, 32)])
@pytest.mark.parametrize(
    "more",
    [
        {"absent": PLAIN},
        {"bias": "linear", "tokens": 1, "absent": PLAIN, "dropout_p": 0.2},
        {"absent": ("key_embed",)},
        {"absent": ("query_embed",), "self_pair": False, "mask": True},
    ],
    ids=["lean", "tokens", "whole", "partial"],
)
def test_neighbours_with_rows_of_whole_vectors(problem, assert_exact, more, d, o, small_blocks, backend, dtype, isa):
    """The products of a radius take rows where they lie, each size in its own way."""
    assert_exact(problem(149, d=d, o=o, radius=0.5, scale=d**-0.5, **more), backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_the_order_of_the_instances_does_not_matter(problem, backend, dtype, isa):
    case = problem(600, radius=0.3, d=4, o=3, section=True, tokens=1)
    before = case.run(backend, dtype)
    shuffled = torch.randperm(600, generator=torch.Generator().manual_seed(1))
    for name in ("query", "key", "value"):
        case.tensors[name] = case.tensors[name][:, shuffled]
    case.coords, case.d_out = case.coords[shuffled], case.d_out[:, shuffled]
    case.options["section"] = case.options["section"][shuffled]
    after = case.run(backend, dtype)
    for name in ("output", "query", "key", "value"):
        torch.testing.assert_close(after[name], before[name][:, shuffled], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_weights_outside_are_exactly_zero(problem, backend):
    case = problem(45, radius=0.4, section=True, tokens=2, mask=True, absent=PLAIN)
    tensors = [case.tensors[name] for name in ("query", "key", "value")]
    out, weights = das_attention(*tensors, case.coords, **case.options, backend=backend, return_weights=True)
    section, mask = case.options["section"], case.options["mask"]
    placed = section >= 0
    distance = torch.cdist(case.coords, case.coords, compute_mode="donot_use_mm_for_euclid_dist")
    near = (distance <= 0.4) & (section[:, None] == section)
    seen = (near | ~placed | ~placed[:, None]) & mask | torch.eye(45, dtype=torch.bool)
    assert torch.equal(weights[0] > 0, seen)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    torch.testing.assert_close(out, weights @ tensors[2])


@pytest.mark.parametrize("backend", ["chunked", pytest.param("native", marks=needs_kernel)])
def test_learned_lengths_by_finite_differences(problem, backend):
    """A distance_scale that is learned reaches the bias too."""
    for bias in BIASES[:3]:
        case = problem(20, bias=bias, absent=PLAIN)

        def loss(length, case=case):
            case.options["distance_scale"] = length
            return float((case.run("reference")["output"] * case.d_out).sum())

        slope = (loss(0.7 + 1e-5) - loss(0.7 - 1e-5)) / 2e-5
        length = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        case.options["distance_scale"] = length
        case.run(backend, torch.float32 if backend == "native" else torch.float64)
        torch.testing.assert_close(float(length.grad), slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("absent", [(), ("value_embed",), PLAIN], ids=["embeddings", "no values", "plain"])
@pytest.mark.parametrize(("d", "o"), [(16, 32), (24, 11), (7, 40)])
def test_many_neighbours_of_every_width(problem, assert_exact, small_blocks, d, o, absent, backend, dtype, isa):
    """More neighbours than are worked on at a time; vectors of whole and of broken length; padding that sees."""
    for options in ({}, {"mask": True, "section": True, "tokens": 2, "dropout_p": 0.3}, {"bias": "linear"}):
        case = problem(150, d=d, o=o, radius=1.2, absent=absent, axes=3 if options else 2, **options)
        assert_exact(case, backend, dtype)


@pytest.mark.parametrize("bias", BIASES)
def test_gradients_of_the_reference(problem, bias):
    case = problem(5, lead=(2,), d=2, o=2, bias=bias, radius=0.9, tokens=1, absent=PLAIN)
    names = list(case.tensors)
    tensors = [tensor.requires_grad_() for tensor in case.tensors.values()]

    def output(coords, *tensors):
        q, k, v, *rest = tensors
        options = {k: v.double() if k == "bias_edges" else v for k, v in case.options.items()}
        return das_attention(q, k, v, coords, **dict(zip(names[3:], rest)), **options, backend="reference")

    assert torch.autograd.gradcheck(output, (case.coords.requires_grad_(), *tensors))


def test_neighbours_in_space_are_neighbours_in_the_order():
    """On a grid sixteen in a row fill a square; sections follow one another, tokens first, padding last."""
    grid = torch.cartesian_prod(torch.arange(32.0), torch.arange(32.0))
    shuffled = grid[torch.randperm(1024, generator=torch.Generator().manual_seed(0))]
    path = shuffled[order.space_filling_order(shuffled, None, None, 16)].view(64, 16, 2)
    assert (path.amax(1) - path.amin(1)).tolist() == [[3.0, 3.0]] * 64
    middles = path.mean(1)
    assert (middles.diff(dim=0).norm(dim=-1) == 4).all(), "one square borders on the next"
    cube = torch.cartesian_prod(*[torch.arange(8.0)] * 3).expand(2, 512, 3)
    leaves = cube[0][order.space_filling_order(cube, None, None, 8)].view(2, 64, 8, 3)
    assert (leaves.amax(2) - leaves.amin(2) == 1).all()
    section = torch.randint(-1, 3, (2, 300), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(300) % 7 > 0) | (section < 0)
    found = order.space_filling_order(torch.rand(2, 300, 2), mask, section, 16)
    kind = torch.where(mask, section, 3).gather(1, found)
    assert (kind.diff(dim=-1) >= 0).all()
    assert (found.sort(-1).values == torch.arange(300)).all()


@needs_kernel
def test_a_radius_costs_what_its_neighbours_cost(monkeypatch):
    """The kernel's scratch memory grows with n, and chunked looks at few pairs."""
    pairs = []
    monkeypatch.setattr(
        chunked, "_tile", lambda *a, take=chunked._tile: (t := take(*a), pairs.append(t.weights.numel()))[0]
    )
    n = 4000
    coords = torch.cartesian_prod(torch.arange(40.0), torch.arange(100.0))
    q, v = torch.randn(1, n, 4), torch.randn(1, n, 4)
    das_attention(q, q, v, coords, scale=0.5, radius=3.0, backend="chunked")
    assert sum(pairs) < n * n / 4
