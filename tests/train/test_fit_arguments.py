"""What dasmil.fit tells of its arguments, and models that cannot be stacked."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.errors import InputError
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


def test_what_is_no_bag_and_no_model_is_said_in_one_sentence(tmp_path: Path) -> None:
    bags, spec = toy_bags(8), dasmil.CohortSpec(bags="features", labels="labels.csv")
    calls = {
        "the model is 'list', expected its name, and bags after it": lambda: dasmil.fit(bags, "mean-pool"),  # pyright: ignore
        "bags are 'CohortSpec', expected a sequence of dasmil.Bag": lambda: dasmil.fit("mean-pool", spec),  # pyright: ignore
        "bags are 'str', expected": lambda: dasmil.fit("mean-pool", bags, "features"),  # pyright: ignore
        "bags are 'Bag', expected": lambda: dasmil.fit("mean-pool", bags[0]),  # pyright: ignore
        "number 8 of the bags is 'str', expected dasmil.Bag": lambda: dasmil.fit("mean-pool", [*bags, "a"]),  # pyright: ignore
        "number 1 of the bags is 'str'": lambda: dasmil.cross_validate([bags[0], "a"], out=tmp_path),  # pyright: ignore
        "bags are 'str'": lambda: dasmil.cross_validate("features", out=tmp_path),
        "data is 'list', expected a CohortSpec": lambda: dasmil.train_cohort(bags, out=tmp_path),  # pyright: ignore
        "data is 'list', expected a": lambda: dasmil.search(bags, "mean-pool", {"lr": [1.0]}, out=tmp_path),  # pyright: ignore
    }
    for message, call in calls.items():
        with pytest.raises(InputError, match=re.escape(message)):
            call()
    assert not list(tmp_path.iterdir())
