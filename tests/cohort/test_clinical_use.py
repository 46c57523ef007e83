"""Recalibration, prediction sets, unusual features, subgroups and external validation through the command line."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from calls import read, run

import dasmil
from dasmil.errors import DasmilError, DataError, InputError
from dasmil.report.compared import non_inferior
from dasmil.runs import Run, labelled_set, recalibrated
from dasmil.stats.recalibrate import fit_recalibration
from dasmil.study.apply import evaluate_run


def write_cohort(folder: Path, patients: int, seed: int, prefix: str, move: float = 0.0) -> Path:
    rng = np.random.default_rng(seed)
    (folder / "bags").mkdir(parents=True)
    rows = []
    for k in range(patients):
        label, site = int(rng.random() < 0.5), str(rng.choice(["north", "south"]))
        own = rng.normal(0, 0.4, 6)
        for s in range(int(rng.integers(1, 3))):
            features = rng.normal(size=(12, 6)) + own + move
            features[:, 0] += 0.9 * label
            name = f"{prefix}{k}_{s}"
            coords = torch.tensor(rng.random((12, 2)) * 1000, dtype=torch.float32)
            bag = dasmil.Bag(features=torch.tensor(features, dtype=torch.float32), coords=coords, unit="um",
                             bag_id=name, patient_id=f"{prefix}{k}")  # fmt: skip
            dasmil.write_bag(folder / "bags" / f"{name}.h5", bag)
            rows.append({"slide": name, "patient": f"{prefix}{k}", "label": ["benign", "cancer"][label], "site": site,
                         "age": 50 + k % 30, "scanner": ["A", "B"][s]})  # fmt: skip
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clinical")
    own = write_cohort(root / "own", 48, 1, "p")
    write_cohort(root / "other", 40, 2, "q")
    write_cohort(root / "moved", 12, 3, "m", move=6.0)
    assert run("train", "--bags", own / "bags", "--labels", own / "labels.csv", "--model", "mean-pool", "--epochs", 6,
               "--lr", 0.01, "--folds", 3, "--no-baselines", "--recalibrate", "platt",
               "--subgroups", "site,age>65,scanner", "--out", root / "run") == 0  # fmt: skip
    return root


def own_bags(place: Path) -> dasmil.BagSpec:
    return dasmil.BagSpec(bags=place / "own" / "bags", labels=place / "own" / "labels.csv")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_saved_map_is_applied_and_undone(place: Path, tmp_path: Path) -> None:
    bags = place / "other" / "bags"
    assert run("predict", place / "run", "--bags", bags, "-o", tmp_path / "with.csv") == 0
    assert run("predict", place / "run", "--bags", bags, "-o", tmp_path / "raw.csv", "--recalibrate", "none") == 0
    told, raw = rows_of(tmp_path / "with.csv"), rows_of(tmp_path / "raw.csv")
    stored = Run.read(place / "run")
    held = labelled_set(stored, "test")
    assert held is not None
    expected = fit_recalibration(held.labels, held.probabilities, "platt")
    p = [float(row["probability"]) for row in raw]
    assert [float(row["probability"]) for row in told] == pytest.approx(expected(p).tolist())
    assert [row["class"] for row in told] == [row["class"] for row in raw]
    one = next(dasmil.predict(stored, bags, recalibrate="isotonic")[i]["probability"] for i in (0,))
    assert one != pytest.approx(p[0])


def test_reports_judge_the_map_on_bags_that_did_not_fit_it(place: Path) -> None:
    stored = Run.read(place / "run")
    known = labelled_set(stored, "test")
    assert known is not None
    found = recalibrated(stored, "test", known)
    assert found is not None
    inside = known.fold == 0
    others = fit_recalibration(known.labels[~inside], known.probabilities[~inside], "platt")
    assert found[0][inside] == pytest.approx(others(known.probabilities[inside]))
    page = (place / "run" / "report.html").read_text()
    assert "recalibrated, fitted on the other folds" in page
    with pytest.raises(DataError, match="only be judged on other bags"):
        evaluate_run(stored, {"test": own_bags(place).load()})


def test_evaluate_scores_recalibrated_probabilities(place: Path) -> None:
    spec = dasmil.BagSpec(bags=place / "other" / "bags", labels=place / "other" / "labels.csv")
    found, raw = (dasmil.evaluate(place / "run", spec, recalibrate=how) for how in (None, "none"))
    told = dasmil.predict(place / "run", place / "other" / "bags", recalibrate="none")
    with (place / "other" / "labels.csv").open() as file:
        truth = {row["slide"]: row["label"] == "cancer" for row in csv.DictReader(file)}
    brier = np.mean([(row["probability"] - truth[row["bag_id"]]) ** 2 for row in told])
    assert raw["splits"]["bags"]["ensemble"]["brier"] == pytest.approx(brier)
    assert found["recalibration"] == "platt"
    assert found["threshold"]["decision"] != raw["threshold"]["decision"]
    assert found["splits"]["bags"]["ensemble"]["brier"] != pytest.approx(brier)
    # a line with a positive slope keeps the order of every model, and thresholds go with it
    for name in ("auroc", "sensitivity", "specificity"):
        assert found["splits"]["bags"]["mean"][name] == pytest.approx(raw["splits"]["bags"]["mean"][name])


def test_prediction_sets_name_classes_and_say_their_coverage(place: Path, tmp_path: Path, capfd) -> None:
    other = place / "other"
    assert run("predict", place / "run", "--bags", other / "bags", "--sets", 0.8, "-o", tmp_path / "p.csv") == 0
    assert re.search(r"Prediction sets of 80% held the true class for [\d.]+% of 48 patients", capfd.readouterr().err)
    sets = {row["bag_id"]: row["set"] for row in rows_of(tmp_path / "p.csv")}
    assert set(sets.values()) <= {"benign", "cancer", "benign or cancer", "none"}
    truth = {row["slide"]: row["label"] for row in rows_of(other / "labels.csv")}
    assert np.mean([truth[bag] in found for bag, found in sets.items()]) > 0.6
    wide = dasmil.predict(place / "run", other / "bags", sets=0.95)
    assert all(set(sets[row["bag_id"]].split(" or ")) - {"none"} <= set(row["set"].split(" or ")) for row in wide)
    by_site = dasmil.BagSpec(bags=other / "bags", slide_table=other / "labels.csv")
    assert len(dasmil.predict(place / "run", by_site, sets=0.8, sets_by="site")) == len(sets)
    with pytest.raises(InputError, match="--sets-by site needs --slide-table"):
        dasmil.predict(place / "run", other / "bags", sets=0.8, sets_by="site")
    with pytest.raises(InputError, match="without --sets"):
        dasmil.predict(place / "run", other / "bags", sets_by="class")


def test_slides_of_another_kind_are_marked(place: Path) -> None:
    usual = dasmil.predict(place / "run", place / "other" / "bags")
    moved = dasmil.predict(place / "run", place / "moved" / "bags")
    assert np.mean([row["unusual"] == "yes" for row in usual]) < 0.15
    assert all(row["unusual"] == "yes" for row in moved)
    assert min(row["feature_distance"] for row in moved) > 2


def test_an_external_page_has_what_a_reviewer_asks(place: Path, tmp_path: Path, capfd) -> None:
    other = place / "other"
    assert run("evaluate", place / "run", "--bags", other / "bags", "--labels", other / "labels.csv",
               "--out", tmp_path / "ext", "--subgroups", "site,age>65", "--prevalence", 0.1, "--missed-cost",
               9) == 0  # fmt: skip
    assert str(tmp_path / "ext" / "report.html") in capfd.readouterr().out
    page = (tmp_path / "ext" / "report.html").read_text()
    for title in ("Case mix", "Discrimination", "Calibration", "Decisions", "Prediction sets", "Subgroups",
                  "Shift of features", "Every slide"):  # fmt: skip
        assert f"<h2>{title}</h2>" in page
    assert "intercept fitted on other patients here" in page
    assert "stated prevalence of 10.0 %" in page
    assert not re.search(r">[^<]*\bnan\b[^<]*<", page)
    summary = read(tmp_path / "ext" / "external.json")
    assert summary["splits"]["bags"]["patients"] == 40
    assert summary["domain"]["slides"] == len(rows_of(tmp_path / "ext" / "slides.csv"))
    with pytest.raises(InputError, match="--out is for other bags"):
        dasmil.evaluate(place / "run", out=tmp_path / "no")


def test_bags_of_one_class_get_sentences(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    shutil.copytree(place / "other", folder)
    kept = [row for row in rows_of(folder / "labels.csv") if row["label"] == "benign"]
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(kept[0]))
        writer.writeheader()
        writer.writerows(kept)
    dasmil.evaluate(place / "run", dasmil.BagSpec(bags=folder / "bags", labels=folder / "labels.csv"),
                    out=tmp_path / "ext")  # fmt: skip
    page = (tmp_path / "ext" / "report.html").read_text()
    assert "of one class" in page
    assert "No recalibration-in-the-large" in page
    assert not re.search(r">[^<]*\bnan\b[^<]*<", page)


def test_subgroups_stand_in_the_report_and_can_be_asked_for_later(place: Path, tmp_path: Path) -> None:
    page = (place / "run" / "report.html").read_text()
    assert "<h2>Subgroups</h2>" in page
    assert "age &gt; 65" in page
    assert "patients are in several subgroups" in page, "slides of a patient may come from two scanners"
    copy = Path(shutil.copytree(place / "run", tmp_path / "run"))
    assert run("report", copy, "--subgroups", "age>200", "--recalibrate", "none", "--prevalence", 0.05) == 0
    found = json.loads((copy / "clinical.json").read_text())
    assert [row["name"] for row in found["subgroups"]["rows"]] == ["<= 200"]
    assert not (copy / "recalibration.json").exists()
    assert "stated prevalence of 5.0 %" in (copy / "report.html").read_text()
    with pytest.raises(DasmilError, match="no column 'stage' for --subgroups"):
        run("report", copy, "--subgroups", "stage")
    with pytest.raises(InputError, match="prevalence is 5, expected a share"):
        run("report", copy, "--prevalence", 5)


def test_published_folders_have_checklists(place: Path, tmp_path: Path) -> None:
    assert run("publish", place / "run", "--out", tmp_path / "share") == 0
    auroc = Run.read(place / "run").summary["splits"]["test"]["mean"]["auroc"]
    for name, last in (("TRIPOD-AI.md", "27c Next steps"), ("CLAIM.md", "Funding")):
        text = (tmp_path / "share" / name).read_text()
        assert f"test {auroc:.3f} (95 % interval" in text
        assert "Compared by site, age&gt;65, scanner" in text
        assert f"- [ ] {last}\n" in text
        assert str(place) not in text
        assert "p1_0" not in text
    tripod = (tmp_path / "share" / "TRIPOD-AI.md").read_text()
    assert "platt, fitted on" in tripod
    items = re.findall(r"^(?:\| |- \[ \] )(\d+)[a-g]?", tripod, re.MULTILINE)
    assert set(map(int, items)) == set(range(1, 28)), "every item is in one of the two lists"


def test_a_study_is_planned(capfd) -> None:
    assert run("plan", "--auroc", 0.8, "--event-share", 0.3, "--against", 0.75, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert found["events"] == round(0.3 * found["patients"])
    assert run("plan", "--c-index", 0.7, "--event-share", 0.4, "--half-width", 0.05) == 0
    assert re.search(r"\d+ patients, \d+ of them with the event, for an interval", capfd.readouterr().out)
    with pytest.raises(InputError, match="--event-share is missing"):
        run("plan", "--auroc", 0.8)
    with pytest.raises(InputError, match="--auroc and --c-index"):
        run("plan", "--event-share", 0.3)


def test_non_inferiority_needs_the_whole_interval_above_the_margin(place: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(place / "run", tmp_path / "again"))
    found = dasmil.compare([place / "run", copy], out=tmp_path / "cmp", margin=0.05)
    assert "is non-inferior to" in found.sentence, "the same predictions do not differ"
    gap = replace(found.compared.gaps[0], difference=0.01, low=-0.02, high=0.06)  # the second may be .06 worse
    assert "is not shown" in non_inferior(replace(found.compared, gaps=[gap]), 0.05)[0]
    assert "is non-inferior" in non_inferior(replace(found.compared, gaps=[gap]), 0.07)[0]
    with pytest.raises(InputError, match="margin is 5, expected a difference"):
        dasmil.compare([place / "run", copy], out=tmp_path / "cmp", margin=5)
