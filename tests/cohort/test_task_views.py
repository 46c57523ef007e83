"""`explain` and `view` of runs whose target is no class: words, units, and a voice for every output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli import call
from dasmil.study.explaining import explain_bag
from dasmil.study.shelf import make_shelf
from dasmil.viewer.answers import account, bag_list, instance

N = 16


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen bags of two types; with much of the second the event comes early and the amount is large."""
    folder = tmp_path_factory.mktemp("cohort")
    (folder / "bags").mkdir()
    rng = np.random.default_rng(0)
    lines = ["slide,days,dead,amount,er,split"]
    for i in range(N):
        kinds = (rng.uniform(size=12) < (0.2 if i % 2 else 0.7)).astype(int)
        features = torch.from_numpy(np.eye(2)[kinds] + 0.05 * rng.standard_normal((12, 2))).float()
        bag = dasmil.Bag(features, torch.from_numpy(rng.uniform(0, 100, (12, 2))).float(), "um", f"s{i:02d}")
        dasmil.write_bag(folder / "bags" / f"{bag.bag_id}.h5", bag)
        days, split = (100 + 10 * i if i % 2 else 10 + i), ("train" if i < 12 else "val")
        lines.append(f"s{i:02d},{days},{int(i % 5 > 0)},{kinds.sum() * 10},{i % 2},{split}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def trained(cohort: Path, out: Path, **asked: str) -> Path:
    spec = dasmil.CohortSpec(bags=cohort / "bags", labels=cohort / "labels.csv", **asked)  # type: ignore[arg-type]
    dasmil.train_cohort(spec, "das-mil", out=out, epochs=2, starts=1)
    return out


def test_a_log_risk_is_told_as_one(cohort: Path, tmp_path: Path) -> None:
    run = trained(cohort, tmp_path / "cox", time_column="days", event_column="dead", time_unit="days", survival="cox")
    found = explain_bag(run, "s03")
    page = found.write(tmp_path / "out")[0].read_text()
    assert "every number below is a part of the log-risk." in page
    assert "blue lowers the risk, orange raises the risk" in page
    assert "What raises the risk" in page
    assert "of class" not in page
    shelf = make_shelf(run)
    (title,) = bag_list(shelf)["voices"]
    assert title == "seed 0: the log-risk"
    rows = {row["id"]: row for row in bag_list(shelf)["bags"]}
    assert (rows["s03"]["label_name"], rows["s05"]["label_name"]) == ("130 days", "150+ days")  # seen, censored
    said = account(shelf, rows["s03"]["index"], None)
    assert said["said"] == [("The log-risk", f"{found.explanation.logit:+.3f}")]
    assert said["scores"][0]["hint"].endswith("orange raises the risk, blue lowers the risk")


def test_a_number_is_explained_in_its_unit(cohort: Path, tmp_path: Path) -> None:
    run = trained(cohort, tmp_path / "number", target_columns="amount", task="regression", time_unit="cells")
    found = explain_bag(run, "s03")
    told = found.explanation
    (row,) = [row for row in dasmil.predict(run, cohort / "bags") if row["bag_id"] == "s03"]
    assert told.logit == pytest.approx(row["amount"], abs=1e-3)
    assert float(told.contributions.double().sum()) + told.bias == pytest.approx(told.logit, abs=1e-3)
    parts = sum(pair.contribution for pair in explain_bag(run, "s03", top=10_000).explanation.pairs)
    assert parts == pytest.approx(float(told.contributions.double().sum()), abs=1e-3)
    assert "a part of amount (cells)" in found.write(tmp_path / "out")[0].read_text()
    shelf = make_shelf(run)
    index = next(row["index"] for row in bag_list(shelf)["bags"] if row["id"] == "s03")
    said = account(shelf, index, None)
    assert said["logit"] == pytest.approx(told.logit, abs=1e-4)
    assert said["said"] == [("Amount", f"{told.logit:,.4g} cells")]
    own = instance(shelf, index, None, 0)
    assert own["scores"]["Contribution to amount (cells)"] == pytest.approx(float(told.contributions[0]), abs=1e-4)


def test_every_output_of_several_targets_has_a_voice(cohort: Path, tmp_path: Path) -> None:
    run = trained(cohort, tmp_path / "several", target_columns="er,amount:number")
    shelf = make_shelf(run)
    assert bag_list(shelf)["voices"] == ["seed 0: the logit of er = 1", "seed 0: amount"]
    row = next(row for row in bag_list(shelf)["bags"] if row["id"] == "s03")
    assert row["label_name"].startswith("er 1, amount ")
    assert set(row["sets"]) == {"0", "1"}
    for voice, output in ((0, 0), (1, 1)):
        wanted = explain_bag(run, "s03", target=output).explanation
        assert account(shelf, row["index"], voice)["logit"] == pytest.approx(wanted.logit, abs=1e-4)
    first, second = (account(shelf, row["index"], voice)["said"] for voice in (0, 1))
    assert first[0][0] == "Probability of er = 1"
    assert second[0][0] == "Amount"


def test_hazards_are_told_with_their_times(cohort: Path, tmp_path: Path) -> None:
    run = trained(cohort, tmp_path / "hazards", time_column="days", event_column="dead", time_unit="days")
    voices = bag_list(make_shelf(run))["voices"]
    assert voices[0].startswith("seed 0: the logit of the hazard from 0 to ")
    assert all(voice.endswith(" days") for voice in voices)


ASKED = {
    "times": ("--time-column", "days", "--event-column", "dead", "--time-unit", "days"),
    "number": ("--target-columns", "amount", "--task", "regression"),
    "several": ("--target-columns", "er,amount:number"),
}
TOLD = {
    "times": "Task: survival by hazards of bins of time; time 'days' in days, event 'dead'.",
    "number": "Task: regression; 'amount' (a number).",
    "several": "Task: multilabel; 'er' (0, 1), 'amount' (a number).",
}


@pytest.mark.parametrize("asked", ASKED)
def test_plan_knows_the_task(cohort: Path, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = ("--labels", str(cohort / "labels.csv"), *ASKED[asked])
    assert call(["plan", "--bags", str(cohort / "bags"), *table, "--threads", "1"]) == 0
    told = capsys.readouterr().out
    assert TOLD[asked] in told
    assert "AUROC" not in told.replace("An AUROC of 'er'", "")  # of a target that is a class
    assert "time per epoch" in told
