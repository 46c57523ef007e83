"""What tables say: our figures, the printed ones, agreement, and what is missing."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasmil.paper.cells import GridCell
from dasmil.paper.reproduce import Folders, Reproduction, write_outputs
from dasmil.paper.stored import StoredPredictions, cell_path, read_arrays, read_cell, write_predictions
from dasmil.paper.tables import PrintedEntry, claims, distance_values, entries, leak


def entry(
    row: str, dataset: str, mean: float, *, large: float | None = None, printed: Any = None, **more: Any
) -> PrintedEntry:
    figure = {"mean": mean, "std": 0.01, "per_seed": [mean], "interval": [mean - 0.01, mean + 0.01]}
    big = figure | {"mean": mean if large is None else large}
    scored = {"train": figure, "test": figure, "test-large": big}
    cell = {
        "summary": {split: {"balanced_accuracy": value, "auroc": value} for split, value in scored.items()},
        "stuck_seeds": more.get("stuck", []), "plan": {"seeds": [0, 1]}, "parameters": 1, "cpu_seconds": 60.0,
        "seeds": [
            {"learned_distances": [{"midpoint": m}], "last_epoch": {"train_balanced_accuracy": 0.9}}
            for m in more.get("midpoints", [])
        ],
    }  # fmt: skip
    paper = {} if printed is None else {"balanced_accuracy": {"test": printed, "train": printed}}
    return PrintedEntry("collage", row, row, dataset, "none", cell, Path("x.npz"), paper)


@pytest.mark.parametrize(
    ("ours", "printed", "agrees"),
    [
        (0.90, (0.95, 0.001), True),
        (0.89, (0.95, 0.001), False),
        (0.80, (0.95, 0.051), True),
        (0.79, (0.95, 0.05), False),
    ],
)
def test_agreement_is_three_standard_deviations_or_a_twentieth(ours: float, printed: Any, agrees: bool) -> None:
    assert entry("sa", "mnist-collage", ours, printed=printed).agrees("balanced_accuracy") is agrees


def test_claims_are_computed_from_the_figures() -> None:
    rows = [
        entry("das-mil", "mnist-collage", 0.93, large=0.92, printed=(0.958, 0.013), midpoints=[84, 76], stuck=[1]),
        entry("disc-rel-sa", "mnist-collage", 0.91, large=0.90),
        entry("sa", "mnist-collage", 0.70, large=0.84, printed=(0.848, 0.024)),
    ]
    text = " ".join(claims("collage", rows))
    assert "in 1 of 2 cells; outside: sa on mnist-collage (-0.148)" in text
    assert "is above all 1 others (disc-rel-sa 0.900, best other sa 0.840)" in text
    assert "das-mil on mnist-collage (1 of 2)" in text
    assert "80.0 px on average (76.0 to 84.0; true 80 px, largest deviation 5.0 %)" in text
    assert "published" not in text
    rows.append(entry("psa-mil", "mnist-collage", 0.9, large=0.97))
    text = " ".join(claims("tuned", rows))
    assert "is above all 1 others (disc-rel-sa 0.900, best other sa 0.840)" in text  # psa-mil is not the paper's
    assert "models that others published: psa-mil 0.970, das-mil 0.920, sa 0.840." in text
    rows[2] = entry("sa", "mnist-collage", 0.8, large=0.95)
    assert "is not above all 1 others" in " ".join(claims("collage", rows))


def test_the_leak_is_the_gain_on_positive_test_bags(tmp_path: Path) -> None:
    labels = {"test": np.array([1, 1, 0, 0], np.uint8), "test-large": np.array([1, 0, 1, 0], np.uint8)}
    logits = {
        "test": np.array([[1, 1, -1, 1], [1, -1, -1, 1]], np.float16),  # sensitivity 3/4, specificity 1/2
        "test-large": np.array([[1, -1, -1, -1], [-1, -1, -1, -1]], np.float16),  # sensitivity 1/4, specificity 1
    }
    write_predictions(tmp_path / "x.npz", StoredPredictions(labels, logits))
    row = replace(entry("sa", "mnist-collage", 0.8), predictions=tmp_path / "x.npz")
    (text,) = leak([row, replace(row, cell=None)])
    assert "1 trained cells score on average +0.500 in sensitivity" in text
    assert "-0.500 in specificity" in text


def test_printed_figures_stand_where_the_paper_has_them(tmp_path: Path) -> None:
    by = {(e.row, e.dataset): e for e in entries("collage", "published", tmp_path)}
    assert by["das-mil", "mnist-collage"].printed("test", "balanced_accuracy") == (0.958, 0.013)
    assert by["mil-gnn-ds", "mnist-collage-inv"].printed("test", "auroc") == (0.817, 0.008)
    assert by["mil-gnn-ds", "mnist-collage"].printed("test", "balanced_accuracy") is None
    assert by["mean-pool", "mnist-collage"].paper == {}
    ablations = {(e.row, e.dataset): e for e in entries("ablations", "published", tmp_path)}
    assert ablations["kq", "mnist-collage-inv"].printed("test", "balanced_accuracy") == (0.940, 0.029)
    assert all(e.cell is None for e in by.values())


def test_outputs_of_an_unfinished_table(trained: Folders, cell: GridCell) -> None:
    outcome = Reproduction()
    write_outputs("published", trained.results, outcome)
    names = {str(path.relative_to(trained.results)) for path in outcome.files}
    assert names == {"collage/published.md", "collage/published.csv", "collage/published.tex", "published.html"}
    manifest = read_cell(cell_path(trained.results, cell.key))
    assert manifest is not None
    figure = manifest["summary"]["test"]["balanced_accuracy"]
    text = (trained.results / "collage/published.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| max-pool"))
    assert f"{figure['mean']:.3f} ± {figure['std']:.3f}" in row
    assert "0.828 ± 0.033" in row
    assert f"{figure['mean'] - 0.828:+.3f}" in row
    assert "- 1 of 40 cells have been run." in text
    assert re.search(r"\| das-mil \| relative \| – \| not yet run \|", text)
    with open(trained.results / "collage/published.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    (line,) = [
        r for r in lines
        if (r["row"], r["dataset"], r["metric"], r["bags"]) == ("max-pool", "mnist-collage", "auroc", "test-large")
    ]  # fmt: skip
    assert float(line["mean"]) == pytest.approx(manifest["summary"]["test-large"]["auroc"]["mean"], abs=1e-6)
    tex = (trained.results / "collage/published.tex").read_text()
    assert rf"{figure['mean']:.3f} $\pm$ {figure['std']:.3f} & 0.828 $\pm$ 0.033" in tex
    assert tex.count(r" \\") == 22
    page = (trained.results / "published.html").read_text()
    assert "paper 0.828 ± 0.033" in page
    assert "<svg" in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page)


def test_distance_values_compare_the_two_models_on_the_same_bags(stored: Path) -> None:
    """DAS-MIL and SA as two copies of a stored cell, one of them with some of its wrong answers put right."""
    source = next(stored.glob("collage/published/max-pool.*.npz"))
    arrays = read_arrays(source)
    labels, logits = arrays["labels.test-large"], arrays["logits.test-large"]
    better = logits.copy()
    better[:, :400] = np.where(labels[:400], 5, -5)
    for row, values in (("sa", logits), ("das-mil", better)):
        path = source.with_name(source.name.replace("max-pool", row))
        np.savez_compressed(path, allow_pickle=False, **{**arrays, "logits.test-large": values})
        shutil.copy(source.with_suffix(".json"), path.with_suffix(".json"))
    found = {value.metric: value for value in distance_values("published", stored)}
    by_class = [[((z >= 0) == (labels == 1))[:, labels == c].mean() for c in (0, 1)] for z in (better, logits)]
    gap = float(np.mean(by_class[0]) - np.mean(by_class[1]))
    value = found["balanced_accuracy"]
    assert value.difference == pytest.approx(gap, abs=1e-6)
    assert value.interval[0] < gap < value.interval[1]
    outcome = Reproduction()
    write_outputs("published", stored, outcome)
    assert {p.suffix for p in outcome.files if p.parent.name == "distance"} == {".md", ".csv", ".tex"}
    assert f"{gap:+.3f}" in (stored / "distance" / "published.tex").read_text()
