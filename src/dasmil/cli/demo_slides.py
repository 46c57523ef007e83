"""`dasmil demo --slides`: the way of a cohort, from feature files to an explained slide, on made slides."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from dasmil.runs import Run
    from dasmil.types import Bag

TRAIN, VAL, TEST = 60, 12, 28
TILES = (400, 900)
CLASSES = ("negative", "positive")


def demo_slides(out: Path, seeds: int, epochs: int, slides: int | None, json: bool) -> int:
    """Make a cohort, examine it, train both models on it, compare them and explain one slide."""
    import json as json_module

    from dasmil.cli.demo import MODELS, prepare_folder, train_side_by_side
    from dasmil.cli.display import say
    from dasmil.report.comparison import write_comparison
    from dasmil.report.words import interval_text
    from dasmil.runs import Run, verdict

    start = time.monotonic()
    prepare_folder(out)
    design = _design()
    counts = (TRAIN, VAL, TEST) if slides is None else (slides, max(4, slides // 4), max(4, slides // 2))
    say(f"Making {sum(counts)} slides of {TILES[0]} to {TILES[1]} tiles with {design.in_features} features ...")
    labels = _make(out, counts)
    _examine(labels)
    try:
        train_side_by_side(out, seeds, epochs, None, work=train_one)
    except KeyboardInterrupt:
        print("Stopped. The demo starts anew when it is called again.", file=sys.stderr)
        return 130
    explained, picture, words = _explain(out)
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    learned = _learned(out)
    page = write_comparison(
        out,
        [out / model for model in MODELS],
        lead="Does distance matter? DAS-MIL and plain self-attention on made slides.",
        remarks=[
            f"A slide is positive when tissue of one type (A) lies within {design.distance_um:,.0f} µm of tissue of "
            "another (B): a handful of tiles among hundreds, with noise as large as in real features. How much there "
            "is of either does not depend on the label, so a model that does not see positions can only guess.",
            f"{learned} All that was given are tiles, positions and {counts[0] + counts[1]} labels of slides.",
            f"At most {epochs} epochs over {counts[0]} training slides; made, examined, trained and explained in "
            f"{minutes}:{seconds:02d} min. {words}",
        ],
        pictures=[picture],
    )
    summaries = {model: Run.read(out / model).summary for model in MODELS}
    if json:
        found = {"report": str(page), "explanation": str(explained), "runs": summaries}
        print(json_module.dumps(found, indent=2))
        return 0
    for model, name in MODELS.items():
        scored = summaries[model]["splits"]["test"]
        found = interval_text(scored["interval"]["auroc"]) or "too few to say"
        print(f"{name:15} AUROC {scored['mean']['auroc']:.3f} ({found}), {scored['n']} test slides")
    print(learned)
    if beside := verdict(Run.read(out / "das-mil")).against_baselines:
        print(beside)
    print(explained)
    print(page)
    return 0


def _design() -> Any:
    from dasmil.data.synthetic import MadeCohort

    # As hard as slides of one's own: two rare types among 1,024 features with unit noise in each, stain of every slide.
    return MadeCohort(
        tiles=TILES, islands=(2, 4), island_tiles=(1, 2), distance_um=1200, in_features=1024, noise=1.0, separation=0.6,
        shift=0.2,
    )  # fmt: skip


def _make(out: Path, counts: tuple[int, int, int]) -> Path:
    from dasmil.data.synthetic import write_made_cohort

    splits = [name for name, count in zip(("train", "val", "test"), counts) for _ in range(count)]
    return write_made_cohort(out / "cohort", len(splits), seed=1, design=_design(), splits=splits, classes=CLASSES)


def _examine(labels: Path) -> None:
    """What `dasmil doctor` would say, in one line."""
    from dasmil.cli.display import say
    from dasmil.data.doctor import Checkup, check_bags
    from dasmil.data.labels import read_labels
    from dasmil.errors import DataError

    checkup = list(check_bags(labels.parent / "bags", read_labels(labels)))[-1]
    assert isinstance(checkup, Checkup)
    if not checkup.healthy:
        raise DataError(f"the made slides are not in order: {checkup.findings[0].message}")
    say(f"Doctor: {len(checkup.rows)} files, {sum(row['tiles'] for row in checkup.rows):,} tiles, nothing wrong found.")


def train_one(
    model: str, out: Path, seeds: int, epochs: int, bags: int | None, messages: Queue[tuple[str, str, Any]]
) -> None:
    """The work of one process: train one model on the cohort with the usual settings and report every epoch."""
    import torch

    from dasmil.cli.demo import reporter
    from dasmil.errors import DasmilError
    from dasmil.study.baselines import add_baselines
    from dasmil.study.held_out import opened_tests
    from dasmil.study.rounds import cohort_rounds
    from dasmil.study.spec import CohortSpec
    from dasmil.train import fit

    torch.set_num_threads(1)  # the processes share the cores
    cohort = out.parent / "cohort"
    try:
        spec = CohortSpec(bags=cohort / "bags", labels=cohort / "labels.csv")
        (part,) = cohort_rounds(spec, open_test=True)
        # Both models with the learning rate that das-mil has anyway.
        fit(
            model, part.train, part.val, seeds=seeds, out=out, tests=opened_tests(part, out), data=part.data,
            epochs=epochs, lr=5e-3, on_epoch=reporter(model, messages),
        )  # fmt: skip
    except DasmilError as error:
        messages.put((model, "failed", str(error)))
    else:
        if model == "das-mil":
            add_baselines(out, [part], [out])
        messages.put((model, "done", None))


def _explain(out: Path) -> tuple[Path, Any, str]:
    """Explain the positive test slide with the median probability: its page, its map, and a sentence about it."""
    from dasmil.attribution.contributions import both_ways
    from dasmil.attribution.ground import layout_of
    from dasmil.report.explanation.heatmap import map_figure
    from dasmil.report.page import picture
    from dasmil.runs import Run
    from dasmil.study.explaining import explain_bag

    answer = explain_bag(out / "das-mil", median_positive(Run.read(out / "das-mil")))
    page, bag, explanation = answer.write(out / "explanation")[0], answer.bag, answer.explanation
    pairs = both_ways(explanation.pairs)[:3]
    figure = map_figure(
        layout_of(bag), explanation.contributions.double().numpy(), "contribution", mark=pairs, width=420
    )
    words = f"{_strongest(bag, pairs)} The whole explanation: {page.parent.name}/{page.name}."
    caption = (
        f"{bag.bag_id}, a positive test slide: colour is the part of the logit that each tile gave, orange for "
        f"positive; lines join the {len(pairs)} strongest pairs."
    )
    return page, picture(figure, "What decided in a positive slide", caption), words


def median_positive(run: Run) -> str:
    """The test bag of class 1 with the median probability; of a cross-validation each bag is scored held out."""
    found = run.ensemble("test")
    assert found is not None
    bags = zip(found.probabilities, found.bag_ids, found.labels, strict=True)
    positive = sorted((p, bag_id) for p, bag_id, label in bags if label == 1)
    return positive[len(positive) // 2][1]


def _strongest(bag: Bag, pairs: Any) -> str:
    """Whether the pair that decided is one of the planted rule."""
    if not pairs or bag.key_instances is None:
        return ""
    first = pairs[0]
    planted = bool(bag.key_instances[first.i]) and bool(bag.key_instances[first.j])
    kind = "two tiles of the planted rule" if planted else "other tiles than those of the planted rule"
    return f"The pair that decided most in the slide below joins {kind}, {first.distance:,.0f} µm apart."


def _learned(out: Path) -> str:
    from dasmil.runs import Run, verdict

    run = Run.read(out / "das-mil")
    if not (judged := verdict(run)).told:
        return f"{judged.text} Planted were {_design().distance_um:,.0f} µm."
    seed = run.seeds[0]
    learned = " and ".join(f"{row['midpoint']:,.0f} µm" for row in seed.distances)
    note = " (this run did not fit its training slides)" if seed.stuck else ""
    return f"DAS-MIL learned the distance {learned}{note}; planted were {_design().distance_um:,.0f} µm."
