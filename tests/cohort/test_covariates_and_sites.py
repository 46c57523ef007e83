"""Covariates beside the model and folds by site, through the real commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from calls import read, run

from dasmil.errors import DataError, InputError

SITES = ("north", "south", "east", "west", "coast", "hill")
COLUMNS = "slide,label,patient,age,gender,site"


def table(folder: Path, *, without: int | None = None) -> Path:
    """30 slides of 30 patients; the age goes with the label, the gender says nothing, every site has both classes."""
    rng = np.random.default_rng(0)
    rows = [COLUMNS]
    for i in range(30):
        label = i % 2
        age = "" if i == without else f"{50 + 12 * label + rng.normal(0, 4):.1f}"
        rows.append(f"made-{i:04d},{'ab'[label]},p{i},{age},{'FM'[i // 2 % 2]},{SITES[i // 5]}")
    path = folder / "labels.csv"
    path.write_text("\n".join(rows))
    return path


def test_folds_keep_sites_apart_and_covariates_stand_beside_the_model(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, out = table(tmp_path, without=3), tmp_path / "run"
    given = ("--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 2, "--no-baselines")
    asked = ("--folds", 3, "--site-column", "site", "--covariates", "age,gender")
    assert run("train", *given, *asked, "--out", out) == 0
    said = capsys.readouterr().err
    assert "6 sites in the column site: each stays on one side of every split" in said
    assert "3 folds by site" in said
    assert "Covariate age is missing for 1 of 30 bags, which count as average and are marked" in said
    for fold in range(3):
        rows = (out / f"fold-{fold}" / "seed-0" / "predictions.csv").read_text().splitlines()[1:]
        where: dict[str, set[str]] = {}
        for row in rows:
            bag, split = row.split(",")[:2]
            where.setdefault(SITES[int(bag[-4:]) // 5], set()).add(split)
        assert all(len(splits) == 1 for splits in where.values())
        assert len(where) == 6
    found = read(out / "covariates.json")
    assert (found["covariates"], found["metric"], found["folds"], found["bags"]) == (["age", "gender"], "auroc", 3, 30)
    assert list(found["rows"]) == ["covariates", "covariates+model"]
    assert found["rows"]["covariates"]["mean"] > 0.9
    summary = read(out / "summary.json")["splits"]["test"]
    assert found["model"]["mean"] == pytest.approx(summary["mean"]["auroc"])
    gap = found["rows"]["covariates"]["model_minus"]
    assert gap[0] == pytest.approx(found["model"]["mean"] - found["rows"]["covariates"]["mean"])
    added = found["rows"]["covariates+model"]["model_adds"]
    assert added[0] == pytest.approx(found["rows"]["covariates+model"]["mean"] - found["rows"]["covariates"]["mean"])
    page = (out / "report.html").read_text()
    assert "What the slide adds" in page
    assert "The slide added to age, gender" in page


def test_a_plain_run_has_covariates_alone(made: Path, tmp_path: Path) -> None:
    labels, out = table(tmp_path), tmp_path / "run"
    given = ("--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 1, "--no-baselines")
    assert run("train", *given, "--covariates", "age", "--out", out) == 0
    found = read(out / "covariates.json")
    assert (list(found["rows"]), found["split"], found["folds"]) == (["covariates"], "val", 1)
    assert "train with --folds" in (out / "report.html").read_text()
    assert run("evaluate", out) == 0
    opened = read(out / "covariates.json")
    assert (opened["split"], opened["bags"]) == ("test", read(out / "summary.json")["splits"]["test"]["n"])
    assert opened["rows"]["covariates"]["mean"] > 0.5


def test_bad_columns_stop_before_anything_is_written(made: Path, tmp_path: Path) -> None:
    labels, out = table(tmp_path), tmp_path / "run"
    given = ("train", "--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 1, "--out", out)
    with pytest.raises(InputError, match="no column 'grade' for --covariates; it has slide, label, patient, age"):
        run(*given, "--covariates", "age,grade")
    with pytest.raises(InputError, match="--covariates names a column twice"):
        run(*given, "--covariates", "age,age")
    with pytest.raises(InputError, match="no column 'hospital' for --site-column"):
        run(*given, "--site-column", "hospital")
    with pytest.raises(InputError, match="7 folds were asked for, but there are only 6 sites"):
        run(*given, "--site-column", "site", "--folds", 7)
    text = labels.read_text()
    labels.write_text(text.replace(",north", ",", 1))
    with pytest.raises(DataError, match="1 of 30 bags have no 'site': made-0000"):
        run(*given, "--site-column", "site")
    labels.write_text(text.replace(",p1,", ",p0,"))
    with pytest.raises(DataError, match=r"patient 'p0' has .* in the column 'age': slides of one patient must agree"):
        run(*given, "--covariates", "age")
    assert not out.exists()


def test_doctor_tells_how_well_sites_are_known(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = table(tmp_path)
    run("doctor", made / "bags", "--labels", labels, "--site-column", "site", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["sites"]["sites"] == dict.fromkeys(SITES, 5)
    assert 0 <= found["sites"]["auroc"] <= 1
    assert found["sites"]["by_class"]["north"] == {"a": 3, "b": 2}
    assert any(line.startswith("The site can be told from mean features alone with AUROC") for line in found["cohort"])
    with pytest.raises(InputError, match="--site-column names columns of a label table: give --labels too"):
        run("doctor", made / "bags", "--site-column", "site")


def followed(folder: Path) -> Path:
    """30 patients whose time goes with their age, with a number and a second class beside it."""
    rng = np.random.default_rng(1)
    rows = ["slide,patient,days,dead,age,grade,kind"]
    for i in range(30):
        age = rng.normal(60, 8)
        time = rng.exponential(1000 * np.exp(-(age - 60) / 6))
        rows.append(f"made-{i:04d},p{i},{time:.0f},{int(i % 4 > 0)},{age:.1f},{rng.normal(5, 2):.2f},{'xy'[i % 2]}")
    path = folder / "followed.csv"
    path.write_text("\n".join(rows))
    return path


def test_survival_has_its_figures_and_a_cox_regression_beside_it(made: Path, tmp_path: Path) -> None:
    labels, out = followed(tmp_path), tmp_path / "run"
    given = ("--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 1, "--no-baselines")
    asked = ("--task", "survival", "--time-column", "days", "--event-column", "dead", "--time-unit", "days")
    assert run("train", *given, *asked, "--times", "400,900", "--folds", 2, "--covariates", "age", "--out", out) == 0
    found = read(out / "covariates.json")
    assert found["metric"] == "c_index"
    assert list(found["rows"]) == ["covariates", "covariates+model"]
    assert found["rows"]["covariates"]["mean"] > 0.65
    assert found["model"]["mean"] == pytest.approx(read(out / "summary.json")["splits"]["test"]["mean"]["c_index"])
    page = (out / "report.html").read_text()
    for text in ("Survival by predicted risk, log-rank p", "Number at risk", "Up to 400 days", "Up to 900 days",
                 "cut at the median risk of the validation bags of each fold", "The slide added to age",
                 "Cox regressions with a ridge of 1"):  # fmt: skip
        assert text in page


def test_a_number_and_several_targets_have_their_figures(made: Path, tmp_path: Path) -> None:
    labels = followed(tmp_path)
    given = ("--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 1, "--no-baselines")
    one, several = tmp_path / "one", tmp_path / "several"
    asked = ("--task", "regression", "--target-columns", "age", "--time-unit", "years", "--covariates", "grade")
    assert run("train", *given, *asked, "--out", one) == 0
    page = (one / "report.html").read_text()
    assert "predicted age (years)" in page
    assert "Agreement (Bland-Altman)" in page
    assert read(one / "covariates.json")["metric"] == "r2"
    asked = ("--task", "multilabel", "--target-columns", "age,kind", "--covariates", "grade")
    assert run("train", *given, *asked, "--out", several) == 0
    page = (several / "report.html").read_text()
    assert "How well it tells each target" in page
    assert not (several / "covariates.json").exists()  # covariates stand beside one target
