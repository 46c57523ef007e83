"""Baselines beside the model and what a run has shown: in the run directory, report, terminal, predictions, pages."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from calls import run as command

import dasmil
from dasmil.report.advice import next_steps
from dasmil.runs import Run, baseline_predictions, read_baselines, verdict, verdict_of
from dasmil.stats import auroc, smallest_auroc
from tests.baselines.compositions import compositions

FAST = {"epochs": 2, "lr": 1e-3}


def first_sentence(run: Run) -> str:
    found = re.search(r"<h1>(.*?)</h1>", run.report.read_text())
    assert found
    return found[1]


def write_cohort(folder: Path, slides: int, **how) -> dasmil.CohortSpec:
    (folder / "bags").mkdir(parents=True)
    rows = ["slide,label,patient"]
    for bag in compositions(slides, **how):
        dasmil.write_bag(folder / "bags" / f"{bag.bag_id}.h5", bag)
        rows.append(f"{bag.bag_id},{bag.label},{bag.patient_id}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return dasmil.CohortSpec(bags=folder / "bags", labels=folder / "labels.csv")


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three folds of a cohort that composition decides, of a model that was hardly trained."""
    out = tmp_path_factory.mktemp("folds") / "run"
    return dasmil.cross_validate(compositions(40), "sa", folds=3, seeds=2, out=out, **FAST)


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A plain run on labels without meaning."""
    folder = tmp_path_factory.mktemp("blind")
    return dasmil.train_cohort(write_cohort(folder, 60, blind=True), "das-mil", out=folder / "run", test=True, **FAST)


def test_where_composition_decides_the_first_sentence_says_that_the_rule_is_as_good(folds: Run) -> None:
    judged = verdict(folds)
    assert judged.outdone
    assert judged.best in ("mean", "composition")
    assert first_sentence(folds) == judged.against_baselines.replace("&", "&amp;")
    assert first_sentence(folds).startswith(("The composition baseline is ", "The mean features baseline is "))
    assert "Beside simple rules" in folds.report.read_text()


def test_rules_are_scored_on_the_bags_of_the_model_fold_by_fold_with_paired_differences(folds: Run) -> None:
    stored = read_baselines(folds.path)["composition"]
    values, gaps = [], []
    for fold in folds.folds:
        found = baseline_predictions(fold.path, "composition")["test"]
        models = fold.per_seed("test")
        assert found.bag_ids == models[0].bag_ids
        assert found.patients == models[0].patients
        np.testing.assert_array_equal(found.labels, models[0].labels)
        values.append(float(auroc(found.probabilities, found.labels == 1)[0]))
        gaps.append(np.mean([auroc(m.probabilities, m.labels == 1)[0] for m in models]) - values[-1])
    assert stored["splits"]["test"]["mean"]["auroc"] == pytest.approx(np.mean(values))
    assert stored["splits"]["test"]["n"] == 40
    assert stored["against"]["test"]["difference"] == pytest.approx(np.mean(gaps))
    low, high = stored["against"]["test"]["interval"]
    assert low <= np.mean(gaps) <= high
    assert "train" not in stored["splits"]  # of bags that a forest was grown on it knows all


def test_labels_without_meaning_nothing_found_and_no_distance_without_that(blind: Run, capsys) -> None:
    judged = verdict(blind)
    assert not judged.told
    page = blind.report.read_text()
    assert first_sentence(blind).startswith(("No signal detected: DAS-MIL is no better than chance", "The "))
    assert judged.text in page.replace("&#39;", "'")
    assert "φ(δ) of a model no better than chance" in page
    assert "Halfway at" not in page
    assert "halfway" not in re.sub(r"Where φ is halfway, epoch by epoch[^<]*no better than chance", "", page)
    assert "What to do next" in page
    assert f"dasmil train --bags {blind.origin['cohort']['bags']}" in page  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert "--folds 5 --seeds 3" in page
    assert "Tried already: 1 run from" in page


def test_everything_that_speaks_for_the_run_carries_its_caveat(blind: Run, tmp_path: Path, capsys) -> None:
    caveat = verdict(blind).caveat
    assert caveat is not None
    bags = blind.origin["cohort"]["bags"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert command("predict", blind.path, "--bags", bags, "-o", tmp_path / "p.csv") == 0
    assert caveat in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert {row["caveat"] for row in rows} == {caveat}
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)
    bag = sorted(Path(bags).glob("*.h5"))[0]
    assert command("explain", blind.path, "--bag", bag, "-o", tmp_path / "e") == 0
    assert "Caveat of the run: No signal detected" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "e" / "explanation.html").read_text()
    assert caveat in page
    assert "φ(δ) of a model no better than chance" in page
    for place in (blind.path, next(iter(blind.seeds.values())).path, next(iter(blind.seeds.values())).model_file):
        found = verdict_of(place)
        assert found is not None
        assert found.caveat == caveat
    assert verdict_of(tmp_path) is None


def test_rules_are_left_out_added_by_resume_and_not_fitted_again(tmp_path: Path, monkeypatch, capsys) -> None:
    spec = write_cohort(tmp_path, 30)
    arguments = ["train", "--bags", spec.bags, "--labels", spec.labels, "--model", "mean-pool", "--epochs", 2,
                 "--out", tmp_path / "run"]  # fmt: skip
    assert command(*arguments, "--no-baselines") == 0
    run = Run.read(tmp_path / "run")
    assert read_baselines(run.path) == {}
    assert "Beside simple rules" not in run.report.read_text()
    assert command(*arguments, "--resume") == 0
    out = capsys.readouterr().out
    assert "model minus rule" in out
    assert "Composition" in out
    assert list(read_baselines(run.path)) == ["mean", "composition", "pairs"]
    before = (run.path / "baselines" / "scores.json").read_bytes()

    import dasmil.baselines

    real = dasmil.baselines.fit_baselines
    monkeypatch.setattr(dasmil.baselines, "fit_baselines", lambda *a, **k: pytest.fail("fitted again"))
    assert command(*arguments, "--resume") == 0
    assert (run.path / "baselines" / "scores.json").read_bytes() == before
    monkeypatch.setattr(dasmil.baselines, "fit_baselines", real)
    assert command("evaluate", run.path) == 0  # the locked test set, opened later
    found = read_baselines(run.path)["mean"]
    assert set(found["splits"]) == {"val", "test"}
    assert found["splits"]["test"]["n"] == Run.read(run.path).summary["splits"]["test"]["n"]
    assert "AUROC on test" in run.report.read_text()


def test_a_perfect_score_of_three_against_three_is_not_told_from_chance(tmp_path: Path) -> None:
    """One order of twenty is perfect, and an interval of resamples would be [1, 1]."""
    rows = ["slide,label,patient,split"]
    spec = write_cohort(tmp_path, 30, more=0.7)
    for i in range(30):
        rows.append(f"s0-{i},{i % 2},p0-{i},{'val' if i < 6 else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    run = dasmil.train_cohort(spec, "mean-pool", out=tmp_path / "run", baselines=False, epochs=40, lr=1e-2)
    assert run.summary["splits"]["val"]["mean"]["auroc"] == 1.0
    judged = verdict(run)
    assert smallest_auroc([(3, 3)]) is None
    assert not judged.told
    assert judged.text == "Too few bags to show that anything is better than chance: AUROC 1.000 on val (6 bags)."
    assert not judged.overfits  # a perfect score on others is no sign of it
    assert run.summary.get("chance_seeds") == []
    steps = [command for _, command in next_steps(run, judged)]
    assert len(steps) == 1
    assert "--folds 5" in steps[0]
