"""Dropout on the weights: how many, which, and the same ones in the backward pass."""

from __future__ import annotations

import importlib
import os

import pytest
import torch

from dasmil.ops import das_attention

native = importlib.import_module("dasmil.ops.das_attention.native")
dropout = importlib.import_module("dasmil.ops.das_attention.dropout")
BACKENDS = ["chunked", pytest.param("native", marks=pytest.mark.skipif(not native.available(), reason="no kernel"))]
if os.environ.get("TRITON_INTERPRET") == "1":
    BACKENDS.append("triton")


def factors(seed, p, n, bags):
    made = dropout.make_dropout(p, torch.tensor([seed]), bags, torch.device("cpu"))
    return made.keep(slice(0, bags), torch.arange(n), torch.arange(n), torch.zeros(1))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_how_many_are_dropped(p):
    n, bags = 200, 5
    keep = factors(12345, p, n, bags)
    assert keep.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    kept = (keep > 0).double()
    count = bags * n * n
    assert abs(kept.mean() - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    for axes in ((0, 1), (0, 2)):  # no column and no row is favoured
        share = kept.mean(axes)
        assert (share - (1 - p)).abs().max() < 5.5 * (p * (1 - p) / (bags * n)) ** 0.5
    # Neighbours in a row, in a column and in the batch are independent.
    centred = kept - kept.mean()
    for a, b in ((centred[:, 1:], centred[:, :-1]), (centred[..., 1:], centred[..., :-1]), (centred[1:], centred[:-1])):
        assert abs((a * b).mean()) < 5 * p * (1 - p) / a.numel() ** 0.5


def test_seeds_differ():
    a, b = (factors(seed, 0.5, 100, 1) for seed in (1, 1 << 32))
    assert 0.45 < (a == b).double().mean() < 0.55


@pytest.mark.parametrize("backend", BACKENDS)
def test_mean_is_the_undropped_output(problem, backend):
    case = problem(24, lead=(600, 1), shared=True, dropout_p=0.3)
    for name in ("query", "key", "value"):
        case.tensors[name] = case.tensors[name][:1].expand(600, 1, 24, -1)
    case.coords = case.coords[:1].expand(600, 24, 2)
    dropped = case.run(backend, torch.float32)["output"]
    case.options["dropout_p"] = 0.0
    whole = case.run(backend, torch.float32)["output"][0]
    deviation = (dropped.mean(0) - whole) / (dropped.std(0) / 600**0.5)
    assert dropped.std(0).min() > 0.01
    assert deviation.abs().max() < 5
    assert abs(deviation.mean()) < 0.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_seed_decides(problem, backend):
    case = problem(30, dropout_p=0.5)
    first, again, other = (case.run(backend, torch.float32, seed=seed) for seed in (1, 1, 2))
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
    assert not torch.allclose(first["output"], other["output"], atol=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_drops_what_forward_dropped(problem, backend):
    """The output is linear in the values, so their gradient is exactly the weights that forward used."""
    case = problem(300, absent=("value_embed",), dropout_p=0.4, d=4, o=3)
    q, k = (case.tensors[name].float() for name in ("query", "key"))
    rest = {name: case.tensors[name].float() for name in ("theta", "beta", "key_embed", "query_embed")}
    v = case.tensors["value"].float().requires_grad_()
    direction = torch.randn(v.shape, generator=torch.Generator().manual_seed(0))

    def output(value):
        torch.manual_seed(5)
        return das_attention(q, k, value, case.coords.float(), **rest, **case.options, backend=backend)

    d_out = case.d_out.float()
    (gradient,) = torch.autograd.grad(output(v), v, d_out)
    with torch.no_grad():
        change = ((output(direction)) * d_out).sum()
    torch.testing.assert_close((gradient * direction).sum(), change, rtol=1e-4, atol=1e-3)


def test_evaluation_uses_no_random_numbers(problem):
    state = torch.get_rng_state()
    case = problem(10)
    das_attention(
        *(case.tensors[name] for name in ("query", "key", "value")), case.coords, scale=1.0,
        theta=case.tensors["theta"], beta=case.tensors["beta"], key_embed=case.tensors["key_embed"],
    )  # fmt: skip
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_a_run_drops_the_same_whoever_is_stacked_beside_it(problem, backend):
    """Three runs of two bags each, and each run alone under its own number."""
    case = problem(11, lead=(3, 2, 2), dropout_p=0.5)
    seeds = torch.tensor([5, 1 << 40, 77])
    case.options["dropout_seed"] = seeds
    together = case.run(backend, torch.float32)
    for run in (2, 0, 1):
        alone = problem(11, lead=(2, 2), dropout_p=0.5, dropout_seed=int(seeds[run]))
        alone.tensors = {name: tensor[run] for name, tensor in case.tensors.items()}
        alone.coords, alone.d_out = case.coords[run], case.d_out[run]
        for name, tensor in alone.run(backend, torch.float32).items():  # products may round apart by their number
            torch.testing.assert_close(tensor, together[name][run], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_padding_does_not_change_what_is_dropped(problem, backend):
    case = problem(9, lead=(2, 2), dropout_p=0.5, dropout_seed=torch.tensor([3, 4]))
    plain = case.run(backend, torch.float32)["output"]
    for name in ("query", "key", "value"):
        case.tensors[name] = torch.nn.functional.pad(case.tensors[name], (0, 0, 0, 4))
    case.coords = torch.nn.functional.pad(case.coords, (0, 0, 0, 4))
    case.d_out = torch.nn.functional.pad(case.d_out, (0, 0, 0, 4))
    case.options["mask"] = torch.arange(13) < 9
    padded = case.run(backend, torch.float32)["output"][..., :9, :]
    torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [0, 123456789012345, torch.tensor([[1, 2], [3, 4]]), torch.tensor([7, 8])])
def test_given_seeds_mean_the_same_to_every_backend(problem, assert_exact, backend, seed):
    case = problem(37, lead=(2, 2, 2), dropout_p=0.3, dropout_seed=seed)
    assert_exact(case, backend, torch.float32)
    state = torch.get_rng_state()
    query, key, value = (case.tensors[name] for name in ("query", "key", "value"))
    das_attention(query, key, value, case.coords, **case.options)
    assert torch.equal(state, torch.get_rng_state())  # torch's own generator is left alone
