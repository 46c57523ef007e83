"""What pages and the terminal say of folds, of comparisons and of bags without a class, on runs that are stored."""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import dasmil
from dasmil.cli import app
from dasmil.cli.study_file import options_of, parsed
from dasmil.cli.training_display import print_run, print_scores
from dasmil.report import write_report
from dasmil.report.advice import next_steps
from dasmil.report.classes import classes_section
from dasmil.report.compared import cautions
from dasmil.report.overfit import overfit_notice
from dasmil.report.words import set_bags
from dasmil.runs import Run, verdict
from dasmil.stats import auroc
from dasmil.study.compare import compare_runs

STORED = Path(__file__).parent.parent / "runs" / "stored"


@pytest.fixture
def folds(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(STORED, tmp_path / "stored"))
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace("/data/stored", str(folder)))
    return folder / "folds"


def edited(folder: Path, file: str, change) -> None:
    for path in folder.rglob(file):
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))


def test_training_bags_of_folds_are_counted_by_fold(folds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16 bags in three folds: each trains on some of them."""
    run = Run.read(folds)
    counts = [part.summary["splits"]["train"]["n"] for part in run.folds]
    assert counts == [6, 6, 4]
    expected = "4 to 6 bags a fold"
    assert set_bags(run, "train") == expected
    assert set_bags(run, "test") == "16 bags of 14 patients"
    page = write_report(folds).read_text()
    assert f"train, {expected}" in page
    assert "train, 16 bags" not in page
    print_scores(run)
    assert f"train ({expected})" in capsys.readouterr().out


def test_a_cross_validation_on_other_bags_is_scored_by_the_models_of_its_folds(folds: Path, capsys) -> None:
    bags = folds.parent
    command = ["evaluate", str(folds), "--bags", str(bags / "bags"), "--labels", str(bags / "labels.csv")]
    app(command, exit_on_error=False, result_action="return_value")
    printed = capsys.readouterr().out
    assert "over 6 models of 3 folds" in printed
    assert "seeds [" not in printed
    found = dasmil.evaluate(folds, dasmil.CohortSpec(bags=bags / "bags", labels=bags / "labels.csv"))
    assert (found["folds"], found["models"]) == (3, 6)


def test_a_comparison_states_the_intervals_of_the_reports_and_names_what_to_know(folds: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folds, tmp_path / "other"))
    edited(other, "config.json", lambda record: record["training"].update(lr=0.5))
    edited(other, "status.json", lambda record: record.update(fitted=True))
    blind = other / "fold-1" / "seed-0" / "status.json"
    blind.write_text(json.dumps(json.loads(blind.read_text()) | {"learned_distances": []}))
    runs = [Run.read(folds), Run.read(other)]
    found = compare_runs(runs, tmp_path / "compared")
    for model in found.compared.models:
        ends = found.runs[model.name].summary["splits"]["test"]["interval"]["auroc"]
        assert [model.low, model.high] == ends
    first, second = "das-mil (folds)", "das-mil (other)"
    assert list(found.cautions) == [
        f"{first}: no run fitted the training bags: the training loss stayed high with every seed.",
        f"{second}: 1 of 6 models use no distance (fold-1 seed 0), so this score is only partly that of distance.",
        f"Settings differ: lr 0.005 ({first}), 0.5 ({second}).",
    ]
    page = found.report.read_text()
    assert all(text in page for text in found.cautions)
    assert cautions(found.runs, {first: [{"lr": 0.5}]}) == found.cautions[:2], "what folds chose is no difference"


def test_a_score_without_an_interval_has_none_in_a_comparison(folds: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folds, tmp_path / "other"))

    def without(record) -> None:
        for scored in record["splits"].values():
            scored["interval"]["auroc"] = [None, None]

    edited(other, "summary.json", without)
    found = compare_runs([Run.read(folds), Run.read(other)], tmp_path / "compared")
    ends = {model.name: model.low for model in found.compared.models}
    assert math.isnan(ends["das-mil (other)"])
    assert "| none |" in (tmp_path / "compared" / "table.md").read_text()
    assert json.loads((tmp_path / "compared" / "comparison.json").read_text())["models"]


def test_advice_keeps_the_options_of_the_user_and_asks_for_no_folds_that_are_refused(folds: Path) -> None:
    run = Run.read(folds.parent / "plain")
    given = {"training": {"epochs": 2, "clip": None}, "options": {"hidden": 2}, "preset": None}
    (run.path / "data.json").write_text(json.dumps(dict(run.data) | {"given": given}))
    edited(run.path, "config.json", lambda record: record["data"]["cohort"].update(site_column=None))
    run = Run.read(run.path)
    steps = [command for _, command in next_steps(run, verdict(run))]
    known = {label: set() for label in (0, 1)}
    for split in run.splits:
        for patient, label in zip(run.seeds[0].predictions(split).patients, run.seeds[0].predictions(split).labels):
            known[int(label)].add(patient)
    folds_asked = min(5, *map(len, known.values()))
    asked = next(step for step in steps if "--folds" in step)
    assert f"--folds {folds_asked} " in asked
    assert "--epochs 2 --set clip=null --set hidden=2" in asked
    study = read_command(asked)
    assert study["folds"] == folds_asked
    assert study["epochs"] == 2
    assert study["set"] == {"clip": "null", "hidden": 2}
    edited(run.path, "config.json", lambda record: record["data"]["cohort"].update(site_column="site"))
    run = Run.read(run.path)
    assert not [step for _, step in next_steps(run, verdict(run)) if "--folds" in step], "sites are not counted"


def read_command(text: str) -> dict:
    """A command as the parser of `dasmil train` understands it."""
    tokens = shlex.split(text)[2:]
    return parsed(options_of(app, "train"), tokens)


def test_every_class_of_several_has_its_auroc_and_sensitivity(trained: Path) -> None:
    run = Run.read(trained / "three")
    table = classes_section(run, "test").tables[0]
    names = [row[0] for row in table.rows]
    assert names == ["A & O", "B", "C"]
    seeds = run.per_seed("test")
    for number, row in enumerate(table.rows):
        truth = seeds[0].labels == number
        values = [float(auroc(seed.probabilities[:, number], truth)[0]) for seed in seeds]
        hits = [float((seed.probabilities.argmax(1) == number)[truth].mean()) for seed in seeds]
        assert row[1] == str(int(truth.sum()))
        assert row[2].main == f"{np.mean(values):.3f}"  # type: ignore[union-attr]
        assert row[3].main == f"{np.mean(hits):.3f}"  # type: ignore[union-attr]
        low, high = map(float, row[2].sub.split("–"))  # type: ignore[union-attr]
        assert low <= np.mean(values) <= high
    assert not classes_section(Run.read(trained / "binary"), "test").tables
    assert "Every class against the rest" in write_report(trained / "three").read_text()


def test_overfitting_that_the_curves_show_is_said(folds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folds.parent / "plain"
    assert overfit_notice(Run.read(path)) is None
    file = path / "seed-1" / "metrics.csv"
    rows = list(csv.DictReader(file.open()))
    made = []
    for epoch in range(1, 21):
        val = 0.7 - 0.02 * epoch if epoch <= 10 else 0.5 + 0.05 * (epoch - 10)
        made.append(rows[0] | {"epoch": epoch, "train_loss": 0.7 / epoch, "val_loss": val})
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(made)
    notice = overfit_notice(Run.read(path))
    assert notice is not None
    assert notice.startswith(
        "Overfitting in 1 of 2 models (seed 1): the validation loss is lowest at epoch 10 (0.50) and ends at 0.97,"
    )
    assert "Overfitting in 1 of 2 models" in write_report(path).read_text()
    print_run(Run.read(path))
    assert notice in capsys.readouterr().out
