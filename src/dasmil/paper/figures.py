"""The paper's attention figure: a positive collage, and what the model without value embeddings attends to in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from dasmil.data.mnist import collage_image
from dasmil.errors import DataError
from dasmil.files import replacing
from dasmil.models.base import MILModel
from dasmil.report.collages import attention_weights
from dasmil.report.style import DENSITY, FONT, INK, LINE, ORANGE, look, new_figure, save_png
from dasmil.types import Bag

HALF = 14  # half the side of a digit in pixels


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
        _collage(left, bag, names)
        left.set_title("Positive bag")
        mesh = right.pcolormesh(weights[np.ix_(order, order)], cmap=DENSITY, vmin=0, linewidth=0)
        n = len(bag)
        keys = [place for place, i in enumerate(order) if bag.key_instances is not None and bag.key_instances[i]]
        for i in keys:
            for j in keys:
                if i != j:
                    right.add_patch(Rectangle((j, i), 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.8))
        middle = np.arange(n) + 0.5
        right.set_xticks(middle, [names[i] for i in order])
        right.set_yticks(middle, [names[i] for i in order])
        for axis_labels in (right.get_xticklabels(), right.get_yticklabels()):
            for number, text in enumerate(axis_labels):
                text.set(color=ORANGE if number in keys else INK, fontweight="bold" if number in keys else "normal")
        right.set(ylim=(n, 0), aspect="equal", xlabel="attended digit j", ylabel="attending digit i")
        right.tick_params(length=0)
        right.spines[:].set_visible(False)
        right.set_title(title)
        bar = figure.colorbar(mesh, ax=right, shrink=0.75, aspect=24, pad=0.02)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.ax.tick_params(length=2)
        bar.set_label("attention weight")
    return figure


def _collage(axis: Axes, bag: Bag, names: Sequence[str]) -> None:
    picture = collage_image(bag)
    size = len(picture)
    axis.imshow(255 - picture, cmap="gray", vmin=0, vmax=255, interpolation="none", extent=(0, size, size, 0))
    axis.set(xlim=(0, size), ylim=(size, 0), xticks=[0, size // 2, size], yticks=[0, size // 2, size])
    axis.set_xlabel("x (px)")
    axis.spines[:].set(visible=True, color=LINE)
    coords = bag.coords.numpy()
    keys = bag.key_instances.numpy() if bag.key_instances is not None else np.zeros(len(bag), bool)
    for (x, y), name, key in zip(coords, names, keys):
        if name[1:] or key:  # only digits that could be confused need a name
            axis.text(x, y - HALF - 2, name, color=ORANGE if key else INK, fontsize=FONT - 1, ha="center", va="bottom",
                      fontweight="bold" if key else "normal")  # fmt: skip
    for x, y in coords[keys]:
        box = Rectangle((x - HALF, y - HALF), 2 * HALF, 2 * HALF, fill=False, edgecolor=ORANGE, linewidth=1.4)
        axis.add_patch(box)
    a, b = coords[keys]
    apart = float(np.hypot(*(a - b)))
    if apart > 3 * HALF:  # else the frames touch, and a line would only hide the digits
        step = (b - a) * (1.3 * HALF / apart)
        axis.plot([a[0] + step[0], b[0] - step[0]], [a[1] + step[1], b[1] - step[1]], color=ORANGE, linewidth=1)
    axis.text((a[0] + b[0]) / 2, max(a[1], b[1]) + HALF + 3, f"{apart:.0f} px apart", color=ORANGE, fontsize=FONT - 1,
              ha="center", va="top")  # fmt: skip


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
