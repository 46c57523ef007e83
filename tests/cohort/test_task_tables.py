"""Targets in label tables: what is read, and one clear message for what cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.data.targets import Request, read_task_labels
from dasmil.errors import DataError, InputError
from dasmil.study.spec import cohort_lines


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str, **asked):
    lists = {name: asked[name].split(",") for name in ("targets", "times") if name in asked}
    found = Request.of(**{"task": None, "time": None, "event": None, "targets": None, **asked, **lists})
    assert found is not None
    return read_task_labels(table(tmp_path, text), found)


def test_times_and_events_are_read_and_splits_are_balanced_by_events(tmp_path) -> None:
    text = "slide,days,status\na,10,dead\nb,20,alive\nc,30,Dead\nd,,\n"
    rows, task = read(tmp_path, text, time="days", event="status", unit="days")
    assert task.kind == "survival"
    assert [row.label for row in rows] == ["event", "censored", "event", None]
    assert rows[0].targets == (("days", 10.0), ("status", 1.0))
    assert task.targets[0].times == (15.0, 20.0, 25.0)  # type: ignore[union-attr]
    rows, _ = read(tmp_path, text.replace("dead", "1").replace("Dead", "1").replace("alive", "0"),
                   time="days", event="status", times="12")  # fmt: skip
    assert [row.label for row in rows[:3]] == ["event", "censored", "event"]


def test_several_columns_are_classes_or_numbers_and_empty_cells_are_missing(tmp_path) -> None:
    text = "slide,er,ki67,grade\n" + "".join(f"s{i},{'pos' if i % 2 else 'neg'},{i / 2},{i % 3}\n" for i in range(12))
    rows, task = read(tmp_path, text + "t,,3,\n", targets="er,ki67,grade:number")
    assert task.kind == "multilabel"
    assert [type(target).__name__ for target in task.targets] == ["ClassTarget", "NumberTarget", "NumberTarget"]
    assert task.targets[0].classes == ("neg", "pos")  # type: ignore[union-attr]
    assert rows[1].targets == (("er", 1.0), ("ki67", 0.5), ("grade", 1.0))
    assert rows[-1].targets == (("er", None), ("ki67", 3.0), ("grade", None))
    assert rows[-1].label == "neg"  # splits are balanced as if it were of the commonest class


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,-3,1\nb,2,0\n", "line 2: the time is -3, expected 0 or more"),
        ("a,,1\nb,2,0\n", "line 2: 'days' is empty, but the other of time and event is not"),
        ("a,3,0\nb,2,0\n", "all slides are censored"),
        ("a,3,1\nb,2,0\n", "one slide has the event"),
        ("a,3,1\nb,2,0\nc,4,2\n", "holds '1', '0', '2', expected two values"),
        ("a,3 months,1\nb,2,0\n", "the time is '3 months', expected a number without its unit"),
        ("a,3,maybe\nb,2,no\n", "holds 'maybe', 'no', expected two values"),
    ],
)
def test_follow_up_that_cannot_be_used_is_one_message(tmp_path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, "slide,days,status\n" + text, time="days", event="status")


def test_targets_that_cannot_be_used_are_one_message(tmp_path) -> None:
    with pytest.raises(DataError, match="the target 'x' is '5' in every row"):
        read(tmp_path, "slide,x\na,5\nb,5\n", targets="x")
    with pytest.raises(DataError, match="the target 'x' is missing in every row"):
        read(tmp_path, "slide,x\na,\nb,\n", targets="x")
    with pytest.raises(DataError, match="line 3: 'x' is '7 mm', expected a number"):
        read(tmp_path, "slide,x\na,5\nb,7 mm\n", targets="x")
    with pytest.raises(InputError, match="no column 'y' for the target"):
        read(tmp_path, "slide,x\na,5\nb,7\n", targets="y")
    with pytest.raises(InputError, match="needs --time-column and --event-column"):
        Request.of("survival", "days", None, None)
    with pytest.raises(InputError, match="regression has one target"):
        Request.of("regression", None, None, ["a", "b"])
    with pytest.raises(InputError, match="Did you mean 'survival'"):
        Request.of("survive", None, None, None)


def write_cohort(folder: Path, count: int = 24) -> None:
    """Slides with two patients' worth of times; events are early where the first feature is large."""
    rng = np.random.default_rng(0)
    (folder / "bags").mkdir()
    lines = ["slide,patient,days,status,amount,er"]
    for i in range(count):
        n, high = 6, i % 2
        features = torch.from_numpy(rng.normal(high, 0.3, (n, 4)).astype(np.float32))
        bag = dasmil.Bag(features, rng.uniform(0, 100, (n, 2)), "um", f"s{i:02d}", patient_id=f"p{i:02d}")
        dasmil.write_bag(folder / "bags" / f"s{i:02d}.h5", bag)
        days = rng.exponential(10 if high else 100)
        er = "" if i == 4 else ("pos" if high else "neg")
        lines.append(f"s{i:02d},p{i:02d},{days:.2f},{int(i % 4 != 3)},{20 + 5 * high + rng.normal():.3f},{er}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def call(*arguments) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from dasmil.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.run(program, capture_output=True, text=True, env=environment, check=False)


def test_survival_through_train_evaluate_and_predict(tmp_path) -> None:
    write_cohort(tmp_path)
    given = ("--bags", tmp_path / "bags", "--labels", tmp_path / "labels.csv", "--time-column", "days",
             "--event-column", "status", "--time-unit", "days", "--times", "20,50")  # fmt: skip
    out = tmp_path / "run"
    done = call("train", *given, "--model", "mean-pool", "--epochs", 5, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert "Task: survival by hazards of bins of time; time 'days' in days, event 'status'" in done.stderr
    assert "24 slides of 24 patients\n" in done.stderr  # censored is no class
    assert "Events: 18 of 24 patients (75%), 6 censored; times from " in done.stderr
    found = json.loads(done.stdout)
    assert {"c_index", "uno", "auroc_20", "auroc_50", "brier"} <= set(found["splits"]["val"]["mean"])
    assert found["splits"]["train"]["events"] + found["splits"]["val"]["events"] < 18
    page = (out / "report.html").read_text()
    assert "C-index (Harrell)" in page
    assert "AUROC at 20 days" in page
    assert 'data-filter="wrong"' not in page, "no prediction of survival is right or wrong"
    assert " data-wrong>" not in page
    done = call("evaluate", out, "--json")
    assert done.returncode == 0, done.stderr
    scored = json.loads(done.stdout)["splits"]["test"]
    assert dasmil.Run.read(out).summary["splits"]["test"]["mean"] == scored["mean"]
    done = call("predict", out, "--bags", tmp_path / "bags", "-o", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    rows = dasmil.predict(out, tmp_path / "bags")
    assert list(rows[0])[:5] == ["bag_id", "risk", "survival_20", "survival_50", "risk_sd"]
    stored = dasmil.Run.read(out).answers("train")[0]
    by_name = {row["bag_id"]: row["risk"] for row in rows}
    risk = dasmil.Run.read(out).task.answers(stored.outputs)  # type: ignore[union-attr]
    np.testing.assert_allclose([by_name[name] for name in stored.bag_ids], risk, atol=1e-6)
    assert all(row["survival_20"] >= row["survival_50"] for row in rows)
    bad = call("train", *given[:-2], "--times", "20,soon", "--out", tmp_path / "none")
    assert bad.returncode == 2
    assert "expected numbers separated by commas" in bad.stderr
    assert not (tmp_path / "none").exists()


def test_folds_and_search_of_several_targets_and_numbers(tmp_path) -> None:
    write_cohort(tmp_path)
    where = {"bags": tmp_path / "bags", "labels": tmp_path / "labels.csv"}
    spec = dasmil.CohortSpec(**where, target_columns="er,amount")  # type: ignore[arg-type]
    run = dasmil.cross_validate(spec, "mean-pool", folds=3, out=tmp_path / "folds", epochs=20, lr=0.05)
    test = run.summary["splits"]["test"]
    assert test["n"] == 24
    assert test["mean"]["er.auroc"] > 0.9
    assert np.isfinite(test["interval"]["macro"]).all()
    assert len(dasmil.predict(run, tmp_path / "bags")) == 24
    number = dasmil.CohortSpec(**where, task="regression", target_columns="amount")  # type: ignore[arg-type]
    found = dasmil.search(number, "mean-pool", {"lr": [1e-2, 1e-6]}, out=tmp_path / "search", epochs=10)
    assert found.rounds[0]["chosen"] == {"lr": 1e-2}
    assert found.run.task is not None
    assert found.run.task.targets[0].mean == pytest.approx(22.5, abs=1)  # type: ignore[union-attr]


def test_what_is_known_of_each_target_is_told(tmp_path) -> None:
    write_cohort(tmp_path)
    cohort = dasmil.CohortSpec(
        bags=tmp_path / "bags", labels=tmp_path / "labels.csv", target_columns="er,amount"
    ).load()  # fmt: skip
    first, positions, task, er, amount = cohort_lines(cohort)
    assert first == "24 slides of 24 patients"
    assert positions.startswith("Positions read as")
    assert task == "Task: multilabel; 'er' (neg, pos), 'amount' (a number)"
    assert er == "er: 11 neg, 12 pos, missing of 1"
    assert re.fullmatch(r"amount: 1[89][.\d]* to 2[67][.\d]*, mean 22[.\d]*, .* 24 different values", amount)
    one = cohort.subset([4])  # the only slide without er
    assert cohort_lines(one)[-2] == "er: missing of all 1"


def test_slides_of_a_patient_that_disagree_are_named(tmp_path) -> None:
    write_cohort(tmp_path)
    text = (tmp_path / "labels.csv").read_text().replace("s01,p01", "s01,p00")
    (tmp_path / "labels.csv").write_text(text)
    spec = dasmil.CohortSpec(
        bags=tmp_path / "bags", labels=tmp_path / "labels.csv", time_column="days", event_column="status",
        per_patient=True,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"patient 'p00' has slides with different labels \(s00: days .* s01: days"):
        spec.load()
