"""Two collages that need the distance, and what the model attends to: the picture that explains a run on MNIST."""

from __future__ import annotations

import math
from typing import Any

from dasmil.data import load_dataset
from dasmil.data.mnist import RULES, CollageRule
from dasmil.models import load_model
from dasmil.report.collages import attention_map, attention_weights, collages, telling_pair
from dasmil.report.figures import Truth
from dasmil.report.page import Picture, picture
from dasmil.report.run import Run
from dasmil.types import Bag


def true_distance(run: Run) -> Truth | None:
    """The distance that decides, for data sets where it is known."""
    rule = RULES.get(run.dataset)
    if not isinstance(rule, CollageRule):
        return None
    return Truth(float(data_options(run).get("threshold", rule.threshold)), rule.farther)


def data_options(run: Run) -> dict[str, Any]:
    """Options that the data set was made with."""
    return dict(run.config["data"].get("options") or {})


def example_pictures(run: Run, split: str) -> list[Picture]:
    """A positive and a negative collage and the attention map of the positive one; empty for other data."""
    if true_distance(run) is None or split not in run.data.get("splits", {}) or not run.seeds:
        return []
    bags = load_dataset(run.dataset, run.config["data"].get("protocol", "clean"), split, **data_options(run))
    shown = next((seed for seed in run.seeds if not seed.stuck), run.seeds[0])
    scored = dict(zip(shown.predictions[split].bag_ids, shown.predictions[split].probabilities.tolist()))
    bags = [bag for bag in bags if bag.bag_id in scored]
    chosen = telling_pair(bags, [scored[bag.bag_id] for bag in bags])
    if chosen is None:
        return []
    model = load_model(shown.path / "model.safetensors")
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
    weights = attention_weights(model, chosen[0])
    if weights is not None:
        layer = "" if len(weights) == 1 else ", first head"
        figure = attention_map(weights[0], chosen[0], "Attention in the positive bag")
        caption = f"Weights of seed {shown.number}{layer}; key digits and the cells that join them are orange."
        pictures.append(picture(figure, "Attention map", caption))
    return pictures


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
