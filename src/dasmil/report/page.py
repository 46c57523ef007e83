"""One self-contained HTML page: its parts, and how they are written."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from dasmil import __version__
from dasmil.files import write_text
from dasmil.report.style import css_variables, to_svg


@dataclass(frozen=True)
class Headline:
    """A result in large figures: what it is, its value, and below it how far to trust it; role: of its colour."""

    name: str
    value: str
    note: str
    role: str = "accent"


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; ink: it holds a black picture that turns white on dark ground."""

    svg: Markup
    width: int
    caption: str = ""
    ink: bool = False


_KEPT: ContextVar[list[tuple[str, Figure]] | None] = ContextVar("kept", default=None)


@contextmanager
def figures_kept() -> Iterator[list[tuple[str, Figure]]]:
    """The figures of all pictures that are made inside, with their labels, in place of their SVG."""
    found: list[tuple[str, Figure]] = []
    token = _KEPT.set(found)
    try:
        yield found
    finally:
        _KEPT.reset(token)


def picture(figure: Figure, label: str, caption: str = "", *, ink: bool = False) -> Picture:
    """A matplotlib figure for a page; `label` is what a screen reader says."""
    if (kept := _KEPT.get()) is not None:
        kept.append((label, figure))
        return Picture(Markup(""), 0, caption, ink)
    width = round(figure.get_figwidth() * 72)
    return Picture(Markup(to_svg(figure, label)), width, caption, ink)


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers are right-aligned."""

    name: str
    number: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell with a second, fainter line."""

    main: str
    sub: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """A small table."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    note: str = ""


@dataclass(frozen=True)
class BagRow:
    """One bag of the sortable table."""

    split: str
    cells: Sequence[str]
    wrong: bool


@dataclass(frozen=True)
class BagTable:
    """The sortable table of all bags."""

    columns: Sequence[Column]
    rows: Sequence[BagRow]
    splits: Sequence[str]
    note: str = ""
    classes: bool = True  # predictions are right or wrong


@dataclass(frozen=True)
class FoldedText:
    """Text that opens on a click."""

    title: str
    text: str


@dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    bags: BagTable | None = None
    folded: Sequence[FoldedText] = ()
    anchor: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page: one sentence, the result, and what supports it."""

    title: str
    kicker: str
    lead: str
    headlines: Sequence[Headline] = ()
    remarks: Sequence[str] = ()
    notices: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=list)


def render(page: Page) -> str:
    """The page as HTML; it refers to no other file."""
    environment = Environment(
        loader=PackageLoader("dasmil.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader = environment.loader
    assert loader is not None
    css, script = (Markup(loader.get_source(environment, name)[0]) for name in ("page.css", "page.js"))
    return environment.get_template("page.html").render(
        page=page,
        version=__version__,
        variables=Markup(css_variables()),
        css=css,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode(),
    )


def write_page(page: Page, path: Path) -> Path:
    """Write the page, whole or not at all."""
    write_text(path, render(page))
    return path
