"""One HTML page with all tables: dots with intervals, and the paper's value as a thin tick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dasmil import vocabulary
from dasmil.models import MODELS
from dasmil.paper.cells import DATASETS
from dasmil.paper.grid import Choice, grid_claims
from dasmil.paper.tables import TITLES, DistanceValue, PrintedEntry, claims, leak
from dasmil.paper.text import (
    DISTANCE_HEAD,
    NOT_RUN,
    QUICK,
    distance_cells,
    minutes,
    printed,
    spread,
)
from dasmil.report.figures import Score, scores
from dasmil.report.page import Cell, Column, FoldedText, Headline, Page, Picture, Section, Table, picture, write_page
from dasmil.report.style import ACCENT, GREY, ORANGE
from dasmil.stats.pairs import METRICS

POSITION_COLOUR = {"relative": ACCENT, "absolute": ORANGE, "none": GREY}


def write_tables_page(
    path: Path,
    protocol: str,
    tables: dict[str, list[PrintedEntry]],
    values: Sequence[DistanceValue],
    grid: Sequence[Choice],
    *,
    quick: bool,
) -> Path:
    """Write the page; tables without a single finished cell are left out and named, of a quick run rows too."""
    shown = {name: rows for name, rows in tables.items() if any(entry.cell for entry in rows)}
    sections = [section for name, rows in shown.items() for section in _table_sections(name, protocol, rows, quick)]
    if values:
        rows = [distance_cells(value) for value in values]
        text = (
            "DAS-MIL minus plain self-attention, the same model without its distance terms: the same recipe, the same "
            "training bags, the same 2,000 clean test bags. The interval resamples the bags, the same ones for both."
        )
        columns = [Column(name, number=i > 2) for i, name in enumerate(DISTANCE_HEAD)]
        sections.insert(0, Section("What distance is worth", [text], [Table(columns, rows)], anchor="distance"))
    if grid:
        columns = [Column(name) for name in ("model", "data set", "chosen on", "setting")]
        columns += [Column(name, number=True) for name in ("validation", "test, 100 bags", "2,000 clean bags")]
        text = (
            "Balanced accuracy of one seed per setting. The best on the clean validation bags, and the "
            "best on the test bags themselves, the authors' way: what it has there is what would have been claimed."
        )
        table = Table(columns, [row for choice in grid for row in _grid_rows(choice)])
        pictures = [drawn for name in DATASETS if (drawn := _claimed(grid, name)) is not None]
        title = "The search for settings"
        sections.append(Section(title, grid_claims(grid), pictures=pictures, anchor="grid"))
        sections.append(Section(f"{title}: figures", [text], [table]))
    missing = [TITLES[name] for name in tables if name not in shown]
    notices = [f"Not yet run: {', '.join(missing)}."] if missing else []
    if quick:
        notices.insert(0, f"{QUICK} Only rows that were run are shown.")
    page = Page(
        title="The tables of the DAS-MIL paper, made again",
        kicker=f"dasmil reproduce, {protocol} protocol",
        lead="The paper's tables made again, beside the printed figures and a large clean test set",
        headlines=_headlines(tables),
        remarks=[
            "Dots are means over seeds at the last epoch, rings single seeds, bars 95 % intervals of the mean under "
            "resampling of the bags, thin black ticks the paper's printed means. Blue: models that see relative "
            "distances; orange: absolute positions; grey: no positions."
        ],
        notices=notices,
        sections=sections,
    )
    return write_page(page, path)


def _grid_rows(choice: Choice) -> list[list[str | Cell]]:
    """Three rows a model and data set: two ways to choose, and the paper's setting."""
    name = Cell(choice.model, f"{choice.parts} of {choice.parts_planned} parts")
    rows: list[list[str | Cell]] = []
    for way, words, has in (
        ("validation bags", choice.by_validation.text(), choice.by_validation),
        ("the test bags", choice.by_test.text(), choice.by_test),
        ("as in the paper", choice.paper, choice.as_paper),
    ):
        figures = [f"{value:.3f}" for value in (has.validation, has.test, has.test_large)] if has else ["–"] * 3
        who = [name, choice.dataset] if not rows else ["", ""]
        rows.append([*who, way, words, *figures])
    return rows


def _claimed(grid: Sequence[Choice], dataset: str) -> Picture | None:
    """What choosing on the test bags claims, beside what it has."""
    rows = [
        Score(
            c.model, c.by_test.test_large, seeds=(c.by_validation.test_large,), mark=c.by_test.test,
            colour=POSITION_COLOUR[MODELS[c.model].position],
        )
        for c in grid if c.dataset == dataset
    ]  # fmt: skip
    if not rows:
        return None
    rows.sort(key=lambda row: -row.mean)
    note = "Chosen on the 100 test bags. Tick: what they claim; dot: 2,000 clean bags. Ring: chosen on validation bags."
    figure = scores(rows, f"balanced accuracy, {dataset}, 2,000 clean bags", mark="claimed")
    return picture(figure, f"{dataset}: what choosing on the test bags claims and has", note)


def _headlines(tables: dict[str, list[PrintedEntry]]) -> list[Headline]:
    found = []
    for table, recipe in (("tuned", "tuned"), ("collage", "the paper's")):
        rows = [e for e in tables.get(table, []) if e.row == "das-mil" and e.cell]
        if not rows:
            continue
        for entry in rows:
            figure = entry.figure("test-large", "balanced_accuracy")
            assert figure is not None
            low, high = figure["interval"]
            note = f"95 % interval {low:.3f}–{high:.3f}; 2,000 clean bags, {entry.seeds} seeds, {recipe} recipe"
            found.append(Headline(f"DAS-MIL, {entry.dataset}, balanced accuracy", f"{figure['mean']:.3f}", note))
        break
    return found


def _table_sections(table: str, protocol: str, rows: list[PrintedEntry], quick: bool) -> list[Section]:
    """What the table says and its dots first; below them the figures."""
    listed = [entry for entry in rows if entry.cell or not quick]
    pictures = [_dots(rows, dataset, split, protocol) for dataset in DATASETS for split in ("test", "test-large")]
    tables = [
        Table(
            [Column(name, number=i > 0) for i, name in enumerate(_columns(table))],
            [_row(entry, metric) for entry in listed if entry.dataset == dataset],
            caption=f"{dataset}, {vocabulary.METRICS[metric].label}",
        )
        for metric in METRICS
        for dataset in DATASETS
    ]
    note = (
        "Mean ± standard deviation over seeds; below it the paper's printed figure. Agrees: within 3 of the paper's "
        "standard deviations or 0.05. Not fitted: seeds whose training loss stayed high; they are counted."
    )
    folded = [FoldedText("What made these figures", _manifests(rows))]
    texts = claims(table, rows) + (leak(rows) if protocol == "published" else [])
    return [
        Section(TITLES[table], texts, pictures=[p for p in pictures if p is not None], anchor=table),
        Section(f"{TITLES[table]}: figures", [note], tables, folded=folded),
    ]


def _columns(table: str) -> list[str]:
    difference = ["difference"] if table != "tuned" else []
    first = "row" if table == "ablations" else "model"
    return [first, "parameters", "train", "test, 100 bags", *difference, "2,000 clean bags", "not fitted", "CPU min"]


def _row(entry: PrintedEntry, metric: str) -> list[str | Cell]:
    position = {"none": "no positions"}.get(entry.position, entry.position)
    name = Cell(entry.row.replace("-", "\N{NON-BREAKING HYPHEN}"), "" if entry.table == "ablations" else position)

    def ours(split: str) -> Cell:
        paper = entry.printed(split, metric)
        figure = entry.figure(split, metric)
        return Cell(NOT_RUN if figure is None else spread(figure), "" if paper is None else f"paper {printed(paper)}")

    row: list[str | Cell] = [name, f"{entry.cell['parameters']:,}" if entry.cell else "–", ours("train"), ours("test")]
    if entry.table != "tuned":
        gap, agrees = entry.gap(metric), entry.agrees(metric)
        row.append("–" if gap is None else Cell(f"{gap:+.3f}", "agrees" if agrees else "outside"))
    large = entry.figure("test-large", metric)
    low, high = large["interval"] if large else (0.0, 0.0)
    row.append("–" if large is None else Cell(spread(large), f"95 % interval {low:.3f}–{high:.3f}"))
    return [*row, f"{entry.stuck} of {entry.seeds}" if entry.cell else "–", minutes(entry)]


def _dots(rows: list[PrintedEntry], dataset: str, split: str, protocol: str) -> Picture | None:
    metric = "balanced_accuracy"
    chosen = []
    for entry in rows:
        figure = entry.figure(split, metric)
        if entry.dataset != dataset or figure is None:
            continue
        paper = entry.printed("test", metric) if split == "test" else None
        score = Score(
            entry.row, figure["mean"], tuple(figure["interval"]), figure["per_seed"],
            mark=None if paper is None else paper[0], colour=POSITION_COLOUR[entry.position],
        )  # fmt: skip
        chosen.append(score)
    if not chosen:
        return None
    chosen.sort(key=lambda score: -score.mean)
    bags = "2,000 clean bags" if split == "test-large" else f"100 {protocol} test bags"
    return picture(scores(chosen, f"balanced accuracy, {dataset}, {bags}"), f"{dataset}: scores on {bags}")


def _manifests(rows: list[PrintedEntry]) -> str:
    lines = []
    for entry in rows:
        if entry.cell is None:
            continue
        plan, made = entry.cell["plan"], entry.cell["versions"]
        settings = ", ".join(f"{k}={v}" for k, v in {**plan["training"], **plan["options"]}.items())
        commit = (made["commit"] or "no checkout")[:12] + (" with changes" if made["changed"] else "")
        lines.append(
            f"{entry.row}, {entry.dataset}: seeds {plan['seeds'][0]}-{plan['seeds'][-1]}; {settings}; dasmil "
            f"{made['dasmil']} (commit {commit}, code {made['code']}), torch {made['torch']}, numpy {made['numpy']}"
        )
    return "\n".join(lines)
