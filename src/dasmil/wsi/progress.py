"""How an extraction goes, for a terminal (two bars) or for a log (one line a slide)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dasmil.engine.progress import duration

if TYPE_CHECKING:
    from dasmil.wsi.batch import Reporter
    from dasmil.wsi.pipeline import SlideResult


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

    def seconds(self, slide: Path | None = None, share: float = 0.0) -> float | None:
        """None while nothing is known; slide and share: the one in work, and how much of it is done."""
        if not self.worked_bytes:
            return None
        rest = self.remaining - (share * self.sizes.get(slide, 0) if slide else 0.0)
        return max(0.0, rest) * self.worked_seconds / self.worked_bytes


class LineReporter:
    """One line per finished slide, on stderr."""

    def start(self, slides: Sequence[Path]) -> None:
        self.total, self.left, self.number = len(slides), TimeLeft(slides), 0

    def slide(self, path: Path, number: int) -> None:
        self.path, self.number, self.began = path, number, time.perf_counter()

    def tiles(self, done: int, total: int) -> None: ...

    def result(self, result: SlideResult) -> None:
        self.left.finish(Path(result.path), result.seconds, result.status in ("done", "failed"))
        what = f"{result.tiles:,} tiles" if result.status in ("done", "skipped") else result.reason
        rest = f", {duration(self.left.seconds())} left" if self.number < self.total else ""
        line = f"{self.number}/{self.total} {result.slide}: {result.status}, {what}, {result.seconds:.1f} s{rest}"
        print(line, file=sys.stderr, flush=True)


@contextmanager
def make_reporter(quiet: bool) -> Iterator[Reporter | None]:
    """Bars on a terminal, lines elsewhere, nothing when quiet."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield LineReporter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    name = TextColumn("{task.description}", markup=False)  # names may hold square brackets
    columns = (name, BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _BarReporter(progress)


class _BarReporter:
    def __init__(self, progress: object) -> None:
        from rich.progress import Progress

        assert isinstance(progress, Progress)
        self.progress = progress

    def start(self, slides: Sequence[Path]) -> None:
        self.left = TimeLeft(slides)
        self.all = self.progress.add_task("slides", total=len(slides), left="")
        self.one = self.progress.add_task("", total=None, left="")

    def slide(self, path: Path, number: int) -> None:
        self.path, self.began = path, time.perf_counter()
        self.progress.reset(self.one, total=None, description=path.name, left="finding tissue")

    def tiles(self, done: int, total: int) -> None:
        spent = time.perf_counter() - self.began
        rest = spent * (total - done) / done if done else None
        self.progress.update(self.one, completed=done, total=total, left=f"tiles, {duration(rest)} left")
        seconds = self.left.seconds(self.path, done / total if total else 0.0)
        size = self.left.sizes.get(self.path, 0)
        if seconds is None and rest is not None and size:
            # The first slide: its own pace, carried over to the bytes of the others.
            seconds = rest + (self.left.remaining - size) * (spent + rest) / size
        if seconds is not None:
            self.progress.update(self.all, left=f"{duration(seconds)} left")

    def result(self, result: SlideResult) -> None:
        self.left.finish(Path(result.path), result.seconds, result.status in ("done", "failed"))
        self.progress.update(self.all, advance=1, left=f"{duration(self.left.seconds())} left")
        if result.status == "failed":
            self.progress.console.print(f"Failed: {result.reason}", markup=False, highlight=False)
