"""Annotations: what is read, how much of a tile lies inside, which tiles are kept, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.data.annotations import Annotations, Region, annotations_by_slide, read_annotations
from dasmil.data.cohort import load_cohort
from dasmil.data.restrict import Restriction, read_restriction, tile_shares
from dasmil.errors import DataError, InputError, ScaleError
from dasmil.types import Bag

SQUARE = [[0, 0], [400, 0], [400, 400], [0, 400], [0, 0]]
HOLE = [[100, 100], [300, 100], [300, 300], [100, 300], [100, 100]]


def feature(name: str, geometry: dict) -> dict:
    return {"type": "Feature", "geometry": geometry, "properties": {"classification": {"name": name}}}


def geojson(path: Path, *features: dict) -> Path:
    path.write_text(json.dumps({"type": "FeatureCollection", "features": list(features)}))
    return path


def grid_bag(name: str = "slide1", columns: int = 8, tile: float = 100.0, mpp: float = 0.5) -> Bag:
    """Tiles of 100 px side by side from (0, 0), positions in um."""
    y, x = np.mgrid[0:columns, 0:columns]
    centres = (np.stack([x.ravel(), y.ravel()], 1) + 0.5) * tile * mpp
    meta = {"tile_um": tile * mpp, "mpp": mpp}
    return Bag(torch.zeros(len(centres), 3), torch.tensor(centres), "um", name, metadata=meta)


def test_shares_of_polygons_with_holes_are_exact_on_the_grid(tmp_path: Path) -> None:
    path = geojson(tmp_path / "slide1.geojson", feature("Tumor", {"type": "Polygon", "coordinates": [SQUARE, HOLE]}))
    found = read_annotations(path)
    assert found.names == ["Tumor"]
    shares = tile_shares(grid_bag(), found)["Tumor"].reshape(8, 8)
    expected = np.zeros((8, 8))
    expected[:4, :4] = 1
    expected[1:3, 1:3] = 0
    np.testing.assert_allclose(shares, expected, atol=1e-9)


def test_shares_of_any_polygon_agree_with_points_inside() -> None:
    from matplotlib.path import Path as Outline

    rng = np.random.default_rng(0)
    angle = np.sort(rng.uniform(0, 2 * np.pi, 40))
    ring = 500 + np.stack([np.cos(angle), np.sin(angle)], 1) * rng.uniform(150, 450, 40)[:, None]
    centres = rng.uniform(0, 1000, (300, 2))
    shares = Annotations(Path("a"), (Region("a", (ring,)),)).shares(centres, 60.0)
    at = (np.arange(40) + 0.5) / 40 * 60 - 30
    points = (centres[:, None, None] + np.stack(np.meshgrid(at, at), -1)).reshape(-1, 2)
    exact = Outline(np.vstack([ring, ring[:1]])).contains_points(points).reshape(300, -1).mean(1)
    np.testing.assert_allclose(shares, exact, atol=0.03)
    assert np.abs(shares - exact).mean() < 0.005


def test_asap_xml_as_camelyon_has_it(tmp_path: Path) -> None:
    def annotation(group: str, ring: list) -> str:
        places = "".join(f'<Coordinate Order="{k}" X="{x}" Y="{y}"/>' for k, (x, y) in enumerate(ring[:-1]))
        outline = f"<Coordinates>{places}</Coordinates>"
        return f'<Annotation Name="a" Type="Polygon" PartOfGroup="{group}">{outline}</Annotation>'

    path = tmp_path / "slide1.xml"
    body = annotation("_0", SQUARE) + annotation("_2", HOLE)
    path.write_text(f'<?xml version="1.0"?><ASAP_Annotations><Annotations>{body}</Annotations></ASAP_Annotations>')
    found = read_annotations(path)
    assert found.names == ["_0"], "what is cut out is no class"
    assert found.shares(*centres_of(grid_bag())).sum() == pytest.approx(16 - 4)


def centres_of(bag: Bag) -> tuple[np.ndarray, float]:
    return bag.coords.double().numpy() / 0.5, 100.0


def test_points_of_a_csv_and_of_a_whole_cohort(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("slide,x,y,class\nslide1,150,50,mitosis\nslide1.svs,750,750,mitosis\nslide2,10,10,other\n")
    found = annotations_by_slide(path)
    assert sorted(found) == ["slide1", "slide2"]
    shares = tile_shares(grid_bag(), found["slide1"])["mitosis"]
    assert np.flatnonzero(shares).tolist() == [1, 63]
    with pytest.raises(InputError, match="names 2 slides"):
        read_annotations(path)


def test_real_lesions_have_their_area() -> None:
    """CAMELYON16's outlines: the shares of all tiles sum to the area that the polygons have."""
    folder = Path(__file__).parents[3] / "shared" / "data" / "camelyon16_lesions"
    if not folder.is_dir():
        pytest.skip("the outlines of CAMELYON16 are not here")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(folder / "polygons.parquet", filters=[("slide", "in", ["Tumor_001", "Tumor_011"])])
    for slide, rows in frame[frame["hole"] == 0].groupby("slide", observed=True):
        for _, part in rows.groupby("polygon"):
            ring = part[["x", "y"]].to_numpy(float)
            x, y = ring.T
            area = abs((x * np.roll(y, -1) - np.roll(x, -1) * y).sum()) / 2
            low, high = ring.min(0) - 224, ring.max(0) + 224
            columns = [np.arange(a, b, 224.0) for a, b in zip(low, high, strict=True)]
            centres = np.stack(np.meshgrid(*columns), -1).reshape(-1, 2)
            shares = Annotations(Path(str(slide)), (Region("tumor", (ring,)),)).shares(centres, 224.0)
            assert shares.sum() * 224**2 == pytest.approx(area, rel=0.03)


def test_restriction_keeps_the_right_tiles_in_any_cohort(tmp_path: Path) -> None:
    bags, regions, cut = tmp_path / "bags", tmp_path / "roi", tmp_path / "cut"
    for folder in (bags, regions, cut):
        folder.mkdir()
    whole = grid_bag()
    whole = Bag(torch.arange(64)[:, None].float(), whole.coords, "um", "slide1", metadata=dict(whole.metadata))
    for name in ("slide1", "slide2", "slide3"):
        dasmil.write_bag(bags / f"{name}.h5", whole)
    beside = [[400, 0], [800, 0], [800, 400], [400, 400]]
    nowhere = [[5000, 5000], [5100, 5000], [5100, 5100]]
    tumor, stroma, far = (
        feature(name, {"type": "Polygon", "coordinates": [ring]})
        for name, ring in (("Tumor", SQUARE), ("Stroma", beside), ("Tumor", nowhere))
    )
    geojson(regions / "slide1.geojson", tumor, stroma)
    geojson(regions / "slide3.geojson", far)
    geojson(cut / "slide1.geojson", feature("Pen", {"type": "Polygon", "coordinates": [HOLE]}))
    spec = dasmil.BagSpec(bags=bags, roi=regions, roi_class="Tumor", exclude=cut)
    cohort = spec.load()
    assert cohort.bag_ids == ["slide1", "slide2"], "a slide of which nothing is left is left out"
    assert "none of its 64 instances lies in the chosen regions" in cohort.report.unreadable["slide3"]
    expected = [y * 8 + x for y in range(4) for x in range(4) if not (1 <= x < 3 and 1 <= y < 3)]
    assert cohort[0].features[:, 0].tolist() == expected
    assert len(cohort[1]) == 64, "a slide without a file is used whole"
    assert "--roi: 2 of 3 slides have regions; the others are used whole" in cohort.report.lines()
    assert spec.from_record(spec.as_record()).load().bag_ids == cohort.bag_ids
    both = dasmil.BagSpec(bags=bags, roi=regions).load()
    assert len(both[0]) == 32
    with pytest.raises(InputError, match="--roi-class names 'Necrosis', which no annotation is"):
        dasmil.BagSpec(bags=bags, roi=regions, roi_class="Necrosis").load()
    with pytest.raises(InputError, match="--exclude-class chooses among the classes of --exclude"):
        dasmil.BagSpec(bags=bags, exclude_class="Pen").load()


def test_bags_in_memory_and_labels_of_tiles(tmp_path: Path) -> None:
    path = geojson(tmp_path / "slide1.geojson", feature("Tumor", {"type": "Polygon", "coordinates": [SQUARE]}))
    restriction = read_restriction(roi=path)
    assert restriction is not None
    assert len(load_cohort([grid_bag()], restriction=restriction)[0]) == 16
    labelled = dasmil.label_tiles(grid_bag(), dasmil.read_annotations(path))
    assert labelled.metadata["instance_label_names"] == ["other", "Tumor"]
    assert torch.bincount(labelled.instance_labels).tolist() == [48, 16]
    bare = Bag(torch.zeros(2, 1), torch.zeros(2, 2), "um", "slide1")
    with pytest.raises(ScaleError, match="does not say how long a level-0 pixel is"):
        Restriction(roi=restriction.roi).of(bare)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.geojson", "{", "cannot be read as GeoJSON"),
        ("a.geojson", "{}", "is no GeoJSON"),
        ("a.geojson", '{"type": "Polygon", "coordinates": [[[0, 0], [1]]]}', "outline"),
        ("a.geojson", '{"type": "Feature", "geometry": {"type": "Circle", "coordinates": []}}', "is a 'Circle'"),
        ("a.xml", "<ASAP_Annotations>", "cannot be read as XML"),
        ("a.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a/>', "entities of its own"),
        ("a.xml", "<b/>", "expected ASAP_Annotations"),
        ("a.csv", "a,b\n1,2\n", "expected x and y"),
        ("a.csv", "x,y\n1,nan\n", "line 2"),
    ],
)  # fmt: skip
def test_bad_annotations_are_one_message(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_annotations(tmp_path / name)


def test_a_folder_without_annotations_and_two_of_one_slide(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no annotations"):
        annotations_by_slide(tmp_path)
    (tmp_path / "a.xml").write_text("<ASAP_Annotations/>")
    with (tmp_path / "a.csv").open("w") as file:
        csv.writer(file).writerows([["x", "y"], [1, 2]])
    with pytest.raises(InputError, match="annotations of one slide"):
        annotations_by_slide(tmp_path)
