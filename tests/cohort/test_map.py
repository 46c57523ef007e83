"""--map: another table's names of the classes of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calls import run

from dasmil.data.labels import LabelRow, renamed
from dasmil.errors import InputError


def test_another_table_with_other_names_scores_the_same(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"tumor": "Tumour", "normal": "Healthy"}
    rows = [(f"made-{i:04d}", "tumor" if i % 2 else "normal") for i in range(30)]
    labels, other = tmp_path / "labels.csv", tmp_path / "other.csv"
    labels.write_text("\n".join(["slide,label", *(f"{slide},{label}" for slide, label in rows)]))
    other.write_text("\n".join(["slide,label", *(f"{slide},{names[label]}" for slide, label in rows[:8])]))
    short = tmp_path / "short.csv"
    short.write_text("\n".join(labels.read_text().splitlines()[:9]))
    bags, out = ("--bags", made / "bags"), tmp_path / "run"
    assert run("train", *bags, "--labels", labels, "--model", "mean-pool", "--epochs", 1, "--out", out) == 0
    capsys.readouterr()
    found = []
    for table in ((short,), (other, "--map", "Tumour=tumor,Healthy=normal")):
        assert run("evaluate", out, *bags, "--labels", *table, "--accept", "seen", "--json") == 0
        found.append(json.loads(capsys.readouterr().out)["splits"]["bags"])
    assert found[0] == found[1]
    with pytest.raises(InputError, match="Tumour"):
        run("evaluate", out, *bags, "--labels", other, "--accept", "seen")


def test_names_are_replaced_once_and_wrong_ones_are_refused() -> None:
    rows = [LabelRow("a", "x"), LabelRow("b", "y"), LabelRow("c", None)]
    assert [row.label for row in renamed(rows, ["x=y", "y=x"])] == ["y", "x", None]
    for pairs, message in ((["x"], "expected TABLE=CLASS"), (["x="], "expected TABLE=CLASS"),
                           (["z=y"], "no class of the label table"), (["x=y", "x=z"], "keep one")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            renamed(rows, pairs)
