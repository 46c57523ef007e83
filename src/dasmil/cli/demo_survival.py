"""`dasmil demo --survival`: patients whose hazard depends on a distance, four models, and how far each can get."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

TRAIN, VAL, TEST = 120, 30, 250
TILES = (200, 400)
RUNS = {"das-mil": "DAS-MIL, hazards", "das-mil-cox": "DAS-MIL, Cox", "sa": "self-attention", "max-pool": "max pool"}
"""Run directories and their names for readers."""
DOUBLED = 0.583
"""C-index of a hazard that is twice as high in half of the patients: 1/2 (2/3 + 1/2)."""


def demo_survival(out: Path, seeds: int, epochs: int, slides: int | None, json: bool) -> int:
    """Make a cohort, train the models on it, compare them with the true hazard and explain one slide."""
    import json as json_module

    from dasmil.cli.demo import prepare_folder, train_side_by_side
    from dasmil.cli.display import say
    from dasmil.data.synthetic_survival import write_made_follow_up
    from dasmil.report.phi import Truth
    from dasmil.report.task_comparison import write_survival_comparison
    from dasmil.report.words import interval_text
    from dasmil.runs import Run

    start = time.monotonic()
    prepare_folder(out, RUNS)
    design = made_design()
    counts = (TRAIN, VAL, TEST) if slides is None else (slides, max(8, slides // 4), max(8, slides // 2))
    say(f"Making {sum(counts)} slides of {TILES[0]} to {TILES[1]} tiles with a time until death for each ...")
    splits = [name for name, count in zip(("train", "val", "test"), counts) for _ in range(count)]
    table = write_made_follow_up(out / "cohort", len(splits), 1, design, splits)
    try:
        train_side_by_side(out, seeds, epochs, None, train_one, RUNS, "C-index")
    except KeyboardInterrupt:
        print("Stopped. The demo starts anew when it is called again.", file=sys.stderr)
        return 130
    ceiling, censored = true_hazard(table)
    explained, picture = explain_one(out)
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    page = write_survival_comparison(
        out,
        {name: out / run for run, name in RUNS.items()},
        lead="Does distance matter for survival? Made slides of patients whose hazard depends on it.",
        ceiling=ceiling,
        truth=Truth(design.slides.distance_um),
        remarks=[
            f"The hazard of a patient is {design.ratio:g} times as high when tissue of one type lies within "
            f"{design.slides.distance_um:,.0f} µm of tissue of another. How much there is of either says nothing. "
            f"{censored:.0%} of all patients are censored.",
            f"Why so much higher: a hazard that only doubles in half of the patients leaves even the true hazard a "
            f"C-index of {DOUBLED}, and no model could show more.",
            f"{epochs} epochs over {counts[0]} training slides; made, trained and explained in "
            f"{minutes}:{seconds:02d} min. An explained slide: {explained.parent.name}/{explained.name}.",
        ],
        pictures=[picture],
    )
    summaries = {run: Run.read(out / run).summary for run in RUNS}
    if json:
        found = {"report": str(page), "explanation": str(explained), "ceiling": ceiling, "runs": summaries}
        print(json_module.dumps(found, indent=2))
        return 0
    for run, name in RUNS.items():
        scored = summaries[run]["splits"]["test"]
        ends = interval_text(scored["interval"]["c_index"]) or "too few to say"
        learned = [f"{row['midpoint']:,.0f} µm" for seed in Run.read(out / run).all_seeds for row in seed.distances]
        theta = f", learned distance {', '.join(learned)}" if learned else ""
        print(f"{name:18} C-index {scored['mean']['c_index']:.3f} ({ends}), {scored['n']} test slides{theta}")
    print(f"{'the true hazard':18} C-index {ceiling:.3f}; planted distance {design.slides.distance_um:,.0f} µm")
    print(explained)
    print(page)
    return 0


def made_design() -> Any:
    from dasmil.data.synthetic import MadeCohort
    from dasmil.data.synthetic_survival import MadeFollowUp

    slides = MadeCohort(
        tiles=TILES, islands=(2, 4), island_tiles=(1, 2), distance_um=1200, margin=0.05, in_features=256, noise=1.0,
        separation=0.6, shift=0.2,
    )  # fmt: skip
    return MadeFollowUp(slides)


def true_hazard(table: Path) -> tuple[float, float]:
    """The C-index of the true hazard on the test slides, and the share of all patients that is censored."""
    import numpy as np

    from dasmil.files import read_csv
    from dasmil.stats import FollowUp, harrell

    rows = read_csv(table)
    test = [row for row in rows if row["split"] == "test"]
    days, dead, hazard = (np.array([float(row[name]) for row in test]) for name in ("days", "dead", "true_hazard"))
    censored = float(np.mean([row["dead"] == "0" for row in rows]))
    return float(harrell(FollowUp(days, dead == 1), hazard)[0]), censored


def train_one(
    run: str, out: Path, seeds: int, epochs: int, bags: int | None, messages: Queue[tuple[str, str, Any]]
) -> None:
    """The work of one process: train one model on the cohort with the usual settings and report every epoch."""
    import torch

    from dasmil.cli.demo import reporter
    from dasmil.errors import DasmilError
    from dasmil.study.held_out import opened_tests
    from dasmil.study.rounds import cohort_rounds
    from dasmil.study.spec import CohortSpec
    from dasmil.train import fit

    torch.set_num_threads(1)  # the processes share the cores
    cohort = out.parent / "cohort"
    try:
        spec = CohortSpec(
            bags=cohort / "bags", labels=cohort / "labels.csv", time_column="days", event_column="dead",
            time_unit="days", survival="cox" if run.endswith("-cox") else "hazards",
        )  # fmt: skip
        (part,) = cohort_rounds(spec, open_test=True)
        # All models with the learning rate that das-mil has anyway.
        fit(
            run.removesuffix("-cox"), part.train, part.val, seeds=seeds, out=out, tests=opened_tests(part, out),
            data=part.data, epochs=epochs, lr=5e-3, on_epoch=reporter(run, messages, "c_index"),
        )  # fmt: skip
    except DasmilError as error:
        messages.put((run, "failed", str(error)))
    else:
        messages.put((run, "done", None))


def explain_one(out: Path) -> tuple[Path, Any]:
    """Explain the log-risk of the test slide with the highest: its page and its map."""
    from dasmil.attribution.contributions import both_ways
    from dasmil.attribution.ground import layout_of
    from dasmil.report.explanation.heatmap import map_figure
    from dasmil.report.page import picture
    from dasmil.runs import Run
    from dasmil.study.explaining import explain_bag

    folder = out / "das-mil-cox"
    answers = Run.read(folder).answers("test")[0]
    answer = explain_bag(folder, answers.bag_ids[int(answers.outputs[:, 0].argmax())])
    page, bag, explanation = answer.write(out / "explanation")[0], answer.bag, answer.explanation
    figure = map_figure(
        layout_of(bag), explanation.contributions.double().numpy(), "contribution",
        mark=both_ways(explanation.pairs)[:3], width=420, meaning=answer.meaning,
    )  # fmt: skip
    caption = (
        f"{bag.bag_id}, the test slide at the highest risk: colour is the part of the log-risk (Cox) that each tile "
        "gave, orange raises the risk; lines join the strongest pairs."
    )
    return page, picture(figure, "What raises the risk in a slide", caption)
