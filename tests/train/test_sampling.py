"""Random parts of bags, classes in equal numbers, mixed bags: what each gives to a training step, and whole runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy import toy_bags

import dasmil
from dasmil.errors import InputError
from dasmil.models.ab_mil import ABMIL
from dasmil.nn.draws import Draws
from dasmil.train.augment import mixed
from dasmil.train.epochs import Attempt
from dasmil.train.feed import Step, balanced
from dasmil.train.recipes import load_recipe
from dasmil.types import Output

EACH: dict[str, dict[str, Any]] = {
    "balanced": {"sampling": "balanced"},
    "part": {"instances_share": 0.5},
    "mixup": {"mixup": 0.7},
    "all": {"sampling": "balanced", "instances_share": 0.7, "mixup": 0.5, "accumulate": 4},
}


def uneven() -> list[Any]:
    """24 bags of class 0 or 1, 18 and 6 of them."""
    bags = toy_bags(36)
    return [bag for i, bag in enumerate(bags) if bag.label == 0 or i < 12]


def test_an_epoch_has_as_many_bags_of_each_class_as_the_rarest_has() -> None:
    labels = np.array([0] * 20 + [1] * 5 + [2] * 9)
    seen: set[int] = set()
    for epoch in range(30):
        chosen = balanced(labels, np.random.default_rng(epoch))
        assert np.bincount(labels[chosen]).tolist() == [5, 5, 5]
        assert len(set(chosen.tolist())) == 15
        seen |= set(chosen.tolist())
    assert seen == set(range(34))


def step(number: int, n: int, runs: int = 2, *, section: bool = False) -> Step:
    """Every feature is the number of its bag, every place that of the instance."""
    coords = torch.arange(float(n))[:, None].expand(runs, n, 2)
    features = torch.full((runs, n, 3), float(number))
    return Step(np.full(runs, number), features, coords, torch.arange(n).expand(runs, n) % 2 - 1 if section else None)


@pytest.mark.parametrize("section", [False, True])
def test_a_mixed_bag_has_random_parts_of_both_in_sections_of_their_own(section: bool) -> None:
    found = mixed(step(4, 10, section=section), step(7, 20), 0.3, Draws.of([1], [2]))
    assert found.bags.tolist() == [4, 4]
    assert found.section is not None
    for run in range(2):
        own = found.features[run, :, 0]
        assert own.tolist() == [4.0] * 3 + [7.0] * 14
        for part in (slice(0, 3), slice(3, 17)):
            assert len(set(found.coords[run, part, 0].tolist())) == len(own[part])
        assert not set(found.section[run, :3].tolist()) & set(found.section[run, 3:].tolist())
    assert found.coords[0, :, 0].tolist() != found.coords[1, :, 0].tolist()


@pytest.mark.parametrize("case", EACH)
def test_a_run_does_not_depend_on_the_runs_beside_it(case: str) -> None:
    given = {"epochs": 3, "progress": False, **EACH[case]}
    alone, together = (
        dasmil.fit("ab-mil", uneven(), seeds=[1], **given),
        dasmil.fit("ab-mil", uneven(), seeds=2, **given),
    )
    plain = dasmil.fit("ab-mil", uneven(), seeds=[1], epochs=3, progress=False)
    probabilities = [run.predict(uneven()) for run in (alone[0], together[1], plain[0])]
    np.testing.assert_allclose(probabilities[0], probabilities[1], rtol=1e-4, atol=1e-5)
    assert np.abs(probabilities[0] - probabilities[2]).max() > 1e-4


def test_what_a_step_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = ABMIL.forward

    def forward(self: ABMIL, features: Tensor, *rest: Any, **more: Any) -> Any:
        if self.training:
            sizes.append(features.shape[-2])
        return original(self, features, *rest, **more)

    monkeypatch.setattr(ABMIL, "forward", forward)
    bags = uneven()
    given = {"epochs": 2, "progress": False, "model_options": {"encoder": "identity"}}
    dasmil.fit("ab-mil", bags, **given)
    assert (len(sizes), min(sizes), max(sizes)) == (48, 5, 7)
    sizes.clear()
    dasmil.fit("ab-mil", bags, instances_share=0.5, sampling="balanced", **given)
    assert (len(sizes), set(sizes)) == (24, {3})  # 2 epochs of 6 bags of each class; half of a median of 6
    sizes.clear()
    dasmil.fit("ab-mil", bags, mixup=1.0, **given)
    assert len(sizes) == 48
    assert set(sizes) <= set(range(5, 9))


def test_the_loss_of_a_mixed_bag_is_that_of_both_labels() -> None:
    def lesson(output: Output, bags: Tensor, run: int | None) -> Tensor:
        return output.logit * bags

    attempt: Any = SimpleNamespace(device=torch.device("cpu"))
    losses = Attempt._of_both(attempt, lesson, step(7, 3), 0.25)
    found = losses(Output(torch.tensor([1.0, 2.0])), torch.tensor([4, 4]), None)
    assert found.tolist() == [0.25 * 4 + 0.75 * 7, 2 * (0.25 * 4 + 0.75 * 7)]
    assert float(losses(Output(torch.tensor(2.0)), torch.tensor(4), 1)) == found[1]


def test_the_recipe_of_nnmil_trains_any_model() -> None:
    recipe = load_recipe("nnmil", "das-mil")
    assert load_recipe("nnmil", "nnmil").options == {"encoder": "identity"}
    settings = {**recipe.training, "epochs": 12, "restarts": 0, "starts": 1, "simple_starts": 0}
    (run,) = dasmil.fit("das-mil", uneven(), toy_bags(8, 5, prefix="val"), progress=False, **settings)
    assert len(run.history) <= 12
    assert np.isfinite(run.predict(uneven())).all()


def test_numbers_have_no_classes_to_balance_or_mix() -> None:
    bags = [replace(bag, label=None, targets={"y": float(i)}) for i, bag in enumerate(toy_bags(8))]
    with pytest.raises(InputError, match="sampling=all mixup=0"):
        dasmil.fit("ab-mil", bags, task=dasmil.regression("y"), mixup=0.5, epochs=1, progress=False)
