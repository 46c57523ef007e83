"""Pictures of MNIST collages: their key instances, and what a model attends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from dasmil.data.mnist import collage_image
from dasmil.errors import InputError
from dasmil.models.base import MILModel
from dasmil.nn import DistanceAwareAttention
from dasmil.ops import das_attention
from dasmil.report.style import DENSITY, FAINT, FONT, GROUND, INK, LINE, ORANGE, look, new_figure
from dasmil.types import Bag

HALF = 14
"""Half the side of a digit in pixels."""


def collages(bags: Sequence[Bag], titles: Sequence[str]) -> Figure:
    """Collages side by side: key instances outlined in orange, deciding pairs joined by a line with their distance."""
    with look():
        figure, axes = new_figure(300 * len(bags), 320, len(bags))
        for axis, bag, title in zip(axes, bags, titles):
            draw_collage(axis, bag)
            axis.set_anchor("N")
            axis.set_title(title)
    return figure


def draw_collage(axis: Axes, bag: Bag, names: Sequence[str] = ()) -> None:
    """A collage on given axes; names: of its digits, written over those that could be confused and over key ones."""
    picture = collage_image(bag)
    size = len(picture)
    ink = np.zeros((size, size, 4), np.uint8)
    ink[..., 3] = picture  # black on nothing, so that a page can turn it white on dark ground
    axis.imshow(ink, interpolation="none", extent=(0, size, size, 0))
    axis.set(xlim=(0, size), ylim=(size, 0), xticks=[0, size // 2, size], yticks=[0, size // 2, size])
    axis.set_xlabel("x (px)")
    axis.spines[:].set(visible=True, color=LINE)
    keys = np.zeros(len(bag), bool) if bag.key_instances is None else bag.key_instances.numpy()
    coords = bag.coords.numpy()
    for (x, y), name, key in zip(coords, names, keys, strict=False):
        if name[1:] or key:
            axis.text(x, y - HALF - 2, name, color=ORANGE if key else INK, fontsize=FONT - 1, ha="center", va="bottom",
                      fontweight="bold" if key else "normal")  # fmt: skip
    for x, y in coords[keys]:
        box = Rectangle((x - HALF, y - HALF), 2 * HALF, 2 * HALF, fill=False, edgecolor=ORANGE, linewidth=1.4)
        axis.add_patch(box)
    for i, j in _decisive_pairs(bag):
        step = coords[j] - coords[i]
        distance = float(np.hypot(*step))
        positive = bool(keys[i] and keys[j]) and (distance < _threshold(bag)) != bool(bag.metadata.get("farther"))
        colour = ORANGE if positive else FAINT
        inset = min(HALF + 2, distance / 2 - 1) * step / distance
        start, end = coords[i] + inset, coords[j] - inset
        axis.plot(
            [start[0], end[0]],
            [start[1], end[1]],
            color=colour,
            linewidth=1,
            linestyle="-" if positive else (0, (3, 2)),
        )
        _distance_label(axis, f"{distance:.0f} px", coords, (i, j), colour)


def _distance_label(axis: Axes, text: str, coords: NDArray[np.float32], pair: tuple[int, int], colour: str) -> None:
    """Beside the line, on the side where other digits and the edge are farther away."""
    ends = coords[list(pair)]
    step = ends[1] - ends[0]
    apart = float(np.hypot(*step))
    across = np.array([-step[1], step[0]]) / apart
    offset = (9 if apart > 5 * HALF else HALF + 12) + 13 * abs(across[0])
    others = np.delete(coords, list(pair), axis=0)
    edge = axis.get_xlim()[1]

    def room(place: NDArray[np.float32]) -> float:
        digits = np.hypot(*(others - place).T).min() if len(others) else edge
        return float(min(digits, 1.5 * place.min(), 1.5 * (edge - place).min()))

    place = max((ends.mean(0) + side * offset * across for side in (1, -1)), key=room)
    axis.text(float(place[0]), float(place[1]), text, color=colour, fontsize=FONT - 1, ha="center", va="center",
              bbox={"facecolor": GROUND, "alpha": 0.85, "linewidth": 0, "pad": 1})  # fmt: skip


def _threshold(bag: Bag) -> float:
    return float(bag.metadata["threshold_px"])


def _decisive_pairs(bag: Bag) -> list[tuple[int, int]]:
    """All qualifying pairs of a positive bag; of a negative one, the pair that came nearest to qualifying."""
    digits, coords = _digits(bag), bag.coords.numpy()
    first, second = (np.flatnonzero(digits == target) for target in bag.metadata["targets"])
    pairs = [(int(i), int(j)) for i in first for j in second if i != j]
    distances = {pair: float(np.hypot(*(coords[pair[0]] - coords[pair[1]]))) for pair in pairs}
    farther = bool(bag.metadata.get("farther"))
    if bag.label:
        return [p for p, d in distances.items() if (d > _threshold(bag)) == farther]
    return sorted(pairs, key=lambda p: -distances[p] if farther else distances[p])[:1]


def _digits(bag: Bag) -> NDArray[np.int64]:
    if bag.instance_labels is None:
        raise InputError(f"bag {bag.bag_id!r} has no instance labels, so its collage cannot be annotated")
    return bag.instance_labels.numpy()


def attention_map(weights: NDArray[np.float32], bag: Bag, title: str) -> Figure:
    """Attention of every instance (row) to every other (column), digits as labels, pairs of key instances outlined."""
    with look():
        figure, (axis,) = new_figure(330, 320)
        draw_attention(figure, axis, weights, bag, title)
        axis.set_anchor("N")
    return figure


def draw_attention(
    figure: Figure,
    axis: Axes,
    weights: NDArray[np.float32],
    bag: Bag,
    title: str,
    names: Sequence[str] = (),
    order: NDArray[np.int64] | None = None,
) -> None:
    """The map of attention weights [n, n] on given axes.

    names: of the digits, by default the digits themselves; order: of rows and columns, by default that of the bag.
    """
    n = len(bag)
    called = list(names) or [str(digit) for digit in _digits(bag)]
    order = np.arange(n) if order is None else order
    place = {int(i): k for k, i in enumerate(order)}
    mesh = axis.pcolormesh(np.asarray(weights)[np.ix_(order, order)], cmap=DENSITY, vmin=0, linewidth=0)
    for i, j in _decisive_pairs(bag) if bag.label else []:
        for x, y in ((place[i], place[j]), (place[j], place[i])):
            axis.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.8))
    middle = np.arange(n) + 0.5
    axis.set_xticks(middle, [called[int(i)] for i in order])
    axis.set_yticks(middle, [called[int(i)] for i in order])
    keys = np.zeros(n, bool) if bag.key_instances is None else bag.key_instances.numpy()
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        for text, i in zip(labels, order, strict=True):
            text.set(color=ORANGE if keys[i] else INK, fontweight="bold" if keys[i] else "normal")
    axis.set(ylim=(n, 0), aspect="equal", xlabel="attended digit j", ylabel="attending digit i")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title)
    bar = figure.colorbar(mesh, ax=axis, shrink=0.75, aspect=24, pad=0.02)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(length=2)
    bar.set_label("attention weight")


@torch.no_grad()
def attention_weights(model: MILModel, bag: Bag) -> NDArray[np.float32] | None:
    """Weights [heads, n, n] of the model's first self-attention layer for a bag; None for models without one."""
    layer = next((m for m in model.modules() if isinstance(m, DistanceAwareAttention)), None)
    if layer is None:
        return None
    caught: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    model.eval()
    try:
        model(bag.features, bag.coords)
    finally:
        hook.remove()
    query, key, value = layer.project(caught[0])
    embeds: dict[str, Any] = {name: getattr(layer, name) for name in ("key_embed", "query_embed", "value_embed")}
    _, weights = das_attention(
        query, key, value, bag.coords, theta=layer.theta, beta=layer.beta, **embeds, phi=layer.phi, scale=layer.scale,
        distance_scale=layer.distance_scale, product_term=layer.product_term, self_pair=layer.self_pair,
        return_weights=True,
    )  # fmt: skip
    return weights.numpy()


def telling_pair(bags: Sequence[Bag], logits: Sequence[float]) -> tuple[Bag, Bag] | None:
    """A positive bag with one key pair and a negative one that holds both digits: the bags that need the distance.

    Of these, the ones whose logit is in the middle of their kind, so that neither the best nor the worst is shown.
    """
    positive = [(z, b) for z, b in zip(logits, bags) if b.label == 1 and len(_decisive_pairs(b)) == 1]
    negative = [(z, b) for z, b in zip(logits, bags) if b.label == 0 and _decisive_pairs(b)]
    if not positive or not negative:
        return None
    first, second = (sorted(side, key=lambda pair: pair[0])[len(side) // 2][1] for side in (positive, negative))
    return first, second
