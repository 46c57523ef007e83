"""`dasmil report`: write the page of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="report", help="Write the report of a run again.")


@app.default
def report(
    run: Path,
    *,
    recalibrate: Literal["none", "platt", "isotonic", "temperature"] | None = None,
    subgroups: Annotated[str | None, Parameter(negative="")] = None,
    prevalence: float | None = None,
    missed_cost: float | None = None,
) -> None:
    """Write the report of a run again from its files, for example after an update.

    The options are kept with the run, so that later pages have them too.

    Examples: dasmil report runs/mine; dasmil report runs/mine --subgroups site,sex,age>65 --prevalence 0.05

    Parameters
    ----------
    run
        Run directory of dasmil train.
    recalibrate
        Fit a recalibration on out-of-fold (or validation) predictions and save it with the run, as dasmil train does;
        none takes it away.
    subgroups
        Columns of the label table, or cuts of numbers, separated by commas, in which the score is compared.
    prevalence
        Share of positive patients where the model will be used: predictive values and net benefit are given there.
    missed_cost
        How many false alarms a missed positive counts: the report has the threshold for it.
    """
    from dasmil.errors import InputError
    from dasmil.report import write_report
    from dasmil.runs import Run, save_recalibration, write_clinical
    from dasmil.stats.decisions import check_prevalence, threshold_for_cost
    from dasmil.study.subgroups import keep_subgroups, names_of

    stored = Run.read(run)
    if (prevalence is not None or missed_cost is not None) and (stored.task is not None or stored.classes > 2):
        raise InputError("--prevalence and --missed-cost are for runs of two classes: leave them out")
    if recalibrate is not None:
        save_recalibration(stored, recalibrate)
    if names := names_of(subgroups):
        keep_subgroups(stored, names)
    if prevalence is not None:
        write_clinical(run, {"prevalence": check_prevalence(prevalence)})
    if missed_cost is not None:
        threshold_for_cost(missed_cost)
        write_clinical(run, {"missed_cost": missed_cost})
    print(write_report(run))
