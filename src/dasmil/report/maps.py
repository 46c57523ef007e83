"""Where a model found its evidence in a few bags that it classified rightly and wrongly: a section of the report."""

from __future__ import annotations

from pathlib import Path

from dasmil.attribution.ground import Layout
from dasmil.report.explanation.heatmap import map_figure
from dasmil.report.page import Picture, Section, picture
from dasmil.runs import Run, StoredMap, read_maps

WIDTH, LARGEST_PX = 330, 600


def maps_section(run: Run) -> Section:
    """Maps of contributions of the bags that were stored with the run; empty without."""
    title = "Maps of bags that it classified rightly and wrongly"
    found = read_maps(Path(run.path))
    text = [
        "The surest right and the surest wrong predictions, of different classes. Colour is what an instance "
        "contributed to the logit. dasmil view shows them on their slides, dasmil figure saves them for a paper."
    ]
    return Section(title, text=text if found else [], pictures=[_picture(one) for one in found])


def _picture(one: StoredMap) -> Picture:
    facts = one.facts
    layout = Layout(one.centres.double().numpy(), facts.side, facts.field, facts.unit, facts.mpp)
    figure = map_figure(layout, one.contributions.double().numpy(), "contribution", width=WIDTH, largest_px=LARGEST_PX)
    return picture(figure, f"Contributions in {facts.bag_id}", f"{facts.words}. {facts.model}.")
