"""Patches around given points (cells, nuclei) as bags: cut, encoded, each under the name that its table gives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from dasmil.data.labels import SLIDE, plain_slide
from dasmil.data.store import write_bag
from dasmil.data.text_table import plain_number, read_rows
from dasmil.errors import DasmilError, DataError, InputError, named, shown, unknown_name
from dasmil.files import json_hash
from dasmil.types import Bag
from dasmil.wsi.encoders import Encoder
from dasmil.wsi.finished import read_marks
from dasmil.wsi.pipeline import slide_name
from dasmil.wsi.reader import Slide, fingerprint

PointUnit = Literal["um", "px"]
IDS = ("id", "cell_id", "instance_id", "nucleus_id", "object_id", "name")
BATCH = 64


@dataclass(frozen=True, eq=False)
class Points:
    """The points of one slide: positions [n, 2] in the unit of their table, and their names (None: it has none)."""

    positions: np.ndarray
    ids: tuple[str, ...] | None


def read_points(path: Path) -> dict[str, Points]:
    """Points by slide (``plain_slide``) from a table with slide, x, y and perhaps an id; CSV, TSV or Excel."""
    header, rows = read_rows(path, "table of points (columns slide, x, y, and id if there is one):")
    lower = {name.lower().replace(" ", "_"): name for name in header}
    slide = next((lower[name] for name in SLIDE if name in lower), None)
    missing = [name for name, there in (("slide", slide), ("x", lower.get("x")), ("y", lower.get("y"))) if not there]
    if missing or slide is None:
        raise DataError(f"{path}: no column {' and '.join(missing)} among {named(header)}; expected slide, x, y and id")
    own = next((lower[name] for name in IDS if name in lower), None)
    found: dict[str, tuple[list[list[float]], list[str]]] = {}
    for number, row in rows:
        place = [x for name in "xy" if (x := plain_number(row[lower[name]])) is not None and math.isfinite(x)]
        if len(place) < 2:
            given = f"{shown(row[lower['x']])}, {shown(row[lower['y']])}"
            raise DataError(f"{path}, line {number}: the point is ({given}), expected two numbers")
        places, ids = found.setdefault(plain_slide(row[slide]), ([], []))
        places.append(place)
        ids.append(row[own] if own else "")
    return {name: Points(np.array(places), tuple(ids) if own else None) for name, (places, ids) in found.items()}


def extract_points(
    slides: Sequence[Path],
    out: Path,
    points: Mapping[str, Points],
    encoder: Encoder,
    *,
    unit: PointUnit,
    patch_um: float,
    mpp: Mapping[Path, float] | float | None = None,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """A bag file per slide with the patches of ``patch_um`` around its points; a row of facts per slide.

    unit: of the points, um or px (level-0 pixels). mpp: stands in for the slides' own um per pixel. Patches are taken
    as they are: no stain is normalised, none is left out. A slide that fails is a row with its reason.
    """
    if unit not in get_args(PointUnit):
        raise unknown_name("unit of points", str(unit), get_args(PointUnit))
    if not 1 <= patch_um <= 10_000:
        raise InputError(f"patch_um is {patch_um:g}, expected the edge of a patch, 1 to 10,000 um")
    known = {plain_slide(slide_name(path)) for path in slides}
    if not known & points.keys():
        raise InputError(
            f"no slide has points: the table names {named(sorted(points))}, the slides are {named(sorted(known))}"
        )
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for path in slides:
        name = slide_name(path)
        if progress:
            progress(name)
        given = mpp.get(path) if isinstance(mpp, Mapping) else mpp
        row: dict[str, Any] = {"slide": name, "status": "failed", "patches": 0, "reason": ""}
        try:
            there = points.get(plain_slide(name))
            if there is None:
                raise DataError(f"{path}: the table of points names no point of this slide")
            row |= _one(path, out / f"{name}.h5", there, encoder, unit, patch_um, given, force)
        except DasmilError as error:
            row["reason"] = str(error)
        rows.append(row)
    return rows


def _one(
    path: Path,
    target: Path,
    points: Points,
    encoder: Encoder,
    unit: str,
    patch_um: float,
    mpp: float | None,
    force: bool,
) -> dict[str, Any]:
    """The bag of one slide."""
    described = {
        "points": json_hash([points.positions.tolist(), list(points.ids or ())]), "unit": unit, "patch_um": patch_um,
        "encoder": encoder.name, "encoder_sha256": encoder.sha256, "mpp": mpp,
    }  # fmt: skip
    if encoder.name == "none":
        described["tile_px"] = encoder.input_px
    marks = json_hash(described), fingerprint(path) if path.is_file() else ""
    if target.exists() and not force:
        if read_marks(target) == marks:
            return {"status": "skipped", "patches": len(points.positions)}
        raise DataError(f"{target} is there and was made otherwise; use --force to make it again, or another folder")
    with Slide(path, mpp) as slide:
        centres = points.positions * (slide.mpp if unit == "px" else 1.0)
        _check_inside(path, slide, centres, unit)
        features = np.concatenate(
            [
                encoder.encode(
                    np.stack(
                        [
                            slide.read_tile(x - patch_um / 2, y - patch_um / 2, patch_um, encoder.input_px)
                            for x, y in centres[start : start + BATCH]
                        ]
                    )
                )
                for start in range(0, len(centres), BATCH)
            ]
        )
        metadata = {
            "tile_um": patch_um, "tile_px": encoder.input_px, "mpp": slide.mpp, "mpp_origin": slide.mpp_origin,
            "slide_width_px": slide.width, "slide_height_px": slide.height, "encoder": encoder.name,
            "encoder_sha256": encoder.sha256, "stain": "none", "config": described, "config_hash": marks[0],
            "source_fingerprint": marks[1], "source": path.name,
        }  # fmt: skip
    bag = Bag(
        torch.from_numpy(features), torch.from_numpy(centres.astype(np.float32)), "um", target.stem,
        metadata=metadata, instance_ids=points.ids,
    )  # fmt: skip
    write_bag(target, bag, dtype=None if bag.pixels else "float16")
    return {"status": "done", "patches": len(centres)}


def _check_inside(path: Path, slide: Slide, centres: np.ndarray, unit: str) -> None:
    """Points that do not lie on the slide: mostly pixels that were called micrometres, or of another level."""
    size = (slide.width_um, slide.height_um)
    outside = int(((centres < 0) | (centres > size)).any(1).sum())
    if outside:
        far = centres.max(0)
        raise DataError(
            f"{path}: {outside:,} of {len(centres):,} points lie outside the slide of {size[0]:.0f} x {size[1]:.0f} um "
            f"({slide.width:,} x {slide.height:,} px of {slide.mpp:.4g} um); they reach ({far[0]:.0f}, "
            f"{far[1]:.0f}) um as --points-unit {unit}: give their unit (um, or px of level 0) rightly"
        )
