"""`dasmil evaluate`: score a trained run on labelled bags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import BagArguments, option_names

app = App(name="evaluate", help="Score a trained run on labelled bags.")


@app.default
def evaluate(
    run: Path,
    *,
    split: list[str] | None = None,
    cohort: BagArguments = BagArguments(),  # noqa: B008
    mnist_dir: Path | None = None,
    out: Path | None = None,
    subgroups: str | None = None,
    prevalence: float | None = None,
    missed_cost: float | None = None,
    recalibrate: Literal["none", "platt", "isotonic", "temperature"] | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Score every seed of a run and their ensemble on labelled bags, at the thresholds chosen in training.

    Without --bags this opens the run's locked test set and adds its scores to the report (not for a cross-validation).

    With --bags and --labels it scores other bags. Columns, features and classes are read as in training, unless given
    here.

    Example: dasmil evaluate runs/collage --split test-large

    Example: dasmil evaluate runs/mine --bags features/ --labels clini.csv --slide-table slides.csv

    Example: dasmil evaluate runs/mine --bags other/ --labels other.csv --out external/ --subgroups site,age>65

    Parameters
    ----------
    run
        Run directory of dasmil train.
    split
        Sets of the data that the run was trained on (default: its test sets); not with --bags. test-large, 2,000
        clean bags, also for runs of the published protocol.
    mnist_dir
        Folder with the four MNIST idx files.
    out
        With --bags: folder for a page of external validation (report.html, slides.csv, external.json): case mix,
        discrimination, calibration, decisions, shift of features, every slide.
    subgroups
        With --out: columns of the label table, or cuts of numbers, separated by commas (site,sex,age>65).
    prevalence
        With --out: share of positive patients at which predictive values and net benefit are given.
    missed_cost
        With --out: how many false alarms a missed positive counts.
    recalibrate
        none undoes the recalibration that was saved with the run; another method fits one on the run's out-of-fold (or
        validation) predictions. Default: as saved with the run.
    json
        Print the results as JSON.
    """
    from dasmil.cli.display import code_of, say
    from dasmil.cli.training_display import print_summary, print_task_summary
    from dasmil.errors import InputError
    from dasmil.runs import Run
    from dasmil.study import apply
    from dasmil.study.external import PAGE
    from dasmil.study.subgroups import names_of

    stored = Run.read(run)
    if cohort.bags is None and cohort.given():  # opening the run's test set, which is counted, is not what was meant
        raise InputError(f"{option_names(cohort.given())} came without --bags, the bags to read with it: give both")
    bags = None if cohort.bags is None else cohort
    summary = apply.evaluate(
        stored,
        bags,
        split=split,
        mnist_dir=mnist_dir,
        recalibrate=recalibrate,
        out=out,
        subgroups=names_of(subgroups),
        prevalence=prevalence,
        missed_cost=missed_cost,
        note=say,
    )
    if json:
        import json as json_module

        from dasmil.files import finite

        print(json_module.dumps(finite(summary), indent=2))
    else:
        if stored.task is None:
            print_summary(summary, stored.classes)
        else:
            print_task_summary(summary, stored.task.unit)
        if out is not None:
            print(out / PAGE)
    return code_of("left_out" in summary)
