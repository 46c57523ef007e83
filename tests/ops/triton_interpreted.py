"""Run by test_triton.py in a process of its own with TRITON_INTERPRET=1: what the Triton kernels compute."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from dasmil.ops import das_attention

backend = importlib.import_module("dasmil.ops.das_attention.triton_backend")
trust = importlib.import_module("dasmil.ops.das_attention.triton_trust")
dropout = importlib.import_module("dasmil.ops.das_attention.dropout")
PLAIN = ("theta", "beta", "key_embed", "query_embed", "value_embed")
ALL = {
    "mask": True, "section": True, "self_pair": False, "product_term": True, "dropout_p": 0.3, "lead": (2, 1),
    "dropout_seed": 0xFEDCBA9_87654321,
}  # fmt: skip
CASES = {
    "one": {"n": 1},
    "two": {"n": 2, "axes": 3},
    "three": {"n": 3, "lead": (2,), "d": 1, "o": 1},
    "rest": {"n": 67, "d": 17, "o": 23},
    "all": {"n": 37, **ALL},
    "space": {"n": 37, "axes": 3, "phi": "gaussian", "self_pair": False},
    "exponential": {"n": 37, "phi": "exponential", "absent": ("query_embed",), "distance_scale": 0.3},
    "identity": {"n": 37, "phi": "identity", "absent": ("key_embed",), "section": True},
    "value": {"n": 37, "absent": ("key_embed", "query_embed"), "mask": True},
    "plain": {"n": 37, "absent": PLAIN, "section": True, "mask": True},
    "linear": {"n": 37, "bias": "linear", "absent": PLAIN, "dropout_p": 0.3, "dropout_seed": 1 << 31},
    "gaussian": {"n": 37, "bias": "gaussian", "radius": 0.6, "self_pair": False},
    "cauchy": {"n": 37, "bias": "cauchy", "radius": [0.5, 1.0], "tokens": 2, "lead": (2,), "distance_scale": 0.7},
    "bins": {"n": 37, "bias": "bins", "radius": 0.8, "section": True, "tokens": 1, "mask": True, "lead": (2, 1)},
}


@pytest.fixture
def few_tiles(monkeypatch):
    """The interpreter's time goes with the number of tiles."""
    for kernel, sizes in backend.BLOCKS.items():
        monkeypatch.setitem(backend.BLOCKS, kernel, dict.fromkeys(sizes, backend.Blocks(64, 64)))


@pytest.fixture(autouse=True)
def no_comparison(monkeypatch, request):
    """The comparison on first use would double the time; it has tests of its own."""
    if "first_use" not in request.node.name:
        monkeypatch.setattr(trust, "distrust", lambda *_: None)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_parity(problem, assert_exact, few_tiles, options):
    assert_exact(
        problem(**options), "triton", torch.float32, roundings=4e-6 if options.get("phi") == "identity" else 2e-6
    )


def test_steep_and_zero_beta(problem, assert_exact, few_tiles):
    case = problem(40, lead=(4,))
    case.tensors["beta"] = torch.tensor([0.0, -8.0, 0.5, 300.0], dtype=torch.float64)
    assert_exact(case, "triton", torch.float32)


def test_real_blocks_leading_padding_and_huge_logits(problem, assert_exact):
    """Several blocks of rows and columns as they are; the first ones hold nothing but padding."""
    case = problem(140)
    case.options["mask"] = torch.arange(140) >= 121
    case.tensors["query"] *= 25
    assert_exact(case, "triton", torch.float32, roundings=2e-5)


def test_stretches_outside_a_radius_are_left_out(problem, assert_exact, few_tiles, monkeypatch):
    monkeypatch.setattr(backend, "WORTH_ORDERING", 0)
    lists = []
    near_stretches = backend.near_stretches
    monkeypatch.setattr(backend, "near_stretches", lambda *a: (lists.append(near_stretches(*a)), lists[-1])[1])
    assert_exact(problem(190, radius=0.25, section=True, dropout_p=0.2), "triton", torch.float32)
    starts, near = lists[0]
    assert len(starts) == 4
    assert 3 < len(near) < 9


def test_nothing_and_what_is_behind_the_mask(few_tiles):
    """No bags at all, and NaN where the mask hides them."""
    none = torch.randn(0, 1, 5, 4)
    assert das_attention(none, none, none, torch.rand(5, 2), scale=1.0, backend="triton").shape == (0, 1, 5, 4)
    q, mask = torch.randn(1, 6, 4), torch.arange(6) < 4
    given = {"coords": torch.rand(6, 2), "scale": 1.0, "mask": mask, "backend": "triton"}
    clean = das_attention(q, q, q, **given)
    spoilt = q.masked_fill(~mask[:, None], float("nan")).requires_grad_()
    found = das_attention(spoilt, spoilt, q, **given)
    torch.testing.assert_close(found[:, :4], clean[:, :4])
    found[:, :4].sum().backward()
    assert spoilt.grad[:, :4].isfinite().all()


@pytest.mark.parametrize("seed", [5, 1 << 31, (1 << 63) - 1, 0xF2345678_9ABCDEF0 >> 1])
def test_dropout_bits(problem, few_tiles, seed):
    """With the identity as values the output is the weights: those of dropout.py and no others are 0."""
    n = 16
    q, k = torch.randn(2, 1, n, 4), torch.randn(2, 1, n, 4)
    value = torch.eye(n).expand(2, 1, n, n)
    out = das_attention(q, k, value, torch.rand(2, n, 2), scale=0.1, dropout_p=0.4, dropout_seed=seed, backend="triton")
    made = dropout.make_dropout(0.4, torch.tensor([seed]), 2, torch.device("cpu"))
    keep = made.keep(slice(0, 2), torch.arange(n), torch.arange(n), torch.zeros(1))
    assert torch.equal(out[:, 0] == 0, keep == 0)


def test_poisoned_memory(problem, few_tiles, monkeypatch):
    """Every tensor of a kernel lies between NaN, and outputs begin as NaN: the same numbers, and the NaN stay."""
    cases = [problem(70, **{**ALL, "lead": (1,)}), problem(35, bias="bins", radius=0.5)]
    clean = [case.run("triton", torch.float32) for case in cases]
    housed = []

    def house(tensor: torch.Tensor) -> torch.Tensor:
        guard = 256
        poison = float("nan") if tensor.dtype.is_floating_point else -(2**31) + 1
        room = torch.full((tensor.numel() + 2 * guard,), poison, dtype=tensor.dtype)
        housed.append((room, guard, tensor.numel()))
        return room[guard:-guard].view(tensor.shape)

    launch = backend.Call.launch

    def poisoned(call, name, items, tensors, **more):
        outputs = {"forward": 2, "columns": 3, "rows": 3}[name]
        moved = tuple(house(tensor) for tensor in tensors)
        for before, after in zip(tensors[:-outputs], moved):
            after.copy_(before)
        launch(call, name, items, moved, **more)
        for before, after in zip(tensors[-outputs:], moved[-outputs:]):
            before.copy_(after)

    monkeypatch.setattr(backend.Call, "launch", poisoned)
    monkeypatch.setattr(backend, "_empty", lambda like, *shape: torch.full(shape, float("nan")))
    for case, before in zip(cases, clean):
        for name, tensor in case.run("triton", torch.float32).items():
            assert torch.equal(tensor, before[name]), name
    assert len(housed) > 80
    for room, guard, size in housed:
        edge = torch.cat([room[:guard], room[guard + size :]])
        assert edge.isnan().all() if edge.dtype.is_floating_point else (edge == -(2**31) + 1).all()


# A text of the kernels, what it is changed to, and the case that finds it.
PLANTED = [
    ("pairs", "squared = x * x + y * y", "squared = x * x + y * y * 1.001", "rest"),
    ("pairs", "squared += z * z", "squared += z", "space"),
    ("pairs", "f - f * f", "f - f * f * f", "rest"),
    ("pairs", "tl.where(x > 0, -f, tl.where(x < 0, f, 0.0))", "-f", "exponential"),
    ("pairs", "slope = -shifted * beta * f", "slope = shifted * beta * f", "space"),
    ("pairs", "inside = column < n", "inside = column <= n", "rest"),
    ("pairs", "inside & (mask_c != 0)", "inside", "value"),
    ("pairs", "(section_r == section_c) & (section_r >= 0)", "section_r == section_c", "cauchy"),
    ("pairs", "m = row != column", "m = row == row", "space"),
    ("pairs", "seen = (seen & near) | ((row == column) & inside)", "seen = seen & near", "bins"),
    ("pairs", "(near & together) | ((section_r < 0) | (section_c < 0))", "near & together", "cauchy"),
    ("pairs", "e += g * g * gg", "e += g * gg", "all"),
    ("pairs", "0x846CA68B", "0x846CA68D", "all"),
    ("pairs", ">> 8).to(tl.int32)", ">> 7).to(tl.int32)", "all"),
    ("pairs", "(-0.5 * LOG2E)\n    elif BIAS", "-0.5\n    elif BIAS", "gaussian"),
    ("pairs", "slope = -delta", "slope = delta", "linear"),
    ("pairs", "2.0 / scale * (ratio / (1.0 + ratio))", "2.0 / scale * ratio", "cauchy"),
    ("pairs", "(item * planes + plane) * length + places", "plane * length + places", "all"),
    ("kernels", "total = total * shrink + tl.sum(p, 1)", "total = total + tl.sum(p, 1)", "blocks"),
    ("kernels", "sums * shrink[:, None]", "sums", "blocks"),
    ("kernels", "g_sum = g_sum * shrink", "g_sum = g_sum", "blocks"),
    ("kernels", "m_sum = m_sum * shrink + tl.sum(tl.where(m, p, 0.0), 1)", "m_sum = m_sum + tl.sum(p, 1)", "all"),
    ("kernels", "shift = tl.where(higher == float(\"-inf\"), 0.0, higher)", "shift = higher", "blocks"),
    ("kernels", "dv * LOG2E", "dv", "rest"),
    ("kernels", "dgc += tl.sum(w * g, 1)", "dgc += tl.sum(p * g, 1)", "rest"),
    ("kernels", "dc += tl.sum(tl.where(m, w, 0.0), 1)", "dc += tl.sum(w, 1)", "all"),
    ("kernels", "d_used += g * d_g_sum", "d_used += d_g_sum", "rest"),
    ("kernels", "w = used * d_used - p * common", "w = used * d_used - used * common", "all"),
    ("kernels", "d_g += w_g * (2.0 * gg)", "d_g += w_g * gg", "all"),
    ("kernels", "d_g = tl.where(m, d_g, 0.0)", "d_g = d_g", "all"),
    ("kernels", "dbeta += tl.sum(d_x * shifted, 1)", "dbeta += tl.sum(d_x * delta, 1)", "rest"),
    ("kernels", "(delta < tl.load(edges + edge + 1))", "(delta >= 0)", "bins"),
    ("kernels", "step % each * COLUMNS", "0 * COLUMNS", "lists"),
    ("kernels", "table + item * bins", "table", "bins"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "old", "new", "case"), PLANTED, ids=lambda value: str(value)[:40])
def test_planted_bugs_are_found(problem, assert_exact, monkeypatch, tmp_path, where, old, new, case):
    folder = Path(backend.__file__).parent
    texts = {name: (folder / f"triton_{name}.py").read_text(encoding="utf-8") for name in ("pairs", "kernels")}
    assert old in texts[where]
    texts[where] = texts[where].replace(old, new)
    texts["kernels"] = texts["kernels"].replace("dasmil.ops.das_attention.triton_pairs", "planted_pairs")
    modules = {}
    for name, text in texts.items():
        path = tmp_path / f"planted_{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        modules[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, modules[name])
        spec.loader.exec_module(modules[name])
    monkeypatch.setattr(backend, "kernels", lambda: modules["kernels"])
    size = backend.Blocks(16, 16) if case == "blocks" else backend.Blocks(64, 32 if case == "lists" else 64)
    for kernel, sizes in backend.BLOCKS.items():
        monkeypatch.setitem(backend.BLOCKS, kernel, dict.fromkeys(sizes, size))
    if case == "blocks":
        made = problem(40)
        made.options["mask"] = torch.arange(40) >= 17
        made.tensors["key"][:, 33:] *= 3
    elif case == "lists":
        monkeypatch.setattr(backend, "WORTH_ORDERING", 0)
        made = problem(60, radius=0.5)
    else:
        made = problem(**CASES[case])
    with pytest.raises(AssertionError):
        assert_exact(made, "triton", torch.float32, roundings=4e-6)


def emulate(monkeypatch, dot: str, noise: float = 0.0) -> None:
    """The interpreter's product as tensor cores compute it, and special functions with random relative errors.

    The interpreter itself ignores the precision, and its product of bfloat16 is wrong.
    """
    import numpy as np
    from triton.runtime import interpreter

    handle = interpreter.TensorHandle
    random = np.random.default_rng(0)

    def cut(x, rounded):
        bits = x.view(np.uint32)
        return ((bits + (0x1000 if rounded else 0)) & np.uint32(0xFFFFE000)).view(np.float32)

    def product(self, a, b, d, *_):
        if a.data.dtype == np.uint16:  # bfloat16
            a, b = ((t.data.astype(np.uint32) << 16).view(np.float32) for t in (a, b))
            result = a @ b
        else:
            a, b = np.ascontiguousarray(a.data), np.ascontiguousarray(b.data)
            if dot == "tf32":
                result = cut(a, False) @ cut(b, False)
            elif dot == "tf32x3":
                big_a, big_b = cut(a, True), cut(b, True)
                result = big_a @ big_b + (cut(a - big_a, True) @ big_b + big_a @ cut(b - big_b, True))
            else:
                result = a @ b
        return handle(result + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", product)
    if noise:
        for name in ("create_exp2", "create_sqrt", "create_rsqrt", "create_log2"):
            exact = getattr(interpreter.InterpreterBuilder, name)

            def noisy(self, x, exact=exact):
                found = exact(self, x)
                error = random.uniform(-noise, noise, found.data.shape).astype(np.float32)
                return handle((found.data * (1 + error)).astype(np.float32), found.dtype)

            monkeypatch.setattr(interpreter.InterpreterBuilder, name, noisy)


@pytest.mark.parametrize(
    ("dot", "noise", "limit"),
    [("tf32x3", 0.0, 4e-6), ("tf32x3", 2**-22, 1e-5), ("ieee", 2**-22, 1e-5), ("tf32", 0.0, 4e-3), ("bf16", 0.0, 4e-2)],
)
@pytest.mark.parametrize("d", [16, 64])
def test_emulated_products(problem, few_tiles, monkeypatch, dot, noise, limit, d):
    emulate(monkeypatch, dot, noise)
    monkeypatch.setattr(backend, "dot_precision", lambda: dot)
    case = problem(130, d=d, o=d, scale=d**-0.5)
    exact, found = case.run("reference"), case.run("triton", torch.float32)
    errors = {
        name: float((found[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1))
        for name, tensor in exact.items()
    }
    assert max(errors.values()) < limit, errors
    assert max(errors.values()) > limit / 200, errors  # the limit says something
    assert limit < trust.LIMITS[dot]


def test_first_use_compares_and_refuses(problem, few_tiles, monkeypatch):
    """Right kernels are compared once for each variant; wrong ones are refused by name and passed over by `auto`."""
    compared = []
    compare = trust._compare
    monkeypatch.setattr(trust, "_compare", lambda *a: (compared.append(a), compare(*a))[1])
    monkeypatch.setattr(trust, "_found", {})
    package = importlib.import_module("dasmil.ops.das_attention")
    case = problem(8)
    case.run("triton", torch.float32)
    case.run("triton", torch.float32)
    assert len(compared) == 1
    monkeypatch.setattr(package, "_choose", lambda *_: "triton")  # as on a GPU
    expected = case.run("chunked", torch.float32)
    run = backend.fused
    monkeypatch.setattr(backend, "fused", lambda *a: run(*a) * 1.001)
    monkeypatch.setattr(trust, "_found", {})
    with pytest.raises(package.BackendError, match=r"disagree with 'chunked' on cpu .*dasmil doctor --device cuda"):
        case.run("triton", torch.float32)
    with pytest.warns(RuntimeWarning, match="using the slower backend 'chunked'"):
        found = case.run("auto", torch.float32)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())

    def broken(*_):
        raise RuntimeError("ptxas died\nmore")

    monkeypatch.setattr(backend, "fused", broken)
    monkeypatch.setattr(trust, "_found", {})
    with pytest.raises(package.BackendError, match=r"they fail on cpu \(RuntimeError: ptxas died\)"):
        case.run("triton", torch.float32)


def test_first_use_of_every_option(problem, few_tiles, monkeypatch):
    """The small bag has whatever the call has."""
    seen = []
    largest_error = trust.largest_error
    monkeypatch.setattr(trust, "largest_error", lambda x, *a: (seen.append(x), largest_error(x, *a))[1])
    monkeypatch.setattr(trust, "_found", {})
    for name in ("all", "bins", "linear"):
        case = problem(**CASES[name])
        case.run("triton", torch.float32)
        assert (seen[-1].section is None) == ("section" not in case.options)
        assert (seen[-1].bias_table is None) == ("bias_table" not in case.tensors)
