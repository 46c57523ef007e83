"""PSA-MIL: all pairs of a small bag and the gathered neighbours of a large one are the same attention; lengths."""

from __future__ import annotations

import pytest
import torch

from dasmil.models import create_model, psa_mil


@pytest.mark.parametrize("decay", ["gaussian", "exponential", "inverse-quadratic"])
@pytest.mark.parametrize("sections", [False, True])
def test_all_pairs_and_gathered_neighbours_agree(decay, sections, monkeypatch):
    torch.manual_seed(0)
    n = 150
    attention = psa_mil.SpatialAttention(12, 3, decay).double()
    with torch.no_grad():
        attention.share.copy_(torch.tensor([0.0, 0.1, 0.5]))
    x, tiles = torch.randn(n, 12, dtype=torch.float64), 9 * torch.rand(n, 2, dtype=torch.float64)
    section = torch.arange(n) % 2 if sections else None
    assert min(attention.counts()) < n / 2, "some head must see a part of the bag"
    found = []
    for dense in (n, 0):
        monkeypatch.setattr(psa_mil, "DENSE", dense)
        given = x.clone().requires_grad_()
        out = attention(given, tiles, section)
        gradients = torch.autograd.grad(out.square().sum(), [given, *attention.parameters()])
        found.append([out, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
        assert other.abs().max() > 0


@pytest.mark.parametrize("decay", ["gaussian", "exponential", "inverse-quadratic"])
def test_learned_lengths_are_where_the_decay_is_a_half_and_a_thousandth(decay: psa_mil.Decay) -> None:
    model = create_model("psa-mil", in_features=4, decay=decay, tile=20.0)
    attention = model.get_submodule("aggregator.blocks.0.attention")
    assert isinstance(model, psa_mil.PSAMIL)
    assert isinstance(attention, psa_mil.SpatialAttention)
    for theta, row in zip(attention.theta(), model.learned_radii(), strict=True):
        tiles = torch.tensor([row["halfway"], row["radius"]]) / 20
        left = psa_mil._log_decay(tiles.square(), theta, decay).exp()
        torch.testing.assert_close(left, torch.tensor([0.5, 0.001]), atol=2e-6, rtol=1e-4)
