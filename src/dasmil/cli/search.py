"""`dasmil search`: choose settings on validation bags, then train the chosen one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import CohortArguments
from dasmil.cli.engine_arguments import EngineArguments

app = App(name="search", help="Choose settings on validation bags, then train the best.")


@app.default
def search(
    *,
    grid: Annotated[list[str], Parameter(negative="")],
    out: Path,
    model: str = "das-mil",
    data: str | None = None,
    protocol: Literal["clean", "published"] = "clean",
    mnist_dir: Path | None = None,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    folds: int | None = None,
    split_seed: int = 0,
    metric: Literal["auroc", "balanced_accuracy", "loss"] = "auroc",
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
        One of `dasmil models`.
    data
        Built-in data: mnist-collage, mnist-collage-inv or mnist-bags.
    protocol
        Of built-in data: clean or published (which has no validation bags and cannot be searched).
    mnist_dir
        Folder with the four MNIST idx files.
    folds
        Nested cross-validation with this many folds by patient.
    split_seed
        Which patients go into which split or fold.
    metric
        What is compared on the validation bags: auroc, balanced_accuracy or loss.
    search_seeds
        Runs per setting while searching.
    seeds
        Runs of the chosen setting.
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
    import torch

    from dasmil.cli.cohort_source import choose_source
    from dasmil.cli.settings import Chosen, gather_settings
    from dasmil.cli.training_display import print_summary
    from dasmil.cli.training_units import made_with, round_arguments, source_record, train_grid, train_rounds
    from dasmil.errors import InputError
    from dasmil.files import finite, write_json
    from dasmil.report import write_report
    from dasmil.runs import Run
    from dasmil.train.config import TrainingConfig
    from dasmil.train.fit import fit
    from dasmil.train.folds import write_fold_summary
    from dasmil.train.search import JOURNAL, Journal, Question, check_search, parse_grid
    from dasmil.train.search import search as run_search

    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    values, spread = parse_grid(grid, model), engine.options()
    arguments: dict[str, Any] = {
        "data": data, "protocol": protocol, "mnist_dir": mnist_dir, "cohort": cohort, "folds": folds,
        "split_seed": split_seed, "open_test": False, "recipe": recipe, "features": None, "reference": None,
    }  # fmt: skip
    source = choose_source(**arguments)
    settings = {} if epochs is None else {"epochs": epochs}
    chosen = gather_settings(model, recipe, preset, settings, set or [], source.preset)
    question = Question(model, search_seeds, metric, chosen.training, chosen.options, chosen.preset)
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}, expected at least 1")
    rounds = source.rounds()
    folders = [out / name for name in _run_names(len(rounds))]
    _check_folders(out, folders)
    for splits in rounds:
        if splits.val is None or not len(splits.val):
            raise InputError("there are no validation bags to choose by: use --protocol clean, or give more patients")
        check_search(question, splits.train, splits.val, values)
    if not engine.in_this_process:
        journals = [Journal(out / JOURNAL, question, splits.train, splits.val or []) for splits in rounds]
        train_grid(journals, values, question, source_record(arguments), out, engine=spread)
    record: list[dict[str, Any]] = []
    final: dict[int, tuple[Path, Chosen]] = {}
    for number, splits in enumerate(rounds):
        title = f"fold {number + 1}/{len(rounds)}  " if len(rounds) > 1 else ""
        trials = run_search(
            model, splits.train, splits.val or [], values, journal=out / JOURNAL, seeds=search_seeds, metric=metric,
            settings=chosen.training, options=chosen.options, preset=chosen.preset,
            on_trial=lambda done, total, trial, title=title: _say(f"{title}{done}/{total}", trial, metric),
        )  # fmt: skip
        best = trials[0]
        _say(f"{title}chosen", best, metric)
        shown = [{"settings": trial.settings, "score": _value(trial, metric)} for trial in trials]
        record.append({"chosen": best.settings, "score": shown[0]["score"], "trials": shown})
        training = {**chosen.training, **{k: v for k, v in best.settings.items() if k in TrainingConfig.model_fields}}
        options = {
            **chosen.options, **{k: v for k, v in best.settings.items() if k not in TrainingConfig.model_fields}
        }  # fmt: skip
        final[number] = folders[number], Chosen(training, options, chosen.preset)
        unit = round_arguments(source_record(arguments), number, model, final[number][1], seeds, folders[number])
        record[-1]["made_with"] = made_with(unit, splits)
    _remove_earlier(out, {folder.name: round_["made_with"] for folder, round_ in zip(folders, record, strict=True)})
    write_json(out / "search.json", {"metric": f"val_{metric}", "grid": values, "rounds": record})
    if engine.in_this_process:
        for number, (folder, part) in final.items():
            splits = rounds[number]
            fit(
                model, splits.train, splits.val, seeds=seeds, model_options=part.options, preset=part.preset,
                out=folder, resume=True, tests=splits.tests, data=splits.data, **part.training,
            )  # fmt: skip
    else:
        train_rounds(final, rounds, source_record(arguments), model, out, seeds=seeds, engine=spread)
    if len(rounds) > 1:
        write_fold_summary(out, len(rounds))
    run = out / "best" if len(rounds) == 1 else out
    write_report(run)
    stored = Run.read(run)
    if json:
        import json as json_module

        print(json_module.dumps(finite({"rounds": record, "summary": stored.summary}), indent=2))
    else:
        print_summary(stored.summary, stored.classes)
        print(stored.report)
    return 0


def _run_names(rounds: int) -> list[str]:
    from dasmil.runs import fold_folder

    return ["best"] if rounds == 1 else [fold_folder(Path(), number).name for number in range(rounds)]


def _check_folders(out: Path, folders: list[Path]) -> None:
    """Refuse, before training, to touch runs that are not a search's own."""
    from dasmil.errors import InputError
    from dasmil.runs import check_kind, is_begun

    searched = (out / "search.json").exists()
    if len(folders) > 1 and (not searched or is_begun(out)):
        check_kind(out, len(folders))
    for folder in folders:
        if is_begun(folder) and not searched:
            raise InputError(f"{folder} holds a run that no search made: choose another folder with --out")


def _remove_earlier(out: Path, made_with: dict[str, str]) -> None:
    """Remove the runs of an earlier search in this folder with other settings or bags, and the summary over them."""
    import shutil

    from dasmil.files import read_json
    from dasmil.runs import forget_folds

    if not (out / "search.json").exists():
        return
    rounds = read_json(out / "search.json")["rounds"]
    earlier = {name: round_.get("made_with") for name, round_ in zip(_run_names(len(rounds)), rounds, strict=True)}
    if len(rounds) > 1 and earlier != made_with:
        forget_folds(out)
    for name, mark in earlier.items():
        if (out / name).exists() and made_with.get(name) != mark:
            shutil.rmtree(out / name)
            print(f"Replaced: {out / name}, of an earlier search with other settings or bags", file=sys.stderr)


def _say(title: str, trial: Any, metric: str) -> None:
    settings = " ".join(f"{name}={value}" for name, value in trial.settings.items())
    print(f"{title}  {settings}  val {metric} {_value(trial, metric):.4f}", file=sys.stderr)


def _value(trial: Any, metric: str) -> float:
    """The metric itself: scores are larger for better trials, so that of a loss is its negative."""
    return -trial.score if metric == "loss" else trial.score
