"""One self-contained HTML page for a run: `write_report(run_dir)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dasmil.report.page import Page
    from dasmil.runs import Run

__all__ = ["page_of", "write_report"]


def write_report(run_dir: str | Path) -> Path:
    """Render the page of a run directory (or of a cross-validation) from the files in it."""
    from dasmil.report.page import write_page
    from dasmil.runs import Run

    run = Run.read(run_dir)
    return write_page(page_of(run), run.report)


def page_of(run: Run) -> Page:
    """The page of a run, whatever its task is."""
    from dasmil.report.single import run_page
    from dasmil.report.task_page import task_page

    return run_page(run) if run.task is None else task_page(run)
