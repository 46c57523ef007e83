"""`dasmil compare` where the task is no class: its own metric, the same folds, paired differences, the space test."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.cli.compare import app
from dasmil.errors import InputError
from dasmil.stats import harrell
from dasmil.stats.follow_up import FollowUp
from dasmil.study.compare import Comparison
from dasmil.types import Bag

MODELS = ["sa-axial", "sa", "mean-pool"]
COLUMNS = {
    "survival": {"time_column": "days", "event_column": "dead", "time_unit": "days"},
    "regression": {"target_columns": "amount", "task": "regression"},
    "multilabel": {"target_columns": "amount,kind", "task": "multilabel"},
}
METRICS = {"survival": "c_index", "regression": "r2", "multilabel": "macro"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags whose mean feature says everything: events come early, and the amount is large, where it is high."""
    folder = tmp_path_factory.mktemp("cohort")
    rng = np.random.default_rng(0)
    rows = ["slide,patient,days,dead,amount,kind"]
    for i in range(30):
        level = i % 3
        bag = Bag(
            torch.from_numpy(rng.normal(level, 1, (12, 4))).float(), torch.from_numpy(rng.random((12, 2)) * 500), "um",
            f"s{i:02d}", patient_id=f"p{i:02d}",
        )  # fmt: skip
        dasmil.write_bag(folder / f"s{i:02d}.h5", bag)
        days = rng.exponential(1000 * 4.0**-level)
        kind = "" if i % 7 == 6 else "high" if level == 2 else "low"
        rows.append(f"s{i:02d},p{i:02d},{days:.1f},{int(i % 5 > 0)},{10 + 3 * level + rng.normal(0, 0.3):.3f},{kind}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module", params=list(COLUMNS))
def found(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    spec = dasmil.CohortSpec(bags=folder, labels=folder / "labels.csv", **COLUMNS[request.param])
    out = tmp_path_factory.mktemp(request.param)
    return dasmil.compare(spec, MODELS, out=out, folds=3, epochs=6, grid={"lr": [1e-4, 1e-2]}, space_test=True)


def test_models_are_scored_by_the_metric_of_the_task(found: Comparison) -> None:
    assert found.compared.metric == METRICS[_kind(found)]
    assert (found.compared.bags, found.compared.folds, len(found.compared.gaps)) == (30, 3, 3)
    for model in found.compared.models:
        run = found.runs[model.name]
        assert model.score == pytest.approx(run.summary["splits"]["test"]["mean"][found.compared.metric])
        assert model.low < model.score < model.high


@pytest.mark.parametrize("found", ["survival"], indirect=True)
def test_the_c_index_and_its_difference_are_those_of_the_predictions(found: Comparison) -> None:
    each = {}
    for name in ("sa", "mean-pool"):
        folds = [part.answers("test")[0] for part in found.runs[name].parts]
        tasks = [part.task for part in found.runs[name].parts]
        each[name] = np.mean([
            harrell(FollowUp(a.values[:, 0], a.values[:, 1] == 1), task.targets[0].risk(a.outputs))[0]
            for a, task in zip(folds, tasks, strict=True)
        ])  # fmt: skip
    assert found.compared.gap("sa", "mean-pool").difference == pytest.approx(each["sa"] - each["mean-pool"])


def test_every_fold_chose_by_its_validation_bags(found: Comparison) -> None:
    assert {len(chosen) for chosen in found.chosen.values()} == {3}
    for name, run in found.runs.items():
        assert [part.config["training"]["lr"] for part in run.parts] == [c["lr"] for c in found.chosen[name]]


def test_the_space_test_says_who_uses_positions(found: Comparison) -> None:
    space = {s.name: s for s in found.compared.space}
    for blind in ("sa", "mean-pool"):
        assert space[blind].coords.low == space[blind].coords.high == 0
        rows = space[blind].rows  # sums in another order differ by rounding, which is no use of the order
        assert (rows.difference, rows.low, rows.high, rows.p) == (0, 0, 0, 1)
    assert space["sa-axial"].coords.low < space["sa-axial"].coords.high


def test_words_and_files_name_the_metric(found: Comparison) -> None:
    word = {"c_index": "C-index", "r2": "R²", "macro": "mean score"}[found.compared.metric]
    best = found.compared.models[0]
    assert found.sentence.startswith(f"On this cohort {best.name} has the highest {word}, {best.score:.3f}, ")
    assert "AUROC" not in found.report.read_text().replace("(AUROC of classes", "")
    rows = list(csv.DictReader((found.folder / "table.csv").read_text().splitlines()))
    scores = {m.name: m.score for m in found.compared.models}
    assert [float(row[f"{found.compared.metric}_first"]) for row in rows] == [scores[row["first"]] for row in rows]
    assert json.loads((found.folder / "comparison.json").read_text())["metric"] == found.compared.metric
    assert ("$R^2$" in (found.folder / "table.tex").read_text()) == (found.compared.metric == "r2")


def test_on_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bags", str(folder), "--labels", str(folder / "labels.csv"), "--time-column", "days", "--event-column",
             "dead", "--models", "mean-pool,max-pool", "--folds", "2", "--epochs", "2", "--same-settings", "--json",
             "--out", str(tmp_path / "c")]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert ended.value.code == 0
    record = json.loads(capsys.readouterr().out)
    assert record["metric"] == "c_index"
    assert {m["name"] for m in record["models"]} == {"mean-pool", "max-pool"}


def test_runs_of_different_tasks_are_refused(folder: Path, tmp_path: Path) -> None:
    runs = []
    for kind in ("survival", "regression"):
        spec = dasmil.CohortSpec(bags=folder, labels=folder / "labels.csv", **COLUMNS[kind])
        runs.append(dasmil.cross_validate(spec, "mean-pool", folds=2, epochs=1, out=tmp_path / kind).path)
    with pytest.raises(InputError, match=r"the runs have different tasks .*survival.*regression"):
        dasmil.compare(runs, out=tmp_path / "c")


def _kind(found: Comparison) -> str:
    task = next(iter(found.runs.values())).task
    assert task is not None
    return task.kind
