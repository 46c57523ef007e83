"""Files of an explanation for other programs: CSV tables, JSON, and GeoJSON for QuPath."""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from dasmil.attribution.ground import level0_boxes
from dasmil.files import replacing
from dasmil.types import Bag, Explanation

_QUPATH_IDS = uuid.UUID("7a8cf0a8-3a3d-4c0c-9d3b-0d2f2b9d5a61")  # any fixed name space: the same bag gives the same ids


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        yield file


def write_instances(path: Path, bag: Bag, explanation: Explanation) -> None:
    """One row for each instance: number, centre in the bag's unit, what is known about it, and every score."""
    optional = {
        name: value.tolist()
        for name in ("section", "instance_labels", "key_instances")
        if (value := getattr(bag, name)) is not None
    }
    scores = {name: score.double().tolist() for name, score in explanation.scores.items()}
    axes = "xyz"[: bag.coords.shape[1]]
    with written(path) as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["instance", *(f"{axis}_{bag.unit}" for axis in axes), *optional, *scores])
        for k, centre in enumerate(bag.coords.tolist()):
            known = [int(column[k]) for column in optional.values()]
            out.writerow(
                [k, *(f"{c:.9g}" for c in centre), *known, *(f"{column[k]:.9g}" for column in scores.values())]
            )


def write_pairs(path: Path, explanation: Explanation) -> None:
    """One row for each of the strongest pairs: instance i looks at instance j."""
    with written(path) as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            ["i", "j", "head", "contribution", "distance_part", "weight", f"distance_{explanation.unit}", "phi"]
        )
        for p in explanation.pairs:
            numbers = (p.contribution, p.distance_part, p.weight, p.distance, p.phi)
            out.writerow([p.i, p.j, p.head, *("" if value is None else f"{value:.9g}" for value in numbers)])


def summary(explanation: Explanation) -> dict[str, Any]:
    """The explanation without its long columns, for `--json` and explanation.json."""
    return {
        "bag_id": explanation.bag_id,
        "method": explanation.method,
        "target": explanation.target,
        "logit": explanation.logit,
        "bias": explanation.bias,
        "sum_of_contributions": float(explanation.contributions.double().sum()),
        "residual": explanation.residual,
        "distance_share": explanation.distance_share,
        "n": len(explanation),
        "unit": explanation.unit,
        "scores": list(explanation.scores),
        "pairs": [asdict(pair) for pair in explanation.pairs],
    }


def write_json(path: Path, content: Any) -> None:
    with written(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


def write_geojson(path: Path, bag: Bag, explanation: Explanation) -> None:
    """Tiles for QuPath (File > Import objects from file): squares in level-0 pixels, scores as measurements."""
    boxes = level0_boxes(bag).round(2).tolist()
    scores = {name: score.double().tolist() for name, score in explanation.scores.items()}
    with written(path) as file:
        file.write('{"type":"FeatureCollection","features":[\n')
        for k, (x0, y0, x1, y1) in enumerate(boxes):
            feature = {
                "type": "Feature",
                "id": str(uuid.uuid5(_QUPATH_IDS, f"{bag.bag_id}/{k}")),
                "geometry": {"type": "Polygon", "coordinates": [[[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]]},
                "properties": {
                    "objectType": "tile",
                    "name": f"instance {k}",
                    "measurements": {name: float(f"{column[k]:.9g}") for name, column in scores.items()},
                },
            }
            file.write((",\n" if k else "") + json.dumps(feature, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")
