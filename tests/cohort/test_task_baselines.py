"""Rules beside models of survival, numbers and grades: the same table as for classes, with paired differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli import app
from dasmil.runs import baseline_answers, read_baselines, verdict

ASKED = {
    "regression": {"target_columns": "amount", "task": "regression"},
    "survival": {"time_column": "days", "event_column": "dead"},
    "ordinal": {"target_columns": "grade", "task": "ordinal"},
}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty slides whose outcome grows with the share of the second of two types of instances."""
    folder = tmp_path_factory.mktemp("shares")
    (folder / "bags").mkdir()
    rng = np.random.default_rng(0)
    lines = ["slide,amount,days,dead,grade"]
    for i in range(40):
        share = rng.uniform(0.1, 0.9)
        kinds = (rng.uniform(size=40) < share).astype(int)
        features = torch.from_numpy(np.eye(4)[kinds]).float()
        features += 0.05 * torch.from_numpy(rng.standard_normal((40, 4))).float()
        bag = dasmil.Bag(features, rng.uniform(0, 100, (40, 2)), "um", f"s{i:02d}")
        dasmil.write_bag(folder / "bags" / f"{bag.bag_id}.h5", bag)
        seen = kinds.mean()
        days = rng.exponential(100 * np.exp(-5 * seen))
        grade = int(3 * np.clip(seen + rng.normal(0, 0.1), 0, 0.99))
        lines.append(f"s{i:02d},{10 * seen + rng.normal(0, 0.5):.3f},{days:.3f},{int(i % 4 > 0)},{grade}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("task", ASKED)
def test_rules_stand_beside_a_model_of_any_task(task: str, cohort: Path, tmp_path: Path) -> None:
    spec = dasmil.CohortSpec(bags=cohort / "bags", labels=cohort / "labels.csv", **ASKED[task])
    run = dasmil.cross_validate(spec, "ab-mil", folds=3, out=tmp_path / "folds", epochs=1, lr=1e-6)
    judged = verdict(run)
    assert set(judged.baselines) == {"mean", "composition", "contacts"}
    scored = judged.baselines["composition"]["splits"]["test"]
    low, high = scored["interval"][judged.metric]
    assert low < scored["mean"][judged.metric] < high
    assert judged.baseline_told("composition")  # and the model, which was hardly trained, is worse
    middle, under, over = judged.gap("composition")
    assert under < middle < over
    assert middle < 0
    assert middle == pytest.approx(run.summary["splits"]["test"]["mean"][judged.metric] - scored["mean"][judged.metric])
    assert judged.outdone
    assert "baseline is " in judged.against_baselines
    page = run.report.read_text()
    assert "Beside simple rules" in page
    assert "What to do next" in page


def test_they_are_scored_on_a_test_set_that_is_opened_later(cohort: Path, tmp_path: Path) -> None:
    spec = dasmil.CohortSpec(bags=cohort / "bags", labels=cohort / "labels.csv", **ASKED["regression"])
    run = dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "run", epochs=1)
    before = read_baselines(run.path)["mean"]["splits"]
    assert set(before) == {"val"}
    assert app(["evaluate", str(run.path)], exit_on_error=False, result_action="return_value") == 0
    after = read_baselines(run.path)["mean"]["splits"]
    assert set(after) == {"val", "test"}
    assert after["val"]["mean"] == pytest.approx(before["val"]["mean"])
    answers = baseline_answers(run.path, "mean")["test"]
    truth, told = answers.values[:, 0], run.asked.answers(answers.outputs)
    left = ((truth - told) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
    assert after["test"]["mean"]["r2"] == pytest.approx(1 - left)
