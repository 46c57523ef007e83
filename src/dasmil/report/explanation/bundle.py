"""All files that explain one bag, written into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dasmil.attribution.export import summary, write_geojson, write_instances, write_json, write_pairs
from dasmil.attribution.ground import Ground, layout_of
from dasmil.attribution.names import InstanceNames
from dasmil.attribution.verdict import pair_verdict
from dasmil.models.base import MILModel
from dasmil.report.explanation.heatmap import colours_of, map_figure, tiles_figure
from dasmil.report.explanation.page import write_page
from dasmil.report.style import save_png
from dasmil.types import Bag, Explanation
from dasmil.vocabulary import A_CLASS, Meaning

JOINED_PAIRS = 3


def write_bundle(
    folder: Path,
    model: MILModel,
    bag: Bag,
    explanation: Explanation,
    *,
    score: str = "contribution",
    ground: Ground | None = None,
    classes: Sequence[str] = (),
    origin: str = "",
    caveat: str = "",
    doubtful: bool = False,
    meaning: Meaning = A_CLASS,
    extra: dict[str, object] | None = None,
) -> list[Path]:
    """Write page, PNG maps, CSV, JSON and, where level-0 pixels are known, GeoJSON; returns the files, page first.

    classes: their names, for the page; origin: which model of a run explains, and what the bag was to it; caveat: what
    its run has not shown; doubtful: it is no better than chance; meaning: what the explained output says.
    """
    layout = layout_of(bag, ground)
    values = explanation.scores[score].double().cpu().numpy()
    files = [folder / f"map-{score}.png", folder / "instances.csv", folder / "explanation.json"]
    joined = pair_verdict(explanation).pairs[:JOINED_PAIRS]
    picture = map_figure(layout, values, score, ground, mark=joined, meaning=meaning)
    save_png(picture, files[0])
    write_instances(files[1], bag, explanation)
    write_json(files[2], summary(explanation))
    if explanation.pairs:
        files.append(folder / "pairs.csv")
        write_pairs(files[-1], bag, explanation)
    tiles = None
    if ground is not None and len(bag) >= 2:
        tiles = tiles_figure(layout, values, score, ground, called=InstanceNames(bag).own, meaning=meaning)
        files.append(folder / f"tiles-{score}.png")
        save_png(tiles, files[-1])
    slides = len(bag.metadata.get("slides", ()))  # of a patient with several, level-0 pixels would fall on each other
    if slides < 2 and (bag.unit == "px" or layout.mpp is not None):
        files.append(folder / "instances.geojson")
        write_geojson(files[-1], bag, explanation, colours_of(score, values))
    page = folder / "explanation.html"
    write_page(
        page, model, bag, explanation, score=score, picture=picture, tiles=tiles, lines=bool(joined),
        pictured=ground is not None, classes=classes, origin=origin, caveat=caveat, doubtful=doubtful, meaning=meaning,
        files=[file.name for file in files], extra=extra,
    )  # fmt: skip
    return [page, *files]
