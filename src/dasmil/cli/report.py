"""`dasmil report`: write the page of a run again."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="report", help="Write the report of a run again.")


@app.default
def report(run: Path) -> None:
    """Write the report of a run again from its files, for example after an update.

    Example: dasmil report runs/mine

    Parameters
    ----------
    run
        Run directory of dasmil train.
    """
    from dasmil.report import write_report

    print(write_report(run))
