"""Every model against the numbers of the program behind the paper's tables (float64, evaluation mode).

``models.json`` holds, per model, the parameters in that program's order under our names and with its shapes, and what
it computed. Inputs and parameters are given by formula:

- instances i = 0..8, features sin(0.7 i + 0.3 j + 0.1 i j), j = 0..31, centres
  (128 + 90 sin(1.3 i), 128 + 90 cos(2.1 i)) px;
- element m of parameter t: sin(0.37 m + t + 1) / sqrt(fan), fan = elements of one slice along the first axis if there
  are two axes or more, else 1; theta = 0.3 and beta = 12.

The first rows of the gradients were rounded to ten decimals.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dasmil import create_model
from dasmil.models import MILModel

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "models.json").read_text())


def bag() -> tuple[Tensor, Tensor]:
    i, j = torch.arange(9, dtype=torch.float64), torch.arange(32, dtype=torch.float64)
    features = torch.sin(0.7 * i[:, None] + 0.3 * j + 0.1 * i[:, None] * j)
    return features, torch.stack([128 + 90 * torch.sin(1.3 * i), 128 + 90 * torch.cos(2.1 * i)], dim=1)


def model_by_formula(case: str) -> MILModel:
    """The mnist-collage setting of the model behind its encoder, with parameters set by the formula."""
    name, _, embeddings = case.partition(":")
    options: dict[str, Any] = {"encoder": "identity", "in_features": 32}
    if embeddings:
        options["embeddings"] = embeddings
    model = create_model(name, preset="mnist-collage", **options).double().eval()
    parameters = dict(model.named_parameters())
    assert sorted(parameters) == sorted(name for name, _ in GOLDEN[case]["parameters"])
    for t, (name, shape) in enumerate(GOLDEN[case]["parameters"]):
        fan = math.prod(shape[1:]) if len(shape) >= 2 else 1
        values = torch.sin(0.37 * torch.arange(math.prod(shape), dtype=torch.float64) + t + 1) / math.sqrt(fan)
        if name.endswith(("theta", "beta")):
            values = torch.tensor([0.3 if name.endswith("theta") else 12.0], dtype=torch.float64)
        with torch.no_grad():
            parameters[name].copy_(values.view(parameters[name].shape))
    return model


@pytest.mark.parametrize("case", GOLDEN)
def test_output_and_gradient(case: str) -> None:
    expected = GOLDEN[case]
    features, coords = bag()
    features.requires_grad_()
    output = model_by_formula(case)(features, coords)
    value = output.logit.sigmoid() if expected.get("output_is") == "probability" else output.logit
    (gradient,) = torch.autograd.grad(value, features, retain_graph=True)
    assert value.item() == pytest.approx(expected["output"], abs=1e-8)
    assert gradient.norm().item() == pytest.approx(expected["grad_norm"], abs=1e-8)
    assert gradient[0, :4].tolist() == pytest.approx(expected["grad_first_row"], abs=1e-8)
    if "aux_loss" in expected:
        assert output.aux_loss is not None
        assert output.aux_loss.item() == pytest.approx(expected["aux_loss"], abs=1e-8)
    else:
        assert output.aux_loss is None


def test_side_outputs_of_deep_supervision() -> None:
    output = model_by_formula("mil-gnn-ds")(*bag())
    assert output.side_logits is not None
    assert output.side_logits.sigmoid().tolist() == pytest.approx(GOLDEN["mil-gnn-ds"]["deep_supervision"], abs=1e-8)
