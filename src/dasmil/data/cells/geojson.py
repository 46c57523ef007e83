"""Cells as GeoJSON objects: QuPath's export (its own detection, StarDist, InstanSeg, Cellpose) and CellViT's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasmil.data.cells.contents import UNCLASSIFIED, Cells, names_of
from dasmil.data.frames import unpacked
from dasmil.data.memory import need_memory
from dasmil.errors import DataError, MissingDependencyError, named, shown

CLASS = "classification"
_CELLS = ("detection", "cell", "tile")
# A file of polygons takes about this many times its size while it is read.
_GROWTH = 12


def read_geojson(path: Path) -> Cells:
    """One cell for each object: its centroid in level-0 pixels, its class, its measurements.

    Objects that are annotations count where there are no others; with several parts, as CellViT writes all cells of a
    class, each part is a cell. Otherwise they are regions, and are left out.
    """
    try:
        import pandas
    except ImportError:
        raise MissingDependencyError("pandas", "tables", "Reading cells from GeoJSON") from None
    objects = [_Object(path, number, value) for number, value in enumerate(_features(path))]
    cells = [item for item in objects if item.kind in _CELLS]
    regions = [item for item in objects if item.kind not in _CELLS]
    left_out = 0
    if cells:
        left_out = len(regions)
        found = [_Cell(item.centre(), item) for item in cells]
    else:
        found = [_Cell(centre, item) for item in regions for centre in item.centres()]
    if not found:
        raise DataError(f"{path} holds no objects, expected cells: export the detections again")
    names = list(dict.fromkeys(name for cell in found for name in cell.item.measurements))
    columns: dict[str, Any] = {CLASS: [cell.item.name for cell in found]}
    for name in names:
        columns[name] = np.array([cell.item.measurements.get(name, math.nan) for cell in found])
    ids = [cell.item.id for cell in found]
    said = f"; {left_out} annotations left out" if left_out else ""
    return Cells(
        path=path,
        rule=f"GeoJSON objects, centroids in level-0 px{said}",
        frame=pandas.DataFrame(columns),
        coords=np.array([cell.centre for cell in found], dtype=np.float64),
        unit="px",
        bags=None,
        ids=names_of(path, "id", ids) if all(ids) and len(set(ids)) == len(ids) else None,
        places=frozenset({CLASS}),
    )


class _Object:
    """One GeoJSON feature: what it is, its outline, its class and measurements."""

    def __init__(self, path: Path, number: int, value: Any) -> None:
        self.where = f"{path}, object {number + 1}"
        if not isinstance(value, dict) or not isinstance(value.get("geometry"), dict):
            raise DataError(f"{self.where} is {shown(value, 60)}, expected a GeoJSON feature with a geometry")
        known = value.get("properties") or {}
        if not isinstance(known, dict):
            raise DataError(f"{self.where}: properties are {shown(known, 60)}, expected named values")
        self.kind = str(known.get("objectType", known.get("object_type", "detection"))).lower()
        self.kind = "cell" if "cell" in self.kind else "detection" if "detection" in self.kind else self.kind
        self.id = str(value["id"]) if isinstance(value.get("id"), str | int) else ""
        self.name = _class_name(known.get("classification"))
        self.measurements = self._measured(known.get("measurements") or {})
        self.shape, self.parts = str(value["geometry"].get("type")), value["geometry"].get("coordinates")

    def _measured(self, values: Any) -> dict[str, float]:
        """Measurements as QuPath writes them: named numbers, in older versions a list of names and values."""
        if isinstance(values, list):
            pairs = [(item.get("name"), item.get("value")) for item in values if isinstance(item, dict)]
        else:
            pairs = list(values.items()) if isinstance(values, dict) else []
        found: dict[str, float] = {}
        for name, value in pairs:
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[str(name)] = float(value) if abs(value) < 1e300 else math.inf  # refused where it is a feature
            elif value not in (None, "NaN"):
                raise DataError(f"{self.where}: measurement {shown(name)} is {shown(value, 60)}, expected a number")
        return found

    def centres(self) -> Iterator[np.ndarray]:
        """The centre of every part, where each part is a cell."""
        if self.shape == "MultiPoint":
            yield from self._points(self.parts, 1)
        elif self.shape == "MultiPolygon":
            for rings in self._list(self.parts):
                yield _centroid([self._points(ring, 3) for ring in self._list(rings)])[0]
        else:
            yield self.centre()

    def centre(self) -> np.ndarray:
        """The centroid of the whole: of its area, or the mean of its points."""
        if self.shape == "Point":
            return self._points([self.parts], 1)[0]
        if self.shape in ("MultiPoint", "LineString"):
            return self._points(self.parts, 1).mean(axis=0)
        if self.shape not in ("Polygon", "MultiPolygon"):
            raise DataError(f"{self.where} is a {shown(self.shape)}, expected a polygon or a point")
        polygons = [self.parts] if self.shape == "Polygon" else self._list(self.parts)
        found = [_centroid([self._points(ring, 3) for ring in self._list(rings)]) for rings in polygons]
        weight = np.array([area for _, area in found])
        centres = np.array([centre for centre, _ in found])
        return np.average(centres, axis=0, weights=weight) if weight.sum() > 0 else centres.mean(axis=0)

    def _list(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise DataError(f"{self.where}: its {self.shape} is {shown(value, 60)}, expected lists of positions")
        return value

    def _points(self, value: Any, fewest: int) -> np.ndarray:
        try:
            points = np.array([(float(point[0]), float(point[1])) for point in value], dtype=np.float64)
        except (TypeError, ValueError, IndexError, KeyError, OverflowError):
            points = np.empty((0, 2))
        if len(points) < fewest or not np.isfinite(points).all():
            raise DataError(f"{self.where}: its {self.shape} is {shown(value, 60)}, expected positions (x, y)")
        return points


@dataclass(frozen=True, eq=False)
class _Cell:
    centre: np.ndarray
    item: _Object = field(repr=False)


def _centroid(rings: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Centroid and area of a polygon: its outline, and holes; the mean of the corners where it has no area."""
    origin = rings[0][0]
    total, moment = 0.0, np.zeros(2)
    for number, ring in enumerate(rings):
        here = ring - origin  # so that products of large coordinates do not cancel
        after = np.roll(here, -1, axis=0)
        cross = here[:, 0] * after[:, 1] - here[:, 1] * after[:, 0]
        area = cross.sum() / 2
        sign = (1 if number == 0 else -1) * (1 if area >= 0 else -1)
        total += sign * area
        moment += sign * ((here + after) * cross[:, None]).sum(axis=0) / 6
    if not total > 1e-9:
        return rings[0].mean(axis=0), 0.0
    return origin + moment / total, float(total)


def _class_name(value: Any) -> str:
    if isinstance(value, dict):
        names = value.get("names")
        value = value.get("name") or (": ".join(map(str, names)) if isinstance(names, list) else None)
    return str(value).strip() or UNCLASSIFIED if isinstance(value, str) else UNCLASSIFIED


def _features(path: Path) -> list[Any]:
    need_memory(path, "its objects", _GROWTH * path.stat().st_size)
    try:
        with unpacked(path) as stream:
            value = json.loads(stream.read().decode("utf-8-sig"))
    except DataError:
        raise
    except Exception as error:  # of gzip, of the decoder and of the parser, which also runs out of depth
        reason = " ".join((str(error) or type(error).__name__).split())[:120]
        raise DataError(f"{path} cannot be read as GeoJSON ({reason}); export the cells again") from None
    if isinstance(value, dict) and value.get("type") == "Feature":
        return [value]
    if isinstance(value, dict):
        if not isinstance(value.get("features"), list):
            raise DataError(
                f"{path} holds {named(value)}, expected a GeoJSON FeatureCollection: export the cells again"
            )
        value = value["features"]
    if not isinstance(value, list):
        raise DataError(f"{path} holds {shown(value, 60)}, expected GeoJSON objects: export the cells again")
    return value
