"""The doctor finds each of the things that ruin a cohort, and says nothing about a healthy one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from dasmil.cli.doctor import CheckedCohort, doctor
from dasmil.data.doctor import Checkup, check_bags
from dasmil.data.labels import LabelRow
from dasmil.data.scale import Scale, Scales
from dasmil.data.store import write_bag
from dasmil.types import Bag


def grid(columns: int = 6, rows: int = 4, step: float = 256.0) -> np.ndarray:
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x.ravel(), y.ravel()], axis=1) * step


def write(
    folder: Path, name: str, corners: np.ndarray | None = None, features: np.ndarray | None = None, **root: Any
) -> None:
    folder.mkdir(exist_ok=True)
    corners = grid() if corners is None else corners
    if features is None:
        own = np.random.default_rng(list(name.encode()))  # no slide is another one's copy
        features = own.standard_normal((len(corners), 8)).astype(np.float32)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["feats"] = features
        file["coords"] = corners
        file.attrs.update({"unit": "um", "tile_size_um": 256.0, "extractor": "x", **root})


def check(folder: Path, labels: list[LabelRow] | None = None, scales: Scales | None = None) -> Checkup:
    *_, result = check_bags(folder, labels, scales)
    return result


def found(result: Checkup) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {finding.check: (finding.level, finding.slides) for finding in result.findings}


def test_healthy_cohort(tmp_path: Path) -> None:
    for name in "abcdef":
        write(tmp_path / "bags", name)
    result = check(tmp_path / "bags", [LabelRow(name, str(i % 2)) for i, name in enumerate("abcdef")])
    assert result.findings == []
    assert result.healthy
    assert result.rows[0]["stride_um"] == 256
    assert result.radius_um == 1300  # 256 um times the root of 80 / pi, in two digits
    assert result.as_json()["radius_um"] == 1300
    assert result.rules == {"STAMP: centre = um top left + 256/2, as the file declares": 6}


def test_a_table_that_differs_from_the_bags_is_said(tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        bag = Bag(torch.rand(3, 2), torch.tensor([[0.0, 0], [9, 0], [18, 0]]), "um", name, label=i, patient_id="p")
        write_bag(tmp_path / f"{name}.h5", bag)
    result = check(tmp_path, [LabelRow("a", "1", "q"), LabelRow("b", "0")], Scales(table={"gone": Scale(mpp=1)}))
    assert result.healthy
    assert [finding.message for finding in result.findings] == [
        "1 rows without a slide: gone",
        "1 slides whose bag names another patient than the label table, which counts: a",
        "2 slides whose bag has another class number than the label table, which counts: a, b",
        "class '0' has 1 patient, expected at least 3: training, validation and test need one each",
        "class '1' has 1 patient, expected at least 3: training, validation and test need one each",
    ]
    assert result.cohort == [
        "2 slides of 2 patients; 1 of class 0, 1 of class 1",
        "Positive: 1, the larger number (--positive 0 for the other)",
    ]


def test_every_illness(tmp_path: Path) -> None:
    bags = tmp_path / "bags"
    write(bags, "good")
    values = np.random.default_rng(1).standard_normal((24, 8)).astype(np.float32)
    values[3, 2] = np.nan
    write(bags, "nan", features=values)
    write(bags, "sparse", grid(step=1024.0))
    write(bags, "overlap", grid(step=128.0))
    write(bags, "scattered", grid()[[0, 3, 14, 23]])
    places = grid()
    places[5, 1] = np.nan
    write(bags, "nowhere", places)
    with h5py.File(bags / "nowhere-clam.h5", "w") as file:  # of CLAM's files the stride is measured
        file["features"], file["coords"] = values, places
    write(bags, "double", np.concatenate([grid(), grid()[:2]]))
    write(bags, "count", features=values[:20])
    (bags / "broken.h5").write_bytes(b"no HDF5 at all")
    result = check(bags, scales=Scales(table={"nowhere-clam": Scale(mpp=1)}))
    illnesses = found(result)
    assert illnesses["NaN coordinates"] == ("error", ("nowhere-clam", "nowhere"))
    assert illnesses["NaN features"] == ("error", ("nan", "nowhere-clam"))
    assert illnesses["count mismatch"] == ("error", ("count",))
    assert illnesses["unreadable"] == ("error", ("broken",))
    assert illnesses["duplicated coordinates"] == ("warning", ("double",))
    assert illnesses["stride against tile"][0] in ("error", "warning")
    strides = [(f.level, f.slides) for f in result.findings if f.check == "stride against tile"]
    assert sorted(strides) == [("error", ("sparse",)), ("warning", ("overlap",))]
    assert illnesses["scattered tiles"] == ("warning", ("scattered",))
    assert not result.healthy


def test_mixtures(tmp_path: Path) -> None:
    write(tmp_path / "bags", "a")
    write(tmp_path / "bags", "b")
    write(tmp_path / "bags", "c", extractor="y")
    write(tmp_path / "bags", "d", grid(step=128.0), tile_size_um=128.0)
    write(tmp_path / "bags", "e", features=np.random.default_rng(0).standard_normal((24, 9)).astype(np.float32))
    result = check(tmp_path / "bags")
    mixed = {finding.message: finding.slides for finding in result.findings if finding.check.startswith("mixed")}
    assert mixed == {
        "features: 8 (4 slides), 9 (1 slides)": ("e",),
        "encoder: x (4 slides), y (1 slides)": ("c",),
        "tile_um: 256.0 (4 slides), 128.0 (1 slides)": ("d",),
    }


def test_swapped_axes_and_wrong_scale_need_the_slide_size(tmp_path: Path) -> None:
    write(tmp_path / "bags", "good", grid(6, 4))
    write(tmp_path / "bags", "swapped", grid(4, 6))
    write(tmp_path / "bags", "wrong", grid(12, 9))
    size = Scale(mpp=0.5, width_px=6 * 512, height_px=4 * 512)
    result = check(tmp_path / "bags", scales=Scales(size))
    assert found(result)["swapped axes"] == ("error", ("swapped",))
    assert found(result)["outside the slide"] == ("error", ("wrong",))


def test_labels_are_checked_too(tmp_path: Path) -> None:
    write(tmp_path / "bags", "a")
    write(tmp_path / "bags", "b")
    result = check(tmp_path / "bags", [LabelRow("a", "0"), LabelRow("c", "1")])
    messages = [(finding.level, finding.message) for finding in result.findings]
    assert ("warning", "1 slides without a label: b") in messages
    assert ("warning", "1 labels without a slide: c") in messages
    assert ("error", "found 1 of class '0' only; training needs slides of at least two classes") in messages


def test_classes_written_in_two_ways_and_classes_of_few_patients(tmp_path: Path) -> None:
    labels: list[LabelRow] = []
    for i, label in enumerate(["0", "0.0", "1", "1", "1"]):
        write(tmp_path / "bags", f"s{i}")
        labels.append(LabelRow(f"s{i}", label, f"p{min(i, 3)}"))
    messages = [(finding.check, finding.message) for finding in check(tmp_path / "bags", labels).findings]
    few = "expected at least 3: training, validation and test need one each"
    assert messages == [
        ("class names", "'0' and '0.0' count as 2 classes; write them alike if they are one"),
        ("few patients", f"class '0' has 1 patient, {few}"),
        ("few patients", f"class '0.0' has 1 patient, {few}"),
        ("few patients", f"class '1' has 2 patients, {few}"),
    ]
    words = [LabelRow(f"s{i}", label) for i, label in enumerate(["Normal", "normal", "Tumour", "Tumour"])]
    messages = [finding.message for finding in check(tmp_path / "bags", words).findings]
    assert "'Normal' and 'normal' count as 2 classes; write them alike if they are one" in messages


def test_splits_that_cannot_be_trained_or_scored(tmp_path: Path) -> None:
    for i in range(6):
        write(tmp_path / "bags", f"s{i}")

    def findings(*splits: str) -> list[tuple[str, str]]:
        labels = [LabelRow(f"s{i}", "ab"[i % 2], split=split) for i, split in enumerate(splits)]
        result = check(tmp_path / "bags", labels)
        return [(finding.level, finding.message) for finding in result.findings]

    scores = "expected at least two classes: without them there is no AUROC and no balanced accuracy"
    assert findings("train", "train", "val", "val", "test", "test") == []
    assert findings(*["test"] * 6) == [("error", "the split column has test but no slide for train")]
    assert findings("train", "test", "train", "test", "val", "val") == [
        ("error", "no training slide has class 'b': put some into train"),
        ("warning", f"the test set has class 'b' only, {scores}"),
    ]
    assert findings("train", "train", "val", "train", "test", "test") == [
        ("warning", f"the validation set has class 'a' only, {scores}")
    ]


def test_command_prints_a_table_and_returns_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "bags", "a")
    labels = tmp_path / "labels.csv"
    labels.write_text("slide,label\na,1\nb,0\n")
    assert doctor(tmp_path / "bags") == 0
    printed = capsys.readouterr().out
    assert "1 files, 24 tiles, 24 to 24 in a bag" in printed
    assert "Nothing wrong found." in printed
    assert doctor(tmp_path / "bags", cohort=CheckedCohort(labels=labels), json=True) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is False
    assert answer["rows"][0]["slide"] == "a"
    assert {finding["check"] for finding in answer["findings"]} == {"labels", "one class only", "few patients"}


def test_names_with_square_brackets_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slide[he]", "x[b]"):
        write(tmp_path / "bags", name)
    assert doctor(tmp_path / "bags") == 0
    printed = capsys.readouterr().out
    assert "slide[he]" in printed
    assert "x[b]" in printed
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert doctor(tmp_path / "bags") == 0
    assert re.search(r"Checking \d/2 (slide\[he\]|x\[b\])", capsys.readouterr().err)


def test_two_scanners_are_one_scale_and_two_scales_are_not(tmp_path: Path) -> None:
    for name, tile in (("a", 256.0), ("b", 257.3)):
        write(tmp_path / "bags", name, grid(step=tile), tile_size_um=tile)
    assert check(tmp_path / "bags").findings == []
    write(tmp_path / "bags", "c", grid(step=128.0), tile_size_um=128.0)
    (finding,) = check(tmp_path / "bags").findings
    assert (finding.level, finding.check, finding.slides) == ("error", "mixed scales", ("c",))


def test_cells_are_not_held_to_the_grid_of_tiles(tmp_path: Path) -> None:
    places = np.random.default_rng(0).uniform(0, 2000, (300, 2))
    for name, size in (("small", 5.0), ("large", 200.0)):
        write(tmp_path / name, "a", places, tile_size_um=size)
        assert check(tmp_path / name).findings == []
