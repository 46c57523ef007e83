"""The scale of a run: how large its tiles were, in micrometres, and whether other bags are of the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dasmil.errors import ScaleError

TOLERANCE = 0.05
"""Tiles may be smaller or larger than those of a run by this part: scanners differ by less, magnifications by more."""

Sizes = tuple[float | None, float | None]
"""Edge of a tile in um and um per level-0 pixel, of one slide; None where nobody says."""


def noted(slides: Iterable[Sizes]) -> dict[str, list[float]]:
    """What a run notes: the smallest and largest tile edge and um/px of its slides; without what nobody says."""
    known = list(slides)
    found: dict[str, list[float]] = {}
    for name, place in (("tile_um", 0), ("mpp", 1)):
        values = [value for sizes in known if (value := sizes[place]) is not None]
        if values and len(values) == len(known):
            found[name] = [min(values), max(values)]
    return found


def check_scale(data: Mapping[str, Any], slides: Mapping[str, Sizes]) -> None:
    """Refuse slides whose tiles are of another size than those that a run was trained on.

    data: what the run notes about its own; runs of earlier versions note no scale, and nothing is refused.
    """
    known = data.get("scale") or {}
    if "tile_um" not in known:
        return
    low, high = known["tile_um"]
    other = {
        name: sizes
        for name, sizes in slides.items()
        if sizes[0] is not None and not low * (1 - TOLERANCE) <= sizes[0] <= high * (1 + TOLERANCE)
    }
    if not other:
        return
    name, (tile_um, mpp) = next(iter(other.items()))
    assert tile_um is not None
    nearest = low if tile_um < low else high
    here = f"tiles of {tile_um:.4g} um" + (f" ({mpp:.4g} um/px)" if mpp else "")
    there = f"tiles of {_range(low, high)} um" + (f" ({_range(*known['mpp'])} um/px)" if "mpp" in known else "")
    fits = f" ({mpp * nearest / tile_um:.4g} um/px would fit)" if mpp else ""
    count = f" and {len(other) - 1} more" if len(other) > 1 else ""
    raise ScaleError(
        f"{name}{count}: {here}, but the run was trained on {there}: it knows no other magnification. Correct "
        f"the scale with --mpp, --tile-um or --scale-table if it is wrong{fits}, else extract tiles of the run's size; "
        "a run that was itself given a wrong scale must be trained again"
    )


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if high <= low * 1.001 else f"{low:.4g} to {high:.4g}"
