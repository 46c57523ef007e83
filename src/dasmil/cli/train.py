"""`dasmil train`: one model, several seeds at once, into a run directory."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import BAGS, BUILT_IN, TRAINING, CohortArguments
from dasmil.cli.engine_arguments import EngineArguments

app = App(name="train", help="Train on bags and write a run folder with a report.")


@app.default
def train(
    *,
    out: Path,
    model: str | None = None,
    data: Annotated[str | None, Parameter(group=BUILT_IN)] = None,
    protocol: Annotated[Literal["clean", "published"], Parameter(group=BUILT_IN)] = "clean",
    mnist_dir: Annotated[Path | None, Parameter(group=BUILT_IN)] = None,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    folds: Annotated[int | None, Parameter(group=BAGS)] = None,
    split_seed: Annotated[int, Parameter(group=BAGS)] = 0,
    test: Annotated[bool, Parameter(negative="", group=BAGS)] = False,
    features: Annotated[Path | None, Parameter(group=BUILT_IN)] = None,
    reference: Annotated[Path | None, Parameter(group=BUILT_IN)] = None,
    seeds: Annotated[int, Parameter(group=TRAINING)] = 1,
    recipe: Annotated[str | None, Parameter(group=TRAINING)] = None,
    preset: Annotated[str | None, Parameter(group=TRAINING)] = None,
    plain: Annotated[bool, Parameter(negative="", group=TRAINING)] = False,
    epochs: Annotated[int | None, Parameter(group=TRAINING)] = None,
    lr: Annotated[float | None, Parameter(group=TRAINING)] = None,
    weight_decay: Annotated[float | None, Parameter(group=TRAINING)] = None,
    optimizer: Annotated[str | None, Parameter(group=TRAINING)] = None,
    schedule: Annotated[str | None, Parameter(group=TRAINING)] = None,
    selection: Annotated[str | None, Parameter(group=TRAINING)] = None,
    early_stopping: Annotated[int | None, Parameter(group=TRAINING)] = None,
    device: Annotated[str | None, Parameter(group=TRAINING)] = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative="", group=TRAINING)] = None,
    tensorboard: Annotated[bool, Parameter(negative="")] = False,
    log: Literal["tensorboard", "wandb", "mlflow"] | None = None,
    baselines: Annotated[bool, Parameter(group=TRAINING)] = True,
    recalibrate: Literal["none", "platt", "isotonic", "temperature"] = "none",
    subgroups: str | None = None,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    resume: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train on bags and write a run folder with a report.

    Without --model, the simplest model is chosen that predicts as well as the best in cross-validation. A seed and the
    same --threads give the same result bit for bit. --jobs and --engine spread --folds over processes or machines.

    Examples:

        dasmil train --bags features/ --labels labels.csv --mpp 0.25 --folds 5 --seeds 3 --out runs/mine

        dasmil train --data mnist-collage --model das-mil --seeds 5 --out runs/collage

    Parameters
    ----------
    out
        Folder for the run: configuration, curves, predictions, weights, report.html.
    model
        auto, or a name from `dasmil models`. auto compares simple regressions, attention and DAS-MIL by
        cross-validation over the training patients and keeps the simplest good one. Default: auto; das-mil with --data
        or any option of a single model (--recipe, --preset, --epochs, --set); with --features the paper's models.
    data
        Built-in data: mnist-collage, mnist-collage-inv or mnist-bags.
    protocol
        Splits of the built-in data: clean (independent sets) or published (those of the paper, which leak).
    mnist_dir
        Folder with the four MNIST idx files. Default: the digits that come with dasmil.
    folds
        Number of cross-validation folds, stratified by class. Patients are never split across folds.
    split_seed
        Seed of the assignment of patients to splits or folds.
    test
        Score the locked test set right after training. Each opening is counted. Not with --folds.
    features
        With --recipe camelyon16: folder of CAMELYON16 features; needs --reference.
    reference
        With --recipe camelyon16: the challenge's reference.csv with the labels of the test slides.
    seeds
        Number of runs that differ only in their random numbers. They train together.
    recipe
        Named set of settings: paper, tuned or camelyon16. Other options override it.
    preset
        Model sizes of the paper: mnist-collage or camelyon16.
    plain
        Train as in the paper, on features of any width and positions in any unit: its layers, optimiser and schedule,
        random weights.
    epochs
        Number of passes over the training bags.
    lr
        Learning rate.
    weight_decay
        Weight decay.
    optimizer
        Optimiser: adamw, adam or radam.
    schedule
        Learning rate schedule: constant, linear, cosine, or hold-linear (constant for two thirds, then down to 0).
    selection
        Epoch to keep: last, or best-val (best on the validation bags).
    early_stopping
        Stop after this many epochs without a better validation score.
    device
        Device: auto, cpu, cuda or mps.
    set
        Any model option or training setting, as name=value: --set hidden=20 --set clip=1.0
    tensorboard
        Also write TensorBoard events (the same as --log tensorboard).
    log
        Also log the curves to tensorboard, wandb or mlflow (extras of these names). Files go to the run folder unless
        WANDB_MODE or MLFLOW_TRACKING_URI is set.
    baselines
        Also fit simple baselines on the same training bags and show them in the report. Takes seconds.
    recalibrate
        Recalibrate probabilities by a map that is fitted on out-of-fold (or validation) predictions and saved with the
        run; predict and evaluate apply it unless --recalibrate none is given.
    subgroups
        Columns of the label table, or cuts of numbers, separated by commas (site,sex,age>65). The report compares the
        score in these subgroups of patients.
    resume
        Resume the run in --out after an interruption.
    json
        Print the results as JSON.
    """
    from dasmil.cli.assignments import parse_assignments
    from dasmil.cli.display import Display, code_of, say
    from dasmil.cli.training_display import print_run
    from dasmil.errors import InputError
    from dasmil.study.data import StudyData
    from dasmil.study.notes import silent
    from dasmil.study.progress import unseen
    from dasmil.study.settings import gather_settings
    from dasmil.study.subgroups import names_of
    from dasmil.study.training import train_study
    from dasmil.train.fit_auto import default_model
    from dasmil.train.ranks import joined

    given = {
        "epochs": epochs, "lr": lr, "weight_decay": weight_decay, "optimizer": optimizer, "schedule": schedule,
        "selection": selection, "early_stopping": early_stopping, "device": device, "tensorboard": tensorboard or None,
        "plain": plain or None,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None}
    source = StudyData(
        data=data, protocol=protocol, mnist_dir=mnist_dir, cohort=cohort, folds=folds, split_seed=split_seed,
        open_test=test, recipe=recipe, features=features, reference=reference,
    )  # fmt: skip
    spread = engine.options()
    if folds is None and not engine.in_this_process:
        raise InputError("--jobs, --engine and --gpus spread folds: give --folds too, or leave them out for one run")
    engine.use_threads()

    def train_one(name: str, folder: Path, quiet: bool = False) -> int:
        chosen = gather_settings(name, recipe, preset, settings, parse_assignments(set or []), source.preset)
        try:
            run = train_study(
                source, name, folder, chosen, seeds=seeds, engine=None if engine.in_this_process else spread,
                baselines=baselines, recalibrate=None if recalibrate == "none" else recalibrate,
                subgroups=names_of(subgroups), log=log, resume=resume,
                note=silent if quiet else say, watch=unseen if quiet else Display,
            )  # fmt: skip
        except KeyboardInterrupt:
            return _interrupted(folder)
        if json and not quiet:
            import json as json_module

            from dasmil.runs import read_baselines, verdict

            found = {"verdict": verdict(run).as_json(), "baselines": read_baselines(run.path)}
            print(json_module.dumps({"run": str(folder), "report": str(run.report), **run.summary, **found}, indent=2))
        elif not quiet:
            print_run(run)
            print(run.report)
        return code_of("left_out" in run.data)

    if features is not None and model is None:
        return _train_table(out, train_one)
    chosen_model = model or default_model(settings, set, recipe, preset, data)
    with joined(str(settings.get("device", "auto"))) as ranks:
        if ranks.world > 1 and (resume or folds is not None):
            raise InputError("torchrun spreads the bags of one new run: leave --resume and --folds out")
        if ranks.rank == 0:
            return train_one(chosen_model, out)
        with tempfile.TemporaryDirectory() as folder:  # the first process writes the run
            return train_one(chosen_model, Path(folder) / "run", quiet=True)


def _train_table(out: Path, train_one: Callable[[str, Path], int]) -> int:
    """Train every model of the paper's CAMELYON16 table below ``out``, then write and print the table."""
    from dasmil.paper.camelyon16 import MODELS, write_table

    for name in MODELS:
        print(f"\n{name}", file=sys.stderr)
        if code := train_one(name, out / name):
            return code
    file = write_table(out)
    print(file.read_text(encoding="utf-8"))
    print(file)
    return 0


def _interrupted(out: Path) -> int:
    """Say what is saved and how to go on."""
    import shlex

    from dasmil.runs import is_begun, last_checkpoint

    current = last_checkpoint(out)
    saved = "No epoch was finished yet"
    if current is not None:
        folder, facts = current
        attempt = f" of attempt {facts['attempt'] + 1}" if facts["attempt"] else ""
        saved = f"{facts['epoch']} of {facts['epochs']} epochs{attempt} are saved in {folder}"
    arguments = [a for a in sys.argv[1:] if a != "--resume"]
    print(f"Stopped. {saved}.", file=sys.stderr)
    if is_begun(out) or current is not None:
        print(f"Go on with: {shlex.join(['dasmil', *arguments, '--resume'])}", file=sys.stderr)
    return 130
