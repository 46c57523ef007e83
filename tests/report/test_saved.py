"""Plots as files: their data, their letters, every format, and maps of a right and a wrong bag."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dasmil
from dasmil.cli import app
from dasmil.errors import DasmilError, InputError
from dasmil.report.figures import Line, Panel, Series, learning_curve
from dasmil.report.saved import drawn_csv
from dasmil.runs import Run
from dasmil.types import Bag

STORED = Path(__file__).parent.parent / "runs" / "stored"


def test_the_data_of_a_plot_are_the_values_that_it_draws() -> None:
    figure = learning_curve(Panel("Training loss", "loss", [Series("das-mil", [Line([1, 2, 3], [0.7, 0.5, 0.25])])]))
    rows = [row for row in csv.DictReader(drawn_csv(figure).splitlines()) if row["kind"] == "line"]
    assert [(float(row["x"]), float(row["y"])) for row in rows[:3]] == [(1, 0.7), (2, 0.5), (3, 0.25)]
    assert {row["axes"] for row in rows} == {"Training loss"}


def test_panels_have_letters_in_every_format_and_all_plots_are_saved(tmp_path: Path, capsys) -> None:
    command = ["figure", str(STORED / "folds"), "-o", str(tmp_path), "--panels", "roc,confusion,curves"]
    assert app(command, exit_on_error=False, result_action="return_value") == 0
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    svg = (tmp_path / "figure.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert [letter for letter in "abcde" if letter in texts] == list("abcde"), "one letter a panel"
    assert {"Confusion matrix", "Training loss", "Validation AUROC"} <= set(texts)
    picture = Image.open(tmp_path / "figure.png")
    assert picture.info["dpi"] == pytest.approx((300, 300), abs=1)
    assert picture.width > 2000
    plots = sorted((tmp_path / "plots").glob("*.svg"))
    assert plots
    assert [file.with_suffix(".csv").is_file() for file in plots] == [True] * len(plots)
    roc = next(file for file in plots if "roc-curve-test" in file.name).with_suffix(".csv")
    rows = [row for row in csv.DictReader(roc.open()) if row["kind"] == "line"]
    assert all(0 <= float(row["x"]) <= 1 and 0 <= float(row["y"]) <= 1 for row in rows)
    assert "a: ROC curve, test" in capsys.readouterr().err
    with pytest.raises(DasmilError, match="panel"):
        dasmil.make_figure(STORED / "folds", tmp_path, panels=["roq"])


def test_plots_from_python_and_short_names(tmp_path: Path) -> None:
    figure = Run.read(STORED / "folds").plot_roc()
    same = dasmil.plot_roc(STORED / "folds")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(), same.axes[0].lines[0].get_xydata())
    line = figure.axes[0].lines[0].get_data()
    assert np.all(np.diff(np.asarray(line[0])) >= 0)
    bag = Bag(torch.randn(300, 4), torch.rand(300, 2) * 900, "um", "slide1", label=1)
    explanation = dasmil.explain(dasmil.create_model("mean-pool", in_features=4), bag)
    assert repr(bag) == "Bag('slide1', 300 instances of 4 torch.float32, um, label 1)"
    assert repr(explanation).startswith("Explanation('slide1', 300 instances, exact, class 1, logit ")
    assert len(repr(explanation)) < 200
    dasmil.plot_map(bag, explanation).savefig(tmp_path / "map.pdf")
    assert "µm" in " ".join(text.get_text() for text in dasmil.plot_map(bag, explanation).axes[0].texts)
    painted = [f.axes[0].images[0].get_array() for f in (explanation.plot(bag), dasmil.plot_map(bag, explanation))]
    np.testing.assert_array_equal(*painted)
    with pytest.raises(DasmilError, match="score"):
        dasmil.plot_map(bag, explanation, "nothing")


def test_maps_of_a_right_and_a_wrong_bag(tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(STORED, tmp_path / "stored"))
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace("/data/stored", str(folder)))
    said: list[str] = []
    dasmil.make_figure(folder / "folds", tmp_path / "out", panels=["maps"], note=said.append)
    found = Run.read(folder / "folds").ensemble("test")
    assert found is not None
    for line in said:
        name = re.search(r"Contributions in (\S+), ", line)
        if name is None:
            continue
        k = found.bag_ids.index(name[1])
        assert line.endswith("right" if found.predictions[k] == found.labels[k] else "wrong")
    assert any(line.startswith("a: Contributions in") for line in said)
    assert any(line.endswith(", wrong") for line in said)
    with pytest.raises(InputError):
        dasmil.make_figure(folder / "folds", tmp_path / "out", panels=["calibration"], split="val2")
