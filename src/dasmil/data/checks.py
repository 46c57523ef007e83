"""What is wrong with the bags of a cohort: one set of checks, for the doctor and for all that trains or predicts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from dasmil.data.formats import FeatureFile
from dasmil.data.formats.contents import measured_stride, off_grid, shows_stride
from dasmil.data.match import shortened
from dasmil.data.scale import Scale
from dasmil.data.text_table import plain_number
from dasmil.errors import DataError, InputError, shown
from dasmil.types import Bag

Level = Literal["error", "warning"]
ACCEPTABLE = (
    "mixed encoders", "mixed scales", "stride against tile", "swapped axes", "outside the slide", "same slides",
    "patient names", "slides disagree", "seen",
)  # fmt: skip
"""Checks whose errors may be accepted by name."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with the slides that have it."""

    level: Level
    check: str
    message: str
    slides: tuple[str, ...] = ()


def look(file: FeatureFile, scale: Scale, slide: str) -> tuple[dict[str, Any], list[Finding]]:
    """What is known of a slide's file that was read (a row), and what is wrong with it."""
    probe = file.probe
    marks, repeated = _content(_rows(file.features), file.coords)
    row: dict[str, Any] = {
        "slide": slide, "path": str(probe.path), "format": probe.format, "tiles": probe.n,
        "features": probe.in_features, "encoder": probe.encoder, "tile_um": file.tile_um, "mpp": file.mpp,
        "rule": file.rule, "encoder_sha256": _text(file.metadata.get("encoder_sha256")),
        "content": marks, "repeated": repeated,
    }  # fmt: skip
    return row, [Finding(level, check, message, (slide,)) for level, check, message in check_contents(file, scale, row)]


def look_at_bag(bag: Bag) -> dict[str, Any]:
    """What is known of a bag in memory: a row as of a file."""
    coords = bag.coords.numpy()
    marks, repeated = _content(_rows(bag.features.numpy()), coords)
    return {
        "slide": bag.bag_id, "tiles": len(bag), "features": bag.features[0].numel(),
        "content": marks, "repeated": 0 if np.ptp(coords, axis=0).max() == 0 else repeated,
        "encoder": _text(bag.metadata.get("encoder")), "encoder_sha256": _text(bag.metadata.get("encoder_sha256")),
        "stride_um": _rounded(measured_stride(coords)) if bag.unit == "um" else None,
    }  # fmt: skip


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def refuse(findings: Iterable[Finding], accepted: Sequence[str]) -> None:
    """Stop at what the doctor calls an error, unless it was accepted by name."""
    names = [name.replace("-", " ") for name in accepted]
    unknown = [name for name in accepted if name.replace("-", " ") not in ACCEPTABLE]
    if unknown:
        known = ", ".join(name.replace(" ", "-") for name in ACCEPTABLE)
        raise InputError(f"--accept {shown(unknown[0])} is no check; it takes {known}")
    wrong = [finding for finding in findings if finding.level == "error" and finding.check not in names]
    if wrong:
        ways = dict.fromkeys(one.check.replace(" ", "-") for one in wrong if one.check in ACCEPTABLE)
        way = f"; or, if it is meant so, --accept {','.join(ways)}" if ways else ""
        raise DataError("; ".join(f"{one.check}: {one.message}" for one in wrong) + way)


ALMOST_ALL = 0.9  # of the instances of a slide differ: a few tiles may be blank
REPEATED = 0.1  # of a slide's instances: more are a mistake
MARKS = 16  # of a bag: enough to tell whether it shares half of its instances with another


def content(features: np.ndarray, coords: np.ndarray) -> str:
    """What tells a bag from others, whatever it is called: the smallest hashes of its instances.

    Of the features alone, so that a copy with instances in another order, twice, moved, cropped, stored in float16 or
    extracted again on another device is still known. Where instances share values (types of cells) or are few, other
    bags may have the same: then with their positions relative to the bag's extent.
    """
    return _content(_rows(features), coords)[0]


PAIRS = 96
"""So many pairs of features are compared to tell an instance; of fewer than 16 features there are too few pairs."""


def _rows(features: np.ndarray) -> np.ndarray:
    """What is hashed of every instance: the same for an instance that was stored or computed in another precision.

    Which of two features is larger, for many pairs, does not change with rounding or scale; few features in float16.
    """
    rows = features.reshape(len(features), -1)
    width = rows.shape[1]
    if width >= 16:
        k = np.arange(1, PAIRS + 1)
        one = k * 2654435761 // 128 % width
        other = (one + 1 + k * 40503 % (width - 1)) % width
        return np.packbits(rows[:, one] > rows[:, other], axis=1)
    with np.errstate(over="ignore"):
        return rows if rows.dtype == np.uint8 else rows.astype(np.float16) + np.float16(0)  # -0 is 0


def _content(rows: np.ndarray, coords: np.ndarray) -> tuple[str, int]:
    """The marks of a bag, and how many of its instances repeat another: the same features at the same place."""
    marks = _marks(rows)
    different = len(rows)
    if len(rows) < MARKS or len(marks) < len(rows):
        different = len(_marks(_beside(rows, coords)))
        if different < MARKS or len(marks) < ALMOST_ALL * different:
            places = (coords - coords.min(0)).astype(np.float64)
            extent = places.max()
            marks = _marks(_beside(rows, np.round(places / extent, 4) + 0.0 if extent else places))
    return " ".join(sorted(marks)[:MARKS]), len(rows) - different


def _beside(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in (rows, places)], axis=1)


def check_repeats(rows: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Instances that a bag holds twice, as a table that was joined wrongly does, weigh twice."""
    found = [row for row in rows if row.get("repeated") and row["repeated"] > REPEATED * row["tiles"]]
    if not found:
        return []
    names = tuple(row["slide"] for row in found)
    first = f"{found[0]['repeated']} of {found[0]['tiles']} in {names[0]}"
    message = (
        f"{len(names)} slides hold instances twice (same features at one place), for example {first}: they weigh twice"
    )
    return [Finding("warning", "repeated instances", message, names)]


def _marks(rows: np.ndarray) -> set[str]:
    return {blake2b(row, digest_size=6).hexdigest() for row in np.ascontiguousarray(rows)}


def same_content(one: str, other: str) -> bool:
    """Whether two bags share at least half of their instances."""
    first, second = set(one.split()), set(other.split())
    return len(first & second) >= max(min(len(first), len(second)) / 2, 1)


def find_copies(contents: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Bags by name that are (nearly) the same as a known one, with its name; a bag is no copy of its own name."""
    holders: dict[str, list[str]] = {}
    for name, marks in known.items():
        for mark in marks.split():
            holders.setdefault(mark, []).append(name)
    found: dict[str, str] = {}
    for name, marks in contents.items():
        others = dict.fromkeys(other for mark in marks.split() for other in holders.get(mark, ())[:MARKS])
        for other in others:
            if other != name and same_content(marks, known[other]):
                found[name] = other
                break
    return found


def check_copies(rows: Iterable[Mapping[str, Any]], patients: Mapping[str, str | None]) -> list[Finding]:
    """One slide under two names would be in training and in the test set; of one patient it counts twice."""
    contents = {row["slide"]: row["content"] for row in rows if row.get("content")}
    pairs = find_copies(contents, contents)
    own = lambda name: patients.get(name) or f"slide {name}"  # noqa: E731
    apart = {name: other for name, other in pairs.items() if own(name) != own(other)}
    findings: list[Finding] = []
    kinds: tuple[tuple[Level, dict[str, str], str], ...] = (
        ("error", apart, "leave one of each out, or give both one patient"),
        ("warning", {name: other for name, other in pairs.items() if name not in apart}, "they count twice"),
    )
    for level, found, todo in kinds:
        if found:
            name, other = next(iter(found.items()))
            message = f"{len(found)} slides have (nearly) the instances of another, for example {name} and {other}"
            findings.append(Finding(level, "same slides", f"{message}: {todo}", tuple(found)))
    return findings


def plain_patient(name: str) -> str:
    """A patient's name without what differs by accident: case, blanks, zeros before or after a number."""
    text = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    number = plain_number(text)
    return text if number is None or not number.is_integer() else str(int(number))


def check_patients(patients: Iterable[str | None]) -> list[Finding]:
    """Names that are most likely one patient's would let this patient be on both sides of a split."""
    groups: dict[str, set[str]] = {}
    for name in filter(None, patients):
        groups.setdefault(plain_patient(name), set()).add(name)
    alike = [sorted(names) for names in groups.values() if len(names) > 1]
    if not alike:
        return []
    example = " and ".join(map(shown, alike[0][:3]))
    message = f"{len(alike)} patients are written in several ways, for example {example}: write them alike"
    return [Finding("error", "patient names", message)]


def check_contents(file: FeatureFile, scale: Scale, row: dict[str, Any]) -> Iterator[tuple[Level, str, str]]:
    bad = int((~np.isfinite(file.features)).reshape(len(file.features), -1).any(axis=1).sum())
    if bad:
        yield "error", "NaN features", f"{bad} of {len(file.features)} instances have NaN or infinite features"
    rows = file.features.reshape(len(file.features), -1)
    constant = int((np.ptp(rows, axis=1) == 0).sum()) if rows.shape[1] > 1 else 0
    if constant:
        yield "warning", "constant features", f"{constant} instances whose features are all one value"
    lost = int((~np.isfinite(file.coords)).any(axis=1).sum())
    if lost:
        yield "error", "NaN coordinates", f"{lost} of {len(file.coords)} instances have NaN or infinite coordinates"
        return
    repeated = len(file.coords) - len(np.unique(np.round(file.coords, 2), axis=0))
    if repeated:
        yield "warning", "duplicated coordinates", f"{repeated} of {len(file.coords)} instances share a position"
    stride = measured_stride(file.coords)
    row["stride_um"] = _rounded(stride)
    if file.tile_um and np.isfinite(stride) and not off_grid(file.coords):
        ratio = stride / file.tile_um
        if ratio < 0.1:
            yield (
                "error",
                "stride against tile",
                f"stride {stride:g} um but tiles of {file.tile_um:g} um: positions are in another unit",
            )
        elif ratio < 0.99:
            yield (
                "warning",
                "stride against tile",
                (f"tiles of {file.tile_um:g} um lie {stride:g} um apart: they overlap, or the scale is wrong"),
            )
        elif ratio > 1.45 and not shows_stride(file.coords):
            yield (
                "warning",
                "scattered tiles",
                f"tiles of {file.tile_um:g} um lie {stride:g} um apart: they are scattered, or the scale is wrong",
            )
        elif ratio > 1.45:  # the diagonal of a grid is 1.41: sparse tissue stays below
            yield (
                "error",
                "stride against tile",
                f"stride {stride:g} um but tiles of {file.tile_um:g} um: the scale is wrong, or tiles are missing",
            )
    yield from _check_size(file, scale)


def _rounded(stride: float) -> float | None:
    return None if np.isnan(stride) else float(f"{stride:.6g}")


def _check_size(file: FeatureFile, scale: Scale) -> Iterator[tuple[Level, str, str]]:
    """Tiles must lie on the slide; if they do so only with x and y exchanged, the axes are swapped."""
    size = file.probe.size_px
    if scale.width_px is not None and scale.height_px is not None:
        size = (scale.width_px, scale.height_px)
    mpp = file.mpp if file.mpp is not None else scale.mpp
    if size is None or mpp is None:
        return
    width, height = size[0] * mpp, size[1] * mpp
    slack = 0.51 * (file.tile_um or 0) + 1
    x, y = file.coords.max(axis=0)[:2]
    inside = x <= width + slack and y <= height + slack
    swapped = y <= width + slack and x <= height + slack
    if not inside and swapped:
        yield (
            "error",
            "swapped axes",
            f"tiles reach ({x:g}, {y:g}) um on a slide of {width:g} x {height:g} um: x and y are exchanged",
        )
    elif not inside:
        yield (
            "error",
            "outside the slide",
            f"tiles reach ({x:g}, {y:g}) um on a slide of {width:g} x {height:g} um: wrong scale",
        )


def check_mixture(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Files of one cohort must come from one encoder at one scale."""
    findings: list[Finding] = []
    checks: tuple[tuple[str, str, Level], ...] = (
        ("features", "mixed encoders", "error"),
        ("encoder", "mixed encoders", "error"),
        ("encoder_sha256", "mixed encoders", "error"),
        ("tile_um", "mixed scales", "error"),
        ("format", "mixed formats", "warning"),
    )
    for column, check, level in checks:
        values = _alike_values([(row[column], row["slide"]) for row in rows if row.get(column) is not None])
        if len(values) > 1:
            ranked = sorted(values.items(), key=lambda item: -len(item[1]))
            counts = ", ".join(f"{value} ({len(slides)} slides)" for value, slides in ranked)
            others = tuple(slide for _, slides in ranked[1:] for slide in slides)
            findings.append(Finding(level, check, f"{column}: {counts}", others))
    return findings + _check_strides(rows)


FEW, UNITS_APART = 20, 50.0
"""Of fewer instances the stride is not asked. Tissue may be some times denser than other tissue, not UNITS_APART."""


def strides_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """How far instances of slides lie apart in um, where there are enough of them to tell."""
    return {row["slide"]: row["stride_um"] for row in rows if row.get("stride_um") and row["tiles"] >= FEW}


def _check_strides(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Slides whose instances lie many times nearer or farther than those of the others: um beside nm or mm."""
    strides = strides_of(rows)
    if not strides:
        return []
    usual = float(np.median(list(strides.values())))
    others = tuple(slide for slide, own in strides.items() if not usual / UNITS_APART < own < usual * UNITS_APART)
    if not others:
        return []
    message = f"instances of {len(others)} slides ({shortened(others, 3)}) lie {strides[others[0]]:.3g} um apart"
    return [
        Finding(
            "error", "mixed scales", f"{message}, those of the others {usual:.3g} um: are the units the same?", others
        )
    ]


SCANNERS = 1.02  # of one cohort they differ in their um per pixel by a part of this without anything being wrong


def _alike_values(found: Sequence[tuple[Any, str]]) -> dict[Any, list[str]]:
    """Slides by value; lengths that differ no more than those of two scanners are one."""
    values: dict[Any, list[str]] = {}
    group: float | None = None
    for value, slide in sorted(found, key=lambda item: item[0]):
        if isinstance(value, float):
            group = value if group is None or value > SCANNERS * group else group
            value = round(group, 1)
        values.setdefault(value, []).append(slide)
    return values


def grouped(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per check: the first message as the example, all slides named."""
    groups: dict[tuple[Level, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.check), []).append(finding)
    grouped: list[Finding] = []
    for (level, check), members in groups.items():
        slides = tuple(slide for member in members for slide in member.slides)
        message = members[0].message
        if len(members) > 1:
            message = f"{len(members)} slides ({shortened(slides, 3)}); for example: {message}"
        elif slides and slides[0] not in message:
            message = f"{slides[0]}: {message}"
        grouped.append(Finding(level, check, message, slides))
    return grouped
