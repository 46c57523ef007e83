"""Maps: a score of every instance, painted over the picture that the instances were cut from."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.figure import Figure

from dasmil.attribution.ground import UNIT_SYMBOL, Ground, Layout
from dasmil.attribution.scale import ColourScale, colour_scale
from dasmil.report.style import (
    ACCENT,
    DENSITY,
    FAINT,
    FONT,
    INK,
    LINE,
    ORANGE,
    OVER_PICTURE,
    SIGNED,
    look,
    palette,
    start_figure,
    tints,
)
from dasmil.types import Pair
from dasmil.vocabulary import A_CLASS, Meaning
from dasmil.vocabulary import score as words

LABEL_WIDTH = 45  # characters beside a colour bar
BINS = 64  # of the histogram along a colour bar
PLAIN = 238  # grey of the ground where there is no picture


def paint(layout: Layout, values: np.ndarray, per_px: float) -> np.ndarray:
    """The score as a picture [h, w], a pixel for each length `per_px`: mean where tiles overlap, NaN without one."""
    left, top, width, height = layout.field
    w, h = max(1, round(width / per_px)), max(1, round(height / per_px))
    total, count = np.zeros((h, w)), np.zeros((h, w), np.int32)
    half = layout.side / 2
    # Both edges are rounded, so that tiles that touch on the slide touch in the picture.
    first = np.rint((layout.centres - half - (left, top)) / per_px).astype(int)
    last = np.maximum(np.rint((layout.centres + half - (left, top)) / per_px).astype(int), first + 1)
    first, last = np.maximum(first, 0), np.minimum(last, (w, h))
    for (x0, y0), (x1, y1), value in zip(first.tolist(), last.tolist(), values.tolist(), strict=True):
        total[y0:y1, x0:x1] += value
        count[y0:y1, x0:x1] += 1
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, total / count, np.nan)


def colours_of(name: str, values: np.ndarray) -> np.ndarray:
    """The colour of every instance on the scale of the score `name`, uint8 [n, 3]."""
    scale = colour_scale(name, values)
    return palette(scale.signed)[np.rint(scale.place(values) * 255).astype(int)]


def compose(raster: np.ndarray, ground: np.ndarray | None, scale: ColourScale) -> np.ndarray:
    """Colours over the picture, uint8 [h, w, 3], as opaque as the score is strong: where it is zero, the picture stays.

    Without a picture the colours are those of the colour bar.
    """
    shown = np.isfinite(raster)
    place = np.rint(scale.place(raster[shown]) * 255).astype(int)
    if ground is None:
        out = np.full((*raster.shape, 3), PLAIN, np.uint8)
        out[shown] = palette(scale.signed)[place]
        return out
    out = ground.copy()
    cover = OVER_PICTURE * scale.strength(raster[shown])[:, None]
    out[shown] = np.rint((1 - cover) * ground[shown] + cover * tints(scale.signed)[place])
    return out


def map_image(
    layout: Layout, values: np.ndarray, name: str, ground: Ground | None = None, largest_px: int = 1200
) -> np.ndarray:
    """The map of the score `name` without axes, uint8 [h, w, 3]; its longer side has at most `largest_px` pixels."""
    per_px = max(layout.field[2:]) / largest_px
    raster = paint(layout, values, per_px)
    under = None
    if ground is not None:
        under = np.full((*raster.shape, 3), 255, np.uint8)
        picture = ground.thumbnail(per_px)[: raster.shape[0], : raster.shape[1]]
        under[: picture.shape[0], : picture.shape[1]] = picture
    return compose(raster, under, colour_scale(name, values))


def nice_length(longest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, ... that is not longer."""
    power = 10 ** math.floor(math.log10(longest))
    return max(step * power for step in (1, 2, 5) if step * power <= longest)


def map_figure(
    layout: Layout,
    values: np.ndarray,
    name: str,
    ground: Ground | None = None,
    *,
    mark: Sequence[Pair] = (),
    width: float = 480,
    meaning: Meaning = A_CLASS,
    title: str = "",
    largest_px: int = 1200,
) -> Figure:
    """A map with scale bar and colour bar; mark: pairs to join, strongest first, with their distances.

    meaning: what the output says whose parts are drawn; largest_px: of the longer side of the map.
    """
    scale = colour_scale(name, values)
    left, top, w, h = layout.field
    unit = UNIT_SYMBOL[layout.unit]
    picture = map_image(layout, values, name, ground, largest_px)
    with look():
        # Room for the colour bar on the right and the scale bar below.
        height = min(max(width * 0.82 * h / w, 160), 900)
        figure = start_figure(width + 20, height + 50)
        axis = figure.subplots()
        axis.imshow(
            picture,
            extent=(left, left + w, top + h, top),
            interpolation="nearest" if max(picture.shape) < 300 else "antialiased",
        )
        axis.set(xticks=[], yticks=[], xlim=(left, left + w), ylim=(top + h, top), title=title)
        axis.spines[:].set(visible=True, color=LINE)
        _join(axis, layout, mark, w / (0.82 * width))
        _scale_bar(axis, left, w, unit)
        ends = (scale.low, scale.high)
        norm = AsinhNorm(scale.linear, *ends) if scale.linear else Normalize(*ends)
        colours = ScalarMappable(norm, SIGNED if scale.signed else DENSITY)
        bar = figure.colorbar(colours, ax=axis, shrink=0.8, pad=0.02)
        if scale.linear:
            bar.set_ticks(ticks := _powers(scale), labels=[f"{tick:g}" for tick in ticks])
        _histogram(bar.ax, values, scale)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        sides = f"{meaning.lowers} - {meaning.raises}" if scale.signed and meaning != A_CLASS else ""
        label = textwrap.fill(meaning.score(name).label, LABEL_WIDTH)
        bar.set_label("\n".join(filter(None, [label, sides, scale.note])))
        bar.ax.tick_params(color=FAINT)
    return figure


def _scale_bar(axis: Axes, left: float, width: float, unit: str) -> None:
    """A bar of a round length below the picture, which is `width` wide in the unit."""
    length = nice_length(width / 4)
    transform = axis.get_xaxis_transform()  # x in the unit, y in the axes' height
    axis.plot([left, left + length], [-0.02, -0.02], transform=transform, color=INK, linewidth=3,
              solid_capstyle="butt", clip_on=False)  # fmt: skip
    axis.annotate(f"{length:g} {unit}", (left + length, -0.02), xycoords=transform, xytext=(6, 0),
                  textcoords="offset points", va="center", fontsize=FONT, annotation_clip=False)  # fmt: skip


def ground_figure(layout: Layout, ground: Ground, title: str = "", width: float = 400) -> Figure:
    """The picture under a map, alone, with its scale bar."""
    left, top, w, h = layout.field
    with look():
        figure = start_figure(width, min(max(width * h / w, 160), 900) + 50)
        axis = figure.subplots()
        picture = ground.thumbnail(max(w, h) / 1200)
        axis.imshow(picture, extent=(0, ground.width, ground.height, 0), interpolation="antialiased")
        axis.set(xticks=[], yticks=[], xlim=(left, left + w), ylim=(top + h, top))
        axis.set_title(title)
        axis.spines[:].set(visible=True, color=LINE)
        _scale_bar(axis, left, w, UNIT_SYMBOL[layout.unit])
    return figure


def _powers(scale: ColourScale) -> list[float]:
    """Powers of ten that a logarithmic scale tells apart, and zero."""
    powers = [10.0**k for k in range(math.ceil(math.log10(scale.linear)), math.floor(math.log10(scale.high)) + 1)]
    return [*(-power for power in reversed(powers) if scale.signed), 0.0, *powers]


def _histogram(axis: Axes, values: np.ndarray, scale: ColourScale) -> None:
    """How many instances have each colour, as a line along the colour bar; its width is logarithmic."""
    counts, edges = np.histogram(scale.place(values[np.isfinite(values)]), bins=BINS, range=(0, 1))
    width = np.log1p(counts) / max(np.log1p(counts).max(), 1)
    beside = axis.inset_axes((0, 0, 1, 1))
    beside.stairs(width, edges, orientation="horizontal", color=INK, linewidth=0.8)
    beside.set(xlim=(0, 1.05), ylim=(0, 1))
    beside.axis("off")


def _join(axis: Axes, layout: Layout, pairs: Sequence[Pair], per_point: float) -> None:
    """Lines between the ends of pairs, wide for strong ones, each with its length where there is room for it.

    per_point: the length on the map that a point of the font covers.
    """
    strongest = max((abs(p.contribution) for p in pairs), default=1.0) or 1.0
    longer = max(layout.field[2:])
    ends = [(*layout.centres[k].tolist(), layout.side, layout.side) for p in pairs for k in (p.i, p.j)]
    taken: list[tuple[float, float, float, float]] = []
    for p in pairs:
        (x0, y0), (x1, y1) = layout.centres[p.i], layout.centres[p.j]
        wide = 0.8 + 1.4 * abs(p.contribution) / strongest
        # Black in a light casing, on any ground; not the page's own colours, which change with its scheme.
        axis.plot([x0, x1], [y0, y1], color="#fdfdfd", linewidth=wide + 1.4, alpha=0.8)
        axis.plot([x0, x1], [y0, y1], color="#000000", linewidth=wide)
        if p.distance is None or np.hypot(x1 - x0, y1 - y0) <= 0.1 * longer:
            continue
        text = f"{p.distance:,.0f} {UNIT_SYMBOL[layout.unit]}"
        size = ((0.65 * len(text) + 0.4) * FONT * per_point, 1.5 * FONT * per_point)
        middle = ((x0 + x1) / 2, (y0 + y1) / 2)
        along = [(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in (0.5, 0.58, 0.66, 0.42, 0.34)]
        on_line = next((place for place in along if _is_free(place, size, [*taken, *ends])), None)
        place = on_line or free_place(middle, size, [*taken, *ends]) or free_place(middle, size, taken)
        if place is not None:
            taken.append((place[0], place[1], *size))
            axis.text(*place, text, color="#000000", fontsize=FONT - 1, ha="center", va="center", zorder=4,
                      clip_on=True, bbox={"facecolor": "#fdfdfd", "alpha": 0.85, "linewidth": 0, "pad": 1})  # fmt: skip


def free_place(
    centre: tuple[float, float], size: tuple[float, float], taken: Sequence[tuple[float, float, float, float]]
) -> tuple[float, float] | None:
    """Where a label of this size lies on no other (centre and size each): at its place, else just beside it."""
    (x, y), (w, h) = centre, size
    for dx, dy in ((0, 0), (0, -h), (0, h), (-w, 0), (w, 0)):
        if _is_free((x + dx, y + dy), size, taken):
            return x + dx, y + dy
    return None


def _is_free(
    centre: tuple[float, float], size: tuple[float, float], taken: Sequence[tuple[float, float, float, float]]
) -> bool:
    (x, y), (w, h) = centre, size
    return all(abs(x - a) >= (w + c) / 2 or abs(y - b) >= (h + d) / 2 for a, b, c, d in taken)


def tiles_figure(
    layout: Layout,
    values: np.ndarray,
    name: str,
    ground: Ground,
    *,
    count: int = 8,
    side_px: int = 96,
    called: Callable[[int], str] = str,
    meaning: Meaning = A_CLASS,
) -> Figure:
    """The instances with the highest and the lowest score as pictures, each with what it is called and its score."""
    order = np.argsort(-values, kind="stable")
    count = min(count, max(1, len(order) // 2))
    rows = [("highest", order[:count]), ("lowest", order[::-1][:count])]
    with look():
        figure = start_figure(max(84 * count + 20, 220), 2 * 122)
        parts = figure.subfigures(2, 1, squeeze=False)
        assert isinstance(parts, np.ndarray)
        for part, (title, chosen) in zip(parts.flat, rows, strict=True):
            part.suptitle(
                f"{title} {meaning.score(name).label}", x=0.01, ha="left", fontsize=FONT - 1, fontweight="bold"
            )
            for axis, index in zip(part.subplots(1, count, squeeze=False)[0], chosen, strict=True):
                x, y = layout.centres[index] - layout.side / 2
                axis.imshow(ground.tile(float(x), float(y), layout.side, side_px))
                axis.set(xticks=[], yticks=[])
                colour = (ORANGE if values[index] > 0 else ACCENT) if words(name).signed else INK
                axis.spines[:].set(visible=True, color=colour, linewidth=2)
                number = f"{values[index]:+.3g}" if words(name).signed else f"{values[index]:.3g}"
                axis.set_xlabel(f"{called(int(index))[-12:]}: {number}", fontsize=FONT - 2)
    return figure
