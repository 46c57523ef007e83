"""The look of pages and pictures, defined once: colours by role, type, and how a figure becomes SVG or PNG."""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from dasmil.files import replacing

# Role -> (light, dark). Figures are drawn in the light colours; in a page each becomes the variable of its role, so
# that the page's colour scheme decides. The light values must differ from one another for that.
COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1b1b1b", "#e4e4e2"),
    "faint": ("#6a6a69", "#9c9c99"),
    "line": ("#d4d4d2", "#3b3c3d"),
    "ground": ("#ffffff", "#131415"),
    "accent": ("#1f4e79", "#7fb3e6"),
    "orange": ("#c4590f", "#f0a25c"),
    "grey": ("#8c8c8a", "#77787a"),
}
INK, FAINT, LINE, GROUND, ACCENT, ORANGE, GREY = (light for light, _ in COLOURS.values())

CLASS_COLOURS = (ACCENT, ORANGE, GREY, FAINT)
"""Negative blue, positive orange; further classes in greys, told apart by their labels."""

SIGNED = LinearSegmentedColormap.from_list("dasmil-signed", [ACCENT, "#f7f7f5", ORANGE])
"""Signed contributions: blue-white-orange, to be used symmetric about zero."""
DENSITY = mpl.colormaps["cividis"]
"""Attention and density."""
OVER_PICTURE = 0.85
"""How much of a picture the strongest score covers; weaker ones cover less, zero nothing."""


def palette(signed: bool) -> np.ndarray:
    """The 256 colours of a scale from its lower to its upper end, uint8 [256, 3]."""
    return np.rint((SIGNED if signed else DENSITY)(np.linspace(0, 1, 256))[:, :3] * 255).astype(np.uint8)


def tints(signed: bool) -> np.ndarray:
    """The colours to lay over a picture, uint8 [256, 3]; there strength is opacity.

    Signed scores have the colour of their side, which over white paper gives those of the scale.
    """
    colours = palette(signed)
    return np.repeat(colours[[0, -1]], 128, axis=0) if signed else colours


FONT = 11
_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": FONT,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.2,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "dasmil",
    "pdf.fonttype": 42,  # text stays text
    "hatch.linewidth": 0.7,
}


@contextmanager
def look() -> Iterator[None]:
    """Draw figures in the house style."""
    with mpl.rc_context(_RC):
        yield


_PARTS: ContextVar[Iterator[Any] | None] = ContextVar("parts", default=None)


@contextmanager
def drawn_into(parts: Iterator[Any]) -> Iterator[None]:
    """Draw the figures that are made inside into these parts of a larger one, one after the other."""
    token = _PARTS.set(parts)
    try:
        yield
    finally:
        _PARTS.reset(token)


def start_figure(width: float, height: float) -> Figure:
    """An empty figure of width x height pixels (as shown in a page), or the next part of a larger one."""
    parts = _PARTS.get()
    return Figure(figsize=(width / 72, height / 72), layout="constrained") if parts is None else next(parts)


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of width x height pixels (as shown in a page) with its axes in one row."""
    figure = start_figure(width, height)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def to_svg(figure: Figure, label: str) -> str:
    """The figure as an SVG element for a page: colours by role, the page's font, ids of its own, text kept as text."""
    buffer = io.StringIO()
    with look():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    own = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<style\b.*?</style>| transform=\"rotate\(-0 [^\"]*\"", "", svg, flags=re.DOTALL
    )
    svg = re.sub(r'\bid="', f'id="{own}', svg)
    svg = re.sub(r"url\(#", f"url(#{own}", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{own}', svg).replace("xlink:href=", "href=")
    # Hundredths of a pixel are enough in coordinates; texts, which stand between the tags, keep their digits.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), svg)
    for role, (light, _) in COLOURS.items():
        svg = re.sub(re.escape(light), f"var(--{role})", svg, flags=re.IGNORECASE)
    # The family is the page's; older versions of matplotlib write "font: 600 11px 'DejaVu Sans', ..." in one.
    svg = re.sub(r" ?font-family: [^;\"]*;", "", svg)
    svg = re.sub(r"font: ((?:bold |italic |\d{3} )*)([\d.]+)px [^;\"]*", _font, svg)
    width, height = (round(float(size) * 72) for size in figure.get_size_inches())
    head = f'<svg role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width} {height}" style="width:{width}px">'
    return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1).strip()


def save_png(figure: Figure, path: Path) -> None:
    """The figure on white at twice its size, for documents outside a page."""
    with replacing(path) as temporary, look():
        figure.savefig(temporary, format="png", dpi=144, facecolor=GROUND)


def css_variables() -> str:
    """The roles as CSS variables, light and dark."""
    light, dark = ("".join(f"--{role}:{pair[i]};" for role, pair in COLOURS.items()) for i in (0, 1))
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{color-scheme:light;{light}}}}}"
    )


def _font(match: re.Match[str]) -> str:
    weight = "bold" if re.search(r"bold|[6-9]00", match[1]) else ""
    style = "font-style: italic; " if "italic" in match[1] else ""
    return f"{style}{'font-weight: 600; ' if weight else ''}font-size: {match[2]}px"
