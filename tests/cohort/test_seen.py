"""What a run has seen is marked or refused; what the doctor calls an error stops training and prediction too."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from calls import read, run

from dasmil.data.checks import content, plain_patient, same_content
from dasmil.data.cohort import load_cohort
from dasmil.data.labels import LabelRow
from dasmil.data.store import write_bag
from dasmil.errors import DataError, InputError
from dasmil.study.spec import BagSpec
from dasmil.types import Bag

GRID = np.stack(np.meshgrid(np.arange(6), np.arange(5)), -1).reshape(-1, 2) * 256.0 + 128


def write_bags(folder: Path, n: int, seed: int = 0, **metadata: object) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(seed)
    for i in range(n):
        features = torch.from_numpy(draw.normal(size=(30, 8)).astype(np.float32) + i % 2)
        known = {"tile_um": 256.0, "mpp": 0.5, "encoder": "x", "slide_width_px": 4000, "slide_height_px": 2600}
        bag = Bag(features, torch.from_numpy(GRID).float(), "um", f"s{i:02d}", metadata={**known, **metadata})
        write_bag(folder / f"s{i:02d}.h5", bag)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seen")
    write_bags(folder / "bags", 20)
    rows = [f"s{i:02d},{'ab'[i % 2]},P{i:03d}" for i in range(20)]
    (folder / "labels.csv").write_text("\n".join(["slide,label,patient", *rows]))
    bags = ("--bags", folder / "bags", "--labels", folder / "labels.csv")
    assert run("train", *bags, "--model", "mean-pool", "--epochs", 1, "--no-baselines", "--out", folder / "run") == 0
    return folder


def test_bags_of_the_run_are_refused_whatever_they_are_called(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"^seen: 16 of 20 bags"):
        run("evaluate", trained / "run", "--bags", trained / "bags", "--labels", trained / "labels.csv")
    held = read(trained / "run" / "config.json")["data"]["held_out"]["test"]
    known = read(trained / "run" / "bags.json")["bags"]
    assert sorted(name for name, bag in known.items() if bag["set"] == "locked test set") == sorted(held)
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for k, name in enumerate(held):  # the locked bags under other names, in another order of instances
        shutil.copy(trained / "bags" / f"{name}.h5", renamed / f"new{k}.h5")
        with h5py.File(renamed / f"new{k}.h5", "r+") as file:
            file["features"][:], file["coords"][:] = file["features"][:][::-1], file["coords"][:][::-1]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["slide,label", *(f"new{k},{'ab'[k % 2]}" for k in range(len(held)))]))
    log = trained / "labels.csv.test-log.jsonl"
    assert not log.exists()
    capsys.readouterr()
    assert run("evaluate", trained / "run", "--bags", renamed, "--labels", labels, "--json") == 0
    told = capsys.readouterr()
    assert len(log.read_text().splitlines()) == 1
    assert f"Test set opened ({len(held)} bags): evaluation number 1 on it" in told.err
    assert set(json.loads(told.out)["seen"].values()) == {"locked test set"}


def test_other_slides_of_a_patient_of_the_run_are_refused(trained: Path, tmp_path: Path) -> None:
    bags, labels = write_bags(tmp_path / "other", 4, seed=9), tmp_path / "labels.csv"
    own = [name for name, bag in read(trained / "run" / "bags.json")["bags"].items() if bag["set"] == "trained on"]
    patient = f" p{int(own[0][1:]):03d}"  # as the run's P007
    labels.write_text("\n".join(["slide,label,patient", f"s00,a,{patient}", "s01,b,q1", "s02,a,q2", "s03,b,q3"]))
    arguments = ("evaluate", trained / "run", "--bags", bags, "--labels", labels)
    with pytest.raises(
        DataError, match=r"seen: 1 of 4 bags, or their patients, .* \(for example s00\).* --accept seen"
    ):
        run(*arguments)
    assert run(*arguments, "--accept", "seen") == 0
    with pytest.raises(InputError, match=r"--accept 'sen' is no check; it takes mixed-encoders, "):
        run(*arguments, "--accept", "sen")


def test_predictions_of_bags_that_the_run_has_seen_are_marked(trained: Path, tmp_path: Path) -> None:
    assert run("predict", trained / "run", "--bags", trained / "bags", "-o", tmp_path / "p.csv") == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert {row["seen"] for row in rows} == {"trained on", "locked test set"}
    new = write_bags(tmp_path / "new", 4, seed=5)
    assert run("predict", trained / "run", "--bags", new, "-o", tmp_path / "new.csv") == 0
    assert "seen" not in next(csv.DictReader((tmp_path / "new.csv").open()))


def _coords(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        file["coords"][:] = change(file["coords"][:])

    return spoil


def _say(**values: object) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.update(values)


SPOILED = {
    "swapped axes": _coords(lambda xy: xy[:, ::-1] * [1, 1.4]),
    "stride against tile": _coords(lambda xy: xy / 1000),
    "outside the slide": _coords(lambda xy: xy + 3000),
    "mixed encoders": _say(encoder="y"),
}


@pytest.mark.parametrize("check", [*SPOILED, "mixed scales"])
def test_what_the_doctor_calls_an_error_stops_prediction(check: str, trained: Path, tmp_path: Path) -> None:
    if check == "mixed scales":  # nobody says how large a tile is, and positions are in nm
        new = write_bags(tmp_path / "new", 3, seed=5, tile_um=None, slide_width_px=None, slide_height_px=None)
        spoil = _coords(lambda xy: xy * 1000)
    else:
        new, spoil = write_bags(tmp_path / "new", 3, seed=5), SPOILED[check]
    for path in new.glob("*.h5"):
        with h5py.File(path, "r+") as file:
            spoil(file)
    arguments = ("predict", trained / "run", "--bags", new, "-o", tmp_path / "p.csv")
    name = check.replace(" ", "-")
    with pytest.raises(DataError, match=f"^{check}: .*--accept {name}$"):
        run(*arguments)
    every = "outside-the-slide,stride-against-tile,mixed-scales," + name
    assert run(*arguments, "--accept", every) == 0


def _load(folder: Path, rows: list[LabelRow], accept: str | None = None) -> None:
    BagSpec(bags=folder, accept=accept).load(rows, read_all=True)


def test_one_slide_under_two_names_is_refused(tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", 6)
    for path in (bags / "s00.h5", bags / "s01.h5"):
        shutil.copy(path, bags / f"copy-{path.name}")
    names = [path.stem for path in sorted(bags.glob("*.h5"))]
    apart = [LabelRow(name, "a", f"p{i}") for i, name in enumerate(names)]
    with pytest.raises(DataError, match=r"^same slides: 4 slides have \(nearly\) the instances of another"):
        _load(bags, apart)
    _load(bags, apart, "same-slides")
    together = [LabelRow(name, "a", name.removeprefix("copy-")) for name in names]
    cohort = BagSpec(bags=bags).load(together, read_all=True)
    assert "Warning: same slides: 4 slides" in cohort.report.lines()[-1]


def test_one_patient_written_in_two_ways_is_refused(tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", 4)
    for one, other in (("P001", "p001"), ("1", "1.0"), ("001", "1"), ("p 1", "p1")):
        rows = [LabelRow(f"s{i:02d}", "a", who) for i, who in enumerate((one, other, "q", "r"))]
        with pytest.raises(DataError, match=r"patient names: 1 patients are written in several ways"):
            _load(bags, rows)
    _load(bags, [LabelRow(f"s{i:02d}", "a", who) for i, who in enumerate(("P10", "P1", "1.5", "15"))])
    assert plain_patient("\uff11\uff12") == "12"


def test_marks_tell_copies_from_others() -> None:
    draw = np.random.default_rng(0)
    features, places = draw.normal(size=(200, 16)).astype(np.float32), draw.uniform(0, 5000, (200, 2))
    marks = content(features, places)
    order = draw.permutation(200)
    half = features.astype(np.float16).astype(np.float32)
    assert content(features[order], places[order] + 7) == marks
    assert content(half, places) == marks
    assert same_content(content(features[20:], places[20:]), marks)
    assert not same_content(content(draw.normal(size=(200, 16)).astype(np.float32), places), marks)
    kinds = np.eye(3, dtype=np.float32)  # cells of three types: their places tell
    one, other = kinds[draw.integers(0, 3, 200)], kinds[draw.integers(0, 3, 200)]
    assert not same_content(content(one, places), content(other, draw.uniform(0, 5000, (200, 2))))
    assert content(one[order], places[order] + 1000) == content(one, places)
    few = np.eye(4, dtype=np.float32)  # a bag of six with the same four types as another
    one, other = few[[0, 1, 2, 3, 2, 2]], few[[0, 1, 3, 2, 3, 2]]
    assert not same_content(content(one, places[:6]), content(other, places[6:12]))
    assert same_content(content(one, places[:6]), content(one[::-1], places[5::-1] + 50))


def test_marks_know_a_copy_in_another_unit_and_one_that_holds_everything_twice() -> None:
    draw = np.random.default_rng(1)
    kinds = np.eye(3, dtype=np.float32)[draw.integers(0, 3, 200)]
    places, others = draw.uniform(0, 5, (2, 200, 2))  # in mm
    assert same_content(content(kinds, places), content(kinds, places * 1000 + 7))
    assert not same_content(content(kinds, places), content(kinds, others))
    for width in (8, 64):
        features = draw.normal(size=(200, width)).astype(np.float32)
        assert content(features.repeat(2, 0), places.repeat(2, 0)) == content(features, places)
    noisy = features * (1 + 5e-4 * draw.normal(size=features.shape)).astype(np.float32)  # as from another device
    assert same_content(content(noisy[:170], places[:170]), content(features, places))
    alike = np.abs(draw.normal(size=64)).astype(np.float32)  # what all tiles of an encoder have in common
    slides = [content((alike + 0.5 * draw.normal(size=(200, 64))).astype(np.float32), places) for _ in range(30)]
    assert not any(same_content(one, other) for i, one in enumerate(slides) for other in slides[:i])


def test_instances_that_stand_twice_are_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_bags(tmp_path / "new", 3, seed=6)
    with h5py.File(new / "s01.h5", "r+") as file:
        for name in ("features", "coords"):
            values = file[name][:]
            values[20:] = values[:10]
            file[name][:] = values
    assert run("predict", trained / "run", "--bags", new, "-o", tmp_path / "p.csv") == 0
    assert "repeated instances: 1 slides hold instances twice" in capsys.readouterr().err
    assert run("doctor", new) == 0
    assert "10 of 30 in s01" in capsys.readouterr().out


def test_words_for_missing_labels_are_named(tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", 6)
    rows = [LabelRow(f"s{i:02d}", "?" if i < 2 else "ab"[i % 2]) for i in range(6)]
    assert BagSpec(bags=bags).load(rows).report.doubtful == [
        "'?' counts as a class; empty its cells if the label is missing"
    ]


def test_cohorts_that_are_only_listed_are_not_read(tmp_path: Path) -> None:
    cohort = load_cohort(write_bags(tmp_path / "bags", 2), [LabelRow("s00", "a"), LabelRow("s01", "b")])
    assert cohort.report.looked == {}
