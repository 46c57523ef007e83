"""Two collages that need the distance, and what the model attends to: the picture that explains a run on MNIST."""

from __future__ import annotations

import math
from typing import Any

from dasmil.attribution import explain
from dasmil.attribution.contributions import both_ways
from dasmil.attribution.ground import CollageGround, layout_of
from dasmil.data import load_dataset
from dasmil.data.mnist import RULES, CollageRule
from dasmil.models.base import MILModel
from dasmil.report.collages import attention_map, attention_weights, collages, telling_pair
from dasmil.report.explanation.heatmap import map_figure
from dasmil.report.page import Picture, picture
from dasmil.report.phi import Truth
from dasmil.runs import Run
from dasmil.types import Bag


def true_distance(run: Run) -> Truth | None:
    """The distance that decides, for data sets where it is known."""
    rule = RULES.get(run.dataset)
    if not isinstance(rule, CollageRule):
        return None
    return Truth(float(data_options(run).get("threshold", rule.threshold)), rule.farther)


def data_options(run: Run) -> dict[str, Any]:
    """Options that the data set was made with."""
    return dict(run.origin.get("options") or {})


def example_pictures(run: Run, split: str) -> list[Picture]:
    """A positive and a negative collage, what decided in the positive one, its attention; empty for other data."""
    if true_distance(run) is None or split not in run.data.get("splits", {}) or not run.seeds:
        return []
    bags = load_dataset(run.dataset, run.origin.get("protocol", "clean"), split, **data_options(run))
    shown = next((seed for seed in run.all_seeds if not seed.stuck), run.all_seeds[0])
    scored = dict(zip(shown.predictions(split).bag_ids, shown.predictions(split).probabilities.tolist()))
    bags = [bag for bag in bags if bag.bag_id in scored]
    chosen = telling_pair(bags, [scored[bag.bag_id] for bag in bags])
    if chosen is None:
        return []
    model = shown.model()
    probability = [_probability(model(bag.features, bag.coords).logit.item()) for bag in chosen]
    titles = [f"Positive bag, p = {probability[0]:.2f}", f"Negative bag, p = {probability[1]:.2f}"]
    pictures = [
        picture(
            collages(chosen, titles),
            "A positive and a negative collage",
            _collage_caption(chosen, shown.number),
            ink=True,
        )
    ]
    if (decided := _what_decided(model, chosen[0], shown.number)) is not None:
        pictures.append(decided)
    weights = attention_weights(model, chosen[0])
    if weights is not None:
        layer = "" if len(weights) == 1 else ", first head"
        figure = attention_map(weights[0], chosen[0], "Attention in the positive bag")
        caption = f"Weights of seed {shown.number}{layer}; key digits and the cells that join them are orange."
        pictures.append(picture(figure, "Attention map", caption))
    return pictures


def _what_decided(model: MILModel, bag: Bag, seed: int) -> Picture | None:
    """The positive collage with the digits' contributions and the pairs that decided; None for models without pairs."""
    explanation = explain(model, bag)
    pairs = both_ways(explanation.pairs)[:3]
    if not pairs:
        return None
    values = explanation.contributions.double().numpy()
    ground = CollageGround(bag)
    figure = map_figure(layout_of(bag, ground), values, "contribution", ground, mark=pairs, width=330)
    first = pairs[0]
    caption = (
        f"What the model used: colour is the part of the logit that each digit gave (seed {seed}), blue against and "
        f"orange for positive; lines join the {len(pairs)} strongest pairs. The strongest, {first.distance:.0f} px "
        f"apart, gave {first.contribution:+.2f} of the logit {explanation.logit:+.2f}."
    )
    return picture(figure, "What decided in the positive bag", caption)


def _collage_caption(chosen: tuple[Bag, Bag], seed: int) -> str:
    first, second = chosen[0].metadata["targets"]
    side = "farther" if chosen[0].metadata["farther"] else "nearer"
    return (
        f"{chosen[0].bag_id} and {chosen[1].bag_id}. Both hold a {first} and a {second}; only the distance differs. "
        f"Orange: the key instances, a {first} and a {second} {side} than {chosen[0].metadata['threshold_px']:g} px. "
        f"p: probability of positive, seed {seed}. Neither the best nor the worst bag of their kind, but the median."
    )


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
