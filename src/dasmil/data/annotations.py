"""Annotations of slides: QuPath's GeoJSON, ASAP's XML (as CAMELYON has it) and CSV points, in level-0 pixels.

A region is a polygon with its holes; how much of a tile lies inside is found on a raster.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from scipy import ndimage

from dasmil.data.frames import unpacked
from dasmil.data.labels import plain_slide
from dasmil.data.memory import need_memory
from dasmil.errors import DataError, InputError, named, shown

SUFFIXES = (".geojson", ".geojson.gz", ".json", ".xml", ".csv")
UNNAMED = "region"
"""The class of a region that has none."""
ACROSS = 16  # raster pixels along the edge of a tile
MOST = 12_000  # raster pixels along the longer side of what is looked at
_EXCLUSION = re.compile(r"(_2|exclu\w*|hole)$", re.IGNORECASE)
_GROWTH = 12  # memory of a file of polygons while it is read, times its size


@dataclass(frozen=True, eq=False)
class Region:
    """A class and its outline: rings [k, 2] of level-0 pixels, a point inside an even number of them is outside.

    excluded: what is cut out of other regions (CAMELYON's group _2). A point has one ring of one position.
    """

    name: str
    rings: tuple[np.ndarray, ...]
    excluded: bool = False

    @property
    def is_point(self) -> bool:
        return len(self.rings) == 1 and len(self.rings[0]) == 1


@dataclass(frozen=True, eq=False)
class Annotations:
    """The regions of one slide."""

    path: Path
    regions: tuple[Region, ...]

    @property
    def names(self) -> list[str]:
        """The classes of the regions, without what is cut out."""
        return list(dict.fromkeys(region.name for region in self.regions if not region.excluded))

    def of(self, names: Iterable[str]) -> Annotations:
        """The regions of these classes; regions that are cut out stay."""
        wanted = set(names)
        return replace(self, regions=tuple(r for r in self.regions if r.excluded or r.name in wanted))

    def shares(self, centres: np.ndarray, side: float) -> np.ndarray:
        """The share [n] of each square with this centre [n, 2] and side, in level-0 pixels, inside any region.

        Found on a raster of a sixteenth of a tile (coarser where the squares spread far). A point counts as inside the
        square that holds it: its share is one.
        """
        low = centres.min(0) - side / 2
        extent = centres.max(0) + side / 2 - low
        pixel = max(side / ACROSS, float(extent.max()) / MOST)
        width, height = (int(np.ceil(length / pixel)) + 1 for length in extent)
        inside = self.raster(low, pixel, (height, width))
        total = np.zeros((height + 1, width + 1))
        np.cumsum(np.cumsum(inside, axis=0, dtype=np.float64), axis=1, out=total[1:, 1:])

        def below(points: np.ndarray) -> np.ndarray:
            places = np.clip((points - low)[:, ::-1].T / pixel, 0, np.array(inside.shape)[:, None])
            return ndimage.map_coordinates(total, places, order=1, mode="nearest")

        half = np.array([side / 2, side / 2])
        right = np.array([side / 2, -side / 2])
        area = below(centres + half) - below(centres + right) - below(centres - right) + below(centres - half)
        shares = np.clip(area * (pixel / side) ** 2, 0.0, 1.0)
        for region in self.regions:
            if region.is_point and not region.excluded:
                shares[(np.abs(centres - region.rings[0][0]) <= side / 2).all(axis=1)] = 1.0
        return shares

    def raster(self, low: np.ndarray, pixel: float, shape: tuple[int, int]) -> np.ndarray:
        """Which pixels of a raster have their centre inside any region; low: its top left corner in level-0 pixels."""
        inside = np.zeros(shape, dtype=bool)
        areas = [region for region in self.regions if not region.is_point]
        for region in sorted(areas, key=lambda region: region.excluded):
            _fill(inside, region, low, pixel)
        return inside


def _fill(inside: np.ndarray, region: Region, low: np.ndarray, pixel: float) -> None:
    """Mark (or, of an excluded region, clear) raster pixels whose centres are inside the rings, by even-odd rule."""
    rings = [(ring - low) / pixel for ring in region.rings if len(ring) > 2]
    if not rings:
        return
    points = np.concatenate(rings)
    first, last = np.floor(points.min(0)).astype(int), np.ceil(points.max(0)).astype(int)
    height, width = inside.shape
    top, bottom = max(first[1], 0), min(last[1], height)
    left, right = max(first[0], 0), min(last[0], width)
    if top >= bottom or left >= right:
        return
    crossed = np.zeros((bottom - top, right - left + 1), dtype=np.int64)
    for ring in rings:
        for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
            if y0 == y1:
                continue
            start, stop = (y0, y1) if y0 < y1 else (y1, y0)
            rows = np.arange(max(int(np.ceil(start - 0.5)), top), min(int(np.ceil(stop - 0.5)), bottom))
            x = x0 + (rows + 0.5 - y0) * (x1 - x0) / (y1 - y0)
            columns = np.clip(np.ceil(x - 0.5).astype(int) - left, 0, right - left)
            np.add.at(crossed, (rows - top, columns), 1)
    within = (np.cumsum(crossed, axis=1) % 2 == 1)[:, :-1]
    inside[top:bottom, left:right][within] = not region.excluded


def read_annotations(path: str | Path) -> Annotations:
    """The regions of one slide, by the kind of the file: .geojson, .json, .xml (ASAP) or .csv (points x, y, class)."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no annotations {path}: expected a file ending in {', '.join(SUFFIXES)}")
    name = path.name.lower()
    if name.endswith(".xml"):
        return Annotations(path, tuple(_asap(path)))
    if name.endswith(".csv"):
        tables = _points(path)
        if len(tables) > 1:
            raise InputError(f"{path} names {len(tables)} slides: give it as the table of a cohort, not of one slide")
        return next(iter(tables.values()), Annotations(path, ()))
    return Annotations(path, tuple(_geojson(path)))


def find_annotations(path: str | Path) -> dict[str, Path]:
    """The files of annotations by the plain name of their slide: of a folder, or a single file (its own slide)."""
    path = Path(path)
    if path.is_file():
        return {_slide_of(path): path}
    if not path.is_dir():
        raise InputError(f"no annotations {path}: expected a file or a folder of {', '.join(SUFFIXES)}")
    files = sorted(file for file in path.iterdir() if file.is_file() and file.name.lower().endswith(SUFFIXES))
    found: dict[str, Path] = {}
    for file in files:
        other = found.setdefault(_slide_of(file), file)
        if other is not file:
            raise InputError(f"{other} and {file} are annotations of one slide: keep one of them")
    if not found:
        raise InputError(f"{path} holds no annotations: expected files ending in {', '.join(SUFFIXES)}")
    return found


def annotations_by_slide(path: str | Path) -> dict[str, Annotations]:
    """All annotations of a folder, or of a CSV of points with a column slide, by the plain name of their slide."""
    path = Path(path)
    if path.is_file() and path.suffix.lower() == ".csv":
        return {name or _slide_of(path): found for name, found in _points(path).items()}
    return {name: read_annotations(file) for name, file in find_annotations(path).items()}


def _slide_of(path: Path) -> str:
    name = path.name
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return plain_slide(name[: -len(suffix)])
    return plain_slide(name)


def _geojson(path: Path) -> list[Region]:
    content = _json(path)
    if isinstance(content, dict) and "coordinates" in content:
        content = [{"geometry": content}]
    elif isinstance(content, dict):
        content = [content] if content.get("type") == "Feature" else content.get("features")
    if not isinstance(content, list):
        raise DataError(f"{path} is no GeoJSON: expected a FeatureCollection, as QuPath exports annotations")
    found: list[Region] = []
    for number, feature in enumerate(content, 1):
        where = f"{path}, object {number}"
        geometry = feature.get("geometry") if isinstance(feature, dict) else None
        if not isinstance(geometry, dict):
            raise DataError(f"{where} is {shown(feature, 60)}, expected a GeoJSON feature with a geometry")
        name = _class_of(feature.get("properties"))
        found += [Region(name, rings) for rings in _shapes(where, geometry)]
    return found


def _class_of(known: Any) -> str:
    """The classification of a QuPath object, else its name."""
    known = known if isinstance(known, dict) else {}
    kind = known.get("classification")
    kind = kind.get("name") or ": ".join(map(str, kind.get("names") or ())) if isinstance(kind, dict) else kind
    return str(kind or known.get("name") or UNNAMED)


def _shapes(where: str, geometry: dict[str, Any]) -> list[tuple[np.ndarray, ...]]:
    kind, parts = geometry.get("type"), geometry.get("coordinates")
    if kind == "GeometryCollection":
        members = geometry.get("geometries")
        members = members if isinstance(members, list) else []
        return [shape for member in members if isinstance(member, dict) for shape in _shapes(where, member)]
    if kind == "Point":
        return [(_ring(where, [parts], 1),)]
    if kind == "MultiPoint":
        return [(point[None],) for point in _ring(where, parts, 1)]
    if kind in ("LineString", "MultiLineString"):
        return []  # a line has no inside
    if kind not in ("Polygon", "MultiPolygon") or not isinstance(parts, list):
        raise DataError(f"{where} is a {shown(kind)}, expected a polygon or a point")
    polygons = [parts] if kind == "Polygon" else parts
    if not all(isinstance(rings, list) and rings for rings in polygons):
        raise DataError(f"{where}: its {kind} is {shown(parts, 60)}, expected lists of positions")
    return [tuple(_ring(where, ring, 3) for ring in rings) for rings in polygons]


def _ring(where: str, value: Any, fewest: int) -> np.ndarray:
    try:
        ring = np.array([(float(p[0]), float(p[1])) for p in value], dtype=np.float64)
    except (TypeError, ValueError, IndexError, KeyError, OverflowError):
        ring = np.empty((0, 2))
    if len(ring) < fewest or not np.isfinite(ring).all():
        raise DataError(f"{where}: {shown(value, 60)} is no outline, expected {fewest} or more positions (x, y)")
    return ring


def _json(path: Path) -> Any:
    need_memory(path, "its regions", _GROWTH * path.stat().st_size)
    try:
        with unpacked(path) as stream:
            return json.loads(stream.read().decode("utf-8-sig"))
    except DataError:
        raise
    except Exception as error:  # of gzip, of the decoder and of the parser, which also runs out of depth
        raise DataError(f"{path} cannot be read as GeoJSON ({_brief(error)}); export the annotations again") from None


def _asap(path: Path) -> list[Region]:
    """ASAP's XML: polygons, rectangles and dots with their group; CAMELYON's group _2 is cut out of the others."""
    need_memory(path, "its regions", _GROWTH * path.stat().st_size)
    text = path.read_bytes()
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise DataError(f"{path} defines entities of its own, which no annotation needs: export it again")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as XML ({_brief(error)}); export the annotations again") from None
    found = []
    for number, item in enumerate(root.iter("Annotation"), 1):
        where = f"{path}, annotation {number}"
        places = [(c.get("X"), c.get("Y")) for c in item.iter("Coordinate")]
        group = item.get("PartOfGroup") or ""
        name = group if group not in ("", "None") else UNNAMED
        kind = item.get("Type", "Polygon")
        if kind in ("Dot", "PointSet"):
            found += [Region(name, (point[None],)) for point in _ring(where, places, 1)]
        else:
            found.append(Region(name, (_ring(where, places, 3),), excluded=_EXCLUSION.search(name) is not None))
    if not found and root.tag != "ASAP_Annotations":
        raise DataError(f"{path} holds {shown(root.tag)} without annotations, expected ASAP_Annotations")
    return found


def _points(path: Path) -> dict[str, Annotations]:
    """Points of a CSV with x and y, and class and slide where there are such columns, by slide ("" without)."""
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({_brief(error)}): save it as UTF-8") from None
    columns = {str(name).strip().lower(): name for name in (rows[0] if rows else ())}
    if rows and not {"x", "y"} <= columns.keys():
        raise DataError(f"{path} has the columns {named(rows[0])}, expected x and y (level-0 px), and class if known")
    kind = next((columns[name] for name in ("class", "label", "classification", "name") if name in columns), None)
    found: dict[str, list[Region]] = {}
    for number, row in enumerate(rows, 2):
        ring = _ring(f"{path}, line {number}", [(row[columns["x"]], row[columns["y"]])], 1)
        slide = plain_slide(row[columns["slide"]] or "") if "slide" in columns else ""
        found.setdefault(slide, []).append(Region((row[kind] if kind else None) or UNNAMED, (ring,)))
    return {slide: Annotations(path, tuple(regions)) for slide, regions in found.items()}


def _brief(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:120]


def chosen_classes(annotations: Sequence[Annotations], wanted: Sequence[str], option: str) -> None:
    """Refuse classes that no annotation has."""
    known = {name for one in annotations for name in one.names}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"{option} names {shown(unknown[0])}, which no annotation is; they are {named(sorted(known))}")
