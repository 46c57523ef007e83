"""One self-contained page that explains one bag."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from dasmil import __version__
from dasmil.attribution.distance import told_distances
from dasmil.attribution.export import written
from dasmil.attribution.groups import MANY
from dasmil.attribution.names import InstanceNames
from dasmil.attribution.verdict import pair_verdict
from dasmil.models.base import MILModel
from dasmil.report.phi import Truth, phi_figure, phis
from dasmil.report.style import css_variables, to_svg
from dasmil.report.words import class_name
from dasmil.types import Bag, Explanation, PairSum
from dasmil.vocabulary import A_CLASS, SCORES, UNIT_SYMBOL, Meaning
from dasmil.vocabulary import score as words

SHOWN_PAIRS, SHOWN_INSTANCES, SHOWN_SUMS = 15, 10, 8
PAIRS_NOTE = (
    "Row i of the attention won the maximum of at least one feature (or was averaged); the contribution is "
    "what it took from instance j, times the classifier's weights. A dot is a pair at its distance."
)


def write_page(
    path: Path,
    model: MILModel,
    bag: Bag,
    explanation: Explanation,
    *,
    score: str,
    picture: Figure,
    tiles: Figure | None,
    lines: bool,
    pictured: bool,
    classes: Sequence[str] = (),
    origin: str = "",
    caveat: str = "",
    doubtful: bool = False,
    meaning: Meaning = A_CLASS,
    files: Sequence[str] = (),
    extra: dict[str, object] | None = None,
) -> None:
    """Write the page around a map of `score` and, where there are any, pictures of tiles.

    lines: whether pairs are joined on the map; pictured: whether there is a slide under it; classes: their names;
    origin: which model of a run explains, and what the bag was to it; caveat: what its run has not shown;
    doubtful: it is no better than chance; meaning: what the explained output says;
    extra: more of the folded configuration.
    """
    loader = PackageLoader("dasmil.report.explanation", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    columns, pairs = _pairs(bag, explanation)
    verdict = pair_verdict(explanation)
    instance_columns, instances = _instances(bag, explanation, score, meaning)
    text = environment.get_template("page.html").render(
        bag_id=bag.bag_id,
        css=css_variables(),
        sentence=_sentence(model, bag, explanation, classes, meaning),
        origin=f"Model: {origin}." if origin else "",
        caveat=caveat,
        result=_result(model, explanation, meaning),
        result_note=_result_note(model, explanation, classes, meaning),
        sum_line=_sum_line(explanation),
        map=to_svg(picture, f"Map of {meaning.score(score).label}"),
        map_note=_map_note(score, lines, pictured, meaning),
        tiles=None if tiles is None else to_svg(tiles, "Instances with the highest and lowest score"),
        pair_columns=columns,
        pairs=pairs,
        verdict=verdict.text,
        sums=[] if verdict.decided and len(bag) < MANY else _sums(verdict.sums),
        phi=_phi(model, bag, explanation, doubtful),
        told=told_distances(model.learned_biases(), model.config, model.unit),
        pairs_note=PAIRS_NOTE + ("" if bag.instance_labels is None else " In brackets: what the instance is."),
        instance_columns=instance_columns,
        instances=instances,
        method_note=_method_note(explanation),
        configuration=json.dumps({"model": model.name, "options": model.config, **(extra or {})}, indent=2),
        version=__version__,
        files=", ".join(files) or "none",
    )
    with written(path) as file:
        file.write(text)


def _phi(model: MILModel, bag: Bag, explanation: Explanation, doubtful: bool) -> str | None:
    """The learned functions of distance of the last layer that has any."""
    if not model.learned_distances():
        return None
    truth = bag.metadata.get("threshold_px")
    figure = phi_figure(
        phis([model], max(row["layer"] for row in model.learned_distances())),
        truth=Truth(float(truth), bool(bag.metadata.get("farther"))) if truth else None,
        pairs=explanation.pairs,
        doubtful=doubtful,
    )
    return to_svg(figure, "The learned function phi of distance, with the distances of the strongest pairs")


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _sentence(model: MILModel, bag: Bag, explanation: Explanation, classes: Sequence[str], meaning: Meaning) -> str:
    label = "" if bag.label is None or model.outputs else f" Its label is {class_name(bag.label, classes)}."
    of = f"the logit of class {class_name(explanation.target, classes)}" if not model.outputs else meaning.quantity
    return (
        f"What made the {model.name} model decide as it did on this bag of {_count(len(bag), 'instance')}: every "
        f"number below is a part of {of}.{label}"
    )


def _result(model: MILModel, explanation: Explanation, meaning: Meaning) -> str:
    if model.outputs:
        if meaning.probability:
            return f"probability {float(torch.sigmoid(torch.tensor(explanation.logit))):.3f}"
        return f"{explanation.logit:,.4g}" + (f" {meaning.unit}" if meaning.unit else "")
    if model.n_classes == 2:
        probability = float(torch.sigmoid(torch.tensor(explanation.logit)))
        return f"probability {probability:.3f}"
    return f"logit {explanation.logit:+.3f}"


def _result_note(model: MILModel, explanation: Explanation, classes: Sequence[str], meaning: Meaning) -> str:
    if model.outputs:
        return f"of {meaning.probability}, logit {explanation.logit:+.3f}" if meaning.probability else meaning.what
    name = class_name(explanation.target, classes)
    return f"of class {name}" + (f", logit {explanation.logit:+.3f}" if model.n_classes == 2 else "")


def _sum_line(explanation: Explanation) -> str:
    total = float(explanation.contributions.double().sum())
    base = "bias" if explanation.method == "exact" else "baseline"
    line = f"{explanation.logit:+.4f} = {explanation.bias:+.4f} ({base}) {total:+.4f} (instances)"
    if explanation.method != "exact":
        line += f" {explanation.residual:+.4f} (error of the integration)"
    if explanation.distance_share and explanation.distance_part is not None:
        part = float(explanation.distance_part.double().sum())
        line += (
            f"; of the instances' sum {part:+.4f} came from distance embeddings of the values, "
            f"{100 * explanation.distance_share:.0f} % of all absolute parts"
        )
    return line


def _map_note(score: str, lines: bool, pictured: bool, meaning: Meaning) -> str:
    note = f"Colour: {meaning.score(score).label}"
    if words(score).signed and meaning != A_CLASS:
        note += f"; blue {meaning.lowers}, orange {meaning.raises}."
    else:
        note += ", blue against and orange for the class." if words(score).signed else "."
    if lines:
        note += " Lines join the three strongest pairs, wide for strong ones."
    return note + ("" if pictured else " No slide was given: tiles on a plain ground.")


def _method_note(explanation: Explanation) -> str:
    if explanation.method == "exact":
        return (
            "Exact split: with the attention weights held as they are, everything from the attention to the logit is a "
            "maximum (or mean, or sum) and linear maps, so the logit is a sum over pairs of instances. Difference "
            f"between that sum and the model's logit: {explanation.residual:.1e}."
        )
    return (
        "Integrated gradients along the straight path from an empty bag (zero features, or empty pictures) at the same "
        f"positions. Error of the sum: {explanation.residual:+.1e}."
    )


def _sums(sums: Sequence[tuple[str, Sequence[PairSum]]]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Titles with rows of (what, sum, side); the strongest of kinds and places, all distances in their order."""
    found = []
    for title, parts in sums:
        rows = [
            (" with ".join(dict.fromkeys(part.between)) + (" among themselves" if _same(part) else ""),
             f"{part.contribution:+.4f}", _signed_class(part.contribution))
            for part in (parts if len(parts[0].between) == 1 else parts[:SHOWN_SUMS])
        ]  # fmt: skip
        found.append((title, rows))
    return found


def _same(part: PairSum) -> bool:
    return len(part.between) == 2 and part.between[0] == part.between[1]


def _signed_class(value: float) -> str:
    return "for" if value > 0 else "against"


def _pairs(bag: Bag, explanation: Explanation) -> tuple[list[tuple[str, str]], list[list[tuple[str, str]]]]:
    unit = UNIT_SYMBOL[explanation.unit]
    names = InstanceNames(bag)
    heads = any(p.head for p in explanation.pairs)
    columns = [("instance i", ""), ("looks at j", "")]
    columns += [("head", "")] if heads else []
    columns += [("contribution", ""), ("from distance", ""), ("attention", ""), (f"distance, {unit}", ""), ("φ", "")]
    rows = []
    for p in explanation.pairs[:SHOWN_PAIRS]:
        row = [(names.label(p.i), ""), (names.label(p.j), "")]
        row += [(str(p.head), "")] if heads else []
        row += [(f"{p.contribution:+.4f}", _signed_class(p.contribution)), (f"{p.distance_part:+.4f}", "")]
        row += [(f"{p.weight:.3f}", ""), ("other section" if p.distance is None else f"{p.distance:,.1f}", "")]
        row += [("-" if p.phi is None else f"{p.phi:.3f}", "")]
        rows.append(row)
    return columns, rows


def _instances(bag: Bag, explanation: Explanation, score: str, meaning: Meaning) -> tuple[list[str], list[list[str]]]:
    names = InstanceNames(bag)
    section = [] if bag.section is None else ["section"]
    unit, known = UNIT_SYMBOL[bag.unit], explanation.scores
    scores = {name: known[name].double().cpu().numpy() for name in SCORES if name in known}
    columns = ["instance", *section, f"x, {unit}", f"y, {unit}", *(meaning.score(name).title for name in scores)]
    order = np.argsort(-np.abs(scores[score]), kind="stable")[:SHOWN_INSTANCES]
    rows = []
    for k in order.tolist():
        x, y = bag.coords[k, :2].tolist()
        numbers = [f"{c[k]:+.4f}" if words(name).signed else f"{c[k]:.4f}" for name, c in scores.items()]
        where = [names.section_of(k) or ""] if section else []
        rows.append([names.label(k), *where, f"{x:,.0f}", f"{y:,.0f}", *numbers])
    return columns, rows
