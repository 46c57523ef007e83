"""What is done with a trained run: evaluate, predict, explain and view read other bags as the run read its own."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from calls import read, run

from dasmil.errors import DataError, InputError, ScaleError
from dasmil.study import viewing
from dasmil.study.reading import read_alike
from dasmil.study.spec import BagSpec, CohortSpec
from dasmil.viewer.shelf import Shelf


def test_evaluate_reads_the_tables_that_training_reads(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, clini, slides = (tmp_path / name for name in ("labels.csv", "clini.csv", "slides.csv"))
    labels.write_text("\n".join(["slide,label,patient", *(f"made-{i:04d},{'ab'[i % 2]},p{i}" for i in range(30))]))
    clini.write_text("\n".join(["who,grade", *(f"p{i},{'ab'[i % 2]}" for i in range(8))]))
    slides.write_text("\n".join(["who,scan", *(f"p{i},made-{i:04d}.svs" for i in range(8))]))
    out, bags = tmp_path / "run", ("--bags", made / "bags")
    assert run("train", *bags, "--labels", labels, "--model", "mean-pool", "--epochs", 1, "--out", out) == 0
    short = tmp_path / "short.csv"
    short.write_text("\n".join(labels.read_text().splitlines()[:9]))
    pair = (*bags, "--labels", clini, "--slide-table", slides, "--label-column", "grade")
    capsys.readouterr()
    found = []
    for table in ((*bags, "--labels", short), (*pair, "--patient-column", "who", "--slide-column", "scan")):
        assert run("evaluate", out, *table, "--accept", "seen", "--json") == 0
        found.append(json.loads(capsys.readouterr().out)["splits"]["bags"])
    assert found[0]["n"] == 8
    assert found[0] == found[1]
    with pytest.raises(InputError, match="no column 'stage' for the label; it has who, grade"):
        run("evaluate", out, *pair[:-1], "stage", "--patient-column", "who", "--slide-column", "scan")
    with pytest.raises(InputError, match=r"--classes was given, but the run numbers its classes itself \(a, b\)"):
        run("evaluate", out, *bags, "--labels", short, "--classes", "b,a")
    with pytest.raises(InputError, match="--labels, --slide-table came without --bags"):
        run("evaluate", out, "--labels", clini, "--slide-table", slides)
    with pytest.raises(InputError, match="--split names sets of the run, but --bags gives other bags"):
        run("evaluate", out, *bags, "--labels", short, "--split", "test")
    # Both tables have bags of the locked test set: each opening is counted.
    assert len((tmp_path / "labels.csv.test-log.jsonl").read_text().splitlines()) == 2


def test_a_bag_out_of_the_folder_of_a_run_is_explained_at_the_scale_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bags, labels = tmp_path / "clam", tmp_path / "labels.csv"
    bags.mkdir()
    draw = np.random.default_rng(0)
    for i in range(12):
        with h5py.File(bags / f"s{i}.h5", "w") as file:
            file["features"] = draw.standard_normal((20, 8)).astype(np.float32) + i % 2
            file["coords"] = [[512 * (k % 5), 512 * (k // 5)] for k in range(20)]
    labels.write_text("\n".join(["slide,label", *(f"s{i},{('healthy', 'ill')[i % 2]}" for i in range(12))]))
    scales = tmp_path / "scales.csv"
    scales.write_text("\n".join(["slide,mpp", *(f"s{i},{0.25 if i else 0.5}" for i in range(12))]))
    arguments = ("--model", "das-mil", "--epochs", 1, "--set", "starts=1", "--set", "restarts=0")
    accept = ("--accept", "mixed-scales,seen")  # tiles of equally many pixels
    train = ("train", "--bags", bags, "--labels", labels, "--scale-table", scales, *arguments, *accept)
    assert run(*train, "--out", tmp_path / "run") == 0
    predicted = {row["bag_id"]: row for row in csv.DictReader((tmp_path / "run/seed-0/predictions.csv").open())}
    name = "s0" if "s0" in predicted else next(iter(predicted))
    capsys.readouterr()
    assert run("explain", tmp_path / "run", "--bag", bags / f"{name}.h5", "-o", tmp_path / "out") == 0
    said = capsys.readouterr()
    assert "Logit of class ill " in said.out
    assert said.err == ""
    # The folder of the run is read at the scales that the run was given, by every command.
    assert run("predict", tmp_path / "run", "--bags", bags, "-o", tmp_path / "p.csv", *accept) == 0
    again = {row["bag_id"]: float(row["logit"]) for row in csv.DictReader((tmp_path / "p.csv").open())}
    assert again[name] == pytest.approx(float(predicted[name]["logit"]), abs=1e-4)
    assert run("evaluate", tmp_path / "run", "--bags", bags, "--labels", labels, *accept) == 0
    assert read(tmp_path / "out/explanation.json")["logit"] == pytest.approx(float(predicted[name]["logit"]), abs=1e-4)
    rows = list(csv.DictReader((tmp_path / "out/instances.csv").open()))
    step = 512 * (0.5 if name == "s0" else 0.25)
    assert float(rows[1]["x_um"]) - float(rows[0]["x_um"]) == pytest.approx(step)
    page = (tmp_path / "out/explanation.html").read_text()
    assert "a part of the logit of class ill." in page
    assert "of class ill, logit" in page

    elsewhere = tmp_path / "other.h5"  # nobody said its scale
    elsewhere.write_bytes((bags / "s1.h5").read_bytes())
    with pytest.raises(InputError, match=r"CLAM files give positions in level-0 pixels .* give it with --mpp"):
        run("explain", tmp_path / "run", "--bag", elsewhere)


@pytest.mark.parametrize("verb", ["evaluate", "explain"])
def test_hints_name_options_that_the_command_has(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors about label tables, scales and tables of cells say which option helps; `train` has them all."""
    run(verb, "--help")
    shown = capsys.readouterr().out
    for option in (
        "--slide-table", "--slide-column", "--label-column", "--patient-column", "--classes", "--scale-table",
        "--bag-column", "--one-hot", "--unit", "--mpp", "--tile-um",
    ):  # fmt: skip
        assert f"{option} " in shown
    assert "--split-column" not in shown


def test_key_instances_of_a_cohort_without_any_leave_the_test_set_locked(made: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text((made / "labels.csv").read_text())
    for bag in (made / "bags").glob("*.h5"):
        copy = tmp_path / "bags" / bag.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(bag.read_bytes())
        with h5py.File(copy, "r+") as file:
            del file["key_instances"]
    out = tmp_path / "run"
    assert run("train", "--bags", tmp_path / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 1,
               "--out", out) == 0  # fmt: skip
    with pytest.raises(InputError, match="the test set stays locked"):
        run("explain", out, "--key-instances")
    assert not (tmp_path / "labels.csv.test-log.jsonl").exists()


def test_files_for_a_run_of_patients_are_warned_of(made: Path, tmp_path: Path) -> None:
    for per_patient in (True, False):
        record = CohortSpec(bags=made / "bags", per_patient=per_patient).as_record()
        said: list[str] = []
        bags = tmp_path / f"{per_patient}"
        shutil.copytree(made / "bags", bags)
        with h5py.File(bags / "made-0007.h5", "r+") as file:
            del file.attrs["patient_id"]
        assert len(read_alike({"cohort": record}, BagSpec(bags=bags), said.append)) == 30
        warned = [line for line in said if line.startswith("Warning")]
        assert [("all their slides joined; here each file is predicted alone" in line) for line in warned] == [
            True
        ] * per_patient


def test_cells_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["patient,x,y,kind"]
    for patient in range(12):
        lines += [f"p{patient},{(i * 7) % 50},{(i * 13) % 50},{'AB'[(i + patient) % 2]}" for i in range(8 + patient)]
    cells = tmp_path / "cells.csv"
    cells.write_text("\n".join(lines))
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["patient_slide,label", *(f"p{i},{i % 2}" for i in range(12))]))
    arguments = ("--bags", cells, "--bag-column", "patient", "--one-hot", "kind", "--unit", "px", "--mpp", 0.5)
    arguments += ("--labels", labels, "--slide-column", "patient_slide", "--accept", "same-slides")
    assert run("train", *arguments, "--model", "mean-pool", "--epochs", 1, "--out", tmp_path / "run") == 0
    config = read(tmp_path / "run" / "config.json")
    assert config["data"]["cohort"]["categories"] == ["A", "B"]
    # A label table that names the bags as the table of cells does needs no --slide-column.
    alike = tmp_path / "alike.csv"
    alike.write_text(labels.read_text().replace("patient_slide", "patient"))
    named = CohortSpec(bags=cells, bag_column="patient", one_hot="kind", unit="px", mpp="0.5", labels=alike)
    assert dict(zip((cohort := named.load()).bag_ids, cohort.labels)) == {f"p{i}": i % 2 for i in range(12)}
    with pytest.raises(DataError, match="no slide column among patient_slide, label"):
        replace(named, labels=labels).load()
    assert config["model"]["options"]["in_features"] == 2
    # A patient without A cells keeps the places of both categories.
    other = tmp_path / "other.csv"
    other.write_text("patient,x,y,kind\nq,1,1,B\nq,2,2,B\n")
    with pytest.raises(InputError, match="positions are in pixels"):
        run("predict", tmp_path / "run", "--bags", other)
    assert run("predict", tmp_path / "run", "--bags", other, "--mpp", 0.25, "-o", tmp_path / "p.csv") == 0
    assert (tmp_path / "p.csv").read_text().splitlines()[1].startswith("q,")
    # Cells that were given in pixels go back to QuPath in pixels.
    out = tmp_path / "cell"
    assert run("explain", tmp_path / "run", "--bag", "p3", "-o", out) == 0
    squares = [part["geometry"]["coordinates"][0] for part in read(out / "instances.geojson")["features"]]
    centres = [(np.array(square[0]) + np.array(square[2])) / 2 for square in squares]
    np.testing.assert_allclose(centres, [((i * 7) % 50, (i * 13) % 50) for i in range(11)], atol=0.01)
    assert {part["properties"]["classification"]["name"] for part in read(out / "instances.geojson")["features"]} == {
        "A", "B"
    }  # fmt: skip

    # One bag of the table, under the name that predictions.csv has for it.
    predicted = {row["bag_id"]: row for row in csv.DictReader((tmp_path / "run/seed-0/predictions.csv").open())}
    name = next(iter(predicted))
    out = tmp_path / "explained"
    assert run("explain", tmp_path / "run", "--bag", name, "-o", out) == 0
    explained = read(out / "explanation.json")
    assert (explained["bag_id"], explained["n"]) == (name, 8 + int(name[1:]))
    assert explained["logit"] == pytest.approx(float(predicted[name]["logit"]), abs=1e-5)
    assert run("explain", tmp_path / "run", "--bag", "q", "--bags", other, "--mpp", 0.25, "-o", out) == 0
    assert read(out / "explanation.json")["n"] == 2
    with pytest.raises(InputError, match=r"other.csv has no bag 'qq'. Did you mean 'q'\?"):
        run("explain", tmp_path / "run", "--bag", "qq", "--bags", other, "--mpp", 0.25)
    with pytest.raises(InputError, match=r"cells.csv is a table of many bags: name one of them, --bag NAME --bags"):
        run("explain", tmp_path / "run", "--bag", cells)

    # The viewer reads a table by what its run noted; a model file notes nothing.
    model = tmp_path / "run" / "seed-0" / "model.safetensors"
    with pytest.raises(InputError, match=r"other.csv is a table of cells, and a model file does not say .* run dir"):
        run("view", "--model", model, "--bags", other, "--mpp", 0.25)
    shelves: list[Shelf] = []
    monkeypatch.setattr(viewing, "serve", lambda shelf, *_: shelves.append(shelf))
    run("view", tmp_path / "run", "--bags", other, "--mpp", 0.25)
    assert [entry.bag_id for entry in shelves[0].entries] == ["q"]
    assert shelves[0].open(0).bag.coords.tolist() == [[0.25, 0.25], [0.5, 0.5]]


def test_columns_of_another_table_may_be_in_any_order(tmp_path: Path) -> None:
    cells = [(f"p{i}", j, (j * 3) % 5, i % 2 + j / 10, 100 + i) for i in range(12) for j in range(6)]
    for name, header, order in (("ab", "bag,x,y,a,b", (0, 1, 2, 3, 4)), ("ba", "b,bag,a,x,y", (4, 0, 3, 1, 2))):
        rows = [",".join(str(cell[k]) for k in order) for cell in cells]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]))
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["slide,label", *(f"p{i},{i % 2}" for i in range(12))]))
    cohort = ("--bags", tmp_path / "ab.csv", "--bag-column", "bag", "--unit", "um", "--labels", labels)
    assert run("train", *cohort, "--model", "mean-pool", "--epochs", 1, "--out", tmp_path / "run") == 0
    for name in ("ab", "ba"):
        run("predict", tmp_path / "run", "--bags", tmp_path / f"{name}.csv", "-o", tmp_path / f"{name}.out")
    assert (tmp_path / "ab.out").read_text() == (tmp_path / "ba.out").read_text()


def test_a_bad_slide_is_left_out_named_and_told_by_the_exit_code(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bags, labels, out = tmp_path / "bags", tmp_path / "labels.csv", tmp_path / "run"
    shutil.copytree(made / "bags", bags)
    labels.write_text("\n".join(["slide,label", *(f"made-{i:04d},{'ab'[i % 2]}" for i in range(30))]))
    data = (bags / "made-0003.h5").read_bytes()
    (bags / "made-0003.h5").write_bytes(data[: len(data) // 2])
    train = ("train", "--bags", bags, "--labels", labels, "--model", "mean-pool", "--epochs", 1)
    with pytest.raises(DataError, match="1 slide left out, because it cannot be read: made-0003"):
        run(*train, "--strict", "--out", tmp_path / "strict")
    assert run(*train, "--out", out) == 1
    assert "1 slide left out, because it cannot be read: made-0003" in capsys.readouterr().err
    assert "Left out" in (out / "report.html").read_text()
    assert "made-0003" in read(out / "data.json")["left_out"]
    predict = ("predict", out, "--bags", bags, "-o", tmp_path / "p.csv")
    with pytest.raises(DataError, match="made-0003"):
        run(*predict, "--strict")
    assert run(*predict) == 1
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert len(rows) == 30
    assert [(row["bag_id"], row["probability"]) for row in rows if row["problem"]] == [("made-0003", "")]


def test_a_slide_with_nan_features_is_left_out_like_other_bad_ones(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bags, out = tmp_path / "bags", tmp_path / "run"
    shutil.copytree(made / "bags", bags)
    with h5py.File(bags / "made-0004.h5", "r+") as file:
        file["features"][2, 1] = np.nan
    cohort = ("--bags", bags, "--labels", made / "labels.csv")
    assert run("train", *cohort, "--model", "mean-pool", "--epochs", 1, "--out", out) == 1
    said = "1 slide left out, because it cannot be read: made-0004"
    assert said in capsys.readouterr().err
    assert "1 of " in read(out / "data.json")["left_out"]
    assert "instances have NaN or infinite features" in (out / "report.html").read_text()
    assert run("predict", out, "--bags", bags, "-o", tmp_path / "p.csv") == 1
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [row["bag_id"] for row in rows if not row["probability"]] == ["made-0004"]
    with pytest.raises(DataError, match="made-0004"):
        run("train", *cohort, "--strict", "--model", "mean-pool", "--epochs", 1, "--out", tmp_path / "strict")


def test_predict_tells_spread_logit_and_every_class_by_name(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["slide,label", *(f"made-{i:04d},{('WT', 'MUT')[i % 2]}" for i in range(30))]))
    out = tmp_path / "run"
    cohort = ("--bags", made / "bags", "--labels", labels, "--model", "mean-pool", "--epochs", 1)
    assert run("train", *cohort, "--seeds", 2, "--out", out) == 0
    assert "Positive: MUT, by its name (--positive WT for the other)" in capsys.readouterr().err
    assert read(out / "data.json")["classes"] == ["WT", "MUT"]
    assert run("predict", out, "--bags", made / "bags", "-o", tmp_path / "p.csv") == 0
    threshold = read(out / "summary.json")["threshold"]["decision"]
    assert f"Positive: MUT, from probability {threshold:.3f} on" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    seeds = [
        {row["bag_id"]: row for row in csv.DictReader((out / f"seed-{k}" / "predictions.csv").open())} for k in (0, 1)
    ]
    known = [row for row in rows if row["bag_id"] in seeds[0]]
    assert len(known) > 20
    for row in known:
        own = [seed[row["bag_id"]] for seed in seeds]
        p = np.array([float(one["probability"]) for one in own])
        assert float(row["probability"]) == pytest.approx(p.mean(), abs=1e-6)
        assert float(row["probability_sd"]) == pytest.approx(p.std(ddof=1), abs=1e-6)
        assert float(row["logit"]) == pytest.approx(np.mean([float(one["logit"]) for one in own]), abs=1e-5)
        assert float(row["probability_WT"]) == pytest.approx(1 - p.mean(), abs=1e-6)
        assert row["class"] == ("WT", "MUT")[int(p.mean() >= threshold)]
    assert run("train", *cohort, "--positive", "WT", "--out", tmp_path / "other") == 0
    assert read(tmp_path / "other" / "data.json")["classes"] == ["MUT", "WT"]
    with pytest.raises(InputError, match="--positive and --classes both order the classes"):
        run("train", *cohort, "--positive", "WT", "--classes", "MUT,WT", "--out", tmp_path / "both")


def test_slides_of_a_new_patient_are_predicted_together(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, table, out = (tmp_path / name for name in ("labels.csv", "slides.csv", "run"))
    rows = [f"made-{i:04d},{'ab'[(i // 2) % 2]},p{i // 2}" for i in range(30)]
    labels.write_text("\n".join(["slide,label,patient", *rows]))
    cohort = ("--bags", made / "bags", "--labels", labels, "--per-patient", "--model", "mean-pool", "--epochs", 1)
    assert run("train", *cohort, "--out", out) == 0
    new = tmp_path / "new"
    new.mkdir()
    for i in range(5):
        shutil.copy(made / "bags" / f"made-{i:04d}.h5", new)
        with h5py.File(new / f"made-{i:04d}.h5", "r+") as file:
            del file.attrs["patient_id"]
    owners = [f"made-{i:04d}.svs,p{i // 2}" for i in range(6)]
    table.write_text("\n".join(["FILENAME,PATIENT", *owners, "made-0029,gone"]))
    capsys.readouterr()
    assert run("predict", out, "--bags", new, "--slide-table", table, "-o", tmp_path / "p.csv") == 1
    said = capsys.readouterr().err
    assert "The slides of a patient are joined, as the run was trained" in said
    assert "2 patients lack a slide of the slide table: p2, gone" in said
    found = {row["bag_id"]: row for row in csv.DictReader((tmp_path / "p.csv").open())}
    assert list(found) == ["p0", "p1", "p2", "gone"]
    assert found["p2"]["problem"] == "slide made-0005 of the slide table has no file"
    assert (found["gone"]["probability"], found["gone"]["problem"][:15]) == ("", "slide made-0029")
    trained = {row["bag_id"]: row for row in csv.DictReader((out / "seed-0" / "predictions.csv").open())}
    same = [name for name in ("p0", "p1") if name in trained]
    assert same
    for name in same:  # exactly the bag that training saw
        assert float(found[name]["probability"]) == pytest.approx(float(trained[name]["probability"]), abs=1e-6)
    assert run("predict", out, "--bags", new, "-o", tmp_path / "alone.csv") == 0
    assert "each file is predicted alone, because nothing says whose made-0000 is" in capsys.readouterr().err
    with pytest.raises(DataError, match="give --slide-table"):
        run("predict", out, "--bags", new, "--per-patient", "-o", tmp_path / "none.csv")


def test_evaluate_and_explain_take_patients_as_training_did(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, table, out = (tmp_path / name for name in ("labels.csv", "slides.csv", "run"))
    rows = [f"made-{i:04d},{'ab'[(i // 2) % 2]},p{i // 2}" for i in range(30)]
    labels.write_text("\n".join(["slide,label,patient", *rows]))
    cohort = ("--bags", made / "bags", "--labels", labels, "--per-patient", "--model", "mean-pool", "--epochs", 1)
    assert run("train", *cohort, "--out", out) == 0
    new = tmp_path / "new"
    new.mkdir()
    for i in range(9):  # the second slide of p4 is missing
        shutil.copy(made / "bags" / f"made-{i:04d}.h5", new)
    capsys.readouterr()
    assert run("evaluate", out, "--bags", new, "--labels", labels, "--accept", "seen", "--json") == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["splits"]["bags"]["n"] == 5
    assert found["incomplete"] == {"p4": ["slide made-0009 of the label table has no file"]}
    assert "1 patients lack a slide of the label table: p4" in told.err
    table.write_text("\n".join(["slide,patient", *(f"made-{i:04d},p{i // 2}" for i in range(10))]))
    given = ("--bags", new, "--slide-table", table, "-o", tmp_path / "out")
    assert run("explain", out, "--bag", "p4", *given) == 0
    assert "1 patients lack a slide of the slide table: p4" in capsys.readouterr().err
    assert run("explain", out, "--bag", "p0", *given, "--json") == 0
    joined = json.loads(capsys.readouterr().out)["logit"]
    trained = {row["bag_id"]: row for row in csv.DictReader((out / "seed-0" / "predictions.csv").open())}
    known = next(name for name in ("p0", "p1", "p2", "p3") if name in trained)
    assert run("explain", out, "--bag", known, *given, "--json") == 0
    told_logit = json.loads(capsys.readouterr().out)["logit"]
    assert told_logit == pytest.approx(float(trained[known]["logit"]), abs=1e-5)
    assert run("explain", out, "--bag", new / "made-0000.h5", "-o", tmp_path / "alone", "--json") == 0
    alone = capsys.readouterr()
    assert "made-0000.h5 is explained alone: for the whole patient give its name, --bag PATIENT" in alone.err
    assert json.loads(alone.out)["logit"] != pytest.approx(joined, abs=1e-6)


def clam(folder: Path, n: int, shift: float = 0.0) -> None:
    """Files as CLAM writes them: level-0 corners of tiles 256 px wide, and no scale."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i in range(n):
        with h5py.File(folder / f"s{i}.h5", "w") as file:
            file["features"] = draw.standard_normal((20, 8)).astype(np.float32) + i % 2
            file["coords"] = np.array([[256 * (k % 5), 256 * (k // 5)] for k in range(20)]) + round(shift)


def test_tiles_of_another_size_than_those_of_the_run_are_refused(tmp_path: Path, monkeypatch) -> None:
    bags, labels, out = tmp_path / "clam", tmp_path / "labels.csv", tmp_path / "run"
    clam(bags, 16)
    labels.write_text("\n".join(["slide,label", *(f"s{i},{('healthy', 'ill')[i % 2]}" for i in range(16))]))
    train = ("train", "--bags", bags, "--labels", labels, "--model", "mean-pool", "--epochs", 1)
    assert run(*train, "--mpp", 0.25, "--out", out) == 0
    assert read(out / "config.json")["data"]["scale"] == {"tile_um": [64.0, 64.0], "mpp": [0.25, 0.25]}
    here, there = r"tiles of 127\.7 um \(0\.499 um/px\)", r"tiles of 64 um \(0\.25 um/px\)"
    said = rf"{here}, but the run was trained on {there}.*\(0\.25 um/px would fit\)"
    wrong = ("--bags", bags, "--mpp", 0.499)
    with pytest.raises(ScaleError, match=said):
        run("predict", out, *wrong, "-o", tmp_path / "p.csv")
    with pytest.raises(ScaleError, match=said):
        run("evaluate", out, *wrong, "--labels", labels)
    with pytest.raises(ScaleError, match=said):
        run("explain", out, "--bag", bags / "s1.h5", "--mpp", 0.499, "-o", tmp_path / "e")
    monkeypatch.setattr(viewing, "serve", lambda *_: None)
    with pytest.raises(ScaleError, match=said):
        run("view", out, *wrong)
    assert run("predict", out, "--bags", bags, "--mpp", 0.2547, "-o", tmp_path / "p.csv") == 0  # another scanner
    slide = Path(__file__).parents[1] / "data" / "CMU-1-Small-Region.svs"
    # The bag was read as the run was: --mpp alone would be refused, and the message must not send in a circle.
    read_with = r"says 0\.499 um/px, but bag 's1' was read with 0\.25 um/px: its distances would be 0\.501 times the "
    todo = r"true ones\. If the slide is right, read the bag with --mpp 0\.499; a run .* must be trained again"
    with pytest.raises(ScaleError, match=read_with + todo):
        run("explain", out, "--bag", bags / "s1.h5", "--slide", slide, "-o", tmp_path / "e")


def test_the_message_for_another_slide_gives_the_micrometres_of_the_slide(tmp_path: Path) -> None:
    bags, labels, out = tmp_path / "clam", tmp_path / "labels.csv", tmp_path / "run"
    clam(bags, 16, shift=4000)
    labels.write_text("\n".join(["slide,label", *(f"s{i},{i % 2}" for i in range(16))]))
    train = ("train", "--bags", bags, "--labels", labels, "--model", "mean-pool", "--epochs", 1)
    assert run(*train, "--mpp", 0.499, "--out", out) == 0
    slide = Path(__file__).parents[1] / "data" / "CMU-1-Small-Region.svs"
    with pytest.raises(DataError, match=r"\(2,220 x 2,967 px of 0\.499 um\) is 1108 x 1481 µm, but bag 's1'"):
        run("explain", out, "--bag", bags / "s1.h5", "--slide", slide, "-o", tmp_path / "e")
