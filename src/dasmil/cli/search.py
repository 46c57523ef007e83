"""`dasmil search`: choose settings on validation bags, then train the chosen one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import BAGS, BUILT_IN, CohortArguments
from dasmil.cli.engine_arguments import EngineArguments

app = App(name="search", help="Choose settings on validation bags, then train the best.")


@app.default
def search(
    *,
    grid: Annotated[list[str], Parameter(negative="")],
    out: Path,
    model: str = "das-mil",
    data: Annotated[str | None, Parameter(group=BUILT_IN)] = None,
    protocol: Annotated[Literal["clean", "published"], Parameter(group=BUILT_IN)] = "clean",
    mnist_dir: Annotated[Path | None, Parameter(group=BUILT_IN)] = None,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    folds: Annotated[int | None, Parameter(group=BAGS)] = None,
    split_seed: Annotated[int, Parameter(group=BAGS)] = 0,
    metric: str | None = None,
    search_seeds: int = 1,
    seeds: int = 5,
    recipe: str | None = None,
    preset: str | None = None,
    epochs: int | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train every setting of a grid, choose by the validation bags alone, and train the chosen setting.

    With --folds the search is nested: every fold chooses on its own validation part, and only the chosen setting meets
    its test part. Finished trials are kept in a journal in --out: the same command goes on where it stopped, on
    whatever engine; a search with other settings replaces the final run of the one before. --jobs and --engine spread
    trials and folds over processes or machines.

    Example: dasmil search --bags features/ --labels labels.csv --grid lr=1e-2,1e-3 --out runs/search

    Parameters
    ----------
    grid
        name=value,value,... for a setting of training or an option of the model; may be given several times.
    out
        Folder for the journal, the list of trials and the final run (or one per fold).
    model
        A name from `dasmil models`.
    data
        Built-in data: mnist-collage, mnist-collage-inv or mnist-bags.
    protocol
        Splits of the built-in data: clean, or published (which has no validation bags and cannot be searched).
    mnist_dir
        Folder with the four MNIST idx files.
    folds
        Number of folds of a nested cross-validation by patient.
    split_seed
        Seed of the assignment of patients to splits or folds.
    metric
        Score of the validation bags: auroc (default), balanced_accuracy or loss; survival: c_index; a number: r2 or
        spearman; grades: kappa; several targets: macro.
    search_seeds
        Number of runs per setting while searching.
    seeds
        Number of runs of the chosen setting.
    recipe
        A set of settings to start from.
    preset
        Sizes of the model as in the paper.
    epochs
        Passes over the training bags.
    set
        Any other option of the model or setting of training, as name=value.
    json
        Print the chosen settings and results as JSON.
    """
    from dasmil.cli.assignments import parse_assignments
    from dasmil.cli.display import Display, say
    from dasmil.cli.training_display import print_scores
    from dasmil.study.data import StudyData
    from dasmil.study.search import search_study
    from dasmil.study.settings import gather_settings
    from dasmil.study.trials import TrialSetup, parse_grid

    engine.use_threads()
    values, spread = parse_grid(grid, model), engine.options()
    source = StudyData(
        data=data, protocol=protocol, mnist_dir=mnist_dir, cohort=cohort, folds=folds, split_seed=split_seed,
        recipe=recipe,
    )  # fmt: skip
    settings = {} if epochs is None else {"epochs": epochs}
    chosen = gather_settings(model, recipe, preset, settings, parse_assignments(set or []), source.preset)
    question = TrialSetup(model, search_seeds, metric, chosen.training, chosen.options, chosen.preset)
    found = search_study(source, question, values, out, seeds, None if engine.in_this_process else spread, say, Display)
    if json:
        import json as json_module

        from dasmil.files import finite

        print(json_module.dumps(finite({"rounds": found.rounds, "summary": found.run.summary}), indent=2))
    else:
        print_scores(found.run)
        print(found.run.report)
    return 0
