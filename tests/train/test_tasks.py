"""Training on targets that are no class: every model, many seeds at once, run directories that are read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy import toy_bags

import dasmil
from dasmil.errors import DataError, InputError
from dasmil.models import MODELS
from dasmil.tasks import ClassTarget, NumberTarget, multilabel, regression, survival

SMALL = {
    "clam-sb": {"features": 8, "hidden": 4}, "clam-mb": {"features": 8, "hidden": 4}, "transmil": {"features": 64},
    "dtfd-mil": {"features": 8, "hidden": 4}, "set-transformer": {"hidden": 8}, "iset-transformer": {"hidden": 8},
    "slide-transformer": {"layers": 1, "heads": 2, "head_features": 4}, "stamp-vit": {"features": 16, "heads": 2},
}  # fmt: skip


def bags_with_targets(count: int, seed: int = 0) -> list[dasmil.Bag]:
    """Toy bags: events come early where types 0 and 1 are near."""
    rng = np.random.default_rng(seed)
    return [
        replace(
            bag,
            label=None,
            targets={
                "time": float(rng.exponential(1.0 if bag.label else 5.0)),
                "event": float(rng.uniform() < 0.8 or i < 4),
                "amount": 10.0 + 3 * (bag.label or 0) + float(rng.normal(0, 0.3)),
                "kind": float(bag.label or 0) if i % 5 else None,
            },
        )
        for i, bag in enumerate(toy_bags(count, seed))
    ]


TASKS = {
    "hazards": survival(bins=3),
    "cox": survival(method="cox"),
    "number": regression("amount"),
    "several": multilabel([ClassTarget("kind", ("far", "near")), NumberTarget("amount")]),
}


@pytest.mark.parametrize(("number", "model"), list(enumerate(MODELS)))
def test_every_model_trains_on_a_task(number: int, model: str) -> None:
    bags, task = bags_with_targets(8), list(TASKS.values())[number % 4]
    how = {"epochs": 1, "starts": 1, "progress": False, "accumulate": 4}
    run = dasmil.fit(model, bags, task=task, model_options=SMALL.get(model), **how)[0]
    assert run.task is not None
    assert run.model.n_logits == run.task.outputs
    assert np.isfinite(run.history[0]["train_loss"])
    assert np.isfinite(run.predict(bags)).all()


@pytest.mark.parametrize("name", TASKS)
def test_a_run_is_the_same_alone_and_among_others(name: str) -> None:
    bags = bags_with_targets(12)
    how = {"task": TASKS[name], "epochs": 2, "starts": 1, "progress": False, "model_options": {"dropout": 0.2}}
    together = dasmil.fit("das-mil", bags, seeds=3, **how)
    alone = dasmil.fit("das-mil", bags, seeds=[2], **how)
    one_by_one = dasmil.fit("das-mil", bags, seeds=3, stacked_instances=1, **how)
    for other in (alone[0], one_by_one[2]):
        for a, b in zip(together[2].model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_number_is_learned_from_distances_and_said_in_its_unit() -> None:
    train, test = bags_with_targets(48), bags_with_targets(40, 7)
    run = dasmil.fit("das-mil", train, task=regression("amount"), progress=False, epochs=40)[0]
    truth = np.array([bag.targets["amount"] for bag in test], dtype=float)
    assert np.corrcoef(run.predict(test), truth)[0, 1] > 0.8
    assert abs(run.predict(test).mean() - truth.mean()) < 1
    blind = dasmil.fit("mean-pool", train, task=regression("amount"), progress=False, epochs=20)[0]
    assert np.corrcoef(blind.predict(test), truth)[0, 1] < 0.5


def test_a_run_directory_of_times_is_read_again_and_resumed(tmp_path) -> None:
    bags, val = bags_with_targets(16), bags_with_targets(8, 3)
    val = [replace(bag, bag_id=f"v{i}") for i, bag in enumerate(val)]
    how = {"task": survival(bins=2), "epochs": 3, "starts": 1, "seeds": 2, "progress": False, "selection": "best-val"}
    runs = dasmil.fit("das-mil", bags, val, out=tmp_path / "run", monitor="c_index", **how)
    stored = dasmil.Run.read(tmp_path / "run")
    assert stored.task == runs[0].task
    assert set(stored.summary["splits"]) == {"train", "val"}
    answers = stored.answers("val")
    assert [answer.bag_ids for answer in answers] == [[bag.bag_id for bag in val]] * 2
    np.testing.assert_allclose(stored.task.answers(answers[1].outputs), runs[1].predict(val), atol=1e-6)  # type: ignore
    assert stored.data["splits"]["train"]["events"] == sum(bag.targets["event"] == 1 for bag in bags)  # type: ignore
    again = dasmil.fit("das-mil", bags, val, out=tmp_path / "run", resume=True, monitor="c_index", **how)
    np.testing.assert_allclose(again[0].predict(val), runs[0].predict(val))
    other = {**how, "task": survival(bins=3)}
    with pytest.raises(InputError, match=r"cannot be resumed with other settings \(.*task\.targets"):
        dasmil.fit("das-mil", bags, val, out=tmp_path / "run", resume=True, monitor="c_index", **other)


def test_what_does_not_fit_the_task_is_refused() -> None:
    bags = bags_with_targets(8)
    with pytest.raises(DataError, match="has no value for 'age'"):
        dasmil.fit("sa", bags, task=regression("age"), progress=False)
    with pytest.raises(InputError, match="regression needs to know which"):
        dasmil.fit("sa", bags, task="regression", progress=False)
    with pytest.raises(InputError, match="monitor is 'auroc', but survival has loss, c_index"):
        dasmil.fit("sa", bags, task="survival", progress=False, monitor="auroc")
    with pytest.raises(InputError, match="n_classes was given"):
        dasmil.fit("sa", bags, task="survival", progress=False, model_options={"n_classes": 3})
    odd = [replace(bag, targets={"time": 1.0, "event": 2.0}) for bag in bags]
    with pytest.raises(DataError, match="event of 2, expected 1"):
        dasmil.fit("sa", odd, task="survival", progress=False)
    with pytest.raises(DataError, match="target 'x' is 'a'"):
        replace(bags[0], targets={"x": "a"})
