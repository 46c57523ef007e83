"""What dasmil.fit tells of its arguments, and models that cannot be stacked."""

import inspect
import re

import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.models import MODELS


def test_the_docstring_of_fit_tells_every_argument() -> None:
    told, known = inspect.getdoc(dasmil.fit) or "", inspect.signature(dasmil.fit).parameters
    assert "model_options" in known
    assert [name for name in known if name != "model_name" and not re.search(rf"\b{name}\b", told)] == []


def test_models_that_cannot_be_stacked_train_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bags = toy_bags(8)
    together = dasmil.fit("mean-pool", bags, seeds=2, epochs=2)
    notes: list[str] = []
    monkeypatch.setattr(MODELS["mean-pool"], "stackable", False)
    apart = dasmil.fit("mean-pool", bags, seeds=2, epochs=2, note=notes.append)
    assert any("mean-pool cannot be stacked" in note for note in notes)
    for one, other in zip(together, apart, strict=True):
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
