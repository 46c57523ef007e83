"""Cells as other tools write them: QuPath, CellViT, Xenium, AnnData of three dimensions, SpatialData."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dasmil.cli import app
from dasmil.data.cells import cell_files, cells_name
from dasmil.data.scale import read_scales
from dasmil.data.tables import is_table, read_table
from dasmil.errors import DasmilError, DataError, InputError, ScaleError
from dasmil.runs import Run
from dasmil.types import Bag

pandas = pytest.importorskip("pandas")
SQRT6 = 6**0.5


def qupath(path: Path, unit: str = "µm", images: tuple[str, ...] = ("a.svs", "a.svs", "b.svs"), **more: Any) -> Path:
    """A table of "Show detection measurements", as QuPath 0.5 exports it: tabs, the class empty where there is none."""
    rows = {
        "Image": list(images), "Object ID": ["u1", "u2", "u3"], "Object type": ["Cell"] * 3, "Name": [""] * 3,
        "Classification": ["Tumor", "", "Immune cells"], "Parent": ["Root object (Image)"] * 3, "ROI": ["Polygon"] * 3,
        f"Centroid X {unit}": [10.5, 20.0, 30.0], f"Centroid Y {unit}": [1.0, 2.0, 3.0],
        "Nucleus: Area µm^2": [25.0, 30.5, 28.0], "Detection probability": [0.9, 0.8, 0.7],
    }  # fmt: skip
    pandas.DataFrame({**rows, **more}).to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    return path


@pytest.mark.parametrize("name", ["detections.tsv", "detections.txt", "detections.csv"])
def test_qupath_says_bags_units_and_names_itself(name: str, tmp_path: Path) -> None:
    path = qupath(tmp_path / name)
    assert is_table(path)
    first, second = read_table(path)
    assert (first.bag_id, second.bag_id, first.unit) == ("a.svs", "b.svs", "um")
    assert first.coords.tolist() == [[10.5, 1.0], [20.0, 2.0]]
    assert first.metadata["feature_names"] == ["Nucleus: Area µm^2", "Detection probability"]
    torch.testing.assert_close(first.features, torch.tensor([[25.0, 0.9], [30.5, 0.8]]))
    assert first.instance_ids == ("u1", "u2")
    assert first.metadata["coords_rule"] == "QuPath's table of detections, centroids in um: um x 1 um"
    kinds, _ = read_table(path, one_hot="Classification")
    assert kinds.metadata["feature_names"] == ["Immune cells", "Tumor", "Unclassified"]
    assert kinds.features.tolist() == [[0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]


def test_qupath_without_a_calibrated_image_counts_pixels(tmp_path: Path) -> None:
    path = qupath(tmp_path / "d.tsv", "px")
    with pytest.raises(InputError, match="positions are in pixels; give the micrometres of one pixel with --mpp"):
        read_table(path)
    (tmp_path / "scales.csv").write_text("slide,mpp\nb,0.25\n")
    first, second = read_table(path, um_per_unit=0.5, scales=read_scales(0.5, None, tmp_path / "scales.csv"))
    assert first.coords.tolist() == [[5.25, 0.5], [10.0, 1.0]]
    assert second.coords.tolist() == [[7.5, 0.75]]
    with pytest.raises(ScaleError, match="its positions are in px, but --unit um was given; leave it out"):
        read_table(path, unit="um")


def test_mixed_units_are_refused(tmp_path: Path) -> None:
    both = qupath(tmp_path / "d.tsv", **{"Centroid X px": [1, 2, 3]})
    with pytest.raises(ScaleError, match="centroids are given in um and in px"):
        read_table(both)
    with pytest.raises(InputError, match=r"unit is um, but one unit was given as 0\.5 um"):
        read_table(qupath(tmp_path / "d.tsv"), um_per_unit=0.5)
    half = tmp_path / "half.tsv"
    pandas.read_csv(qupath(half), sep="\t").drop(columns="Centroid Y µm").to_csv(half, sep="\t", index=False)
    with pytest.raises(DataError, match=r"centroids are Centroid X µm, expected one of x and of y"):
        read_table(half)
    folder = tmp_path / "folder"
    folder.mkdir()
    qupath(folder / "1.tsv", images=("a", "a", "a"))
    qupath(folder / "2.tsv", "px", images=("b", "b", "b"))
    with pytest.raises(ScaleError, match=r"several units: .*1\.tsv in um and .*2\.tsv in px; export all files alike"):
        read_table(folder, um_per_unit=0.5)


def square(x: float, y: float, side: float = 2.0) -> list[list[float]]:
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def feature(kind: str, geometry: str, coordinates: Any, name: str | None = None, **more: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {"objectType": kind, **more}
    if name:
        properties["classification"] = {"name": name, "color": [200, 0, 0]}
    return {"type": "Feature", "id": f"{geometry}-{name}", "geometry": {"type": geometry, "coordinates": coordinates},
            "properties": properties}  # fmt: skip


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def stardist(path: Path) -> Path:
    """As QuPath writes cells with a nucleus, one with a hole, and a region around them."""
    ring = square(100, 200, 10)
    hole = square(100, 200, 5)[::-1]
    cells = [
        feature("annotation", "Polygon", [square(0, 0, 4000)], "Region"),
        feature("detection", "Polygon", [square(10, 20)], "Tumor", measurements={"Detection probability": 0.75}),
        feature("cell", "Polygon", [ring, hole], measurements=[{"name": "Detection probability", "value": 0.5}]),
    ]
    return write_json(path, {"type": "FeatureCollection", "features": cells})


def test_geojson_cells_are_centroids_in_pixels(tmp_path: Path) -> None:
    path = stardist(tmp_path / "slide1.geojson")
    assert is_table(path)
    (bag,) = read_table(path, um_per_unit=0.5)
    assert bag.bag_id == "slide1"
    # The square of 10 without its quarter: (100 * 5 - 25 * 2.5) / 75 = 35 / 6 from the corner.
    torch.testing.assert_close(bag.coords, torch.tensor([[5.5, 10.5], [50 + 35 / 12, 100 + 35 / 12]]))
    assert bag.features.tolist() == [[0.75], [0.5]]
    assert "1 annotations left out" in bag.metadata["coords_rule"]
    (kinds,) = read_table(path, um_per_unit=0.5, one_hot="classification")
    assert kinds.metadata["feature_names"] == ["Tumor", "Unclassified"]
    with pytest.raises(InputError, match="positions are in pixels; give the micrometres of one pixel"):
        read_table(path)
    with pytest.raises(InputError, match=r"slide1.geojson: no column 'Area'"):
        read_table(path, um_per_unit=0.5, features=["Area"])


def test_cellvit_writes_all_cells_of_a_class_as_one_object(tmp_path: Path) -> None:
    cells = [[square(0, 0)], [square(10, 0)]]
    objects = [
        feature("annotation", "MultiPolygon", cells, "Neoplastic"),
        feature("annotation", "MultiPolygon", [[square(0, 30)]], "Inflammatory"),
    ]
    (tmp_path / "s").mkdir()
    write_json(tmp_path / "s" / "slide1.geojson", objects)
    points = [feature("annotation", "MultiPoint", [[1.0, 1.0], [11.0, 1.0]], "Neoplastic")]
    write_json(tmp_path / "s" / "slide2.geojson", points)
    first, second = read_table(tmp_path / "s", um_per_unit=0.25, one_hot="classification")
    assert (first.bag_id, second.bag_id) == ("slide1", "slide2")
    assert first.coords.tolist() == [[0.25, 0.25], [2.75, 0.25], [0.25, 7.75]]
    torch.testing.assert_close(first.features, SQRT6 * torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(second.features, SQRT6 * torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert second.coords.tolist() == [[0.25, 0.25], [2.75, 0.25]]
    with pytest.raises(InputError, match=r"no columns of numbers besides positions.*name the category column"):
        read_table(tmp_path / "s", um_per_unit=0.25)


def xenium(folder: Path, **columns: Any) -> Path:
    folder.mkdir(parents=True)
    rows = {
        "cell_id": ["aaaa-1", "aaab-1"], "x_centroid": [847.25, 826.5], "y_centroid": [326.0, 328.5],
        "transcript_counts": np.array([28, 94], np.uint64), "cell_area": [58.5, 197.0], "nucleus_area": [26.5, 16.0],
    }  # fmt: skip
    pandas.DataFrame({**rows, **columns}).to_parquet(folder / "cells.parquet")
    pandas.DataFrame({"x": [1.0]}).to_parquet(folder / "transcripts.parquet")
    (folder / "cell_feature_matrix.h5").write_bytes(b"")  # not ours to read
    return folder / "cells.parquet"


def test_xenium_outputs_are_bags_by_the_name_of_their_folder(tmp_path: Path) -> None:
    xenium(tmp_path / "sample-1" / "outs")
    xenium(tmp_path / "sample-2", cell_id=[b"x-1", b"x-2"])
    assert is_table(tmp_path)
    assert [cells_name(path) for path in cell_files(tmp_path)] == ["sample-1", "sample-2"]
    first, second = read_table(tmp_path)
    assert first.coords.tolist() == [[847.25, 326.0], [826.5, 328.5]]
    assert first.metadata["feature_names"] == ["transcript_counts", "cell_area", "nucleus_area"]
    assert first.features.tolist() == [[28.0, 58.5, 26.5], [94.0, 197.0, 16.0]]
    assert second.instance_ids == ("x-1", "x-2")
    path = xenium(tmp_path / "bad")
    pandas.read_parquet(path).drop(columns="y_centroid").to_parquet(path)
    with pytest.raises(InputError, match="no column 'y_centroid'"):
        read_table(path)


def anndata_of(bags: dict[str, Any], z: bool = True) -> Any:
    anndata = pytest.importorskip("anndata")
    names = [f"c{i}" for i in range(sum(len(c) for c in bags.values()))]
    obs = pandas.DataFrame({"library_id": [name for name, c in bags.items() for _ in range(len(c))]}, index=names)
    coords = np.concatenate(list(bags.values()))
    rng = np.random.default_rng(0)
    cells = anndata.AnnData(X=rng.normal(size=(len(names), 4)).astype(np.float32), obs=obs)
    cells.obsm["spatial"] = coords if z else coords[:, :2]
    return cells


def cloud(rng: np.random.Generator, n: int = 12) -> np.ndarray:
    return rng.uniform(0, 100, size=(n, 3)).astype(np.float32)


def test_a_third_dimension_is_kept(tmp_path: Path) -> None:
    places = cloud(np.random.default_rng(1), 5)
    anndata_of({"p": places}).write_h5ad(tmp_path / "a.h5ad")
    (bag,) = read_table(tmp_path / "a.h5ad", bag="library_id", unit="um")
    np.testing.assert_array_equal(bag.coords, places)
    assert "three dimensions" in bag.metadata["coords_rule"]
    with pytest.raises(InputError, match="the um per pixel says nothing of the third; store all three in um"):
        read_table(tmp_path / "a.h5ad", bag="library_id", unit="px", um_per_unit=0.5)
    with pytest.raises(InputError, match="name its bag column with --bag-column and the --unit"):
        read_table(tmp_path / "a.h5ad", unit="um")
    with pytest.raises(InputError, match=r"does not say what its positions count: give --unit um"):
        read_table(tmp_path / "a.h5ad", bag="library_id")


def run(*arguments: object) -> Any:
    return app([str(part) for part in arguments], exit_on_error=False, result_action="return_value")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_depth_reaches_the_model_from_training_to_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prediction of cells in depth is the model's on all three coordinates, and another one without the third."""
    rng = np.random.default_rng(2)
    bags = {f"p{i:02d}": cloud(rng) for i in range(20)}
    anndata_of(bags).write_h5ad(tmp_path / "cells.h5ad")
    labels = ["slide,label,split", *(f"{name},{i % 2},{'train' if i < 14 else 'val'}" for i, name in enumerate(bags))]
    (tmp_path / "labels.csv").write_text("\n".join(labels))
    out = tmp_path / "run"
    run("train", "--bags", tmp_path / "cells.h5ad", "--bag-column", "library_id", "--unit", "um", "--labels",
        tmp_path / "labels.csv", "--model", "das-mil", "--seeds", 1, "--epochs", 2, "--out", out,
        "--set", "distance_scale=20", "--set", "starts=1")  # fmt: skip
    run("predict", out, "--bags", tmp_path / "cells.h5ad", "-o", tmp_path / "predictions.csv")
    capsys.readouterr()
    rows = pandas.read_csv(tmp_path / "predictions.csv").set_index("bag_id")
    model = Run.read(out).seeds[0].model()
    (bag,) = [b for b in read_table(tmp_path / "cells.h5ad", bag="library_id", unit="um") if b.bag_id == "p03"]

    def probability(coords: torch.Tensor) -> float:
        with torch.no_grad():
            return float(torch.sigmoid(model(bag.features, coords).logit))

    column = next(name for name in rows.columns if name.startswith("prob"))
    assert rows.loc["p03", column] == pytest.approx(probability(bag.coords), abs=1e-5)
    assert abs(probability(bag.coords) - probability(bag.coords[:, :2])) > 1e-5


def spatialdata(path: Path, regions: int = 1) -> Path:
    """The table of a SpatialData folder: AnnData in tables/, which region a row belongs to in its attributes."""
    pytest.importorskip("zarr")
    places = cloud(np.random.default_rng(3), 6)[:, :2]
    cells = anndata_of({"x": places}, z=False)
    cells.obs["region"] = pandas.Categorical([f"r{i % regions}" for i in range(6)])
    cells.obs["cell_id"] = np.arange(6)
    cells.uns["spatialdata_attrs"] = {"region": ["r0"], "region_key": "region", "instance_key": "cell_id"}
    (path / "tables").mkdir(parents=True)
    (path / "zarr.json").write_text('{"attributes": {}, "zarr_format": 3, "node_type": "group"}')
    cells.write_zarr(path / "tables" / "table")
    return path


def test_spatialdata_folders(tmp_path: Path) -> None:
    path = spatialdata(tmp_path / "s" / "one.zarr")
    spatialdata(tmp_path / "s" / "two.zarr", regions=2)
    assert is_table(path)
    assert is_table(tmp_path / "s")
    bags = {bag.bag_id: bag for bag in read_table(tmp_path / "s", unit="um")}
    assert list(bags) == ["one", "r0", "r1"]
    expected = cloud(np.random.default_rng(3), 6)[:, :2]
    np.testing.assert_array_equal(bags["one"].coords, expected)
    np.testing.assert_array_equal(bags["r1"].coords, expected[1::2])
    np.testing.assert_allclose(bags["one"].features, np.random.default_rng(0).normal(size=(6, 4)), rtol=1e-6)
    (again,) = read_table(path, unit="px", um_per_unit=0.5)
    np.testing.assert_allclose(again.coords, expected / 2)
    with pytest.raises(InputError, match="give --unit um"):
        read_table(path)


def test_zarr_folders_that_do_not_fit(tmp_path: Path) -> None:
    path = spatialdata(tmp_path / "a.zarr")
    table = path / "tables" / "table"
    about = next(file for name in ("zarr.json", ".zarray") if (file := table / "X" / name).is_file())
    text = about.read_text()
    declared = json.loads(text)
    declared["shape"] = [10**9, 4]
    about.write_text(json.dumps(declared))
    with pytest.raises(DataError, match=r"declares .* bytes, but only .* bytes are stored; save it again"):
        read_table(path, unit="um")
    about.write_text(text[:30])
    with pytest.raises(DataError, match="is damaged"):
        read_table(path, unit="um")
    about.write_text(text)
    (table / "obsm" / "spatial").rename(tmp_path / "away")
    with pytest.raises(DataError, match=r"obsm/spatial has 0 of 1 pieces|no obsm\['spatial'\]"):
        read_table(path, unit="um")
    (table / "link").symlink_to("/etc")
    with pytest.raises(DataError, match="is a link, which is not followed"):
        read_table(path, unit="um")
    empty = tmp_path / "b.zarr"
    empty.mkdir()
    (empty / ".zgroup").write_text("{}")
    with pytest.raises(DataError, match="holds nothing, expected AnnData"):
        read_table(empty, unit="um")
    spatialdata(tmp_path / "c.zarr")
    (tmp_path / "c.zarr" / "tables" / "other" / "obs").mkdir(parents=True)
    with pytest.raises(DataError, match="has the tables other, table: keep one"):
        read_table(tmp_path / "c.zarr", unit="um")


def test_files_of_a_folder_must_fit_together(tmp_path: Path) -> None:
    qupath(tmp_path / "1.tsv", images=("a", "a", "a"))
    other = qupath(tmp_path / "2.tsv", images=("a", "a", "b"))
    with pytest.raises(DataError, match=r"2\.tsv: bag 'a' is in another file of"):
        read_table(tmp_path)
    frame = pandas.read_csv(other, sep="\t").drop(columns="Detection probability").assign(Image="b")
    frame.to_csv(other, sep="\t", index=False)
    with pytest.raises(InputError, match=r"2\.tsv: no column 'Detection probability'.*1\.tsv has it"):
        read_table(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no cells: expected files ending in"):
        read_table(tmp_path / "empty")


def geojson_cases() -> list[tuple[Any, str]]:
    polygon = feature("detection", "Polygon", [square(0, 0)])
    return [
        ({"type": "FeatureCollection", "features": []}, "holds no objects, expected cells"),
        ({"cells": []}, "holds cells, expected a GeoJSON FeatureCollection"),
        ("text", "expected GeoJSON objects"),
        ([1], "object 1 is 1, expected a GeoJSON feature with a geometry"),
        ([polygon, feature("detection", "Polygon", [])], "object 2: its Polygon is"),
        ([feature("detection", "Polygon", [[[0, 0], ["a", 1], [2, 2]]])], r"expected positions \(x, y\)"),
        ([feature("detection", "GeometryCollection", None)], "is a 'GeometryCollection', expected a polygon"),
        ([feature("detection", "Point", [1, 2], measurements={"a": "much"})], "measurement 'a' is 'much'"),
        ([{**polygon, "properties": "x"}], "properties are 'x', expected named values"),
    ]


@pytest.mark.parametrize(("value", "message"), geojson_cases())
def test_geojson_that_does_not_fit(value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_table(write_json(tmp_path / "a.geojson", value), um_per_unit=1.0)


def use(path: Path) -> list[Bag] | str:
    """The bags of a file, or one clear message."""
    found: list[Bag] | str = ""
    for options in ({}, {"unit": "um"}, {"um_per_unit": 0.5}, {"um_per_unit": 0.5, "one_hot": "classification"}):
        try:
            found = read_table(path, **options)
        except DasmilError as error:
            found = str(error)
            assert "\n" not in found
            assert len(found) <= 2000
    return found


def damaged(data: bytes, r: random.Random) -> bytes:
    """Bytes cut, flipped, zeroed or inserted."""
    out, at = bytearray(data), r.randrange(len(data))
    match r.choice(("cut", "flip", "flip", "zero", "insert")):
        case "cut":
            del out[at:]
        case "flip":
            for _ in range(r.choice((1, 4, 32))):
                out[r.randrange(len(out))] = r.choice((0, 255, 0x30, 0x5B, 0x22))
        case "zero":
            out[at : at + 64] = bytes(64)
        case "insert":
            out[at:at] = r.randbytes(64)
    return bytes(out)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "d.tsv": qupath,
    "d.txt": qupath,
    "d.geojson": stardist,
    "cells.parquet": lambda path: xenium(path.parent / "x").rename(path),
}


@pytest.mark.parametrize("name", list(MAKERS))
def test_damaged_files_of_cells_are_one_clear_message_each(name: str, tmp_path: Path) -> None:
    data = MAKERS[name](tmp_path / name).read_bytes()
    path = tmp_path / name
    assert isinstance(use(path), list) or "--unit um was given" in str(use(path)) or "classification" in str(use(path))
    for content in (b"", b"\n", b"text\n", b"[" * 100_000, data[: len(data) // 2]):
        path.write_bytes(content)
        assert isinstance(use(path), str) or content == data[: len(data) // 2]
    for i in range(40):
        path.write_bytes(damaged(data, random.Random(f"{name} {i}")))
        use(path)


def test_damaged_zarr_folders_are_one_clear_message_each(tmp_path: Path) -> None:
    path = spatialdata(tmp_path / "a.zarr")
    files = sorted(file for file in (path / "tables").rglob("*") if file.is_file())
    for i in range(40):
        r = random.Random(f"zarr {i}")
        file = r.choice(files)
        data = file.read_bytes()
        file.write_bytes(damaged(data, r) if data else b"x")
        use(path)
        file.write_bytes(data)
    assert isinstance(read_table(path, unit="um"), list)


def test_zarr_folders_with_pipes_and_pieces_beyond_measure_are_refused(tmp_path: Path) -> None:
    path = spatialdata(tmp_path / "a.zarr")
    table = path / "tables" / "table"
    about = next(file for name in ("zarr.json", ".zarray") if (file := table / "X" / name).is_file())
    text = about.read_text()
    for shape, message in (([-5, 4], "is damaged"), ([True, 4], "is damaged"), ([1.5], "is damaged")):
        about.write_text(json.dumps({**json.loads(text), "shape": shape}))
        with pytest.raises(DataError, match=message):
            read_table(path, unit="um")
    declared = json.loads(text)
    if "chunks" in declared:
        declared["chunks"] = [10**6, 10**6]
    else:
        declared["chunk_grid"]["configuration"]["chunk_shape"] = [10**6, 10**6]
    about.write_text(json.dumps(declared))
    with pytest.raises(DataError, match=r"declares 8,.* bytes"):  # as much is allocated for each piece
        read_table(path, unit="um")
    about.write_text(text)
    piece = next(file for file in sorted((table / "X").rglob("*")) if file.is_file() and file != about)
    piece.unlink()
    os.mkfifo(piece)
    with pytest.raises(DataError, match="is a pipe or a device"):
        read_table(path, unit="um")


def test_names_as_bytes_are_read_as_text(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"image": [b"a", b"a", b"\xff"], "x": [1.0, 2, 3], "y": [1.0, 2, 3], "m": [1.0, 2, 3]})
    frame.to_parquet(tmp_path / "t.parquet")
    bags = read_table(tmp_path / "t.parquet", bag="image", unit="um")
    assert [bag.bag_id for bag in bags] == ["a", "\ufffd"]
    assert [len(bag) for bag in bags] == [2, 1]


def test_a_measurement_of_hundreds_of_digits_is_one_message(tmp_path: Path) -> None:
    point = {"type": "Point", "coordinates": [1.0, 2.0]}
    cell = {"type": "Feature", "geometry": point, "properties": {"objectType": "cell", "measurements": {"a": 10**400}}}
    (tmp_path / "a.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [cell]}))
    with pytest.raises(DataError, match="feature column 'a' holds empty or non-numeric values"):
        read_table(tmp_path / "a.geojson", um_per_unit=0.5)


def planted(path: Path, codecs: list[dict[str, Any]], mark: Path) -> Path:
    """A zarr folder whose bag column is decoded by these codecs, the first of them on bytes that are a pickle."""
    frame = pandas.DataFrame({"patient": [f"p{i}" for i in range(6)]}, index=[str(i) for i in range(6)])
    cells = pytest.importorskip("anndata").AnnData(X=np.ones((6, 2), np.float32), obs=frame)
    cells.obsm["spatial"] = np.arange(12.0).reshape(6, 2)
    cells.write_zarr(path)
    column = next(file for file in path.rglob("patient") if file.is_dir())
    column = column / "categories" if (column / "categories").is_dir() else column
    about = next(file for name in ("zarr.json", ".zarray") if (file := column / name).is_file())
    declared = json.loads(about.read_text())
    if "codecs" in declared:
        declared["codecs"] = [{"name": f"numcodecs.{codec['id']}", "configuration": codec} for codec in codecs]
    else:
        declared["filters"], declared["compressor"] = codecs[:-1] or None, codecs[-1]
    about.write_text(json.dumps(declared))
    (path / ".zmetadata").unlink(missing_ok=True)
    piece = next(file for file in column.rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr")))
    piece.write_bytes(pickle.dumps(Evil(mark)))
    return path


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


UTF8 = {"id": "vlen-utf8"}
PICKLE = {"id": "pickle", "protocol": 5}


@pytest.mark.parametrize("codecs", [[UTF8, PICKLE], [PICKLE, UTF8], [PICKLE], [UTF8, {"id": "json2"}],
                                    [UTF8, {"id": "msgpack2"}], [UTF8, {"id": "of_a_plugin"}]])  # fmt: skip
def test_zarr_codecs_that_are_not_on_the_list_are_never_called(
    tmp_path: Path, codecs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr")
    path, mark = planted(tmp_path / "a.zarr", codecs, tmp_path / "mark"), tmp_path / "mark"
    monkeypatch.setattr(zarr, "open_group", lambda *_, **__: pytest.fail("opened before it was checked"))
    with pytest.raises(DataError, match=r"names the codec '[a-z0-9_]+', which may run code; expected one of adler32"):
        read_table(path, bag="patient", unit="um")
    assert not mark.exists()


def test_codecs_within_shards_and_consolidated_descriptions_are_looked_at(tmp_path: Path) -> None:
    array = {"shape": [6], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6]}}}
    inner = [
        {"name": "sharding_indexed", "configuration": {"codecs": [{"name": "bytes"}, {"name": "numcodecs.pickle"}]}}
    ]
    for name, about in (
        ("zarr.json", {"consolidated_metadata": {"metadata": {"attributes": {**array, "codecs": inner}}}}),
        (".zmetadata", {"metadata": {"a/.zarray": {"shape": [6], "chunks": [6], "filters": [PICKLE]}}}),
    ):
        path = spatialdata(tmp_path / f"{name[-4:]}.zarr")
        (path / "tables" / "table" / name).write_text(json.dumps(about))
        with pytest.raises(DataError, match="names the codec 'pickle'"):
            read_table(path, unit="um")


@pytest.mark.parametrize("array", ["X", "obsm/spatial", "obs/kind/codes", "obs/patient/codes"])
def test_a_zarr_array_that_lacks_a_piece_is_refused(tmp_path: Path, array: str) -> None:
    pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "patient": pandas.Categorical([f"p{i // 50}" for i in range(300)]),
            "kind": pandas.Categorical(rng.choice(["B", "T"], 300)),
            "alike": pandas.Categorical(["one"] * 300),  # zarr writes no piece of it, which is right
        },
        index=[str(i) for i in range(300)],
    )
    cells = pytest.importorskip("anndata").AnnData(X=rng.normal(size=(300, 4)).astype(np.float32) + 5, obs=frame)
    cells.obsm["spatial"] = rng.uniform(0, 500, (300, 2))
    cells.write_zarr(tmp_path / "a.zarr", chunks=(100, 4))
    how: dict[str, Any] = {"one_hot": "kind"} if "kind" in array else {}
    assert len(read_table(tmp_path / "a.zarr", bag="patient", unit="um", **how)) == 6
    assert len(read_table(tmp_path / "a.zarr", bag="alike", unit="um", **how)) == 1
    pieces = [file for file in (tmp_path / "a.zarr" / array).rglob("*")
              if file.is_file() and not file.name.startswith((".z", "zarr"))]  # fmt: skip
    sorted(pieces)[-1].unlink()
    with pytest.raises(DataError, match=rf"{array} has \d of \d pieces; copy it again, or save it again in full"):
        read_table(tmp_path / "a.zarr", bag="patient", unit="um", **how)


def test_a_zarr_piece_that_cannot_be_decoded_is_found_in_the_child(tmp_path: Path) -> None:
    path = spatialdata(tmp_path / "a.zarr")
    places = path / "tables" / "table" / "obsm" / "spatial"
    piece = next(file for file in places.rglob("*") if file.is_file() and not file.name.startswith((".z", "zarr")))
    piece.write_bytes(b"\xff" * 64)
    with pytest.raises(DataError, match=r"table: damaged zarr folder \(.*\); save it again"):
        read_table(path, unit="um")
