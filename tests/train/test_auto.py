"""Default training: which candidate it keeps, what its run holds, and what it refuses."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import dasmil
from dasmil.errors import DataError, InputError
from dasmil.runs import Run, read_library
from dasmil.stats import auroc
from dasmil.types import Bag


def bags(
    count: int = 40, seed: int = 0, classes: int = 2, shift: float = 1.0, target: Callable[[float], dict] | None = None
) -> list[Bag]:
    """Twenty instances of six features; the mean of the first one grows with the class. Two bags a patient."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        label = number // 2 % classes
        level = shift * label + 0.3 * rng.normal()
        x = rng.normal(size=(20, 6)) + np.array([level, 0, 0, 0, 0, 0])
        more = {"label": label} if target is None else {"targets": target(level)}
        places = 500 * rng.random((20, 2))
        found.append(
            Bag(torch.from_numpy(x).float(), torch.from_numpy(places).float(), "um", f"b{seed}-{number}",
                patient_id=f"p{seed}-{number // 2}", **more)
        )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("auto") / "run"
    return dasmil.fit(bags(), out=out, tests={"test": bags(30, seed=1)}, progress=False)[0], out


def test_a_difference_of_means_is_told_by_the_simplest_candidate(trained) -> None:
    run, _ = trained
    assert run.library["selected"] == "mean"
    assert run.proven
    test = bags(60, seed=2)
    assert auroc(run.predict(test), np.array([bag.label == 1 for bag in test]))[0] > 0.95


def test_the_run_holds_out_of_fold_predictions_and_all_candidates(trained) -> None:
    run, out = trained
    read = Run.read(out)
    assert read.out_of_fold
    assert read.summary["splits"]["val"]["n"] == 40
    (val,), (train,) = read.per_seed("val"), read.per_seed("train")
    assert val.bag_ids == train.bag_ids
    assert not np.allclose(val.probabilities, train.probabilities)
    library = read_library(read)
    assert library is not None
    assert [c.name for c in library.candidates if c.kept] == ["mean"]
    assert {"mean", "spread", "composition", "moments", "neighbours", "contacts", "ab-mil"} <= {
        c.name for c in library.candidates
    }
    model = dasmil.load_model(out)
    bag = bags(1, seed=3)[0]
    found = dasmil.explain(model, bag)
    assert found.method == "exact"
    assert abs(found.residual) < 1e-5
    np.testing.assert_allclose(run.predict([bag])[0], 1 / (1 + np.exp(-found.logit)), rtol=1e-5)


def test_a_finished_run_is_not_trained_again(trained, monkeypatch) -> None:
    run, out = trained
    monkeypatch.setattr("dasmil.train.fit_auto.train_library", lambda *a, **k: pytest.fail("trained again"))
    again = dasmil.fit(bags(), out=out, resume=True, progress=False)[0]
    test = bags(4, seed=4)
    np.testing.assert_allclose(again.predict(test), run.predict(test))


def test_equal_seeds_give_equal_models() -> None:
    some = bags(24)
    one, two = (dasmil.fit(some, progress=False)[0].predict(some) for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("task", "target"),
    [
        (dasmil.regression("x"), lambda level: {"x": level}),
        (dasmil.survival("t", "e"), lambda level: {"t": float(np.exp(-level)), "e": float(level > -0.4)}),
    ],
)
def test_numbers_and_times_have_candidates_too(task, target) -> None:
    run = dasmil.fit(bags(40, target=target), task=task, progress=False)[0]
    held = bags(40, seed=5, target=target)
    levels = [bag.features[:, 0].mean() for bag in held]
    assert np.corrcoef(run.predict(held), levels)[0, 1] > 0.8


def test_three_classes() -> None:
    run = dasmil.fit(bags(48, classes=3, shift=1.5), progress=False)[0]
    held = bags(48, seed=6, classes=3, shift=1.5)
    told = run.predict(held)
    assert told.shape == (48, 3)
    assert np.mean(told.argmax(1) == [bag.label for bag in held]) > 0.75


def test_bags_at_one_place_train_without_spatial_candidates() -> None:
    some = bags(24)
    flat = [Bag(b.features, torch.zeros(20, 2), "um", b.bag_id, b.label, b.patient_id) for b in some]
    said: list[str] = []
    run = dasmil.fit(flat, note=said.append, progress=False)[0]
    assert any("positions cannot play a part" in line for line in said)
    assert not any(row["spatial"] for row in run.library["candidates"])  # pyright: ignore


def test_validation_bags_are_training_bags_too(tmp_path) -> None:
    some = bags(32)
    dasmil.fit(some[:24], some[24:], out=tmp_path / "run", progress=False)
    assert Run.read(tmp_path / "run").summary["splits"]["train"]["n"] == 32


def test_probabilities_keep_the_prevalence_of_the_cohort() -> None:
    some = [bag for k, bag in enumerate(bags(120, shift=0.3)) if bag.label == 0 or (k % 8 < 4 and k % 16 < 4)]
    share = np.mean([bag.label == 1 for bag in some])
    assert share < 0.3
    assert dasmil.fit(some, progress=False)[0].predict(some).mean() == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 5}, "epochs is a setting of a single model"),
        ({"preset": "mnist-collage"}, "belong to a single model"),
        ({"model_options": {"hidden": 3}}, "belong to a single model"),
    ],
)
def test_settings_of_single_models_are_refused(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        dasmil.fit(bags(8), progress=False, **arguments)


def test_three_patients_are_too_few() -> None:
    with pytest.raises(DataError, match="too few to judge candidates"):
        dasmil.fit(bags(6), progress=False)


def test_pictures_need_a_model() -> None:
    picture = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    some = [Bag(picture, torch.rand(4, 2), "um", f"b{k}", k % 2) for k in range(8)]
    with pytest.raises(InputError, match="name a model"):
        dasmil.fit(some, progress=False)
