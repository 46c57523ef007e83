"""`dasmil train`: one model, several seeds at once, into a run directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from dasmil.cli.cohort_arguments import CohortArguments
from dasmil.cli.engine_arguments import EngineArguments

if TYPE_CHECKING:
    from dasmil.cli.sources import Source

app = App(name="train", help="Train a model on bags, several seeds at once.")


@app.default
def train(
    *,
    out: Path,
    model: str | None = None,
    data: str | None = None,
    protocol: Literal["clean", "published"] = "clean",
    mnist_dir: Path | None = None,
    cohort: CohortArguments = CohortArguments(),  # noqa: B008
    folds: int | None = None,
    split_seed: int = 0,
    test: Annotated[bool, Parameter(negative="")] = False,
    features: Path | None = None,
    reference: Path | None = None,
    seeds: int = 1,
    recipe: str | None = None,
    preset: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    optimizer: str | None = None,
    schedule: str | None = None,
    selection: str | None = None,
    early_stopping: int | None = None,
    device: str | None = None,
    set: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    tensorboard: Annotated[bool, Parameter(negative="")] = False,
    engine: EngineArguments = EngineArguments(),  # noqa: B008
    resume: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train a model on bags, several seeds at once, and write a run directory with a report.

    The same --threads give the same result bit for bit. With --folds, --jobs and --engine spread the folds over
    processes or machines.

    Example: dasmil train --data mnist-collage --model das-mil --seeds 5 --out runs/collage

    Parameters
    ----------
    out
        Folder for the run: configuration, curves, predictions, weights, report.html.
    model
        One of `dasmil models`; default das-mil, and with --features all models of the paper's table.
    data
        Built-in data: mnist-collage, mnist-collage-inv or mnist-bags.
    protocol
        Of built-in data: clean (independent sets), or published (the paper's split, which leaks).
    mnist_dir
        Folder with the four MNIST idx files; without it the digits that come with dasmil are used.
    folds
        Of one's own bags: cross-validation with this many folds by patient, stratified by class.
    split_seed
        Of one's own bags: which patients go into which split or fold.
    test
        Of one's own bags: score the locked test set right after training (it is counted). Not with --folds.
    features
        With --recipe camelyon16: folder of CAMELYON16 features; needs --reference.
    reference
        With --recipe camelyon16: the challenge's reference.csv with the labels of the test slides.
    seeds
        Number of runs that differ only in their random numbers; they train together.
    recipe
        A set of settings: paper, tuned or camelyon16. Other options overrule it.
    preset
        Sizes of the model as in the paper: mnist-collage or camelyon16.
    epochs
        Passes over the training bags.
    lr
        Learning rate.
    weight_decay
        Weight decay.
    optimizer
        adamw, adam or radam.
    schedule
        constant, linear, cosine, or hold-linear (constant for two thirds, then down to 0).
    selection
        Which epoch is kept: last, or best-val (best on the validation bags).
    early_stopping
        Stop after this many epochs without a better validation score.
    device
        auto, cpu, cuda or mps.
    set
        Any option of the model or setting of training, as name=value: --set hidden=20 --set clip=1.0
    tensorboard
        Also write TensorBoard events.
    resume
        Go on with the run in --out after an interruption.
    json
        Print the results as JSON.
    """
    from dasmil.cli.cohort_source import choose_source
    from dasmil.cli.training_units import source_record
    from dasmil.errors import InputError

    given = {
        "epochs": epochs, "lr": lr, "weight_decay": weight_decay, "optimizer": optimizer, "schedule": schedule,
        "selection": selection, "early_stopping": early_stopping, "device": device,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None}
    if tensorboard:
        settings["tensorboard"] = True
    arguments: dict[str, Any] = {
        "data": data, "protocol": protocol, "mnist_dir": mnist_dir, "cohort": cohort, "folds": folds,
        "split_seed": split_seed, "open_test": test, "recipe": recipe, "features": features, "reference": reference,
    }  # fmt: skip
    source = choose_source(**arguments)
    engine.options()
    if folds is None and not engine.in_this_process:
        raise InputError("--jobs, --engine and --gpus spread folds: give --folds too, or leave them out for one run")

    def train_one(name: str, folder: Path) -> int:
        return run(
            source, name, folder, seeds=seeds, recipe=recipe, preset=preset, settings=settings, assignments=set or [],
            engine=engine, origin=source_record(arguments), resume=resume, json=json,
        )  # fmt: skip

    if features is not None and model is None:
        from dasmil.cli.camelyon16 import train_table

        return train_table(out, train_one)
    return train_one(model or "das-mil", out)


def run(
    source: Source,
    model: str,
    out: Path,
    *,
    seeds: int,
    recipe: str | None,
    preset: str | None,
    settings: dict[str, Any],
    assignments: list[str],
    engine: EngineArguments,
    origin: dict[str, Any],
    resume: bool,
    json: bool,
) -> int:
    """Train on whatever the source gives, show progress, and end with a table and the path of the report."""
    import torch

    from dasmil.cli.cohort_source import opened_tests
    from dasmil.cli.settings import gather_settings
    from dasmil.cli.training_display import Display, print_summary
    from dasmil.cli.training_units import train_rounds
    from dasmil.errors import InputError
    from dasmil.report import write_report
    from dasmil.runs import Run, check_kind, fold_folder, is_begun
    from dasmil.train.fit import fit
    from dasmil.train.folds import write_fold_summary

    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    chosen = gather_settings(model, recipe, preset, settings, assignments, source.preset)
    rounds = source.rounds()
    if len(rounds) > 1:
        check_kind(out, len(rounds))
    try:
        if not engine.in_this_process:
            folders = {k: (fold_folder(out, k), chosen) for k in range(len(rounds))}
            begun = [folder for folder, _ in folders.values() if is_begun(folder)]
            if begun and not resume:
                raise InputError(f"{begun[0]} already holds a run: continue with --resume, or choose another --out")
            train_rounds(folders, rounds, origin, model, out, seeds=seeds, engine=engine.options())
        for number, splits in enumerate(rounds if engine.in_this_process else ()):
            folder = out if len(rounds) == 1 else fold_folder(out, number)
            with Display("" if len(rounds) == 1 else f"fold {number + 1}/{len(rounds)}  ") as display:
                fit(
                    model, splits.train, splits.val, seeds=seeds, model_options=chosen.options, preset=chosen.preset,
                    out=folder, resume=resume, tests=opened_tests(splits, folder), data=splits.data,
                    on_epoch=display.epoch, note=display.note, **chosen.training,
                )  # fmt: skip
    except KeyboardInterrupt:
        return _interrupted(out)
    if len(rounds) > 1:
        write_fold_summary(out, len(rounds))
    write_report(out)
    stored = Run.read(out)
    if json:
        import json as json_module

        print(json_module.dumps({"run": str(out), "report": str(stored.report), **stored.summary}, indent=2))
    else:
        print_summary(stored.summary, stored.classes)
        print(stored.report)
    return 1 if any("left_out" in splits.data for splits in rounds) else 0


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
