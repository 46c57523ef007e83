"""Rotary positions and the drop-in for attention with a bias: against the formulas, and one clear error each."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dasmil.errors import InputError
from dasmil.ops import alibi_attention, alibi_slopes, rotate


def test_rotation_by_hand():
    """One pair for each axis: a quarter of a wavelength is a quarter turn."""
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    found = rotate(x, torch.tensor([[25.0, 50.0]]), shortest=100.0, longest=100.0)
    torch.testing.assert_close(found, torch.tensor([[[0.0, 1.0, 0.0, -2.0]]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("axes", [2, 3])
def test_products_depend_on_the_difference_of_places_alone(axes):
    q, k = torch.randn(2, 7, 12), torch.randn(2, 7, 12)
    coords = 1000 * torch.rand(7, axes)

    def products(offset):
        moved = coords.double() + offset
        return rotate(q, moved, shortest=50.0, longest=5000.0) @ rotate(k, moved, shortest=50.0, longest=5000.0).mT

    torch.testing.assert_close(products(0.0), products(1e6), rtol=1e-4, atol=1e-4)
    assert (products(0.0) - q @ k.mT).abs().max() > 0.1


def test_tokens_are_not_turned_and_lengths_stay():
    q = torch.randn(1, 5, 8, requires_grad=True)
    section = torch.tensor([-1, 0, 0, 1, 1])
    found = rotate(q, 100 * torch.rand(5, 2), shortest=10.0, longest=100.0, section=section)
    assert torch.equal(found[:, 0], q[:, 0])
    torch.testing.assert_close(found.norm(dim=-1), q.norm(dim=-1))
    found.sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.randn(1, 5, 6)}, "6 numbers a head, which 2 axes cannot share in pairs: use a multiple of 4"),
        ({"coords": torch.rand(4, 2)}, r"coords have shape \[4, 2\], expected \[..., 5, 2 or 3\]"),
        ({"shortest": 0.0}, "shortest is 0.0"),
        ({"longest": float("nan")}, "longest is nan"),
        ({"shortest": 200.0}, "in ascending order"),
    ],
)
def test_bad_rotations(changes, message):
    given = {"x": torch.randn(1, 5, 8), "coords": torch.rand(5, 2), "shortest": 10.0, "longest": 100.0} | changes
    with pytest.raises(InputError, match=message):
        rotate(**given)


def test_published_slopes():
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    torch.testing.assert_close(alibi_slopes(12)[8:], torch.tensor([2.0 ** -(i + 0.5) for i in range(4)]))
    assert alibi_slopes(1).tolist() == [2.0**-8]
    with pytest.raises(InputError, match="heads is 0"):
        alibi_slopes(0)


def test_drop_in_equals_dense_bias():
    """A block of 4 heads over a grid of 19 x 13 tiles with a class token, as slide encoders build it."""
    torch.manual_seed(0)
    grid = torch.cartesian_prod(torch.arange(19.0), torch.arange(13.0)) * 512
    n, heads = len(grid) + 1, 4
    slopes = alibi_slopes(heads).requires_grad_()
    q, k, v = (torch.randn(2, heads, n, 16, requires_grad=True) for _ in range(3))
    bias = torch.zeros(heads, n, n)
    distance = torch.cdist(grid, grid, compute_mode="donot_use_mm_for_euclid_dist") / 512
    bias[:, 1:, 1:] = -slopes.view(-1, 1, 1) * distance
    dense = scaled_dot_product_attention(q, k, v, attn_mask=bias)
    ours = alibi_attention(q, k, v, grid, slopes, class_tokens=1, distance_scale=512.0)
    torch.testing.assert_close(ours, dense, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(dense)
    for a, b in zip(*(torch.autograd.grad((z * weight).sum(), (q, k, v, slopes)) for z in (ours, dense))):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5 * float(b.abs().max()))


def test_drop_in_with_mask_sections_and_radius():
    q, k, v = (torch.randn(1, 6, 4) for _ in range(3))
    coords, section = torch.arange(5.0).unsqueeze(-1) * torch.tensor([1.0, 0.0]), torch.tensor([0, 0, 0, 1, 1])
    mask = torch.tensor([True, True, True, False, True, True])
    found = alibi_attention(
        q, k, v, coords, torch.tensor([0.5]), class_tokens=1, mask=mask, section=section, radius=1.5, scale=0.3
    )
    e = 0.3 * (q @ k.mT)[0]
    for i, j in ((1, 2), (2, 1), (2, 3), (3, 2), (4, 5), (5, 4)):
        e[i, j] -= 0.5
    seen = torch.eye(6, dtype=torch.bool)
    seen[0] = seen[:, 0] = True
    for i, j in ((1, 2), (2, 3), (4, 5)):
        seen[i, j] = seen[j, i] = True
    seen[:3, 3] = seen[4:, 3] = False  # padding
    torch.testing.assert_close(found[0], e.masked_fill(~seen, -math.inf).softmax(-1) @ v[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_tokens": -1}, "class_tokens is -1"),
        ({"class_tokens": 7}, "class_tokens is 7, expected a whole number from 0 to the 6 instances"),
        ({"class_tokens": 1}, r"coords have shape \[6, 2\], expected \[..., 5, 2 or 3\]"),
        ({"slopes": torch.ones(3)}, r"bias_scale has shape \[3\], expected \[2\]"),
    ],
)
def test_bad_drop_in(changes, message):
    q = torch.randn(2, 6, 4)
    given = {"coords": torch.rand(6, 2), "slopes": torch.ones(2)} | changes
    with pytest.raises(InputError, match=message):
        alibi_attention(q, q, q, **given)
