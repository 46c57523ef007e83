"""`dasmil train` on one's own bags: splits and folds without leaks, and a test set that stays locked until asked."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from calls import read, run

from dasmil.cli.display import Display
from dasmil.errors import DataError, InputError
from dasmil.study.held_out import held_out_bags
from dasmil.study.reading import read_alike, run_cohort
from dasmil.study.rounds import cohort_rounds
from dasmil.study.spec import BagSpec, CohortSpec
from dasmil.train import Progress


def test_split_train_evaluate_predict(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text((made / "labels.csv").read_text())
    out = tmp_path / "run"
    cohort = ("--bags", made / "bags", "--labels", labels)
    assert run("train", *cohort, "--model", "mean-pool", "--epochs", 2, "--seeds", 2, "--out", out) == 0
    data = read(out / "data.json")
    held = data["held_out"]["test"]
    used = {name: data["splits"][name]["bag_ids"] for name in data["splits"]}
    assert set(used) == {"train", "val"}
    assert len(held) + sum(map(len, used.values())) == 30
    assert not set(held) & set(used["train"] + used["val"])
    assert "test" not in read(out / "summary.json")["splits"]
    assert not (tmp_path / "labels.csv.test-log.jsonl").exists()
    assert f"{len(held)} bags, locked" in (out / "report.html").read_text()

    assert run("evaluate", out, "--json") == 0
    answer = json.loads(capsys.readouterr().out.split("report.html\n")[-1])
    assert answer["splits"]["test"]["n"] == len(held)
    run("evaluate", out)
    assert "evaluation number 2" in capsys.readouterr().err
    assert f"{len(held)} bags, opened 2 times" in (out / "report.html").read_text()
    assert read(out / "summary.json")["splits"]["test"] == answer["splits"]["test"]  # the report shows it
    assert f"Measured on test: {len(held)} bags" in (out / "report.html").read_text()
    described = read(out / "data.json")["splits"]
    assert {name: described[name] for name in used} == data["splits"]
    assert described["test"]["bag_ids"] == held
    scored = list(csv.DictReader((out / "seed-1" / "predictions.csv").open()))
    assert [row["bag_id"] for row in scored if row["split"] == "test"] == held  # once, though evaluated twice
    assert len(scored) == 30

    assert run("predict", out, "--bags", made / "bags", "-o", tmp_path / "p.csv") == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [row["bag_id"] for row in rows] == [f"made-{i:04d}" for i in range(30)]
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)
    classes = data["classes"]
    threshold = read(out / "summary.json")["threshold"]["decision"]
    assert [row["class"] for row in rows] == [classes[float(row["probability"]) >= threshold] for row in rows]


def test_folds_test_every_bag_once(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    cohort = ("--bags", made / "bags", "--labels", made / "labels.csv")
    assert run("train", *cohort, "--model", "mean-pool", "--epochs", 1, "--folds", 3, "--out", out) == 0
    tested = []
    for k in range(3):
        splits = read(out / f"fold-{k}" / "data.json")["splits"]
        ids = {name: set(splits[name]["bag_ids"]) for name in ("train", "val", "test")}
        assert len(set.union(*ids.values())) == 30
        assert sum(map(len, ids.values())) == 30
        tested += sorted(ids["test"])
    assert sorted(tested) == [f"made-{i:04d}" for i in range(30)]
    summary = read(out / "summary.json")
    assert summary["folds"] == 3
    assert summary["splits"]["test"]["n"] == 30
    assert (out / "report.html").stat().st_size > 1000


def test_a_folder_holds_a_plain_run_or_one_number_of_folds(made: Path, tmp_path: Path) -> None:
    cohort = ("--bags", made / "bags", "--labels", made / "labels.csv", "--model", "mean-pool")
    command = ("train", *cohort, "--epochs", 1)
    plain, folded = tmp_path / "plain", tmp_path / "folded"
    assert run(*command, "--out", plain) == 0
    assert run(*command, "--folds", 3, "--out", folded) == 0
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    held = r"plain already holds another run \(mean-pool on .*, seeds 0, without folds\): choose another folder"
    for more in ((), ("--resume",), ("--jobs", 2)):
        with pytest.raises(InputError, match=held):
            run(*command, "--folds", 3, "--out", plain, *more)
    with pytest.raises(InputError, match=held):
        run("search", *cohort, "--epochs", 1, "--folds", 3, "--grid", "lr=1e-2,1e-3", "--out", plain)
    for more in ((), ("--resume",)):
        with pytest.raises(InputError, match=r"folded already holds another run \(a cross-validation with fold-0\)"):
            run(*command, "--out", folded, *more)
        with pytest.raises(InputError, match=r"another run \(a cross-validation of 3 folds, not 4\)"):
            run(*command, "--folds", 4, "--out", folded, *more)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    (folded / "summary.json").unlink()  # as when only one fold was begun
    for name in ("fold-1", "fold-2"):
        shutil.rmtree(folded / name)
    for more in (("--resume",), ("--resume", "--jobs", 2)):
        with pytest.raises(InputError, match=r"of 3 folds, not 4\): give --folds 3, or choose another folder"):
            run(*command, "--folds", 4, "--out", folded, *more)
    assert run(*command, "--folds", 3, "--out", folded, "--resume") == 0


def test_split_column_is_obeyed(made: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    lines = (made / "labels.csv").read_text().splitlines()
    names = ["train"] * 16 + ["val"] * 6 + ["test"] * 8
    labels.write_text("\n".join([lines[0] + ",split", *(f"{a},{b}" for a, b in zip(lines[1:], names))]))
    cohort = ("--bags", made / "bags", "--labels", labels)
    assert run("train", *cohort, "--model", "max-pool", "--epochs", 1, "--test", "--out", tmp_path / "run") == 0
    splits = read(tmp_path / "run" / "data.json")["splits"]
    assert splits["train"]["bag_ids"] == [f"made-{i:04d}" for i in range(16)]
    assert splits["test"]["bag_ids"] == [f"made-{i:04d}" for i in range(22, 30)]
    assert len((tmp_path / "labels.csv.test-log.jsonl").read_text().splitlines()) == 1


def test_a_killed_run_opens_its_test_set_once_when_it_is_finished(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, log, out = tmp_path / "labels.csv", tmp_path / "labels.csv.test-log.jsonl", tmp_path / "run"
    labels.write_text((made / "labels.csv").read_text())
    command = ("train", "--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 2, "--test")

    def stop(display: Display, progress: Progress) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Display, "epoch", stop)
        assert run(*command, "--out", out) == 130
        assert run(*command, "--out", out, "--resume") == 130
    assert not log.exists()
    assert read(out / "config.json")["data"]["test_set"] == "5 bags, opened after training"
    assert run(*command, "--out", out, "--resume") == 0
    assert run(*command, "--out", out, "--resume") == 0  # has its scores already
    assert [json.loads(line)["run"] for line in log.read_text().splitlines()] == [str(out)]
    assert read(out / "data.json")["test_set"].startswith("5 bags, opened 1 time (")
    assert read(out / "data.json")["splits"]["test"]["n"] == 5
    assert "5 bags, opened 1 time (" in (out / "report.html").read_text()
    assert run(*command, "--out", tmp_path / "other") == 0
    assert read(tmp_path / "other" / "data.json")["test_set"].startswith("5 bags, opened 2 times (")


def test_sets_of_one_class_are_said_and_choose_no_threshold(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "run"
    rows = [f"made-{i:04d},{'ab'[i % 2]},{'train' if i < 20 else ('val', 'test')[i % 2]}" for i in range(30)]
    labels.write_text("\n".join(["slide,label,split", *rows]))
    cohort = ("--bags", made / "bags", "--labels", labels)
    assert run("train", *cohort, "--model", "mean-pool", "--epochs", 1, "--out", out) == 0
    trained = capsys.readouterr()
    scores = "expected at least two classes: without them there is no AUROC and no balanced accuracy"
    warnings = [line for line in trained.err.splitlines() if line.startswith("Warning")]
    assert warnings == [
        f"Warning: the validation set has class 'a' only, {scores}",
        f"Warning: the test set has class 'b' only, {scores}",
    ]
    assert "val AUROC -" in trained.err
    assert read(out / "summary.json")["threshold"] == {"decision": 0.5, "chosen_on": "fixed"}
    assert "Sensitivity and specificity at 0.5." in trained.out
    assert run("evaluate", out) == 0
    cells = {line[:14].strip(): line[14:].split() for line in capsys.readouterr().out.splitlines()}
    assert cells["AUROC"] == ["-"]
    assert "nan" not in trained.out + trained.err + str(cells)


def test_three_classes_and_sections_per_patient(made: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    rows = [f"made-{i:04d},{'abc'[i // 2 % 3]},p{i // 2}" for i in range(30)]
    labels.write_text("\n".join(["slide,label,patient", *rows]))
    cohort = ("--bags", made / "bags", "--labels", labels, "--per-patient")
    assert (
        run("train", *cohort, "--model", "das-mil", "--epochs", 1, "--set", "restarts=0", "--out", tmp_path / "r") == 0
    )
    config = read(tmp_path / "r" / "config.json")
    assert config["model"]["options"]["n_classes"] == 3
    assert config["data"]["classes"] == ["a", "b", "c"]
    assert config["model"]["options"]["unit"] == "um"
    train = read(tmp_path / "r" / "data.json")["splits"]["train"]
    assert train["instances"]["max"] > 90  # two slides of up to 90 tiles each

    # A patient is explained under the name that predictions.csv has for it.
    predicted = {row["bag_id"]: row for row in csv.DictReader((tmp_path / "r/seed-0/predictions.csv").open())}
    patient = train["bag_ids"][0]
    out = tmp_path / "explained"
    assert run("explain", tmp_path / "r", "--bag", patient, "-o", out) == 0
    explained = read(out / "explanation.json")
    assert explained["bag_id"] == patient
    assert explained["logit"] == pytest.approx(
        float(predicted[patient][f"logit_{explained['target']}"]), abs=1e-4
    )  # of both slides together
    sections = [row["section"] for row in csv.DictReader((out / "instances.csv").open())]
    assert sorted(set(sections)) == ["0", "1"]
    assert not (out / "instances.geojson").exists()  # the pixels of two slides have no plane in common
    slides = [f"made-{2 * int(patient[1:]) + k:04d}" for k in (0, 1)]
    assert all(slide in (out / "explanation.html").read_text() for slide in slides)
    with pytest.raises(InputError, match=f"p77 does not exist: it is no file and no bag .* Did you mean '{patient[0]}"):
        run("explain", tmp_path / "r", "--bag", "p77")
    with pytest.raises(DataError, match=rf"joins 2 slides \({slides[0]}, {slides[1]}\), which have no picture"):
        run("explain", tmp_path / "r", "--bag", patient, "--slide", labels)


def test_classes_of_a_run_keep_their_names_and_numbers(made: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    names = ("NA", '"grade 2, high"')
    rows = ["slide,label", *(f"made-{i:04d},{names[i % 2]}" for i in range(29))]
    labels.write_text("\n".join([*rows, "no such slide,other"]))
    record = CohortSpec(bags=made / "bags", labels=labels).as_record()
    data = {"classes": ["grade 2, high", "NA"], "cohort": record}
    for cohort in (read_alike(data, BagSpec(bags=made / "bags", labels=labels)), run_cohort(data)):
        assert cohort.classes == ("grade 2, high", "NA")
        assert cohort.labels == [1 - i % 2 for i in range(29)]
    labels.write_text("\n".join([*rows, "made-0029,benign"]))
    with pytest.raises(InputError, match="the table has slides of 'benign', expected 'grade 2, high', 'NA'"):
        run_cohort(data)


def test_a_class_of_too_few_patients_is_named_before_anything_is_trained(made: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    rows = [f"made-{i:04d},{'wt' if i == 4 else ('mut', 'WT')[i % 2]}" for i in range(30)]
    labels.write_text("\n".join(["slide,label", *rows]))
    spec = CohortSpec(bags=made / "bags", labels=labels)
    said: list[str] = []
    with pytest.raises(InputError, match=r"^class 'wt' has 1 patient, fewer than the 3 folds; use fewer folds$"):
        cohort_rounds(spec, folds=3, note=said.append)
    assert "'WT' and 'wt' count as 2 classes; write them alike if they are one" in said
    labels.write_text("\n".join(["slide,label,split", *(f"{r},{'val' if ',wt' in r else 'train'}" for r in rows)]))
    missing = r"class 'wt' \(1 of 30 patients\) has no slide to train on: it needs 3 patients at least"
    with pytest.raises(DataError, match=missing):
        cohort_rounds(spec)


def test_a_split_of_the_table_is_called_so(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.csv"
    for names, expected in (
        (("train", "val"), "Split as the table says: train 15, val 15"),
        (("train", "test"), "Split as the table says, val drawn from train by patient: train 1"),
        (("", ""), "Split by patient: train 2"),
    ):
        rows = [f"made-{i:04d},{i // 2 % 2},{names[i % 2]}" for i in range(30)]
        labels.write_text("\n".join(["slide,label,split", *rows]))
        said: list[str] = []
        cohort_rounds(CohortSpec(bags=made / "bags", labels=labels), note=said.append)
        assert expected in "\n".join(said)


def test_a_cross_validation_without_test_set_says_what_to_do() -> None:
    for data, used in (({"fold": 0}, "cross-validation, and the folds' scores are in its report"), ({}, "training")):
        with pytest.raises(InputError, match=f"every slide was used in {used}. Score other slides with --bags and"):
            held_out_bags({**data, "held_out": {"test": []}}, None, Path("run"))


def test_what_to_train_on_must_be_clear(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to train on"):
        run("train", "--out", tmp_path / "r")
    with pytest.raises(InputError, match="--data and --bags were given"):
        run("train", "--data", "mnist-bags", "--bags", made / "bags", "--out", tmp_path / "r")
    with pytest.raises(InputError, match="no labels: give --labels"):
        run("train", "--bags", made / "bags", "--out", tmp_path / "r")
    labelled = ("--bags", made / "bags", "--labels", made / "labels.csv")
    with pytest.raises(InputError, match="--test was given with --folds, whose parts are tested already: leave --test"):
        run("train", *labelled, "--folds", 3, "--test", "--out", tmp_path / "r")
    with pytest.raises(InputError, match="also give --recipe camelyon16"):
        run("train", "--features", made / "bags", "--out", tmp_path / "r")
