"""How many micrometres a pixel is, from what scanners and programs write into their files."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from dasmil.errors import DataError

MIN_MPP, MAX_MPP = 0.05, 10.0
"""What a microscope slide can have, in um per pixel: a 100x objective has about 0.1, a 1x overview 10."""
MAX_ANISOTROPY = 0.02
INCH_UM, CENTIMETRE_UM = 25_400.0, 10_000.0

_OME_UNITS = {"nm": 1e-3, "\u00b5m": 1.0, "\u03bcm": 1.0, "um": 1.0, "mm": 1e3, "cm": 1e4, "m": 1e6, "in": INCH_UM}
_MIRAX = "mirax.LAYER_0_LEVEL_0_SECTION.MICROMETER_PER_PIXEL_"
_DICOM = "dicom.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing"


@dataclass(frozen=True)
class Resolution:
    """What a file says: candidates (where it is written, um/px along x, along y), the most trusted first."""

    candidates: list[tuple[str, float, float]] = field(default_factory=list)
    objective: float | None = None

    def then(self, other: Resolution) -> Resolution:
        """These candidates before those of the other."""
        return Resolution(self.candidates + other.candidates, self.objective or other.objective)


@dataclass(frozen=True)
class PixelSize:
    """The one number used: micrometres per level-0 pixel, where it comes from, and what a user should know.

    told: what the file itself says, where another was given and it says something plausible.
    """

    mpp: float
    origin: str
    warnings: tuple[str, ...] = ()
    told: float | None = None


def choose_pixel_size(name: str, found: Resolution, given: float | None = None) -> PixelSize:
    """Micrometres per pixel: as given, else the most trusted plausible value, else the objective's, or an error."""
    remedy = "give it with --mpp (um per pixel, for all slides) or slide by slide with --mpp-table (CSV: slide,mpp)"
    plausible = [c for c in found.candidates if not _fault(c)]
    if given is not None:
        if not MIN_MPP <= given <= MAX_MPP:
            raise DataError(f"{name}: the given mpp {given:g} is not between {MIN_MPP:g} and {MAX_MPP:g} um per pixel")
        warnings, told = [], None
        if plausible:
            told = (plausible[0][1] + plausible[0][2]) / 2
            if abs(told / given - 1) > 0.05:
                warnings.append(f"the given mpp {given:g} stands in for {told:g} from {plausible[0][0]}")
        return PixelSize(given, "given", tuple(warnings), told)
    if plausible:
        origin, x, y = plausible[0]
        refused = found.candidates[: found.candidates.index(plausible[0])]
        return PixelSize((x + y) / 2, origin, tuple(f"passed over {c[0]}: {_fault(c)}" for c in refused))
    if found.candidates:
        raise DataError(f"{name}: {found.candidates[0][0]} says {_fault(found.candidates[0])}; {remedy}")
    if found.objective:
        mpp = 10 / found.objective
        if MIN_MPP <= mpp <= MAX_MPP:
            note = f"no mpp in the file: {mpp:g} um/px is a guess from its {found.objective:g}x objective; {remedy}"
            return PixelSize(mpp, "objective power", (note,))
    raise DataError(f"{name}: the file does not say how many micrometres a pixel is; {remedy}")


def _fault(candidate: tuple[str, float, float]) -> str | None:
    _, x, y = candidate
    if not (math.isfinite(x) and math.isfinite(y) and min(x, y) >= MIN_MPP and max(x, y) <= MAX_MPP):
        return f"{x:g} x {y:g} um per pixel, expected between {MIN_MPP:g} and {MAX_MPP:g}"
    if abs(x / y - 1) > MAX_ANISOTROPY:
        return f"{x:g} x {y:g} um per pixel, expected pixels as wide as high (within {MAX_ANISOTROPY:.0%})"
    return None


def from_properties(properties: Mapping[str, str]) -> Resolution:
    """The candidates among OpenSlide's properties: its own, then the vendors' keys, then TIFF resolution tags."""
    found: list[tuple[str, float, float]] = []

    def add(origin: str, x: str | None, y: str | None, factor: float = 1.0) -> None:
        with contextlib.suppress(TypeError, ValueError):
            found.append((origin, float(x or y or "") * factor, float(y or x or "") * factor))

    get = properties.get
    add("openslide.mpp-x, mpp-y", get("openslide.mpp-x"), get("openslide.mpp-y"))
    add("aperio.MPP", get("aperio.MPP"), None)
    add("the Mirax index", get(_MIRAX + "X"), get(_MIRAX + "Y"))
    add("DICOM PixelSpacing", get(_DICOM + "[1]"), get(_DICOM + "[0]"), 1000.0)
    spacing = re.findall(r"[\d.eE+-]+", get("philips.DICOM_PIXEL_SPACING") or "")
    if len(spacing) >= 2:
        add("philips.DICOM_PIXEL_SPACING", spacing[1], spacing[0], 1000.0)
    add("ventana.ScanRes", get("ventana.ScanRes"), None)
    found += _from_description(get("tiff.ImageDescription") or get("openslide.comment") or "")
    unit = {"inch": INCH_UM, "centimeter": CENTIMETRE_UM}.get(get("tiff.ResolutionUnit", ""))
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
        if unit:
            x, y = float(get("tiff.XResolution") or ""), float(get("tiff.YResolution") or "")
            found.append(("the TIFF resolution tags", unit / x, unit / y))
    objective = None
    for key in ("openslide.objective-power", "aperio.AppMag", "hamamatsu.SourceLens", "ventana.Magnification"):
        with contextlib.suppress(TypeError, ValueError):
            objective = objective or float(get(key) or "")
    return Resolution(found, objective)


def from_tiff_tags(page: Any) -> Resolution:
    """The candidates on a TIFF page: MPP in its description, then the resolution tags."""
    found = _from_description(page.description or "")
    unit = {2: INCH_UM, 3: CENTIMETRE_UM}.get(int(page.resolutionunit or 1))
    x, y = page.resolution
    if unit and "XResolution" in page.tags and x > 0 and y > 0:
        found.append(("the TIFF resolution tags", unit / x, unit / y))
    magnification = re.search(r"AppMag\s*=\s*([\d.]+)", page.description or "")
    return Resolution(found, float(magnification.group(1)) if magnification else None)


def from_ome(text: str) -> Resolution:
    """The physical pixel size and the objective in OME-XML."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return Resolution()
    found: list[tuple[str, float, float]] = []
    pixels = next((e for e in root.iter() if e.tag.endswith("}Pixels") or e.tag == "Pixels"), None)
    if pixels is not None:
        with contextlib.suppress(KeyError, ValueError):
            x = float(pixels.attrib["PhysicalSizeX"]) * _OME_UNITS[pixels.get("PhysicalSizeXUnit", "um")]
            y_text, unit_y = pixels.get("PhysicalSizeY"), pixels.get("PhysicalSizeYUnit", "um")
            found.append(("OME PhysicalSize", x, float(y_text) * _OME_UNITS[unit_y] if y_text else x))
    objective = None
    for element in root.iter():
        with contextlib.suppress(KeyError, ValueError):
            objective = objective or float(element.attrib["NominalMagnification"])
    return Resolution(found, objective)


def from_dpi(dpi: tuple[float, float] | None) -> Resolution:
    """The candidate in a JPEG or PNG: pixels per inch."""
    if not dpi or min(dpi) <= 0:
        return Resolution()
    return Resolution([("the picture's dpi", INCH_UM / float(dpi[0]), INCH_UM / float(dpi[1]))])


def _from_description(text: str) -> list[tuple[str, float, float]]:
    match = re.search(r"\bMPP\s*=\s*([\d.]+)", text)
    if not match:
        return []
    with contextlib.suppress(ValueError):
        return [("MPP in the image description", float(match.group(1)), float(match.group(1)))]
    return []
