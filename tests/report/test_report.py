"""The report page says what the run directory says, and needs no other file."""

from __future__ import annotations

import csv
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dasmil.attribution.distance import learned_distances
from dasmil.errors import DataError, InputError
from dasmil.report import pictures, write_report
from dasmil.report.advice import next_steps
from dasmil.report.phi import Phi
from dasmil.report.pictures import phi_picture, roc_curves, roc_picture
from dasmil.report.sections import headline
from dasmil.report.single import epochs_text, run_page, told_by
from dasmil.runs import Run, Verdict, verdict
from dasmil.study.folds import write_fold_summary
from dasmil.train import fit
from tests.baselines.shares import shares


class Rows(HTMLParser):
    """Cells of every table row, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.text = ""
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True
        elif tag == "br" and self._in_cell:
            self.rows[-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data


def predictions(run: Path, split: str) -> dict[str, list[dict[str, str]]]:
    """Bag -> its rows, one per seed."""
    found: dict[str, list[dict[str, str]]] = {}
    for seed in sorted(run.glob("seed-*")):
        with (seed / "predictions.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if row["split"] == split:
                    found.setdefault(row["bag_id"], []).append(row)
    return found


def test_scores_in_the_page_are_those_of_the_summary(trained: Path, pages: dict[str, str]):
    page = Rows(pages["binary"])
    summary = json.loads((trained / "binary" / "summary.json").read_text())
    names = {"balanced_accuracy": "Balanced accuracy", "auroc": "AUROC", "brier": "Brier score"}
    splits = ["test", "val", "train"]
    header = next(row for row in page.rows if row[1:] == [f"{s}, 16 bags" for s in splits])
    assert header[0] == ""
    for metric, name in names.items():
        cells = next(row for row in page.rows if row and row[0] == name)
        for split, cell in zip(splits, cells[1:], strict=True):
            scored = summary["splits"][split]
            low, high = scored["interval"][metric]
            assert cell == f"{scored['mean'][metric]:.3f} ± {scored['std'][metric]:.3f} {low:.3f}–{high:.3f}"
    scored = summary["splits"]["test"]
    assert "DAS-MIL on slides: 2 seeds, 3 epochs over 16 training bags." in page.text
    assert "Measured on test: 16 bags, 8 of them positive; 2 seeds." in page.text
    low, high = scored["interval"]["auroc"]
    assert f"{scored['mean']['auroc']:.3f}\n95 % interval {low:.3f}–{high:.3f}" in re.sub(r"\n+", "\n", page.text)


def test_an_interval_without_width_is_no_sign_of_certainty(trained: Path):
    run = Run.read(trained / "binary")
    scored = run.summary["splits"]["test"]
    scored["interval"]["auroc"] = [1.0, 1.0]
    assert headline(run, "test", "auroc").note.startswith(
        "95 % interval 1.000–1.000 (every resample of these 16 bags scores the same), ± "
    )
    scored["interval"]["auroc"] = [0.999, 1.0]
    assert headline(run, "test", "auroc").note.startswith("95 % interval 0.999–1.000, ± ")


def test_every_bag_is_listed_with_its_mean_probability(trained: Path, pages: dict[str, str]):
    run = trained / "binary"
    page = Rows(pages["binary"])
    threshold = json.loads((run / "summary.json").read_text())["threshold"]["decision"]
    listed = {row[0]: row for row in page.rows if len(row) == 7 and row[1] in ("train", "val", "test")}
    assert len(listed) == 48
    for split in ("train", "val", "test"):
        for bag_id, rows in predictions(run, split).items():
            values = np.array([float(row["probability"]) for row in rows])
            label = int(rows[0]["label"])
            right = sum(int(p >= threshold) == label for p in values)
            guess = int(values.mean() >= threshold)
            names = ("negative", "positive")
            expected = [bag_id, split, names[label], names[guess], f"{values.mean():.3f}", f"{values.std(ddof=1):.3f}"]
            assert listed[bag_id] == [*expected, f"{right}/2"]


@pytest.mark.parametrize("name", ["binary", "three", "folds"])
def test_the_page_needs_no_other_file(pages: dict[str, str], name: str):
    text = pages[name]
    assert not re.search(r"https?:|//cdn|<link|<img|@import|\bsrc=", text)
    references = re.findall(r'(?:href="|url\()([^")]+)', text)
    assert references
    assert all(reference.startswith(("#", "data:")) for reference in references)
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert {r[1:] for r in references if r.startswith("#")} <= set(identifiers)
    assert "prefers-color-scheme:dark" in text
    assert re.search(r"stroke: var\(--accent\)", text)


def test_text_from_the_data_is_escaped(pages: dict[str, str]):
    text = pages["binary"]
    assert "<b>test</b>" not in text
    assert "&lt;b&gt;test&lt;/b&gt;-0" in text


def test_the_learned_distance_is_that_of_the_run(trained: Path, pages: dict[str, str]):
    text = Rows(pages["binary"]).text
    middles = [
        json.loads((trained / "binary" / f"seed-{k}" / "status.json").read_text())["learned_distances"][0]["midpoint"]
        for k in (0, 1)
    ]
    length = f"Halfway at {min(middles):.0f}–{max(middles):.0f} µm"
    run = Run.read(trained / "binary")
    assert (length in text) == verdict(run).told
    assert "true threshold" not in text
    sure, doubtful = phi_picture(run), phi_picture(run, None, "No signal detected: no luck.")
    assert sure is not None
    assert doubtful is not None
    assert length in sure.caption
    assert "no better than chance" not in sure.svg
    assert doubtful.caption.startswith("No signal detected: no luck. These lines")
    assert "alfway" not in doubtful.caption
    assert "of a model no better than chance" in doubtful.svg
    assert "halfway" not in doubtful.svg


def test_slopes_and_radius_are_told_in_micrometres(binary: Path):
    assert told_by(Run.read(binary)) == []  # written before biases were noted, or without one
    config = json.loads((binary / "config.json").read_text())
    config["model"]["options"]["radius"] = 300.0
    (binary / "config.json").write_text(json.dumps(config))
    for seed, slope in ((0, 0.01), (1, 0.02)):
        file = binary / f"seed-{seed}" / "status.json"
        row = {"layer": 0, "head": 0, "bias": "linear", "slope": slope, "unit": "um"}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"learned_biases": [row]}))
    page = run_page(Run.read(binary))
    (section,) = [section for section in page.sections if section.title == "What the model uses"]
    assert list(section.text) == [
        "A weight halves every 34.7 to 69.3 µm of distance.",
        "Instances more than 300 µm apart do not see each other.",
    ]


def test_advice_keeps_the_radius_and_what_the_doctor_needs_for_cells(binary: Path):
    config = json.loads((binary / "config.json").read_text())
    config["model"]["options"]["radius"] = 50.0
    config["data"]["cohort"] = {"bags": "features", "labels": "labels.csv"}
    (binary / "config.json").write_text(json.dumps(config))

    def commands() -> list[str]:
        run = Run.read(binary)
        return [command for _, command in next_steps(run, Verdict(run, None, {}))]

    folds, doctor, encoders = commands()
    model = f"--model {config['model']['name']} --set radius=50 --folds 5 --seeds 3"
    assert folds == f"dasmil train --bags features --labels labels.csv {model} --out {binary}-folds"
    assert (doctor, encoders) == ("dasmil doctor features --labels labels.csv", "dasmil encoders")
    config["data"]["cohort"] = {"bags": "cells.csv", "labels": "labels.csv", "bag_column": "patient", "one_hot": "type"}
    (binary / "config.json").write_text(json.dumps(config))
    _, doctor = commands()
    assert doctor == "dasmil doctor cells.csv --labels labels.csv --bag-column patient --one-hot type"


def test_advice_for_a_cross_validation_keeps_its_folds(binary: Path):
    config = json.loads((binary / "config.json").read_text())
    config["data"] |= {"cohort": {"bags": "features", "labels": "labels.csv"}, "folds": 4, "split_seed": 7}
    (binary / "config.json").write_text(json.dumps(config))
    run = Run.read(binary)
    judged = SimpleNamespace(
        first_sentence="", best="pairs", baseline_told=lambda _name: True, told=True, too_few=False
    )
    ((_, command),) = next_steps(run, cast(Verdict, judged))
    own = f"--split-seed 7 --folds 4 --model {config['model']['name']} --seeds 5"
    assert command == f"dasmil train --bags features --labels labels.csv {own} --out {binary}-seeds"


def test_a_midpoint_at_zero_is_drawn_over_the_distance_scale(binary: Path):
    for seed in (0, 1):
        file = binary / f"seed-{seed}" / "status.json"
        status = json.loads(file.read_text())
        status["learned_distances"][0] |= {"theta": 0.0, "midpoint": 0.0}
        file.write_text(json.dumps(status))
    found = phi_picture(Run.read(binary))
    assert found is not None
    scale = json.loads((binary / "config.json").read_text())["model"]["options"]["distance_scale"]
    ticks = [float(text) for text in re.findall(r">([\d.]+)</text>", found.svg)]
    assert 0.5 * scale < max(ticks) <= scale


def test_every_fold_is_drawn_at_its_own_distance_scale(binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[Phi] = []
    real = pictures.phi_figure
    spy = lambda some, *rest, **more: (drawn.extend(some), real(some, *rest, **more))[1]  # noqa: E731
    monkeypatch.setattr(pictures, "phi_figure", spy)
    expected = []
    for fold, factor in enumerate((1.0, 3.0)):
        folder = Path(copytree(binary, tmp_path / "cross" / f"fold-{fold}"))
        config = json.loads((folder / "config.json").read_text())
        config["model"]["options"]["distance_scale"] *= factor
        (folder / "config.json").write_text(json.dumps(config))
        for seed in (0, 1):
            status = json.loads((folder / f"seed-{seed}" / "status.json").read_text())
            status["learned_distances"][0]["midpoint"] *= factor
            (folder / f"seed-{seed}" / "status.json").write_text(json.dumps(status))
            expected.append(status["learned_distances"][0]["midpoint"])
    write_fold_summary(tmp_path / "cross", 2)
    found = phi_picture(Run.read(tmp_path / "cross"))
    assert [phi.theta * phi.scale for phi in drawn] == pytest.approx(expected, rel=1e-4)
    assert found is not None
    assert f"one line per seed and fold. Halfway at {min(expected):.0f}–{max(expected):.0f} µm" in found.caption


def test_several_classes(trained: Path, pages: dict[str, str]):
    run = trained / "three"
    page = Rows(pages["three"])
    assert "Learned φ" not in page.text
    assert "18 bags, 3 classes (means over the classes)" in page.text
    counts = np.zeros((3, 3), int)
    names = ["A & O", "B", "C"]
    listed = {row[0]: row for row in page.rows if len(row) == 7 and row[1] == "test"}
    for bag_id, rows in predictions(run, "test").items():
        mean = np.mean([[float(row[f"probability_{c}"]) for c in range(3)] for row in rows], axis=0)
        counts[int(rows[0]["label"]), mean.argmax()] += 1
        assert listed[bag_id][2:5] == [names[int(rows[0]["label"])], names[mean.argmax()], f"{mean.max():.3f}"]
    matrix = re.search(r"Confusion matrix.*?</svg>", pages["three"], re.DOTALL)
    assert matrix
    shown = [int(text) for text in re.findall(r">(\d+)</text>", matrix[0])]
    assert shown == counts.flatten().tolist()


def test_a_cross_validation_pools_its_folds(trained: Path, pages: dict[str, str]):
    page = Rows(pages["folds"])
    summary = json.loads((trained / "folds" / "summary.json").read_text())
    assert "2 folds, 2 seeds each" in page.text
    counts = {
        json.loads((trained / "folds" / f"fold-{k}" / "data.json").read_text())["splits"]["train"]["n"] for k in (0, 1)
    }
    assert f"over {' to '.join(map(str, sorted(counts)))} training bags a fold." in page.text
    assert "Fold: 0" not in page.text
    for fold in range(2):
        data = json.loads((trained / "folds" / f"fold-{fold}" / "data.json").read_text())
        assert f"fold-{fold}, test" in page.text
        assert data["fingerprint"][:16] in page.text
    assert f"{summary['splits']['test']['mean']['auroc']:.3f}" in page.text
    assert "Measured on test: 24 bags" in page.text
    listed = [row for row in page.rows if len(row) == 7 and row[1] == "test"]
    assert sorted(row[0] for row in listed) == sorted(f"fold{f}-{i}" for f in (0, 1) for i in range(12))
    for fold in (0, 1):
        threshold = Run.read(trained / "folds" / f"fold-{fold}").decision
        assert threshold is not None
        for bag_id, rows in predictions(trained / "folds" / f"fold-{fold}", "test").items():
            mean = np.mean([float(row["probability"]) for row in rows])
            row = next(row for row in listed if row[0] == bag_id)
            assert row[3] == ("positive" if mean >= threshold else "negative")
    assert {"fold-0, 12 bags", "fold-1, 12 bags"} <= set(re.findall(r"fold-\d, 12 bags", page.text))


def test_the_label_of_a_cross_validation_roc_is_the_area_of_its_curve(trained: Path, tmp_path: Path):
    folder = Path(copytree(trained / "folds", tmp_path / "folds"))
    for file in (folder / "fold-1").glob("seed-*/predictions.csv"):  # a fold whose scores all lie higher
        with file.open(newline="") as handle:
            rows = list(csv.DictReader(handle))
        with file.open("w", newline="") as handle:
            out = csv.DictWriter(handle, list(rows[0]))
            out.writeheader()
            out.writerows({**row, "probability": 0.9 + 0.1 * float(row["probability"])} for row in rows)
    write_fold_summary(folder, 2)
    run = Run.read(folder)
    [(label, curve, _)] = roc_curves(run, "test")
    mean = run.summary["splits"]["test"]["mean"]["auroc"]
    assert label.startswith(f"AUROC {mean:.3f}")
    assert np.trapezoid(curve.mean, curve.fpr) == pytest.approx(mean, abs=0.01)
    found = roc_picture(run, "test")
    assert found is not None
    assert found.caption == "test, 24 bags. Mean of the folds' curves, each of its own bags."


@pytest.mark.parametrize("old", [False, True])
def test_seeds_are_judged_by_the_threshold_of_the_run_as_the_prediction_is(binary: Path, old: bool):
    summary = json.loads((binary / "summary.json").read_text())  # above all probabilities: all are negative
    older = {"per_seed": [1.0, 1.0], "ensemble": 1.0, "chosen_on": "val"}  # before there was one for all
    summary["threshold"] = older if old else {"decision": 1.0, "chosen_on": "val"}
    (binary / "summary.json").write_text(json.dumps(summary))
    rows = [row for row in Rows(write_report(binary).read_text()).rows if len(row) == 7 and row[1] == "test"]
    assert len(rows) == 16
    assert {(row[2], row[3], row[6]) for row in rows} == {
        ("negative", "negative", "2/2"), ("positive", "negative", "0/2"),
    }  # fmt: skip


def test_seeds_that_did_not_fit_are_called_out(binary: Path):
    for seed, fitted in ((0, True), (1, False)):
        status = json.loads((binary / f"seed-{seed}" / "status.json").read_text())
        (binary / f"seed-{seed}" / "status.json").write_text(json.dumps({**status, "fitted": fitted}))
    text = write_report(binary).read_text()
    assert "1 of 2 runs did not fit the training bags (seed 1)" in text
    assert "seed 1 not fitted" in text
    (binary / "seed-0" / "status.json").write_text(json.dumps({**status, "fitted": False}))
    assert "No run fitted the training bags" in write_report(binary).read_text()


def test_slides_of_one_patient_are_counted_and_older_files_are_read(trained: Path, binary: Path):
    page = Rows(write_report(trained / "patients").read_text())
    assert ["", *(f"{s}, 16 bags of 4 patients" for s in ("test", "val", "train"))] in page.rows
    assert "Measured on test: 16 bags of 4 patients, 8 of the bags positive; 1 seed." in page.text
    assert "95 % interval of the mean over the patients." in page.text
    assert Run.read(trained / "patients").per_seed("test")[0].patients == [f"patient {i // 4}" for i in range(16)]
    for file in binary.glob("seed-*/predictions.csv"):  # as older versions wrote it
        lines = file.read_text().splitlines()
        assert lines[0].endswith(",patient_id")
        file.write_text("\n".join(line.rpartition(",")[0] for line in lines))
    for run in (binary, trained / "binary"):  # a bag without a patient is its own
        part = Run.read(run).per_seed("test")[0]
        assert part.patients == part.bag_ids


def test_without_test_bags_the_page_warns(binary: Path):
    summary = json.loads((binary / "summary.json").read_text())
    del summary["splits"]["test"]
    (binary / "summary.json").write_text(json.dumps(summary))
    text = write_report(binary).read_text()
    assert "Measured on val" in text
    assert "These are validation bags, not a test set" in text


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("summary.json", None, "summary.json is missing"),
        ("summary.json", "{", "cannot be read"),
        ("summary.json", '{"splits": {}}', "no scored splits"),
        ("config.json", '{"model": {}}', "no section 'model'"),
        ("data.json", "[]", "expected an object"),
        ("seed-1/predictions.csv", None, "predictions.csv is missing"),
        ("seed-1/predictions.csv", "", "it is empty"),
        ("seed-1/predictions.csv", "bag_id,split\na,test\n", "lacks the columns label, prediction, probability"),
        ("seed-0/metrics.csv", "epoch,lr\n1\n", "line 2 has 1 values, expected 2"),
        ("seed-0/predictions.csv", "bag_id,split,label,probability,prediction\na,test,1,x,1\n", "not a number"),
    ],
)
def test_a_broken_run_gives_one_clear_error_and_no_page(binary: Path, file: str, content: str | None, message: str):
    if content is None:
        (binary / file).unlink()
    else:
        (binary / file).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        write_report(binary)
    assert "\n" not in str(caught.value)
    assert "dasmil train" in str(caught.value)
    assert not (binary / "report.html").exists()


def test_not_a_run_directory(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere does not exist: expected a run directory"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is not a folder"):
        write_report(tmp_path / "file")


def test_a_page_is_replaced_whole_or_not_at_all(binary: Path, monkeypatch: pytest.MonkeyPatch):
    (binary / "report.html").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_report(binary)
    assert (binary / "report.html").read_text() == "old"
    assert not list(binary.glob(".report*"))


def test_the_first_sentence_counts_the_epochs_that_were_trained():
    def run(*done: int) -> Any:
        seeds = [SimpleNamespace(history={"epoch": range(1, n + 1)}) for n in done]
        return SimpleNamespace(config={"training": {"epochs": 50}}, all_seeds=seeds, out_of_fold=False)

    assert epochs_text(run(50, 50)) == "50 epochs"
    assert epochs_text(run(8, 8)) == "8 of at most 50 epochs"
    assert epochs_text(run(8, 50)) == "8 to 50 of at most 50 epochs"


def test_a_rule_of_shares_shows_no_distance(tmp_path):
    """A label by composition: the model counts a type, nothing draws a phi for it, and nothing was learned for it."""
    fit("das-mil", shares(40), shares(20, seed=1), out=tmp_path / "run")
    run = Run.read(tmp_path / "run")
    assert run.seeds[0].distances == []
    assert phi_picture(run) is None
    with pytest.raises(InputError, match="a rule without one"):
        learned_distances([run.seeds[0].model()])
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "distance plays no part there" in page
    assert "halfway" not in page


def test_a_seed_that_stayed_a_rule_without_distance_does_not_hide_the_distances_of_the_others(binary: Path) -> None:
    path = binary / "seed-0" / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "learned_distances": []}))
    assert "Learned distance by epoch" in write_report(binary).read_text()
