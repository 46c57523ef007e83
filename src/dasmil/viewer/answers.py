"""What the page asks for, as plain dictionaries: the list of bags, a bag, its account, an instance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from dasmil.attribution.deciding import Partner
from dasmil.attribution.names import InstanceNames
from dasmil.attribution.scale import colour_scale
from dasmil.attribution.verdict import pair_verdict
from dasmil.errors import DasmilError
from dasmil.report.style import OVER_PICTURE, palette, tints
from dasmil.viewer.clusters import CLUSTERS
from dasmil.viewer.explained import BagAccount
from dasmil.viewer.shelf import EditedBag, Entry, OpenBag, Picture, Shelf
from dasmil.vocabulary import A_CLASS, SCORES, speaker_text

TILE = 256  # px, of the deep-zoom pyramid
GROUND = 1600  # px, longer side of the plain ground for bags without a picture
SHOWN_PAIRS, SHOWN_SUMS = 8, 6


def bag_list(shelf: Shelf) -> dict:
    """Everything that is the same for all bags: title, classes, models, colours; and one line for each bag."""
    bags = [
        {
            "index": index,
            "id": entry.bag_id,
            "label": entry.label,
            "label_name": entry.truth or shelf.class_name(entry.label),
            "prediction": entry.prediction,
            "prediction_name": shelf.class_name(entry.prediction),
            "probability": entry.probability,
            "split": entry.split,
            "patient": entry.patient,
            "voice": entry.voice,
            "sets": {str(voice): name for voice, name in entry.sets.items()},
        }
        for index, entry in enumerate(shelf.entries)
    ]
    colours = {
        kind: {"palette": palette(signed).tolist(), "tints": tints(signed).tolist()}
        for kind, signed in (("signed", True), ("plain", False))
    }
    return {
        "title": shelf.title,
        "subtitle": shelf.subtitle,
        "classes": shelf.classes,
        "voices": [voice.title for voice in shelf.voices],
        "colours": colours | {"over_picture": OVER_PICTURE},
        "bags": bags,
    }


def _frame(opened: OpenBag) -> dict:
    """The rectangle of the unit's plane that the picture covers, and pixels per unit."""
    picture = opened.picture
    x0, y0, width, height = opened.layout.field
    k = GROUND / max(width, height) if picture is None else picture.px_per_unit
    return {"x0": x0, "y0": y0, "width": width, "height": height, "px_per_unit": k}


def levels(picture: Picture) -> tuple[int, int]:
    """The coarsest level of the deep-zoom pyramid, which is one tile, and the finest, which is level 0 of the slide."""
    finest = math.ceil(math.log2(max(picture.width, picture.height, 2)))
    return min(finest, int(math.log2(TILE))), finest


def _level0_per_unit(opened: OpenBag) -> float | None:
    """Level-0 pixels in one unit of the coordinates, which annotations are drawn in; None where nobody knows."""
    if opened.bag.unit == "px":
        return 1.0
    mpp = opened.layout.mpp
    return None if mpp is None else 1 / mpp


def describe(shelf: Shelf, index: int, voice: int | None, edits: str = "") -> dict:
    """What is known without computing: where the instances lie, what they are, and the learned distance."""
    opened = shelf.open(index, edits)
    shelf.explained(index, voice, edits)  # a bag that does not fit the model is refused here
    bag, picture = opened.bag, opened.picture
    size = opened.layout.side
    extent = (bag.coords.amax(0) - bag.coords.amin(0)).norm().item()
    chosen = shelf.entry(index).voice if voice is None else voice
    curves = shelf.curves(extent, chosen)
    if curves:  # the part of the axis where phi changes, not the whole slide
        reach = max((c["midpoint"] + 3 * c["width"] for c in curves if math.isfinite(c["width"])), default=extent)
        reach = min(extent, max(2 * max(c["midpoint"] for c in curves), reach, 4 * size)) or 1.0
        curves = shelf.curves(reach, chosen)
    return {
        "n": len(bag),
        "unit": bag.unit,
        "instance_size": size,
        "round": opened.is_round,
        "frame": _frame(opened),
        "level0_per_unit": _level0_per_unit(opened),
        "rearranged": _rearranged(opened),
        "picture": picture
        and {
            "width": picture.width,
            "height": picture.height,
            "tile_size": TILE,
            **dict(zip(("min_level", "max_level"), levels(picture))),
        },
        "curves": curves,
        "told": shelf.told(chosen),
        "groups": _groups(opened),
        "has_ids": opened.names.has_ids,
        "warnings": [*([f"Caveat of the run: {shelf.caveat}"] if shelf.caveat else []), *opened.warnings],
    }


def _groups(opened: OpenBag) -> list[dict]:
    """What instances can be coloured by besides scores: their kinds, their sections, clusters of their features."""
    bag, names = opened.bag, opened.names
    found = []
    if bag.instance_labels is not None:
        kinds = [names.kind(int(k)) for k in bag.instance_labels.unique()]
        found.append({"name": "kinds", "title": "Kind of instance", "names": kinds})
    if bag.section is not None:
        sections = [names.section(int(k)) for k in bag.section.unique()]
        found.append({"name": "sections", "title": "Section", "names": sections})
    k = min(CLUSTERS, len(bag))
    clusters = [f"cluster {c + 1}" for c in range(k)]
    return [*found, {"name": "clusters", "title": f"Clusters of the features (k-means, {k})", "names": clusters}]


def numbers_before(opened: OpenBag) -> torch.Tensor:
    """For every instance its number in the unedited bag."""
    return torch.from_numpy(opened.origin) if isinstance(opened, EditedBag) else torch.arange(len(opened.bag))


def group_index(opened: OpenBag, name: str) -> torch.Tensor:
    """For every instance the number of its group in the list of names."""
    labels = {"kinds": opened.bag.instance_labels, "sections": opened.bag.section}.get(name)
    if name == "clusters":
        return opened.clusters
    if labels is None:
        raise DasmilError(f"there are no groups {name!r} of this bag")
    return labels.unique(return_inverse=True)[1]


def _rearranged(opened: OpenBag) -> bool:
    """Whether sections are drawn side by side (there is no picture), not where their coordinates are."""
    return opened.picture is None and opened.bag.section is not None


def account(shelf: Shelf, index: int, voice: int | None, edits: str = "") -> dict:
    """The account of the logit and its scores with their colour scales; waits until it is computed."""
    explained = shelf.explained(index, voice, edits)
    explanation = explained.explanation
    opened = shelf.open(index, edits)
    names = opened.names
    moved = _rearranged(opened)
    verdict = pair_verdict(explanation)
    return {
        **_verdict(shelf, explained),
        "unedited": _verdict(shelf, shelf.explained(index, voice)) if edits else None,
        "method": explanation.method,
        "distance_share": explanation.distance_share,
        "origin": origin(shelf, shelf.entry(index), voice),
        "scores": [
            {
                "name": name,
                "title": explained.meaning.score(name).title,
                "hint": explained.meaning.score(name).hint,
                **_scale(name, explanation.scores[name].double().cpu().numpy()),
            }
            for name in SCORES
            if name in explanation.scores
        ],
        "pairs": [
            {
                "i": p.i,
                "j": p.j,
                "i_name": names.label(p.i),
                "j_name": names.label(p.j),
                "contribution": p.contribution,
                "distance": p.distance,
                "phi": p.phi,
            }
            for p in verdict.pairs[:SHOWN_PAIRS]
        ],
        "verdict": verdict.text,
        "sums": [
            {
                "title": title,
                "rows": [
                    {"between": part.between, "contribution": part.contribution, "places": () if moved else part.places}
                    for part in (parts if len(parts[0].between) == 1 else parts[:SHOWN_SUMS])
                ],
            }
            for title, parts in verdict.sums
        ],
        "warnings": [explained.warning] if explained.warning else [],
    }


def _verdict(shelf: Shelf, explained: BagAccount) -> dict[str, Any]:
    """What the model predicts for a bag, as numbers and in words."""
    return {
        "logit": explained.explanation.logit,
        "probability": explained.probability,
        "target_name": shelf.class_name(explained.explanation.target),
        "said": _said(explained),
    }


def _said(explained: BagAccount) -> list[tuple[str, str]] | None:
    """What the explained output says, where it is no class: names and values."""
    meaning, explanation = explained.meaning, explained.explanation
    if meaning == A_CLASS:
        return None
    sure = explained.probability
    found = [] if sure is None else [(f"Probability of {meaning.probability}", f"{sure:.3f}")]
    value = f"{explanation.logit:+.3f}" if meaning.scale == 1.0 else f"{explanation.logit:,.4g} {meaning.unit}".strip()
    return [*found, (meaning.what[0].upper() + meaning.what[1:], value)]


def _scale(name: str, values: np.ndarray) -> dict[str, Any]:
    scale = colour_scale(name, values)
    return {"low": scale.low, "high": scale.high, "signed": scale.signed, "linear": scale.linear}


def origin(shelf: Shelf, entry: Entry, voice: int | None) -> str:
    """Which model speaks and what the bag was to it: "fold 2, seed 0; this bag was in its test set"."""
    chosen = entry.voice if voice is None else voice
    title = shelf.voices[chosen].title
    used = entry.sets.get(chosen, entry.split if chosen == entry.voice else None)
    return speaker_text(title, used)


def score(shelf: Shelf, index: int, voice: int | None, name: str, edits: str = "") -> torch.Tensor:
    """One score of every instance."""
    scores = shelf.explanation(index, voice, edits).scores
    if name not in scores:
        raise DasmilError(f"there is no score {name!r} for this bag; it has {', '.join(scores)}")
    return scores[name]


def instance(shelf: Shelf, index: int, voice: int | None, number: int, edits: str = "") -> dict:
    """One instance: who it is, its scores, what it attends to and which deciding rows attend to it."""
    partners = shelf.partners(index, number, voice, edits)
    opened, explained = shelf.open(index, edits), shelf.explained(index, voice, edits)
    names = opened.names
    scores = {} if explained.known is None else explained.known.scores
    x, y = opened.bag.coords[number, :2].tolist()
    watched = explained.watchers(number)
    found: dict[str, Any] = {
        "index": number,
        "name": names.own(number),
        "kind": names.kind_of(number),
        "section": names.section_of(number),
        "x": x,
        "y": y,
        "scores": {explained.meaning.score(name).title: float(values[number]) for name, values in scores.items()},
        "partners": [_partner(p, names) for p in partners],
        "watchers": None,
    }
    if watched is not None:
        rows, sides = watched
        found["watchers"] = [_partner(p, names) for p in rows if p.contribution]
        found["sides"] = {"looks": sides.looks, "looked_at": sides.looked_at, "rows": sides.watchers}
    return found


def _partner(p: Partner, names: InstanceNames) -> dict:
    return {
        "index": p.j,
        "name": names.label(p.j),
        "head": p.head,
        "weight": p.weight,
        "distance": p.distance,
        "phi": p.phi,
        "contribution": p.contribution,
    }
