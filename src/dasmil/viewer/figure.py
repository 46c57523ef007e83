"""A figure for a paper of what the viewer shows: the slide and the map of a score, with scale bar and colour bar."""

from __future__ import annotations

import threading

from dasmil.attribution.contributions import both_ways
from dasmil.errors import InputError, unknown_name
from dasmil.report.explanation.heatmap import ground_figure, map_figure
from dasmil.report.page import picture
from dasmil.report.saved import FORMATS, compose, figure_bytes
from dasmil.viewer.shelf import Shelf

MEDIA = {"svg": "image/svg+xml", "pdf": "application/pdf", "png": "image/png"}
MARKED_PAIRS = 3
_drawing = threading.Lock()  # the settings of matplotlib are those of the whole process


def figure_file(shelf: Shelf, index: int, voice: int | None, edits: str, score: str, kind: str) -> bytes:
    """The figure as a file of this kind: the slide, where there is one, beside the map of the score."""
    if kind not in FORMATS:
        raise unknown_name("format", kind, FORMATS)
    opened, explained = shelf.open(index, edits), shelf.explained(index, voice, edits)
    explanation = explained.explanation
    if score not in explanation.scores:
        raise InputError(f"a figure shows a score of this bag ({', '.join(explanation.scores)}), not {score!r}")
    values = explanation.scores[score].double().cpu().numpy()
    ground = None if opened.picture is None else opened.picture.ground
    pairs = both_ways(explanation.pairs)[:MARKED_PAIRS] if score == "contribution" else []

    def make() -> None:
        if ground is not None:
            picture(ground_figure(opened.layout, ground, opened.bag.bag_id), "Slide")
        title = opened.bag.bag_id + (" after edits" if edits else "")
        picture(
            map_figure(opened.layout, values, score, ground, mark=pairs, meaning=explained.meaning, title=title), "Map"
        )

    with _drawing:
        figure, _ = compose(make)
        return figure_bytes(figure, kind)
