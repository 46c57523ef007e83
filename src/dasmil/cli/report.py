"""`dasmil report`: write the page of a run again."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="report", help="Write the page of a run again.")


@app.default
def report(run: Path) -> None:
    """Write the page of a run again, from the files in its folder: after an update, or where it could not be written.

    Example: dasmil report runs/mine

    Parameters
    ----------
    run
        Run directory of dasmil train.
    """
    from dasmil.report import write_report

    print(write_report(run))
