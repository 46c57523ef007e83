"""Bags inside regions: which tiles are kept (--roi, --exclude), and what share of each lies in a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dasmil.data.annotations import Annotations, annotations_by_slide, chosen_classes
from dasmil.data.labels import plain_slide
from dasmil.errors import DataError, ScaleError

if TYPE_CHECKING:
    from dasmil.types import Bag

HALF = 0.5
"""A tile counts as inside where at least this share of it is."""


class NothingLeftError(DataError):
    """No instance of a bag lies in the chosen regions."""


@dataclass(frozen=True)
class Restriction:
    """Regions by plain slide name: roi, of which only what lies inside is used; exclude, of which nothing is.

    A slide without a file of either kind is used whole.
    """

    roi: Mapping[str, Annotations] = field(default_factory=dict)
    exclude: Mapping[str, Annotations] = field(default_factory=dict)

    def touches(self, slide: str) -> bool:
        """Whether there are regions of this slide."""
        return plain_slide(slide) in self.roi or plain_slide(slide) in self.exclude

    def keeps(self, slide: str, centres: np.ndarray, side: float) -> np.ndarray:
        """Which squares [n] stay; centres [n, 2] and side in level-0 pixels."""
        kept = np.ones(len(centres), dtype=bool)
        name = plain_slide(slide)
        if name in self.roi:
            kept &= self.roi[name].shares(centres, side) >= HALF
        if name in self.exclude:
            kept &= self.exclude[name].shares(centres, side) < HALF
        return kept

    def of(self, bag: Bag) -> Bag:
        """The bag with the instances that stay; a bag of which none stays is refused."""
        if not self.touches(bag.bag_id):
            return bag
        kept = self.keeps(bag.bag_id, *level0(bag))
        if not kept.any():
            raise NothingLeftError(f"bag {bag.bag_id!r}: none of its {len(bag)} instances lies in the chosen regions")
        return pick(bag, np.flatnonzero(kept)) if not kept.all() else bag

    def lines(self, slides: Sequence[str]) -> list[str]:
        """How many slides have regions, for people."""
        found = []
        for words, regions in (("--roi", self.roi), ("--exclude", self.exclude)):
            if regions:
                here = sum(plain_slide(slide) in regions for slide in slides)
                found.append(f"{words}: {here} of {len(slides)} slides have regions; the others are used whole")
        return found


def read_restriction(
    roi: str | Path | None = None,
    exclude: str | Path | None = None,
    roi_classes: Sequence[str] = (),
    exclude_classes: Sequence[str] = (),
) -> Restriction | None:
    """Regions from files or folders; classes: only these count. None where nothing was given."""
    if roi is None and exclude is None:
        return None
    return Restriction(_chosen(roi, roi_classes, "--roi-class"), _chosen(exclude, exclude_classes, "--exclude-class"))


def _chosen(path: str | Path | None, classes: Sequence[str], option: str) -> dict[str, Annotations]:
    if path is None:
        return {}
    found = annotations_by_slide(path)
    if classes:
        chosen_classes(list(found.values()), classes, option)
        found = {slide: one.of(classes) for slide, one in found.items()}
    return found


def level0(bag: Bag) -> tuple[np.ndarray, float]:
    """Centres [n, 2] of a bag and the side of its instances in level-0 pixels, which annotations count."""
    tile, mpp = _number(bag.metadata, "tile_um"), _number(bag.metadata, "mpp")
    if bag.unit == "um" and mpp is None:
        raise ScaleError(
            f"bag {bag.bag_id!r} is in micrometres and does not say how long a level-0 pixel is, in which annotations "
            "are drawn: give --mpp, or extract the slide again"
        )
    per_unit = 1.0 if bag.unit == "px" else 1 / (mpp or 1.0)
    side = (tile or 0.0) * per_unit if bag.unit == "um" else (tile / mpp if tile and mpp else 0.0)
    if not side and bag.features.ndim == 4 and bag.unit == "px":
        side = float(bag.features.shape[-1])
    return bag.coords[:, :2].double().numpy() * per_unit, side or 1.0  # points: the pixel at the centre


def tile_shares(bag: Bag, annotations: Annotations) -> dict[str, np.ndarray]:
    """For every class of the annotations the share [n] of each instance inside it."""
    centres, side = level0(bag)
    return {name: annotations.of([name]).shares(centres, side) for name in annotations.names}


def label_tiles(bag: Bag, annotations: Annotations, *, least: float = HALF, other: str = "other") -> Bag:
    """The bag with a class for every instance: the one with the largest share of it, ``other`` below ``least``.

    Example: ``dasmil.label_tiles(bag, dasmil.read_annotations("slide1.geojson"))``
    """
    shares = tile_shares(bag, annotations)
    names = [other, *shares]
    table = np.stack([np.full(len(bag), least - 1e-9), *shares.values()])
    labels = torch.from_numpy(table.argmax(0).astype(np.int64))
    return replace(bag, instance_labels=labels, metadata={**bag.metadata, "instance_label_names": names})


def pick(bag: Bag, index: np.ndarray) -> Bag:
    """The bag with these instances, in this order; what is known of each goes with it."""
    rows = torch.from_numpy(np.asarray(index, dtype=np.int64))
    parts: dict[str, Any] = {
        name: value[rows]
        for name in ("features", "coords", "instance_labels", "key_instances", "section")
        if (value := getattr(bag, name)) is not None
    }
    if bag.instance_ids is not None:
        parts["instance_ids"] = tuple(bag.instance_ids[k] for k in rows.tolist())
    return replace(bag, **parts)


def _number(metadata: Mapping[str, Any], name: str) -> float | None:
    value = metadata.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value)
