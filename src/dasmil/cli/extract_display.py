"""How an extraction goes, and what became of its slides, on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dasmil.cli.display import Display
from dasmil.engine.progress import duration

if TYPE_CHECKING:
    from dasmil.wsi.batch import BatchSummary
    from dasmil.wsi.slide_work import SlideResult


class TimeLeft:
    """Seconds to the end, from the bytes of the slides that were worked on; skipped ones teach nothing."""

    def __init__(self, slides: Sequence[Path]) -> None:
        self.sizes = {slide: slide.stat().st_size if slide.is_file() else 0 for slide in slides}
        self.remaining = float(sum(self.sizes.values()))
        self.worked_bytes = self.worked_seconds = 0.0

    def finish(self, slide: Path, seconds: float, worked: bool) -> None:
        """One slide less."""
        self.remaining = max(0.0, self.remaining - self.sizes.get(slide, 0))
        if worked:
            self.worked_bytes += self.sizes.get(slide, 0)
            self.worked_seconds += seconds

    def seconds(self, slide: Path, share: float, spent: float) -> float | None:
        """None while nothing is known; slide, share, spent: the one in work, how much of it is done, and in what time.

        The first slide goes by its own pace, carried over to the bytes of the others.
        """
        size = self.sizes.get(slide, 0)
        rest = max(0.0, self.remaining - share * size)
        if self.worked_bytes:
            return rest * self.worked_seconds / self.worked_bytes
        return rest * spent / (share * size) if share and size else None


class SlideDisplay(Display):
    """The reporter of an extraction: one line for the slide in work; failures stay."""

    def start(self, slides: Sequence[Path]) -> None:
        """Before the first slide."""
        self._total, self._left = len(slides), TimeLeft(slides)

    def slide(self, path: Path, number: int) -> None:
        """A slide begins."""
        self._path, self._number, self._began = path, number, time.perf_counter()
        self.line(f"{self._place()}: finding tissue")

    def tiles(self, done: int, total: int) -> None:
        """So many tiles of the slide are done."""
        left = self._left.seconds(self._path, done / total if total else 0.0, time.perf_counter() - self._began)
        self.line(f"{self._place()}: {done:,} of {total:,} tiles, {duration(left)} left for all slides")

    def result(self, result: SlideResult) -> None:
        """What became of it."""
        self._left.finish(Path(result.path), result.seconds, result.status in ("done", "failed"))
        if result.status == "failed":
            self.note(f"Failed: {result.reason}")

    def _place(self) -> str:
        return f"{self._number}/{self._total} {self._path.name}"


def print_table(summary: BatchSummary, qc: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    counts = summary.counts()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("slide", "status", "tiles", "blank", "out of focus", "um/px", "seconds"):
        table.add_column(name, justify="left" if name in ("slide", "status") else "right", no_wrap=name == "status")
    # What needs attention comes last, where it is seen; a thousand finished slides need no thousand rows.
    rows = sorted(summary.results, key=lambda r: (r.status in ("failed", "busy"), r.slide))
    shown = [r for r in rows if r.status != "skipped"] if counts["skipped"] > 20 else rows
    for r in shown:
        mpp = f"{r.mpp:.4f}" if r.mpp else ""
        cells = (r.slide, r.status, f"{r.tiles:,}", f"{r.blank:,}", f"{r.out_of_focus:,}", mpp, f"{r.seconds:.1f}")
        table.add_row(*cells)
    console.print(table, markup=False)
    for r in rows:
        for warning in r.warnings:
            print(f"Warning: {r.slide}: {warning}")
    for r in rows:
        if r.status == "failed":
            print(f"Failed: {r.reason}")
    text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    print(f"{text}; {sum(r.tiles for r in rows if r.bag):,} tiles in {summary.seconds:.1f} s")
    if qc:
        print(f"{summary.out_dir}/qc/index.html")
    print(f"{summary.out_dir}/summary.json")
