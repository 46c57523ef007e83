"""`dasmil predict`: probabilities for bags, from all seeds of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="predict", help="Predict bags with a trained run.")


@app.default
def predict(
    run: Path,
    *,
    bags: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("predictions.csv"),
    mpp: str | None = None,
    tile_um: float | None = None,
    scale_table: Path | None = None,
    per_patient: Annotated[bool, Parameter(negative="")] = False,
    slide_table: Path | None = None,
    recalibrate: Literal["none", "platt", "isotonic", "temperature"] | None = None,
    sets: float | None = None,
    sets_by: str | None = None,
    strict: Annotated[bool, Parameter(negative="")] = False,
    accept: str | None = None,
    unit: str | None = None,
) -> int:
    """Predict every bag of a folder with the mean probability over all seeds (and folds) of a run.

    Example: dasmil predict runs/mine --bags features/ -o predictions.csv

    Parameters
    ----------
    run
        Run directory of dasmil train.
    bags
        Folder of feature files.
    output
        CSV to write: bag_id, probability (of the positive class), prediction (1 from the run's threshold on), class
        (its name), probability_sd (over the models), logit, and the probability of every class by its name. Survival:
        risk, risk_sd and survival probabilities at the run's times. A number: the number. The last column, caveat,
        says if the run is no better than chance or a simple rule is better.
    mpp
        Micrometres per level-0 pixel, if the files do not state it (files of the run's folder: as in training).
    tile_um
        Edge of a tile in micrometres, where the files do not say.
    scale_table
        CSV with slide and any of mpp, tile_um, for slides that differ.
    per_patient
        Join the slides of a patient, each as a section. This is automatic if the run was trained so.
    slide_table
        CSV with slide and patient, if bag files do not name their patient. A patient with a missing slide is predicted
        from the others and named.
    recalibrate
        none undoes the recalibration that was saved with the run; another method fits one on the run's out-of-fold (or
        validation) predictions. Default: as saved with the run.
    sets
        Coverage of prediction sets, for example 0.9: column set has the classes that cannot be ruled out.
    sets_by
        Keep groups apart, so that each has the coverage: class, or a column of the run's label table (site); then
        --slide-table needs this column too.
    strict
        Stop if a slide cannot be read. Default: its row has the reason instead of a probability, and the exit code
        is 1.
    accept
        Accept these errors of `dasmil doctor`, by name, separated by commas: mixed-encoders, swapped-axes.
    unit
        Of a table of cells whose positions are not in the unit of the run's: um or px (px needs --mpp).
    """
    from dasmil.cli.display import code_of, say
    from dasmil.files import for_spreadsheets, write_csv
    from dasmil.runs import Run, recalibration_of, verdict
    from dasmil.study import apply
    from dasmil.study.spec import BagSpec

    stored = Run.read(run)
    found = BagSpec(bags=bags, mpp=mpp, tile_um=tile_um, scale_table=scale_table, strict=strict,
                    per_patient=per_patient, slide_table=slide_table, accept=accept, unit=unit)  # fmt: skip
    rows = apply.predict(stored, found, recalibrate=recalibrate, sets=sets, sets_by=sets_by, note=say)
    if caveat := verdict(stored).caveat:
        rows = [{**row, "caveat": caveat} for row in rows]
    write_csv(output, [{name: for_spreadsheets(cell) for name, cell in row.items()} for row in rows])
    models, left_out = len(stored.all_seeds), sum(bool(row.get("problem")) for row in rows)
    beside = ("bag_id", "problem", "caveat", "seen", "feature_distance", "unusual")
    predicted = sum(any(value not in ("", None) for name, value in row.items() if name not in beside) for row in rows)
    print(f"{predicted:,} bags, mean of {models} model{'s' if models > 1 else ''}")
    if unusual := sum(row.get("unusual") == "yes" for row in rows):
        print(f"{unusual:,} of these bags have features unlike those of training (column unusual)")
    if stored.task is not None:
        print(stored.task.text)
    elif stored.classes == 2 and (names := stored.origin.get("classes")):
        before = "" if recalibration_of(stored, recalibrate) is None else " before recalibration"
        cut = 0.5 if stored.decision is None else stored.decision
        print(f"Positive: {names[1]}, from probability {cut:.3f}{before} on")
    if caveat:
        print(f"Caveat of the run: {caveat}")
    print(output)
    return code_of(left_out > 0)
