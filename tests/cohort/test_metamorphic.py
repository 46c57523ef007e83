"""What must not change a prediction does not, through the real commands; what changes it is refused or named."""

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
from calls import run

from dasmil.data.store import write_bag
from dasmil.errors import DataError, InputError
from dasmil.types import Bag

TILE, TILES, BAGS = 256.0, 20, 12
GRID = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2) * TILE + TILE / 2
FAST = ("--model", "das-mil", "--epochs", 2, "--set", "starts=1", "--set", "restarts=0", "--no-baselines")
CELLS = ("--bag-column", "patient", "--feature-columns", "f1,f2,f3", "--unit", "um")
Change = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def logits(run_folder: Path, bags: Path, out: Path, *more: object) -> dict[str, float]:
    assert run("predict", run_folder, "--bags", bags, "-o", out, *more) == 0
    return {row["bag_id"]: float(row["logit"]) for row in csv.DictReader(out.open())}


def labels(path: Path, names: list[str]) -> Path:
    rows = [f"{name},{'ab'[k % 2]},patient {k}" for k, name in enumerate(names)]
    path.write_text("\n".join(["slide,label,patient", *rows]))
    return path


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training slides and a run in ``run``; ``new`` holds other slides, ``new.csv`` their logits."""
    place, draw = tmp_path_factory.mktemp("slides"), np.random.default_rng(3)
    for folder in ("bags", "new"):
        (place / folder).mkdir()
        for k in range(BAGS):
            features = torch.from_numpy(draw.normal(size=(TILES, 6)).astype(np.float32) + 0.5 * (k % 2))
            coords = torch.from_numpy(GRID[draw.permutation(64)[:TILES]].astype(np.float32))
            known = {"tile_um": TILE, "mpp": 0.5, "encoder": "x"}
            write_bag(place / folder / f"s{k}.h5", Bag(features, coords, "um", f"s{k}", metadata=known))
    table = labels(place / "labels.csv", [f"s{k}" for k in range(BAGS)])
    assert run("train", "--bags", place / "bags", "--labels", table, *FAST, "--out", place / "run") == 0
    return place


def changed(slides: Path, folder: Path, change: Change, names: Callable[[str], str] = str) -> Path:
    """The new slides with features and positions changed, under other names."""
    folder.mkdir()
    for path in sorted((slides / "new").glob("*.h5")):
        target = folder / f"{names(path.stem)}.h5"
        with h5py.File(shutil.copy(path, target), "r+") as file:
            features, coords = change(np.asarray(file["features"]), np.asarray(file["coords"]))
            for name, values in (("features", features), ("coords", coords)):
                kept = dict(file[name].attrs)
                del file[name]
                file.create_dataset(name, data=values).attrs.update(kept)
    return folder


ORDER = np.random.default_rng(8).permutation(TILES)
ANGLE = np.deg2rad(37)
TURN = np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
SAME: dict[str, Change] = {
    "as it is": lambda x, xy: (x, xy),
    "permuted": lambda x, xy: (x[ORDER], xy[ORDER]),
    "translated": lambda x, xy: (x, xy + np.float32(TILE * 64)),
    "rotated": lambda x, xy: (x, (xy @ TURN.T).astype(np.float32)),
    "mirrored": lambda x, xy: (x, xy * np.array([-1, 1], np.float32)),
}


@pytest.mark.parametrize("change", SAME)
def test_what_changes_no_distance_changes_no_prediction(change: str, slides: Path, tmp_path: Path) -> None:
    expected = logits(slides / "run", slides / "new", tmp_path / "new.csv")
    assert np.std(list(expected.values())) > 1e-3
    found = logits(slides / "run", changed(slides, tmp_path / "bags", SAME[change]), tmp_path / "changed.csv")
    assert found == pytest.approx(expected, abs=2e-5)


def test_other_names_change_no_prediction(slides: Path, tmp_path: Path) -> None:
    expected = logits(slides / "run", slides / "new", tmp_path / "new.csv")
    bags = changed(slides, tmp_path / "bags", SAME["as it is"], lambda name: f"case {99 - int(name[1:])}")
    found = logits(slides / "run", bags, tmp_path / "renamed.csv")
    assert {f"s{99 - int(name[5:])}": value for name, value in found.items()} == pytest.approx(expected, abs=1e-7)


def test_the_order_of_slides_and_rows_changes_no_training(slides: Path, tmp_path: Path) -> None:
    """Label tables whose rows stand in another order split and train alike."""
    head, *rows = (slides / "labels.csv").read_text().splitlines()
    (tmp_path / "labels.csv").write_text("\n".join([head, *rows[::-1]]))
    arguments = ("train", "--bags", slides / "bags", "--labels", tmp_path / "labels.csv", *FAST)
    assert run(*arguments, "--out", tmp_path / "run") == 0
    splits = [
        json.loads((folder / "run" / "config.json").read_text())["data"]["held_out"] for folder in (tmp_path, slides)
    ]
    assert splits[0] == splits[1]
    expected = logits(slides / "run", slides / "new", tmp_path / "new.csv")
    assert logits(tmp_path / "run", slides / "new", tmp_path / "again.csv") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("what", "change", "message"),
    [
        ("twice as large", lambda x, xy: (x, 2 * xy), "stride against tile"),
        ("in nm", lambda x, xy: (x, 1000 * xy), "stride against tile"),
        ("in mm", lambda x, xy: (x, xy / 1000), "stride against tile"),
        ("features swapped between slides", lambda x, xy: (np.zeros_like(x) + 1, xy * 0 + GRID[:TILES]), "same slides"),
    ],
)
def test_other_scales_and_equal_slides_are_refused(
    what: str, change: Change, message: str, slides: Path, tmp_path: Path
) -> None:
    bags = changed(slides, tmp_path / "bags", lambda x, xy: tuple(v.astype(np.float32) for v in change(x, xy)))  # pyright: ignore
    with pytest.raises(DataError, match=message):
        run("predict", slides / "run", "--bags", bags, "-o", tmp_path / "p.csv")


def test_instances_that_stand_twice_give_the_same_or_a_message(
    slides: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = changed(slides, tmp_path / "bags", lambda x, xy: (x.repeat(2, 0), xy.repeat(2, 0)))
    logits(slides / "run", twice, tmp_path / "p.csv")
    assert f"repeated instances: {BAGS} slides hold instances twice" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of cells in um, and another table ``new.csv`` as rows."""
    place, draw = tmp_path_factory.mktemp("cells"), np.random.default_rng(5)
    for name in ("cells", "new"):
        lines = ["patient,x,y,f1,f2,f3"]
        for k in range(BAGS):
            for _ in range(30):
                x, y = draw.uniform(0, 500, 2)
                values = draw.normal(0.5 * (k % 2), 1, 3)
                lines.append(f"p{k},{x:.4f},{y:.4f}," + ",".join(f"{v:.5f}" for v in values))
        (place / f"{name}.csv").write_text("\n".join(lines))
    table = labels(place / "labels.csv", [f"p{k}" for k in range(BAGS)])
    out = ("--out", place / "run")
    assert run("train", "--bags", place / "cells.csv", "--labels", table, *CELLS, *FAST, *out) == 0
    return place


def test_cells_in_other_rows_columns_and_units_are_predicted_alike(cells: Path, tmp_path: Path) -> None:
    expected = logits(cells / "run", cells / "new.csv", tmp_path / "p.csv")
    assert np.std(list(expected.values())) > 1e-3
    rows = list(csv.DictReader((cells / "new.csv").open()))

    def written(name: str, columns: str, rows: list[dict[str, str]]) -> Path:
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns.split(","))
            writer.writeheader()
            writer.writerows(rows)
        return tmp_path / name

    order = np.random.default_rng(2).permutation(len(rows))
    mixed = written("mixed.csv", "f3,y,patient,f1,x,f2", [rows[i] for i in order])
    assert logits(cells / "run", mixed, tmp_path / "m.csv") == pytest.approx(expected, abs=2e-5)
    further = written("further.csv", "patient,note,x,y,f1,f2,f3", [{**row, "note": "k"} for row in rows])
    assert logits(cells / "run", further, tmp_path / "f.csv") == pytest.approx(expected, abs=1e-7)
    scaled = [{**row, "x": f"{float(row['x']) / 0.25:.4f}", "y": f"{float(row['y']) / 0.25:.4f}"} for row in rows]
    px = written("px.csv", "patient,x,y,f1,f2,f3", scaled)
    with pytest.raises(DataError, match=r"mixed scales: instances lie .* um apart, those of the run"):
        run("predict", cells / "run", "--bags", written("mm.csv", "patient,x,y,f1,f2,f3", [
            {**row, "x": str(float(row["x"]) / 1000), "y": str(float(row["y"]) / 1000)} for row in rows
        ]), "-o", tmp_path / "q.csv")  # fmt: skip
    in_px = logits(cells / "run", px, tmp_path / "u.csv", "--unit", "px", "--mpp", 0.25)
    assert in_px == pytest.approx(expected, abs=2e-5)
    with pytest.raises(InputError, match="use unit px for pixels"):
        run("predict", cells / "run", "--bags", px, "--mpp", 0.25, "-o", tmp_path / "q.csv")


def test_a_table_in_which_some_bags_are_in_nm_is_refused(cells: Path, tmp_path: Path) -> None:
    rows = list(csv.reader((cells / "cells.csv").open()))
    for row in rows[1:]:
        if row[0] in ("p1", "p5"):
            row[1:3] = [str(1000 * float(value)) for value in row[1:3]]
    (tmp_path / "cells.csv").write_text("\n".join(map(",".join, rows)))
    arguments = ("--bags", tmp_path / "cells.csv", "--labels", cells / "labels.csv", *CELLS, *FAST)
    with pytest.raises(DataError, match=r"^mixed scales: instances of 2 slides \(p1, p5\) lie .* um apart"):
        run("train", *arguments, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
