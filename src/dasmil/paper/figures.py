"""The paper's attention figure: a positive collage, and what the model without value embeddings attends to in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dasmil.errors import DataError
from dasmil.files import replacing
from dasmil.models.base import MILModel
from dasmil.report.collages import attention_weights, draw_attention, draw_collage
from dasmil.report.style import look, new_figure, save_png
from dasmil.types import Bag


def choose_bag(bags: Sequence[Bag]) -> Bag:
    """A positive bag with at least two 0s and two 1s, as in the paper, and one pair that makes it positive.

    Of those the one whose deciding pair stands clearest apart from the other 0-1 pairs; no model is asked.
    """
    best: tuple[float, Bag] | None = None
    for bag in bags:
        assert bag.instance_labels is not None
        assert bag.key_instances is not None
        digits = bag.instance_labels.numpy()
        zeros, ones = np.flatnonzero(digits == 0), np.flatnonzero(digits == 1)
        if bag.label != 1 or min(len(zeros), len(ones)) < 2 or int(bag.key_instances.sum()) != 2:
            continue
        coords = bag.coords.numpy()
        distances = np.sort(np.linalg.norm(coords[zeros][:, None] - coords[ones][None], axis=-1).ravel())
        if bag.metadata.get("farther"):
            distances = distances[::-1]
        clear = abs(float(distances[1] - distances[0]))
        if best is None or clear > best[0]:
            best = (clear, bag)
    if best is None:
        raise DataError("no positive bag has two 0s, two 1s and exactly one deciding pair: give more bags")
    return best[1]


def names_of(bag: Bag) -> list[str]:
    """The digits of a bag, told apart by a letter where one occurs several times: 0a, 0b, 7."""
    assert bag.instance_labels is not None
    digits = bag.instance_labels.tolist()
    seen: dict[int, int] = {}
    names = []
    for digit in digits:
        place = seen[digit] = seen.get(digit, -1) + 1
        names.append(f"{digit}{'abcdefghijklmnopqrstuvwxyz'[place]}" if digits.count(digit) > 1 else str(digit))
    return names


def attention_figure(bag: Bag, weights: NDArray[np.float32], title: str) -> Figure:
    """The collage, its key digits outlined, beside the attention of every digit (row) to every other (column).

    Rows and columns are in the order of the digits.
    """
    assert bag.instance_labels is not None
    order = np.argsort(bag.instance_labels.numpy(), kind="stable")
    names = names_of(bag)
    with look():
        figure, (left, right) = new_figure(760, 370, 2)
        draw_collage(left, bag, names)
        left.set_title("Positive bag")
        draw_attention(figure, right, weights, bag, title, names, order)
    return figure


def write_attention_figure(model: MILModel, bags: Sequence[Bag], folder: Path) -> list[Path]:
    """Write attention.png and attention.svg."""
    bag = choose_bag(bags)
    weights = attention_weights(model, bag)
    assert weights is not None
    logit = model.eval()(bag.features, bag.coords).logit.item()
    probability = 1 / (1 + np.exp(-logit))
    figure = attention_figure(bag, weights[0], f"Attention of DAS-MIL without b$^V$, p = {probability:.2f}")
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / "attention.png", folder / "attention.svg"
    save_png(figure, png)
    with replacing(svg) as temporary, look():
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
    return [png, svg]
