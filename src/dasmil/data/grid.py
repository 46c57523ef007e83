"""Tiles of CLAM and slideflow files without a declared size: a slide that shows no stride takes that of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dasmil.data.formats import FeatureFile, probe_features, read_features, slide_name
from dasmil.data.formats.contents import measured_stride, shows_stride
from dasmil.data.labels import plain_slide
from dasmil.data.match import shortened
from dasmil.data.scale import Scale, Scales
from dasmil.errors import DasmilError

FORMATS = ("CLAM", "slideflow")
"""Files whose tiles lie in level-0 pixels and that may say neither their size nor how long a pixel is."""
ALIKE = 0.01  # strides that differ by less are one


def with_cohort_grid(files: Sequence[Path], scales: Scales) -> tuple[Scales, list[str]]:
    """The scales, with the stride of the cohort for slides that show none of their own; and what to say about it.

    The stride of the cohort is the greatest common divisor of the strides of the slides that show one, if it is one of
    them: slides with tiles further apart lie on the same grid.
    """
    shown: dict[str, float] = {}
    without: list[str] = []
    for path in files:
        name = slide_name(path)
        if scales.of(name).mpp is not None and scales.of(name).tile_um is not None:
            continue  # the edge of a tile in pixels is known
        coords = _corners(path)
        if coords is None:
            continue
        if shows_stride(coords):
            shown[name] = measured_stride(coords)
        else:
            without.append(name)
    if not without:
        return scales, []
    stride = _common(list(shown.values()))
    if stride is None:
        why = "no other slide shows one" if not shown else "the other slides differ in theirs"
        return scales, [
            f"Warning: {len(without)} slides show no stride of their tiles, and {why} ({shortened(without)}): their "
            "positions are corners, half a tile from the centres of other slides; give --mpp and --tile-um"
        ]
    strides = {**scales.strides, **{plain_slide(name): stride for name in without}}
    return replace(scales, strides=strides), [
        f"Warning: {len(without)} slides have too few tiles side by side to show their stride ({shortened(without)}): "
        f"they take the {stride:g} px of the other {len(shown)}"
    ]


def _corners(path: Path) -> np.ndarray | None:
    """Places of the tiles in level-0 pixels; None of other formats, and of files that say what a tile is."""
    try:
        if probe_features(path).format not in FORMATS:
            return None
        found: FeatureFile = read_features(path, Scale(mpp=1.0), features=False)
    except DasmilError:  # damaged, or it declares a scale; the reader of the cohort says what is wrong
        return None
    return None if "declared" in found.placed else found.coords


def _common(strides: Sequence[float]) -> float | None:
    """The smallest stride, if all others are multiples of it."""
    if not strides:
        return None
    least = min(strides)
    ratios = np.array(strides) / least
    return float(least) if (np.abs(ratios - ratios.round()) <= ALIKE * ratios).all() else None
