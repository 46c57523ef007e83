"""Mixed precision: layers compute in bfloat16, distances and phi do not."""

from __future__ import annotations

import importlib

import torch

import dasmil

attention = importlib.import_module("dasmil.nn.attention")


@torch.no_grad()
def test_coordinates_and_phi_stay_float32_under_autocast(monkeypatch):
    """1,000 and 1,003 are one number in bfloat16; the learned distance lies between them."""
    seen = []
    operator = attention.das_attention

    def spy(query, key, value, coords, **more):
        seen.append(
            {name: t.dtype for name, t in {"query": query, "coords": coords, **more}.items() if hasattr(t, "dtype")}
        )
        return operator(query, key, value, coords, **more)

    monkeypatch.setattr(attention, "das_attention", spy)
    torch.manual_seed(0)
    model = dasmil.create_model("das-mil", in_features=4, distance_scale=1.0, theta_init=1001.5, beta_init=4.0).eval()
    features = torch.randn(2, 4)
    near, far = torch.tensor([[0.0, 0.0], [1000.0, 0.0]]), torch.tensor([[0.0, 0.0], [1003.0, 0.0]])
    exact = [model(features, coords).logit for coords in (near, far)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = [model(features, coords).logit for coords in (near, far)]
    assert seen[-1]["query"] == torch.bfloat16
    assert {seen[-1][name] for name in ("coords", "theta", "beta")} == {torch.float32}
    change = float(exact[1] - exact[0])
    assert abs(change) > 0.01
    assert abs(float(mixed[1] - mixed[0]) - change) < 0.2 * abs(change) + 0.01
