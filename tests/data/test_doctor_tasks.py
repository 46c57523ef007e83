"""The doctor on follow-up, numbers and several targets."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import dasmil
from dasmil.stats import FollowUp, c_index_to_tell, correlation_to_tell


def call(*arguments) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from dasmil.cli import main; main()", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.run(program, capture_output=True, text=True, env=environment, check=False)


def write(folder, count: int = 30, *, per: int = 1, site: bool = False) -> None:
    rng = np.random.default_rng(0)
    (folder / "bags").mkdir()
    lines = ["slide,patient,days,dead,amount,er,site"]
    for i in range(count):
        features = torch.from_numpy(rng.normal(3.0 * (i % 2) * site, 1, (12, 4)).astype(np.float32))
        bag = dasmil.Bag(features, torch.from_numpy(100 * rng.random((12, 2))).float(), "um", f"s{i:02d}")
        dasmil.write_bag(folder / "bags" / f"s{i:02d}.h5", bag)
        days = (10 if i % 2 else 200) + i // per
        er = "" if i % 10 == 9 else ("pos" if i % 3 else "neg")
        lines.append(f"s{i:02d},p{i // per:02d},{days},{int(i // per % 3 != 2)},{20 + i // per},{er},{'AB'[i % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def doctor(folder, *options):
    done = call("doctor", folder / "bags", "--labels", folder / "labels.csv", *options)
    return done.returncode, done.stdout if "--json" in options else done.stdout + done.stderr


def test_the_c_index_that_is_told_from_chance_is_that_of_random_orders() -> None:
    n = 20  # without censoring the C-index is Kendall's tau, whose variance is known
    spread = math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1))) / 2
    smallest, true = c_index_to_tell([FollowUp(np.arange(1.0, n + 1), np.ones(n, dtype=bool))])
    assert smallest == pytest.approx(0.5 + 1.96 * spread, abs=0.012)
    assert true == pytest.approx(0.5 + 2.80 * spread, abs=0.017)
    folds, _ = c_index_to_tell([FollowUp(np.arange(1.0, n + 1), np.ones(n, dtype=bool))] * 4)
    assert folds == pytest.approx(0.5 + 1.96 * spread / 2, abs=0.008)
    assert c_index_to_tell([FollowUp(np.arange(1.0, 5), np.zeros(4, dtype=bool))]) == (None, None)
    assert c_index_to_tell([FollowUp(np.arange(1.0, 3), np.ones(2, dtype=bool))]) == (None, None)  # either 0 or 1


def test_the_correlation_that_is_told_from_none() -> None:
    smallest, true = correlation_to_tell([28])
    assert smallest == pytest.approx(math.tanh(1.96 / 5), abs=1e-4)
    assert true == pytest.approx(math.tanh(2.80 / 5), abs=1e-3)
    assert correlation_to_tell([3]) == (None, None)


def test_follow_up_is_described_and_what_it_can_show(tmp_path) -> None:
    write(tmp_path)
    code, text = doctor(tmp_path, "--time-column", "days", "--event-column", "dead", "--time-unit", "days")
    assert code == 0, text
    flat = " ".join(text.split())
    assert "30 slides of 30 patients" in flat
    assert "Events: 20 of 30 patients (67%), 10 censored; times from 11 to 228 days; half have had the event by" in flat
    assert "A C-index is told from 0.5 (95 %) on val (" in flat
    assert "on 5 folds, their mean (30 patients, 20 with the event): from 0." in flat
    code, text = doctor(tmp_path, "--time-column", "days", "--event-column", "dead", "--json")
    found = json.loads(text)
    whole = found["shows"][-1]
    assert (whole["figure"], whole["patients"], whole["rarest"]) == ("C-index", 30, 20)
    assert 0.6 < whole["smallest"] < whole["to_find"] < 0.9


def test_plan_says_the_same_of_what_can_be_shown(tmp_path) -> None:
    write(tmp_path)
    given = ("--labels", tmp_path / "labels.csv", "--time-column", "days", "--event-column", "dead", "--json")
    planned = call("plan", "--bags", tmp_path / "bags", *given, "--model", "mean-pool")
    assert planned.returncode == 0, planned.stderr
    checked = call("doctor", tmp_path / "bags", *given)
    assert json.loads(planned.stdout)["shows"] == json.loads(checked.stdout)["shows"]
    assert json.loads(planned.stdout)["shows"][0]["figure"] == "C-index"


def test_slides_of_a_patient_with_two_survival_times_are_an_error(tmp_path) -> None:
    write(tmp_path, 40, per=2)  # the two slides of a patient have other times
    options = ("--time-column", "days", "--event-column", "dead")
    code, text = doctor(tmp_path, *options)
    flat = " ".join(text.split())
    assert code == 1
    assert (
        "error: slides disagree: 20 patients have slides with different values, for example p00 (s00: days 200 " in flat
    )
    code, text = doctor(tmp_path, *options, "--per-patient")
    assert code == 1
    assert "error: slides disagree" in text


def test_numbers_and_several_targets(tmp_path) -> None:
    write(tmp_path)
    labels = tmp_path / "labels.csv"
    labels.write_text(labels.read_text().replace("s03,p03,13,1,23", "s03,p03,13,1,23000"))
    code, text = doctor(tmp_path, "--target-columns", "amount", "--task", "regression", "--time-unit", "mm2")
    flat = " ".join(text.split())
    assert code == 0, text
    assert "amount: 20 to 23000 mm2, mean" in flat
    assert "A correlation is told from 0 (95 %) on" in flat
    assert "warning: far off: 1 slides have a amount far from the others'" in flat
    assert "s03 (23000)" in flat
    code, text = doctor(tmp_path, "--target-columns", "er,amount")
    flat = " ".join(text.split())
    assert "er: 9 neg, 18 pos, missing of 3" in flat
    assert "An AUROC of 'er' is told from 0.5 (95 %) on" in flat
    assert "A correlation of 'amount' is told from 0" in flat


def test_sites_that_features_and_survival_know(tmp_path) -> None:
    write(tmp_path, 40, site=True)
    code, text = doctor(tmp_path, "--time-column", "days", "--event-column", "dead", "--site-column", "site")
    flat = " ".join(text.split())
    assert code == 0, text
    assert "The site can be told from mean features alone with AUROC 1.000" in flat
    assert "Event and site go together with Cramer's V" in flat
    assert "Survival differs between sites with p < 0.001 (log-rank, one slide a patient)" in flat
    assert "features tell the site and the site tells the label" in flat


def test_few_events_time_zero_and_a_split_without_events(tmp_path) -> None:
    write(tmp_path)
    rows = [line.split(",") for line in (tmp_path / "labels.csv").read_text().split()]
    table = [",".join([*rows[0], "split"])]
    for i, row in enumerate(rows[1:]):
        row[3] = str(int(i < 6))
        row[2] = "0" if i == 2 else row[2]
        table.append(",".join([*row, "train" if i < 20 else "test"]))
    (tmp_path / "labels.csv").write_text("\n".join(table) + "\n")
    options = ("--time-column", "days", "--event-column", "dead", "--split-column", "split")
    code, text = doctor(tmp_path, *options)
    flat = " ".join(text.split())
    assert code == 0, text
    assert "warning: few events: 6 patients have the event" in flat
    assert "warning: time 0: 1 slides have a time of 0 and say nothing of an order: s02" in flat
    assert "warning: splits: no patient of test has the event: there is no C-index" in flat
    assert "on test (10 patients, 0 with the event): never" in flat


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--time-column", "days"), "survival needs --time-column and --event-column"),
        (("--time-column", "days", "--event-column", "er"), "expected two values"),
        (("--target-columns", "er,amount", "--positive", "pos"), "--positive is for classification"),
    ],
)
def test_wrong_use_is_one_message(tmp_path, options, message: str) -> None:
    write(tmp_path, 6)
    code, text = doctor(tmp_path, *options)
    assert code != 0
    assert message in " ".join(text.split())
    assert "Traceback" not in text
