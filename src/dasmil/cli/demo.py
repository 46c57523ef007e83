"""`dasmil demo`: two minutes that show what the distance is good for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from dasmil.vocabulary import METRICS

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

app = App(name="demo", help="Train DAS-MIL and plain self-attention on a toy problem and show the difference.")

DATASET = "mnist-collage"
MODELS = {"das-mil": "DAS-MIL", "sa": "self-attention"}
MARK = ".dasmil-demo"
"""A file in the run directories of the demo, which only a demo may replace."""
SHOWN = ("balanced_accuracy", "auroc")


@app.default
def demo(
    *,
    out: Path = Path("demo"),
    slides: Annotated[bool, Parameter(negative="")] = False,
    survival: Annotated[bool, Parameter(negative="")] = False,
    cells: Annotated[bool, Parameter(negative="")] = False,
    quick: Annotated[bool, Parameter(negative="")] = False,
    seeds: int | None = None,
    epochs: int | None = None,
    bags: Annotated[int | None, Parameter(show=False)] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train DAS-MIL and plain self-attention on collages of digits, offline, and write a page about it.

    A collage is positive when a 0 and a 1 lie less than 80 pixels apart: a question that needs the distance.
    Takes less than two minutes on two cores.

    With --slides instead: made slides with planted tissue, from feature files over the doctor, training and report to
    the explanation of one slide. Takes less than three minutes.

    With --survival: made slides of patients whose hazard depends on a distance. Takes less than three minutes.

    With --cells: real tissue. 100 breast tumours (286,000 cells with positions and types), from the table of cells to
    the report of a cross-validation with default training, and one image explained. Takes about two minutes.

    Examples:

        dasmil demo --out demo/

        dasmil demo --slides --out demo-slides/

        dasmil demo --survival --out demo-survival/

        dasmil demo --cells --out demo-cells/

        dasmil demo --quick

    Parameters
    ----------
    out
        Folder for report.html and the two run directories; those of an earlier demo are replaced.
    slides
        Made slides instead of collages.
    survival
        Made slides with a time until an event instead of a class.
    cells
        Real cells of 100 breast tumours instead of collages.
    quick
        Does the installation work? One seed, two epochs, 20 bags of each split: seconds, and nothing is learned.
    seeds
        Runs per model that differ only in their random numbers (3, with --slides or --survival 1).
    epochs
        Passes over the training bags (30, with --slides or --survival 50); --cells takes none.
    bags
        Use only so many bags of each split (for a quick try).
    json
        Print the results as JSON.
    """
    import json as json_module
    import sys
    import time

    from dasmil.cli.assignments import check_counts

    check_counts(seeds=seeds, epochs=epochs, bags=bags)
    if quick:
        seeds, epochs, bags = seeds or 1, epochs or 2, bags or 20
    if slides or survival or cells:
        return _other_demo(out, seeds or 1, epochs, bags, json, slides, survival, cells)
    seeds, epochs = seeds or 3, epochs or 30
    start = time.monotonic()
    prepare_folder(out)
    try:
        train_side_by_side(out, seeds, epochs, bags)
    except KeyboardInterrupt:
        print("Stopped. The demo starts anew when it is called again.", file=sys.stderr)
        return 130
    from dasmil.report.comparison import write_comparison
    from dasmil.runs import Run

    paper = paper_values()
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    page = write_comparison(
        out,
        [out / model for model in MODELS],
        lead="Does distance matter? DAS-MIL and plain self-attention on MNIST-COLLAGE.",
        remarks=[
            "A collage of about ten digits is positive when a 0 and a 1 lie less than 80 px apart. Self-attention sees "
            "the digits but not where they are; DAS-MIL also sees how far apart they are.",
            f"{epochs} epochs over {'300' if bags is None else bags} training bags; both models trained in "
            f"{minutes}:{seconds:02d} min.",
        ],
        paper=paper,
    )
    summaries = {model: Run.read(out / model).summary for model in MODELS}
    if json:
        print(json_module.dumps({"report": str(page), "runs": summaries, "paper": paper}, indent=2))
    else:
        print_table(summaries, paper)
        if quick:
            print(
                "A quick demo shows that everything runs; two epochs learn nothing. Without --quick the models learn."
            )
        print(page)
    return 0


def _other_demo(
    out: Path, seeds: int, epochs: int | None, bags: int | None, json: bool, slides: bool, survival: bool, cells: bool
) -> int:
    """The demos on made slides and on real cells."""
    from dasmil.cli.demo_cells import demo_cells
    from dasmil.cli.demo_slides import demo_slides
    from dasmil.cli.demo_survival import demo_survival
    from dasmil.errors import InputError

    given = [name for name, on in (("--slides", slides), ("--survival", survival), ("--cells", cells)) if on]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} were given: a demo shows one of them")
    if cells:
        return demo_cells(out, seeds, bags, json)
    return (demo_survival if survival else demo_slides)(out, seeds, epochs or 50, bags, json)


def prepare_folder(out: Path, models: Mapping[str, str] = MODELS) -> None:
    """Remove the runs of an earlier demo, and nothing else."""
    import shutil

    from dasmil.errors import InputError, StorageError

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, expected a folder for the demo: choose another with --out")
    earlier = [out / model for model in models if (out / model).exists()]
    for folder in earlier:
        if not (folder / MARK).exists():
            raise InputError(
                f"{folder} was not made by dasmil demo and is left alone: choose another folder with --out"
            )
    for folder in earlier:
        shutil.rmtree(folder)
    try:
        for model in models:
            (out / model).mkdir(parents=True)
            (out / model / MARK).touch()
    except OSError as error:
        raise StorageError(f"{out} cannot be written ({error}): choose another folder with --out") from None


def train_side_by_side(
    out: Path,
    seeds: int,
    epochs: int,
    bags: int | None,
    work: Callable[..., None] | None = None,
    models: Mapping[str, str] = MODELS,
    metric: str = "AUROC",
) -> None:
    """All models at once, each in a process of its own, with one line of progress for all."""
    import multiprocessing
    import queue

    from dasmil.cli.display import Display, say
    from dasmil.errors import DasmilError

    context = multiprocessing.get_context("spawn")
    messages: Queue[tuple[str, str, Any]] = context.Queue()
    workers = {
        model: context.Process(target=work or train_one, args=(model, out / model, seeds, epochs, bags, messages))
        for model in models
    }
    running = set(workers)
    try:
        with _interrupts_ignored():  # inherited by the workers: Ctrl-C reaches this process, which stops them
            for worker in workers.values():
                worker.start()
        say(f"Training {' and '.join(models.values())}: {epochs} epochs each, {metric} on validation bags")
        states: dict[str, tuple[int, float, float]] = {}
        with Display() as display:
            while running:
                try:
                    model, kind, content = messages.get(timeout=1.0)
                except queue.Empty:
                    for model in running:
                        if workers[model].exitcode not in (None, 0):
                            raise DasmilError(
                                f"training of {model} stopped (exit code {workers[model].exitcode}); if memory is "
                                "short, close other programs and start the demo again"
                            ) from None
                    continue
                if kind == "done":
                    running.remove(model)
                elif kind == "failed":
                    raise DasmilError(f"{model}: {content}")
                else:
                    states[model] = content
                    display.line(_all(states, epochs, models, metric))
    finally:
        for worker in workers.values():
            if running and worker.is_alive():
                worker.terminate()
            if worker.pid is not None:
                worker.join()


def _all(states: Mapping[str, tuple[int, float, float]], epochs: int, models: Mapping[str, str], metric: str) -> str:
    """How far all models are; a state: number of the epoch, the metric of validation bags, seconds left."""
    parts = []
    for model, name in models.items():
        epoch, value, _ = states.get(model, (0, 0.0, 0.0))
        parts.append(f"{name} {epoch}/{epochs} {metric} {value:.3f}" if model in states else f"{name} starting")
    minutes, seconds = divmod(round(max(left for _, _, left in states.values())), 60)
    return f"{', '.join(parts)}, {minutes}:{seconds:02d} left"


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    import signal

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def train_one(
    model: str, out: Path, seeds: int, epochs: int, bags: int | None, messages: Queue[tuple[str, str, Any]]
) -> None:
    """The work of one process: train one model on the clean collages and report every epoch."""
    import torch

    from dasmil.data import load_dataset
    from dasmil.errors import DasmilError
    from dasmil.train import fit
    from dasmil.train.recipes import load_recipe

    torch.set_num_threads(1)  # the processes share the cores
    recipe = load_recipe("tuned", model)
    # Dropout between encoder and attention pays off in long training only; neither model gets it here.
    settings = {**recipe.training, "epochs": epochs, "restarts": 0, "feature_dropout": 0.0}

    try:
        train, val, test = (load_dataset(DATASET, split=s, n_bags=bags) for s in ("train", "val", "test-large"))
        fit(
            model, train, val, seeds=seeds, preset=recipe.preset, model_options=recipe.options, out=out,
            tests={"test-large": test}, data={"name": DATASET, "protocol": "clean", "options": {"n_bags": bags}},
            on_epoch=reporter(model, messages), **settings,
        )  # fmt: skip
    except DasmilError as error:
        messages.put((model, "failed", str(error)))
    else:
        messages.put((model, "done", None))


def reporter(model: str, messages: Queue[tuple[str, str, Any]], metric: str = "auroc") -> Callable[[Any], None]:
    """What hears of every epoch in a worker and hands it on to the demo."""
    from multiprocessing import parent_process

    def report(progress: Any) -> None:
        parent = parent_process()
        if parent is not None and not parent.is_alive():  # killed: nobody waits for this run
            raise SystemExit(1)
        scores = [row[f"val_{metric}"] for row in progress.rows if f"val_{metric}" in row]
        messages.put((model, "epoch", (progress.epoch, sum(scores) / max(1, len(scores)), progress.seconds_left)))

    return report


def paper_values() -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's test figures for the two models."""
    import tomllib
    from importlib import resources

    tables = tomllib.loads((resources.files("dasmil.paper") / "expected.toml").read_text(encoding="utf-8"))["collage"]
    return {model: {metric: tuple(tables[metric][model][DATASET]["test"]) for metric in SHOWN} for model in MODELS}


def print_table(summaries: dict[str, Any], paper: dict[str, dict[str, tuple[float, float]]]) -> None:
    """One row a model and metric: mean ± sd over seeds with its interval, and the paper's figure."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from dasmil.report.words import interval_text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table("", "", box=None, pad_edge=False, header_style="bold")
    table.add_column("here (95 % interval)", justify="right", no_wrap=True)
    table.add_column("paper", justify="right", style="dim", no_wrap=True)
    for model, name in MODELS.items():
        scored = summaries[model]["splits"]["test-large"]
        for metric, title in ((name, METRICS[name].short) for name in SHOWN):
            found = interval_text(scored["interval"][metric]) or "too few to say"
            spread = f" ± {scored['std'][metric]:.3f}" if len(scored["per_seed"]) > 1 else ""
            here = f"{scored['mean'][metric]:.3f}{spread} ({found})"
            table.add_row(name, title, here, "{:.3f} ± {:.3f}".format(*paper[model][metric]))
            name = ""
    console.print(table)
    scored = summaries["das-mil"]["splits"]["test-large"]
    count = len(scored["per_seed"])
    console.print(
        f"{scored['n']:,} clean test bags, {count} seed{'s' if count > 1 else ''}. "
        "The paper's test set is another one: 100 bags, half of which repeat a training layout."
    )
    for model, name in MODELS.items():
        stuck = summaries[model]["stuck_seeds"]
        if stuck:
            console.print(f"{name}: seed {', '.join(map(str, stuck))} did not fit the training bags (counted above).")
