"""The reference is differentiated correctly, and says what the paper's equations say."""

from __future__ import annotations

import pytest
import torch

from dasmil.ops import das_attention


@pytest.mark.parametrize("phi", ["sigmoid", "identity", "exponential", "gaussian"])
@pytest.mark.parametrize("options", [{}, {"section": True, "mask": True, "self_pair": False, "product_term": True}])
def test_gradients(problem, phi, options):
    case = problem(4, lead=(2,), d=2, o=3, phi=phi, **options)
    names = list(case.tensors)
    tensors = [tensor.requires_grad_() for tensor in case.tensors.values()]
    coords = case.coords.requires_grad_()

    def output(coords, *tensors):
        q, k, v, *rest = tensors
        return das_attention(q, k, v, coords, **dict(zip(names[3:], rest)), **case.options, backend="reference")

    assert torch.autograd.gradcheck(output, (coords, *tensors))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_gradients_with_dropout(problem, backend):
    """Finite differences under a fixed seed: forward and backward drop the same weights."""
    case = problem(5, lead=(2,), d=2, o=2, dropout_p=0.4)
    names = list(case.tensors)

    def output(*tensors):
        torch.manual_seed(11)
        q, k, v, *rest = tensors
        return das_attention(q, k, v, case.coords, **dict(zip(names[3:], rest)), **case.options, backend=backend)

    assert torch.autograd.gradcheck(output, [tensor.requires_grad_() for tensor in case.tensors.values()])


def test_three_instances_by_hand():
    """One head, d = o = 1, distances 3, 4 and 5: every number is worked out with plain Python floats."""
    from math import exp

    q, k, v = [0.5, -1.0, 2.0], [1.0, 0.3, -0.7], [1.0, 2.0, 4.0]
    (u_k, v_k), (u_q, v_q), (u_v, v_v) = (0.2, -0.4), (1.1, 0.6), (-0.3, 0.9)
    theta, beta, scale = 1.5, 0.8, 0.7
    distance = [[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]
    expected = []
    for i in range(3):
        phi = [1 / (1 + exp(-(distance[i][j] / 2 - theta) * beta)) for j in range(3)]
        b_k, b_q, b_v = ([f * u + (1 - f) * w for f in phi] for u, w in ((u_k, v_k), (u_q, v_q), (u_v, v_v)))
        e = [scale * (q[i] * k[j] + q[i] * b_k[j] + k[j] * b_q[j]) for j in range(3)]
        total = sum(exp(x) for x in e)
        expected.append(sum(exp(e[j]) / total * (v[j] + b_v[j]) for j in range(3)))

    def tensor(*numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    out = das_attention(
        tensor(q).view(1, 3, 1), tensor(k).view(1, 3, 1), tensor(v).view(1, 3, 1), tensor([0, 0], [3, 0], [0, 4]),
        theta=tensor(theta), beta=tensor(beta), key_embed=tensor(u_k, v_k).view(1, 2, 1),
        query_embed=tensor(u_q, v_q).view(1, 2, 1), value_embed=tensor(u_v, v_v).view(1, 2, 1), scale=scale,
        distance_scale=2.0, backend="reference",
    )  # fmt: skip
    torch.testing.assert_close(out.flatten(), tensor(*expected))


def test_a_pair_without_distance_has_no_embedding(problem):
    """With every instance in its own section and no self pair, b_ij = 0: plain attention remains."""
    case = problem(12, self_pair=False)
    case.options["section"] = torch.arange(12)
    found = case.run("reference")
    q, k, v = (case.tensors[name] for name in ("query", "key", "value"))
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.4)
    torch.testing.assert_close(found["output"], plain)
    assert not found["beta"].any()
    assert not found["value_embed"].any()


def test_padding_changes_nothing(problem):
    """Real instances see the same whether or not padding follows them."""
    case = problem(9)
    long = problem(9)
    junk = problem(4, seed=5)
    for name in ("query", "key", "value"):
        long.tensors[name] = torch.cat([case.tensors[name], junk.tensors[name]], -2)
    long.coords = torch.cat([case.coords, junk.coords])
    long.options["mask"] = torch.arange(13) < 9
    long.d_out = torch.cat([case.d_out, torch.zeros_like(junk.d_out)], -2)
    exact = case.run("reference")
    for backend in ("reference", "chunked", "auto"):
        found = long.run(backend)
        torch.testing.assert_close(found["output"][:, :9], exact["output"])
        for name in ("query", "key", "value"):
            torch.testing.assert_close(found[name][:, :9], exact[name])
            assert not found[name][:, 9:].any()
        for name in ("theta", "beta", "key_embed", "query_embed", "value_embed"):
            torch.testing.assert_close(found[name], exact[name])
