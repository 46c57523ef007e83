"""One self-contained HTML page for a run: `write_report(run_dir)`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_dir: str | Path) -> Path:
    """Render the page of a run directory (or of a cross-validation) from the files in it."""
    from dasmil.report.page import write_page
    from dasmil.report.single import run_page
    from dasmil.runs import Run

    run = Run.read(run_dir)
    if run.task is not None:
        from dasmil.report.task_page import task_page

        return write_page(task_page(run), run.report)
    return write_page(run_page(run), run.report)
