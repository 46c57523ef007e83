"""One self-contained HTML page for a run: `write_report(run_dir)`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_dir: str | Path) -> Path:
    """Render report.html of a run directory (or of a cross-validation) from the files in it."""
    from dasmil.report.page import write_page
    from dasmil.report.run import read_run
    from dasmil.report.single import run_page

    folder = Path(run_dir)
    return write_page(run_page(read_run(folder)), folder / "report.html")
