"""The questions of `dasmil explain`, to a bag and to a whole run: asked and printed."""

from __future__ import annotations

import json as json_module
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasmil.files import finite
from dasmil.study.spec import BagSpec

if TYPE_CHECKING:
    from dasmil.study.questions import LabelledBags


def one_bag(
    run: Path,
    name: str | None,
    index: int | None,
    source: LabelledBags,
    seed: int | None,
    slide: Path | None,
    output: Path | None,
    score: str,
    json: bool,
    options: dict[str, Any],
) -> int:
    """Which instances, at which distances, decided?"""
    from dasmil.cli.explain_display import show_explanation
    from dasmil.errors import InputError
    from dasmil.runs import speaker_for, speakers
    from dasmil.study.explaining import answer
    from dasmil.study.ground import ground_of
    from dasmil.study.lookup import find_bag
    from dasmil.study.questions import built_in_bag

    if name is not None:
        bag, speaker = find_bag(run, name, seed=seed, bags=source.given, mnist_dir=source.mnist_dir, note=source.note)
    elif index is not None:
        bag = built_in_bag(run, replace(source, split=source.split or "test", given=BagSpec(), limit=None), index)
        speaker = speaker_for(speakers(run, seed), bag.bag_id)
    else:
        raise InputError(
            "which bag? give --bag FILE or NAME, or --index NUMBER (with --data and --split) of a built-in data set"
        )
    folder = output if output is not None else Path(f"explanation-{bag.bag_id.replace('/', '-')}")
    found = answer(run, bag, speaker, ground_of(bag, slide), **options)
    files = found.write(folder, score)
    if json:
        print(json_module.dumps(found.as_json() | {"files": [str(file) for file in files]}, indent=2))
        return 0
    of = found.meaning.quantity if found.model.outputs else ""
    show_explanation(bag, found.model.name, found.explanation, found.classes, files, found.origin, found.caveat, of)
    return 0


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for k, name in enumerate(header):
        table.add_column(name, justify="left" if k < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False)  # names may hold square brackets
    if not console.is_terminal:
        console = Console(width=200, markup=False)  # a file or pipe has no edge to wrap at
    console.print(table)


def distances(run: Path, output: Path | None, json: bool) -> int:
    """The learned distance over seeds."""
    from dasmil.attribution.distance import learned_distances
    from dasmil.attribution.export import write_json
    from dasmil.attribution.ground import UNIT_SYMBOL
    from dasmil.report.phi import phi_figure, phis
    from dasmil.report.style import save_png
    from dasmil.runs import verdict_of
    from dasmil.study.lookup import models_of

    models = models_of(run)
    rows = learned_distances(models)
    judged = verdict_of(run)
    if judged is not None and judged.caveat:
        print(f"Caveat of the run: {judged.caveat}", file=sys.stderr)
    if output is not None:
        doubtful = judged is not None and not judged.told
        save_png(phi_figure(phis(models), doubtful=doubtful), output / "learned-distance.png")
        write_json(output / "learned-distance.json", [asdict(row) for row in rows])
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
        return 0

    def cell(values: Sequence[float]) -> str:
        mean, sd = rows[0].spread(values)
        return f"{mean:.1f}" + ("" if sd is None else f" ± {sd:.1f}")

    unit = UNIT_SYMBOL[rows[0].unit]
    header = ("layer", "head", f"midpoint, {unit}", f"width, {unit}", "seeds")
    print_table(
        header, [(str(r.layer), str(r.head), cell(r.midpoints), cell(r.widths), str(len(models))) for r in rows]
    )
    if output is not None:
        print(output / "learned-distance.png")
        print(output / "learned-distance.json")
    return 0


def space(run: Path, source: LabelledBags, output: Path | None, json: bool) -> int:
    """Does space matter?"""
    from dasmil.attribution.export import write_json
    from dasmil.cli.display import Display
    from dasmil.report.words import bags_text
    from dasmil.study.questions import space_test

    with Display("moving coordinates: ") as display:
        result = space_test(run, source, progress=display.line)
    if output is not None:
        write_json(output / "space-test.json", finite(asdict(result)))
    if json:
        print(json_module.dumps(finite(asdict(result)), indent=2))
        return 0
    bags_used = bags_text(result.n_bags, result.n_patients)
    who = f"{result.n_models} {'model' if source.own_folds(run) else 'seed'}{'s' if result.n_models > 1 else ''}"
    print(f"{bags_used}, {who}: {source.describe(run)}")
    known = "too few bags to say" if math.isnan(result.low) else f"{result.low:.3f} to {result.high:.3f}"
    rows = [("as it is", f"{result.auroc:.4f}", f"({known})", "")]
    rows += [
        (r.change, f"{r.auroc:.4f}", f"{r.difference:+.4f}", f"{r.low:+.4f} to {r.high:+.4f}") for r in result.rows
    ]
    print_table(("coordinates", "AUROC", "change", "95 % interval"), rows)
    if output is not None:
        print(output / "space-test.json")
    return 0
