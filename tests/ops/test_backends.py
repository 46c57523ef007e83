"""Every backend equals the equations: output and every gradient."""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dasmil.ops import das_attention

native = importlib.import_module("dasmil.ops.das_attention.native")
chunked = importlib.import_module("dasmil.ops.das_attention.chunked")

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
PHIS = ("sigmoid", "identity", "exponential", "gaussian")


@pytest.fixture(autouse=True)
def instruction_set(request, monkeypatch):
    isa = request.node.callspec.params.get("isa", "auto") if hasattr(request.node, "callspec") else "auto"
    if isa != "auto":
        settings = native.Settings
        package = importlib.import_module("dasmil.ops.das_attention")
        monkeypatch.setattr(package, "Settings", lambda *arguments: settings(*arguments, isa=isa))


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("n", [1, 2, 3, 63, 257])
def test_odd_sizes(problem, assert_exact, n, backend, dtype, isa):
    assert_exact(problem(n), backend, dtype)
    if n < 64:
        assert_exact(problem(n, d=10, o=16, lead=(2, 3), seed=1), backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {"mask": True}, {"section": True}, {"self_pair": False}, {"product_term": True}, {"axes": 3}, {"lead": (3,)},
        {"lead": (2, 3)}, {"lead": (2, 3), "shared": True}, {"lead": (2, 2, 2)}, {"lead": (2, 1, 2), "shared": True},
        {"absent": ("key_embed",)}, {"absent": ("query_embed",)}, {"absent": ("value_embed",)},
        {"absent": ("key_embed", "query_embed")}, {"absent": ("key_embed", "value_embed")},
        {"absent": ("query_embed", "value_embed")}, {"absent": ("key_embed", "query_embed", "value_embed")},
        {"absent": ("key_embed", "query_embed", "value_embed", "theta", "beta"), "section": True, "mask": True},
        {"distance_scale": 0.3}, {"d": 1, "o": 1}, {"d": 17, "o": 23}, {"dropout_p": 0.3},
        {"mask": True, "section": True, "self_pair": False, "product_term": True, "dropout_p": 0.3, "lead": (2, 2)},
        {"axes": 3, "section": True, "dropout_p": 0.3},
        {"mask": True, "self_pair": False, "absent": ("query_embed",), "dropout_p": 0.5},
        {"section": True, "absent": ("key_embed",), "product_term": True, "distance_scale": 2.0},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()),
)  # fmt: skip
def test_options(problem, assert_exact, options, backend, dtype, isa):
    assert_exact(problem(37, **options), backend, dtype)


@pytest.mark.parametrize(
    ("backend", "dtype", "isa"),
    [*BACKENDS, pytest.param("reference", torch.float64, "auto", id="reference"), ("auto", torch.float32, "auto")],
)
@pytest.mark.parametrize(
    "options", [{}, {"product_term": True, "section": True, "mask": True}, {"absent": ("query_embed",)}]
)
def test_learned_scales(problem, options, backend, dtype, isa):
    """Tensors give what numbers give, and every backend their gradients: those of finite differences."""
    case = problem(23, lead=(2, 2), **options)

    def loss(scale, distance_scale):
        case.options |= {"scale": scale, "distance_scale": distance_scale}
        return float((case.run("reference")["output"] * case.d_out).sum())

    step = 1e-5
    slopes = (
        (loss(0.4 + step, 0.7) - loss(0.4 - step, 0.7)) / (2 * step),
        (loss(0.4, 0.7 + step) - loss(0.4, 0.7 - step)) / (2 * step),
    )
    case.options |= {"scale": 0.4, "distance_scale": 0.7}
    expected = case.run(backend, dtype)
    scales = [torch.tensor(0.4, requires_grad=True), torch.tensor([0.7], dtype=torch.float64, requires_grad=True)]
    case.options |= dict(zip(("scale", "distance_scale"), scales))
    found = case.run(backend, dtype)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():  # 0.4 and 0.7 are rounded to float32 here
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
    for scale, slope in zip(scales, slopes):
        torch.testing.assert_close(float(scale.grad), slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.parametrize("more", [{}, {"section": True, "self_pair": False, "dropout_p": 0.2, "product_term": True}])
def test_phi(problem, assert_exact, phi, more, backend, dtype, isa):
    # Without a bound on phi the gradients of u and v are differences of larger sums: a rounding more on some CPUs.
    roundings = 4e-6 if phi == "identity" else 2e-6
    assert_exact(problem(33, lead=(2,), phi=phi, **more), backend, dtype, roundings=roundings)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("phi", PHIS)
def test_beta_zero_negative_and_steep(problem, assert_exact, phi, backend, dtype, isa):
    case = problem(40, lead=(4,), phi=phi)
    case.tensors["beta"] = torch.tensor([0.0, -8.0, 0.5, 5.0 if phi == "identity" else 300.0], dtype=torch.float64)
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_coordinates_far_from_the_origin(problem, assert_exact, backend, dtype, isa):
    case = problem(50, distance_scale=30.0)
    case.coords = (case.coords * 40).round() + 1e6
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_duplicate_points(problem, assert_exact, backend, dtype, isa):
    case = problem(30)
    case.coords[::3] = case.coords[0]
    assert_exact(case, backend, dtype)
    case.coords[:] = 1.0
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("last", [False, True])
def test_huge_logits(problem, assert_exact, last, backend, dtype, isa):
    """Logits of several hundred; in the second case the largest come last, after the sums have begun."""
    case = problem(400)
    case.tensors["query"] *= 25
    if last:
        case.tensors["key"][:, 300:] *= 20
        case.tensors["query"] /= 5
    assert_exact(case, backend, dtype, roundings=2e-5)  # a logit of 500 is known to 3e-5


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.parametrize("pattern", [0x7FC00000, 0x7FFFFFFF, 0x7FC00001, -1])
def test_a_nan_comes_through_whatever_its_bits_are(problem, pattern, phi, backend, dtype, isa):
    """PyTorch makes 0x7FFFFFFF of a NaN in half precision; an exponential took such bits for an exponent."""
    for name in ("query", "key", "value", "theta", "beta", "key_embed", "query_embed", "value_embed"):
        case = problem(20, lead=(2,), phi=phi)
        case.tensors[name].view(-1)[-1] = torch.tensor([pattern], dtype=torch.int32).view(torch.float32)[0]
        exact, found = case.run("reference"), case.run(backend, dtype)
        assert exact["output"].isnan().any()
        assert torch.equal(found["output"].isnan(), exact["output"].isnan()), name


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_leading_padding(problem, assert_exact, backend, dtype, isa):
    """The first tiles of columns may hold nothing but padding."""
    case = problem(450)
    case.options["mask"] = torch.arange(450) >= 431
    assert_exact(case, backend, dtype)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_non_contiguous_inputs(problem, backend, dtype, isa):
    case = problem(29, lead=(2, 3))
    exact = case.run("reference")
    for name, tensor in case.tensors.items():
        if tensor.ndim > 2:
            case.tensors[name] = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
            assert not case.tensors[name].is_contiguous()
    case.coords = torch.stack([case.coords, case.coords], -1)[..., 0]
    case.d_out = case.d_out.transpose(0, 1).contiguous().transpose(0, 1)
    for name, tensor in case.run(backend, dtype).items():
        torch.testing.assert_close(tensor.double(), exact[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_shared_parameters_broadcast_over_heads(problem, backend, dtype, isa):
    """theta and beta of one head serve three: the same as three equal ones."""
    case = problem(21, lead=(2, 3), shared=True)
    alike = problem(21, lead=(2, 3), shared=True)
    for name in ("theta", "beta"):
        case.tensors[name] = case.tensors[name][:1]
        alike.tensors[name] = case.tensors[name].expand(3)
    found, exact = case.run(backend, dtype), alike.run("reference")
    torch.testing.assert_close(found["output"].double(), exact["output"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["beta"].double(), exact["beta"].sum(0, keepdim=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backend", "dtype", "isa"), BACKENDS)
def test_moving_and_turning_the_coordinates_changes_nothing(problem, backend, dtype, isa):
    case = problem(45, lead=(2,))
    here = case.run(backend, dtype)
    angle = torch.tensor(0.7, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    case.coords = case.coords @ turn.T + 5.0
    for name, tensor in case.run(backend, dtype).items():
        torch.testing.assert_close(tensor, here[name], rtol=2e-4, atol=2e-5)
    case.coords = case.coords * 3
    assert (case.run(backend, dtype)["output"] - here["output"]).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["reference", "chunked", pytest.param("native", marks=needs_kernel)])
def test_half_precision_computes_in_float32(problem, backend, dtype):
    case = problem(65)
    case.tensors = {name: tensor.to(dtype).double() for name, tensor in case.tensors.items()}
    case.coords, case.d_out = case.coords.to(dtype).double(), case.d_out.to(dtype).double()
    whole = case.run(backend, torch.float32)
    half = case.run(backend, dtype)
    for name, tensor in half.items():
        assert tensor.dtype == dtype
        torch.testing.assert_close(tensor, whole[name].to(dtype), rtol=0, atol=1e-6)


def test_float64_coordinates_lose_no_digits(problem):
    """With float32 tensors, coordinates far away are rounded only after an offset is taken off."""
    case = problem(20)
    coords = torch.rand(20, 2, dtype=torch.float64)
    tensors = [case.tensors[name].float() for name in ("query", "key", "value")]
    rest = {name: case.tensors[name].float() for name in ("theta", "beta", "key_embed", "query_embed", "value_embed")}
    near = das_attention(*tensors, coords, **rest, scale=0.4)
    far = das_attention(*tensors, coords + 1e7, **rest, scale=0.4)
    torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("options", [{}, {"section": True, "mask": True, "dropout_p": 0.3, "product_term": True}])
def test_weights(problem, backend, options):
    """The weights that are returned are those that made the output, and gradients pass through them."""
    case = problem(31, lead=(2, 2), absent=("value_embed",), **options)
    q, k, v = (case.tensors[name].clone().requires_grad_() for name in ("query", "key", "value"))
    rest = {name: case.tensors[name] for name in ("theta", "beta", "key_embed", "query_embed")}
    torch.manual_seed(3)
    out, weights = das_attention(q, k, v, case.coords, **rest, **case.options, return_weights=True, backend=backend)
    torch.testing.assert_close(out, weights @ v)
    if not options:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 31, dtype=torch.float64))
    torch.manual_seed(3)
    other, expected = das_attention(
        q, k, v, case.coords, **rest, **case.options, return_weights=True, backend="reference"
    )
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(out, other)
    ours, theirs = (torch.autograd.grad(w.square().sum(), (q, k)) for w in (weights, expected))
    torch.testing.assert_close(ours, theirs)


@needs_kernel
def test_the_kernel_reads_no_memory_that_it_did_not_write(problem, monkeypatch):
    case = problem(201, lead=(2, 2), d=10, o=16, section=True, mask=True, dropout_p=0.1)
    plain = problem(201, d=10, o=16)
    clean = [case.run("native", torch.float32), plain.run("native", torch.float32)]
    made = []

    def poisoned(make):
        def full_of_nan(*arguments):
            tensor = make(*arguments)
            tensor.view(torch.uint8).fill_(0xFF) if tensor.dtype == torch.uint8 else tensor.fill_(float("nan"))
            made.append(tensor.numel())
            return tensor

        return full_of_nan

    for name in ("_scratch", "_empty", "_empty_like"):
        monkeypatch.setattr(native, name, poisoned(getattr(native, name)))
    for before, again in zip(clean, [case.run("native", torch.float32), plain.run("native", torch.float32)]):
        for name, tensor in again.items():
            assert torch.equal(tensor, before[name]), name
    assert len(made) >= 20


@needs_kernel
@pytest.mark.parametrize(
    "options", [{"lead": (1,)}, {"lead": (3, 2)}, {"lead": (1,), "dropout_p": 0.2, "section": True}]
)
def test_threads_agree(problem, options):
    case = problem(1000 if options["lead"] == (1,) else 150, d=10, o=16, **options)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            results.append(case.run("native", torch.float32))
        finally:
            torch.set_num_threads(1)
    for other in results[1:]:
        for name, tensor in other.items():
            torch.testing.assert_close(tensor, results[0][name], rtol=1e-5, atol=3e-6)


@needs_kernel
def test_memory_of_the_kernel_grows_with_n_not_with_its_square(monkeypatch):
    sizes = []
    monkeypatch.setattr(native, "_scratch", lambda size, make=native._scratch: (sizes.append(size), make(size))[1])
    for n in (2000, 4000):
        q, v = torch.randn(1, n, 10, requires_grad=True), torch.randn(1, n, 16, requires_grad=True)
        embed = torch.randn(1, 2, 10)
        das_attention(
            q, q, v, torch.rand(n, 2), theta=torch.ones(1), beta=torch.ones(1), key_embed=embed, scale=0.2
        ).sum().backward()
    assert sizes[2] < 2.1 * sizes[0]
    assert sizes[3] < 2.1 * sizes[1]
    assert sizes[3] < 100 * 4000 * 4


def test_chunked_never_makes_a_tensor_of_all_pairs(problem):
    n = 1500

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    Largest.size = max(Largest.size, tensor.numel())
            return out

    with Largest():
        problem(n, d=4, o=4).run("chunked", torch.float32)
    assert chunked.BLOCK // 2 < Largest.size <= chunked.BLOCK < n * n


def test_tall_blocks_and_batches_are_cut_alike(problem, monkeypatch):
    """Several blocks of rows, several bags to a block, and everything at once give the same."""
    for options in ({"lead": (3, 2)}, {"lead": (2,), "dropout_p": 0.4, "section": True}):
        case = problem(23, **options)
        results = []
        for block in (1 << 18, 23 * 23 * 2, 23 * 5, 7):
            monkeypatch.setattr(chunked, "BLOCK", block)
            results.append(case.run("chunked"))
        for other in results[1:]:
            for name, tensor in other.items():
                torch.testing.assert_close(tensor, results[0][name])


def test_autocast_does_not_reach_inside(problem):
    case = problem(40)
    expected = case.run("auto", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = case.run("auto", torch.float32)
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name])
