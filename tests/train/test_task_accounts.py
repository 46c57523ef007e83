"""The account of a risk, a hazard or a number is exact: contributions sum to the output that is explained."""

from __future__ import annotations

import pytest
import torch
from test_tasks import TASKS, bags_with_targets

import dasmil


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("model", ["das-mil", "mean-pool"])
def test_contributions_sum_to_every_output(model: str, name: str) -> None:
    bags = bags_with_targets(8)
    run = dasmil.fit(model, bags, task=TASKS[name], epochs=1, starts=1, progress=False)[0]
    assert run.task is not None
    bag = bags[3]
    said = run.model(bag.features, bag.coords).logit.reshape(-1)
    for k in range(run.task.outputs):
        found = dasmil.explain(run.model, bag, target=1 if run.task.outputs == 1 else k)
        assert found.logit == pytest.approx(float(said[k].detach()), abs=1e-5)
        total = float(found.contributions.double().sum()) + found.bias
        assert total == pytest.approx(found.logit, abs=1e-5)
    assert torch.isfinite(said).all()
