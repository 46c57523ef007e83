"""Names instead of numbers: the user's own ids, kinds and slides, from the file to page, CSV and GeoJSON."""

import csv
import json

import pytest
import torch

from dasmil.attribution import explain
from dasmil.attribution.names import InstanceNames
from dasmil.data.combine import join_sections, sample_instances
from dasmil.data.store import read_bag, write_bag
from dasmil.data.tables import read_table
from dasmil.errors import DataError
from dasmil.models import create_model
from dasmil.report.explanation.bundle import write_bundle
from dasmil.types import Bag

KINDS = ["lymphocyte", "tumour"]


def named(n=6, bag_id="slide-a"):
    return Bag(
        torch.randn(n, 3, generator=torch.Generator().manual_seed(n)),
        torch.arange(2 * n).reshape(n, 2) * 50.0,
        "um",
        bag_id,
        instance_labels=torch.arange(n) % 2,
        instance_ids=tuple(f"{bag_id}-cell-{k}" for k in range(n)),
        metadata={"tile_um": 50.0, "mpp": 0.5, "instance_label_names": KINDS},
    )


def test_ids_travel_through_files_samples_and_joined_slides(tmp_path):
    write_bag(tmp_path / "a.h5", named())
    assert read_bag(tmp_path / "a.h5").instance_ids == named().instance_ids
    few = sample_instances(named(), 3, seed=0)
    assert set(few.instance_ids) < set(named().instance_ids)
    places = dict(zip(named().instance_ids, named().coords.tolist()))
    assert [places[name] for name in few.instance_ids] == few.coords.tolist()
    joined = join_sections("patient", [named(4, "slide-a"), named(5, "slide-b")])
    assert joined.instance_ids[4] == "slide-b-cell-0"
    names = InstanceNames(joined)
    assert [names.section_of(k) for k in (0, 3, 4, 8)] == ["slide-a", "slide-a", "slide-b", "slide-b"]


def test_as_many_ids_as_instances():
    with pytest.raises(DataError, match="6 rows of features but 2 instance_ids"):
        Bag(torch.zeros(6, 3), torch.zeros(6, 2), "um", "x", instance_ids=("a", "b"))


def test_a_table_brings_ids_and_kinds_and_an_id_is_no_feature(tmp_path):
    path = tmp_path / "cells.csv"
    rows = "".join(f"p1,{k},{10 * k},{20 * k},{KINDS[k % 2]},{0.5 * k}\n" for k in range(4))
    path.write_text("patient,cell_id,x,y,type,size\n" + rows)
    (bag,) = read_table(path, bag="patient", unit="um", one_hot="type")
    assert bag.instance_ids == ("0", "1", "2", "3")
    assert InstanceNames(bag).label(1) == "1 [tumour]"
    (numbers,) = read_table(path, bag="patient", unit="um")
    assert numbers.metadata["feature_names"] == ["size"]
    (asked,) = read_table(path, bag="patient", unit="um", features=["cell_id", "size"])
    assert asked.features.shape == (4, 2), "a column that is asked for by name is used"


def test_page_csv_and_geojson_call_instances_by_their_names(tmp_path):
    torch.manual_seed(0)
    model = create_model("das-mil", in_features=3, out_features=4, unit="um", distance_scale=100.0)
    bag = named()
    e = explain(model, bag)
    write_bundle(tmp_path, model, bag, e, classes=["benign", "malignant"])
    page = (tmp_path / "explanation.html").read_text()
    assert "slide-a-cell-0 [lymphocyte]" in page
    assert "malignant" in page
    rows = list(csv.DictReader((tmp_path / "instances.csv").open()))
    assert [row["instance_id"] for row in rows] == list(bag.instance_ids)
    assert [row["instance_name"] for row in rows[:2]] == KINDS
    pair = next(iter(csv.DictReader((tmp_path / "pairs.csv").open())))
    assert pair["i_id"] == bag.instance_ids[int(pair["i"])]
    assert pair["j_name"] == KINDS[int(pair["j"]) % 2]
    feature = json.loads((tmp_path / "instances.geojson").read_text())["features"][1]
    assert feature["properties"]["name"] == "slide-a-cell-1"
    assert feature["properties"]["classification"] == {"name": "tumour"}
    sums = json.loads((tmp_path / "explanation.json").read_text())["sums"]["types"]
    assert {name for part in sums for name in part["between"]} == set(KINDS)


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_is_not_wider_than_its_window(tmp_path, width, browser):
    torch.manual_seed(0)
    model = create_model("das-mil", in_features=3, out_features=4, unit="um", distance_scale=100.0)
    bag = named(240, "a-slide-with-a-rather-long-name-and-no-blanks-in-it-whatever-the-window-is")
    write_bundle(tmp_path, model, bag, explain(model, bag), classes=["benign", "malignant"])
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto((tmp_path / "explanation.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
