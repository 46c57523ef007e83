"""Plots as files for a paper: SVG, PDF and PNG, the numbers behind them as CSV, and several panels in one figure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dasmil.errors import InputError
from dasmil.files import replacing, write_text
from dasmil.report.page import figures_kept
from dasmil.report.style import FONT, GROUND, drawn_into, look

FORMATS = ("svg", "pdf", "png")
DPI = 300
WIDEST = 1040  # pixels of a row of panels, as shown in a page (72 to the inch)

Maker = Callable[[], Any]
"""Makes one or more pictures (``report.page.picture``)."""


def save_figure(figure: Figure, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """The figure on white under this name with every ending; PNG at 300 dpi."""
    files = []
    for kind in formats:
        file = path.with_name(f"{path.name}.{kind}")
        with replacing(file) as temporary:
            temporary.write_bytes(figure_bytes(figure, kind))
        files.append(file)
    return files


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """The figure on white as the content of a file: svg, pdf, or png at 300 dpi."""
    metadata = {"Date": None} if kind == "svg" else {"CreationDate": None} if kind == "pdf" else None
    buffer = io.BytesIO()
    with look():
        figure.savefig(buffer, format=kind, dpi=DPI, facecolor=GROUND, metadata=metadata)
    return buffer.getvalue()


def save_plots(make: Maker, folder: Path, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """Every picture that is made, as a file named by its label, with a CSV of what it draws."""
    with figures_kept() as kept:
        make()
    files: list[Path] = []
    for number, (label, figure) in enumerate(kept, 1):
        name = f"{number:02d}-" + re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:60]
        files += save_figure(figure, folder / name, formats)
        files.append(folder / f"{name}.csv")
        write_text(files[-1], drawn_csv(figure))
    return files


def compose(make: Maker) -> tuple[Figure, list[str]]:
    """All pictures that are made as lettered panels of one figure, in rows; and what each panel is."""
    with figures_kept() as kept:
        make()
    if not kept:
        raise InputError("there is nothing to draw: none of the chosen panels has data in this run")
    sizes = [tuple(72 * float(side) for side in figure.get_size_inches()) for _, figure in kept]
    rows: list[list[int]] = [[]]
    for k, (width, _) in enumerate(sizes):
        if rows[-1] and sum(sizes[j][0] for j in rows[-1]) + width > WIDEST:
            rows.append([])
        rows[-1].append(k)
    heights = [max(sizes[k][1] for k in row) for row in rows]
    widest = max(sum(sizes[k][0] for k in row) for row in rows)
    with look():
        whole = Figure(figsize=(widest / 72, sum(heights) / 72), layout="constrained")
        bands = np.atleast_1d(np.asarray(whole.subfigures(len(rows), 1, height_ratios=heights), dtype=object))
        parts: list[Any] = []
        for band, row in zip(bands.flat, rows, strict=True):
            widths = [sizes[k][0] for k in row]
            spare = widest - sum(widths)
            ratios = [*widths, spare] if spare > 1 else widths
            found = np.atleast_1d(np.asarray(band.subfigures(1, len(ratios), width_ratios=ratios), dtype=object))
            parts += list(found.flat)[: len(row)]
        for letter, part in zip(_letters(len(parts)), parts, strict=True):
            part.text(0.0, 1.0, letter, ha="left", va="top", fontsize=FONT + 3, fontweight="bold")
        with drawn_into(iter(parts)), figures_kept() as drawn:
            make()
    return whole, [f"{letter}: {label}" for letter, (label, _) in zip(_letters(len(drawn)), drawn, strict=True)]


def _letters(count: int) -> list[str]:
    """a, b, ... z, aa, ab, ..."""
    return [(chr(96 + k // 26) if k >= 26 else "") + chr(97 + k % 26) for k in range(count)]


def drawn_csv(figure: Figure) -> str:
    """Every line, point, bar and image of a figure as rows: axes, kind, series, x, y (and value of an image)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["axes", "kind", "series", "x", "y", "value"])
    for axis in figure.axes:
        name = axis.get_title(loc="left") or axis.get_title() or axis.get_ylabel()
        for kind, series, x, y, value in _drawn(axis):
            writer.writerow([name, kind, series, _number(x), _number(y), "" if value is None else _number(value)])
    return text.getvalue()


def _number(value: object) -> str:
    return f"{float(value):.9g}" if isinstance(value, int | float | np.number) else str(value)


def _drawn(axis: Axes) -> list[tuple[str, str, Any, Any, Any]]:
    rows: list[tuple[str, str, Any, Any, Any]] = []
    for number, line in enumerate(axis.lines):
        label = str(line.get_label())
        label = f"line {number + 1}" if label.startswith("_") else label
        x, y = (np.atleast_1d(np.asarray(values)) for values in line.get_data())
        rows += [("line", label, a, b, None) for a, b in zip(x, y, strict=True)]
    for number, collection in enumerate(axis.collections):
        label = str(collection.get_label())
        label = f"points {number + 1}" if label.startswith("_") else label
        points = np.asarray(collection.get_offsets())
        if points.ndim == 2 and len(points) and np.any(points):
            rows += [("points", label, float(x), float(y), None) for x, y in points]
            continue
        for path in collection.get_paths():
            rows += [("area", label, float(x), float(y), None) for x, y in np.asarray(path.vertices)]
    for number, patch in enumerate(axis.patches):
        box = patch.get_path().get_extents(patch.get_patch_transform())
        rows.append(("box", f"box {number + 1}", (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2, box.height))
    for text in axis.texts:
        rows.append(("text", text.get_text().replace("\n", " "), *text.get_position(), None))
    return rows
