"""Scores against annotations: by hand on few tiles, and a run whose planted lesions are outlined."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dasmil
from dasmil.attribution.localise import Detections, froc, score_slide
from dasmil.cli import app
from dasmil.errors import InputError
from dasmil.types import Bag


def test_auroc_and_dice_by_hand() -> None:
    centres = np.stack([np.arange(6) * 100.0, np.zeros(6)], 1)
    shares = np.array([1.0, 0.6, 0.4, 0, 0, 0])
    values = np.array([3.0, 1.0, 2.0, 0.5, -1.0, -2.0])
    found = score_slide("a", "p", "contribution", values, shares, [shares], centres, 10.0)
    assert found.annotated == 2
    assert found.auroc == pytest.approx(7 / 8)  # one of eight pairs is the wrong way round
    assert found.dice == pytest.approx(1 / 2)  # tiles 0 and 2 are the highest two
    assert found.detections.lesions.tolist() == [0, 0, 0, -1], "tiles that speak against the class detect nothing"


def test_lower_tiles_around_a_detection_belong_to_it() -> None:
    centres = np.stack([np.arange(10) * 10.0, np.zeros(10)], 1)
    values = np.linspace(2, 1, 10)
    none = np.zeros(10)
    found = score_slide("a", "p", "contribution", values, none, [], centres, 10.0)
    assert found.detections.scores.tolist() == [values[0], values[4], values[8]]
    assert np.isnan(found.auroc)


def test_froc_by_hand() -> None:
    """Two slides, two lesions: one is found before any false detection, the other after two (one a slide)."""
    first = Detections(np.array([0.9, 0.8, 0.3]), np.array([0, -1, 1]), 2)
    second = Detections(np.array([0.7]), np.array([-1]), 0)
    assert froc([first, second]) == pytest.approx(np.mean([0.5, 0.5, 1, 1, 1, 1]))
    assert np.isnan(froc([second]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slides of 12 x 12 tiles of 100 px; in positive ones a square of 3 x 3 tiles has another first feature."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "bags").mkdir()
    (folder / "outlines").mkdir()
    rng = np.random.default_rng(0)
    rows = ["slide,label,patient,split"]
    y, x = np.mgrid[0:12, 0:12]
    for number in range(24):
        features = rng.normal(0, 0.3, (144, 4)).astype(np.float32)
        label, name = number % 2, f"s{number:02d}"
        if label:
            left, top = rng.integers(0, 9, 2)
            inside = ((x >= left) & (x < left + 3) & (y >= top) & (y < top + 3)).ravel()
            features[inside, 0] += 3
            a, b = 100.0 * left, 100.0 * top
            ring = [[a, b], [a + 300, b], [a + 300, b + 300], [a, b + 300]]
            outline = {"type": "Polygon", "coordinates": [ring]}
            shape = {"type": "Feature", "geometry": outline, "properties": {"name": "lesion"}}
            (folder / "outlines" / f"{name}.geojson").write_text(json.dumps(shape))
        centres = (np.stack([x.ravel(), y.ravel()], 1) + 0.5) * 50.0
        bag = Bag(torch.from_numpy(features), torch.from_numpy(centres), "um", name, label=label,
                  metadata={"tile_um": 50.0, "mpp": 0.5})  # fmt: skip
        dasmil.write_bag(folder / "bags" / f"{name}.h5", bag)
        rows.append(f"{name},{label},p{number},{'val' if number > 15 else 'train'}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    spec = dasmil.CohortSpec(bags=folder / "bags", labels=folder / "labels.csv")
    dasmil.train_cohort(spec, "mean-pool", out=folder / "run", epochs=20, lr=1e-2, baselines=False)
    return folder


def test_a_run_is_scored_against_outlines_and_its_report_says_so(made: Path, tmp_path: Path, capsys) -> None:
    command = ["explain", str(made / "run"), "--annotations", str(made / "outlines"), "-o", str(tmp_path)]
    assert app(command, exit_on_error=False, result_action="return_value") == 0
    assert "4 slides with annotated tiles (lesion; 4 regions), 8 slides in all" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "localisation.csv").open()))
    assert {row["set"] for row in rows} == {"val"}, "slides that it was not trained on"
    own = [row for row in rows if row["score"] == "contribution" and row["annotated"] == "9"]
    assert len(own) == 4
    assert all(float(row["auroc"]) > 0.99 and float(row["dice"]) > 0.85 for row in own)
    record = json.loads((made / "run" / "localisation.json").read_text())
    assert record["cohort"][0]["auroc"] == pytest.approx(np.mean([float(row["auroc"]) for row in own]))
    page = (made / "run" / "report.html").read_text()
    assert "Do the scores lie where annotations are?" in page
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "elsewhere.xml").write_text("<ASAP_Annotations/>")
    with pytest.raises(InputError, match="none of the bags"):
        dasmil.localise(made / "run", tmp_path / "other")


def test_predictions_inside_a_region_are_those_of_the_restricted_bag(made: Path) -> None:
    name = "s17"
    spec = dasmil.BagSpec(bags=made / "bags", roi=made / "outlines")
    inside = {row["bag_id"]: row["logit"] for row in dasmil.predict(made / "run", spec)}
    whole = {row["bag_id"]: row["logit"] for row in dasmil.predict(made / "run", made / "bags")}
    bag = spec.load()[17]
    assert (bag.bag_id, len(bag)) == (name, 9)
    model = dasmil.Run.read(made / "run").seeds[0].model()
    assert inside[name] == pytest.approx(float(model(bag.features.float(), bag.coords).logit), abs=1e-4)
    assert inside[name] > whole[name]
    assert inside["s16"] == pytest.approx(whole["s16"])
