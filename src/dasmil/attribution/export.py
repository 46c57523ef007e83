"""Files of an explanation for other programs: CSV tables, JSON, and GeoJSON for QuPath."""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from dasmil.attribution.ground import level0_boxes
from dasmil.attribution.names import InstanceNames
from dasmil.files import for_spreadsheets, replacing
from dasmil.types import Bag, Explanation

_QUPATH_IDS = uuid.UUID("7a8cf0a8-3a3d-4c0c-9d3b-0d2f2b9d5a61")  # any fixed name space: the same bag gives the same ids

NAMED = {"section": "section_name", "instance_labels": "instance_name"}
"""Columns of numbers, and the columns beside them that say what the numbers mean."""


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only when it is complete."""
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        yield file


def instances_csv(bag: Bag, explanation: Explanation) -> Iterator[str]:
    """One row for each instance: number, own id, centre in the bag's unit, what is known about it, and every score."""
    names = InstanceNames(bag)
    known: dict[str, list[Any]] = {"instance_id": list(bag.instance_ids)} if bag.instance_ids is not None else {}
    rest: dict[str, list[Any]] = {}
    for name, title in (("section", names.section), ("instance_labels", names.kind), ("key_instances", None)):
        value = getattr(bag, name)
        if value is not None:
            rest[name] = value.long().tolist()
            if title is not None:
                rest[NAMED[name]] = [title(number) for number in rest[name]]
    scores = {name: score.double().tolist() for name, score in explanation.scores.items()}
    axes = "xyz"[: bag.coords.shape[1]]
    yield _line(["instance", *known, *(f"{axis}_{bag.unit}" for axis in axes), *rest, *scores])
    for k, centre in enumerate(bag.coords.tolist()):
        yield _line(
            [
                k,
                *(column[k] for column in known.values()),
                *(f"{c:.9g}" for c in centre),
                *(column[k] for column in rest.values()),
                *(f"{column[k]:.9g}" for column in scores.values()),
            ]
        )


def _line(cells: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([for_spreadsheets(cell) for cell in cells])
    return buffer.getvalue()


def write_instances(path: Path, bag: Bag, explanation: Explanation) -> None:
    """The table of all instances as a file."""
    with written(path) as file:
        file.writelines(instances_csv(bag, explanation))


def write_pairs(path: Path, bag: Bag, explanation: Explanation) -> None:
    """One row for each of the strongest pairs: instance i looks at instance j."""
    names = InstanceNames(bag)
    own = ("i_id", "j_id") if names.has_ids else ()
    kinds = ("i_name", "j_name") if bag.instance_labels is not None else ()
    with written(path) as file:
        file.write(
            _line(
                ["i", "j", *own, *kinds, "head", "contribution", "distance_part", "weight",
                 f"distance_{explanation.unit}", "phi"]
            )
        )  # fmt: skip
        for p in explanation.pairs:
            called = [f(k) for f, wanted in ((names.own, own), (names.kind_of, kinds)) if wanted for k in (p.i, p.j)]
            numbers = (p.contribution, p.distance_part, p.weight, p.distance, p.phi)
            file.write(_line([p.i, p.j, *called, p.head, *("" if v is None else f"{v:.9g}" for v in numbers)]))


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
        "sums": {name: [asdict(part) for part in parts] for name, parts in explanation.sums.items()},
        "pairs": [asdict(pair) for pair in explanation.pairs],
    }


def write_json(path: Path, content: Any) -> None:
    with written(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


def geojson(bag: Bag, explanation: Explanation, colours: np.ndarray | None = None) -> Iterator[str]:
    """Tiles for QuPath (File > Import objects from file): squares in level-0 pixels, scores as measurements.

    The kind of an instance is its classification; its own id is its name. colours: [n, 3], the colour of each tile,
    which QuPath shows until it is told to colour by a measurement.
    """
    boxes = level0_boxes(bag).round(2).tolist()
    names = InstanceNames(bag)
    scores = {name: score.double().tolist() for name, score in explanation.scores.items()}
    yield '{"type":"FeatureCollection","features":[\n'
    for k, (x0, y0, x1, y1) in enumerate(boxes):
        properties: dict[str, Any] = {
            "objectType": "tile",
            "name": names.own(k) if names.has_ids else f"instance {k}",
            "measurements": {name: float(f"{column[k]:.9g}") for name, column in scores.items()},
        }
        if colours is not None:
            properties["color"] = colours[k].tolist()
        if (kind := names.kind_of(k)) is not None:
            properties["classification"] = {"name": kind}
        feature = {
            "type": "Feature",
            "id": str(uuid.uuid5(_QUPATH_IDS, f"{bag.bag_id}/{k}")),
            "geometry": {"type": "Polygon", "coordinates": [[[x0, y0], [x1, y0], [x1, y1], [x0, y1], [x0, y0]]]},
            "properties": properties,
        }
        yield (",\n" if k else "") + json.dumps(feature, separators=(",", ":"), allow_nan=False)
    yield "\n]}\n"


def write_geojson(path: Path, bag: Bag, explanation: Explanation, colours: np.ndarray | None = None) -> None:
    """The tiles as a GeoJSON file."""
    with written(path) as file:
        file.writelines(geojson(bag, explanation, colours))
