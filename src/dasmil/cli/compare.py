"""`dasmil compare`: models on the same splits, paired differences, and whether space is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import BAGS, CohortArguments
from dasmil.cli.engine_arguments import EngineArguments

app = App(name="compare", help="Compare models on the same splits, with paired intervals.")


@app.default
def compare(
    *runs: Path,
    out: Path,
    models: str | None = None,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    folds: Annotated[int, Parameter(group=BAGS)] = 5,
    split_seed: Annotated[int, Parameter(group=BAGS)] = 0,
    seeds: int = 1,
    recipe: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    grid: Annotated[list[str] | None, Parameter(negative="")] = None,
    same_settings: Annotated[bool, Parameter(negative="")] = False,
    space_test: Annotated[bool, Parameter(negative="")] = False,
    margin: float | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare finished runs on the same bags, or cross-validate models on the same folds and compare them.

    Each fold of each model chooses its learning rate by its validation bags, so that all have the same budget. Per pair
    the difference in the task's metric (AUROC of classes, C-index of survival, R2 of a number, the mean over several
    targets) with a paired interval over patients, corrected for the number of comparisons (Holm). Writes report.html,
    table.md, table.tex, table.csv and comparison.json. What is trained is not trained again when the command is
    repeated after an interruption.

    Examples: dasmil compare runs/das-mil runs/sa --out runs/compared;
    dasmil compare --bags features --labels labels.csv --models das-mil,sa,clam-sb --out runs/compared --space-test;
    dasmil compare --bags features --labels clini.csv --time-column days --event-column dead --out runs/survival

    Parameters
    ----------
    runs
        Run directories that scored the same bags.
    out
        Folder for the page and the tables, and for the runs of --models.
    models
        Models to train on --bags, separated by commas (default: das-mil,sa,ab-mil,clam-sb,mean-pool).
    folds
        Number of cross-validation folds by patient, stratified by class; the same for all models.
    split_seed
        Seed of the assignment of patients to folds.
    seeds
        Number of runs of each model that differ only in their random numbers.
    recipe
        A set of settings, for all models alike.
    epochs
        Passes over the training bags, for all models alike.
    lr
        Learning rate, for all models alike; without it every fold of every model chooses among three.
    grid
        name=value,value,...: what every fold of every model chooses by its validation bags; may be given several times.
        Without it: lr=0.0002,0.001,0.005.
    same_settings
        Train all models with the same settings instead of choosing among them.
    space_test
        Score every model again with shuffled coordinates and with shuffled rows.
    margin
        Non-inferiority: also say which models are at most this much worse than the best, for example 0.05. The whole
        paired interval must lie above minus the margin.
    set
        Any setting of training, for all models alike, as name=value: --set clip=1.0
    json
        Print the record as JSON.
    """
    import json as json_module

    from dasmil.cli.assignments import parse_assignments
    from dasmil.cli.display import Display, say
    from dasmil.errors import InputError
    from dasmil.study.compare import DEFAULT_MODELS, GRID, RECORD
    from dasmil.study.compare import compare as compare_models
    from dasmil.study.trials import parse_grid

    if bool(runs) == (cohort.bags is not None):
        raise InputError("give either run directories, or --bags and --labels with --models")
    if runs and (models or recipe or epochs or lr or set or grid or same_settings):
        raise InputError("finished runs are compared as they are: leave --models and settings of training out")
    engine.use_threads()
    if grid and same_settings:
        raise InputError("--grid and --same-settings were given: choose one of them")
    names = models.split(",") if models else list(DEFAULT_MODELS)
    parsed = [parse_grid(grid, name) for name in names] if grid else [None if same_settings else GRID]
    settings = {**parse_assignments(set or []), "epochs": epochs, "lr": lr}
    found = compare_models(
        runs or cohort, names, out=out, folds=folds, seeds=seeds, split_seed=split_seed, recipe=recipe, grid=parsed[0],
        space_test=space_test, margin=margin,
        engine=None if engine.in_this_process else engine.options(), note=say, watch=Display,
        **{name: value for name, value in settings.items() if value is not None},
    )  # fmt: skip
    if json:
        print(json_module.dumps(json_module.loads((out / RECORD).read_text(encoding="utf-8")), indent=2))
    else:
        print("\n".join([found.sentence, *found.cautions]) + f"\n\n{found.table()}")
        print(found.report)
    return 0
