"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dasmil import vocabulary
from dasmil.paper.cells import DATASETS
from dasmil.paper.grid import Choice, grid_claims
from dasmil.paper.tables import TITLES, DistanceValue, PrintedEntry, claims, leak
from dasmil.stats.pairs import METRICS

QUICK = "A quick run of a few epochs and seeds, for trying out: too small to compare with the paper."
NOT_RUN = "not yet run"


def spread(figure: dict[str, Any] | None) -> str:
    """ "0.931 ± 0.012", or a dash."""
    return "–" if figure is None else f"{figure['mean']:.3f} ± {figure['std']:.3f}"


def printed(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f} ± {value[1]:.3f}"


def trusted(figure: dict[str, Any] | None) -> str:
    """ "0.931 [0.920, 0.941]", or a dash."""
    return "–" if figure is None else f"{figure['mean']:.3f} [{figure['interval'][0]:.3f}, {figure['interval'][1]:.3f}]"


def minutes(entry: PrintedEntry) -> str:
    seconds = None if entry.cell is None else entry.cell["cpu_seconds"]
    return "–" if seconds is None else f"{seconds / 60:.1f}"


def header(table: str) -> list[str]:
    first = ["row" if table == "ablations" else "model", "position", "parameters", "train"]
    paper = ["paper, train"] if table != "tuned" else []
    middle = ["test, 100 bags"] + (["paper, test", "difference", "agrees"] if table != "tuned" else [])
    return [*first, *paper, *middle, "2,000 clean bags [95 %]", "not fitted", "CPU min"]


def cells_of(entry: PrintedEntry, metric: str) -> list[str]:
    """The cells of one row, in the order of `header`."""
    if entry.cell is None:
        row = [entry.row, entry.position, "–", NOT_RUN]
    else:
        row = [entry.row, entry.position, f"{entry.cell['parameters']:,}", spread(entry.figure("train", metric))]
    if entry.table != "tuned":
        row.append(printed(entry.printed("train", metric)))
    row.append(spread(entry.figure("test", metric)))
    if entry.table != "tuned":
        gap, agrees = entry.gap(metric), entry.agrees(metric)
        row += [printed(entry.printed("test", metric)), "–" if gap is None else f"{gap:+.3f}"]
        row.append("–" if agrees is None else "yes" if agrees else "no")
    stuck = "–" if entry.cell is None else f"{entry.stuck} of {entry.seeds}"
    return [*row, trusted(entry.figure("test-large", metric)), stuck, minutes(entry)]


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """A Markdown table; all but the first `words` columns are right-aligned."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "|".join("---" if i < words else "---:" for i in range(len(head))) + "|")
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def markdown(table: str, protocol: str, rows: list[PrintedEntry]) -> str:
    """One section per data set and metric, below what the table says."""
    lines = [f"# {TITLES[table]} ({protocol} protocol)", ""]
    lines += [
        "Mean ± standard deviation over seeds at the last epoch; in brackets the 95 % interval of the mean under "
        "resampling of the bags. Trained and tested on the "
        + ("paper's bags, whose test set leaks" if protocol == "published" else "clean bags")
        + "; the 2,000 bags are clean and were used for nothing else. Written by `dasmil reproduce`, and recomputed "
        "from the stored predictions by `dasmil reproduce --check`.",
        "",
    ]
    texts = claims(table, rows) + (leak(rows) if protocol == "published" else [])
    lines += [f"- {text}" for text in texts]
    for metric in METRICS:
        for dataset in DATASETS:
            chosen = [entry for entry in rows if entry.dataset == dataset]
            lines += ["", f"## {dataset}, {vocabulary.METRICS[metric].label}", ""]
            lines += _grid(header(table), [cells_of(entry, metric) for entry in chosen], 2)
    return "\n".join(lines) + "\n"


def csv_rows(rows: list[PrintedEntry]) -> list[dict[str, Any]]:
    """One line per row, data set, metric and set of bags; empty where nothing has been run or printed."""
    lines = []
    for entry in rows:
        for metric in METRICS:
            for split in ("train", "validation", "test", "test-large"):
                figure, paper = entry.figure(split, metric), entry.printed(split, metric)
                line: dict[str, Any] = {
                    "row": entry.row, "model": entry.model, "position": entry.position, "dataset": entry.dataset,
                    "parameters": entry.cell["parameters"] if entry.cell else "", "metric": metric, "bags": split,
                    "seeds": entry.seeds or "", "stuck_seeds": entry.stuck if entry.cell else "",
                }  # fmt: skip
                line |= {"mean": "", "std": "", "low": "", "high": ""}
                if figure is not None:
                    values = (figure["mean"], figure["std"], *figure["interval"])
                    line |= dict(zip(("mean", "std", "low", "high"), (f"{value:.6f}" for value in values)))
                line |= {"paper_mean": paper[0] if paper else "", "paper_std": paper[1] if paper else ""}
                lines.append(line)
    return lines


def latex(table: str, protocol: str, rows: list[PrintedEntry]) -> str:
    """A booktabs table in the layout of the paper's: both data sets side by side, balanced accuracy."""
    by_row: dict[str, dict[str, PrintedEntry]] = {}
    for entry in rows:
        by_row.setdefault(entry.row, {})[entry.dataset] = entry
    paper = table != "tuned"
    columns = ["train", "test", *(["paper"] if paper else []), "2,000 clean"]
    width = len(columns)
    spans = " & ".join(
        rf"\multicolumn{{{width}}}{{c}}{{\textsc{{{name.upper().replace('_', '-')}}}}}" for name in DATASETS
    )
    lines = [
        f"% {TITLES[table]}, {protocol} protocol, balanced accuracy; written by dasmil reproduce",
        rf"\begin{{tabular}}{{llr{'r' * 2 * width}}}",
        r"\toprule",
        rf" & & & {spans} \\",
        rf"Model & Pos & Params & {' & '.join(columns * 2)} \\",
        r"\midrule",
    ]
    for row, sides in by_row.items():
        first = next(iter(sides.values()))
        count = next((e.cell["parameters"] for e in sides.values() if e.cell), None)
        parts = [row.replace("+", r" $+$ "), first.position, "--" if count is None else f"{count:,}"]
        for dataset in DATASETS:
            entry = sides[dataset]
            parts += [_tex(entry.figure("train", "balanced_accuracy")), _tex(entry.figure("test", "balanced_accuracy"))]
            if paper:
                value = entry.printed("test", "balanced_accuracy")
                parts.append("--" if value is None else rf"{value[0]:.3f} $\pm$ {value[1]:.3f}")
            large = entry.figure("test-large", "balanced_accuracy")
            parts.append(
                "--"
                if large is None
                else rf"{large['mean']:.3f} [{large['interval'][0]:.3f}, {large['interval'][1]:.3f}]"
            )
        lines.append(" & ".join(parts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(figure: dict[str, Any] | None) -> str:
    return "--" if figure is None else rf"{figure['mean']:.3f} $\pm$ {figure['std']:.3f}"


def plain_latex(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A booktabs table of ready cells."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.replace("%", r"\%").replace("_", r"\_") for cell in cells) + r" \\"

    lines = [f"% {title}; written by dasmil reproduce", rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule"]
    lines += [line(head), r"\midrule", *(line(row) for row in rows), r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


DISTANCE_HEAD = ("recipe", "data set", "metric", "das-mil minus sa", "95 % interval, paired", "seeds")


def distance_cells(value: DistanceValue) -> list[str]:
    return [
        value.recipe,
        value.dataset,
        vocabulary.METRICS[value.metric].label,
        f"{value.difference:+.3f}",
        f"[{value.interval[0]:+.3f}, {value.interval[1]:+.3f}]",
        f"{value.seeds[0]} and {value.seeds[1]}",
    ]


def distance_markdown(protocol: str, values: Sequence[DistanceValue]) -> str:
    """DAS-MIL minus plain self-attention."""
    lines = [
        f"# What distance is worth ({protocol} protocol)",
        "",
        "DAS-MIL minus plain self-attention (`sa`), the same model without the distance terms, trained with the same "
        "recipe on the same bags and scored on the same 2,000 clean bags. The interval resamples the bags, the same "
        "ones for both.",
        "",
    ]
    return "\n".join([*lines, *_grid(DISTANCE_HEAD, [distance_cells(v) for v in values], 3)]) + "\n"


GRID_HEAD = (
    "model", "data set", "parts", "chosen on validation bags", "the paper's best", "validation", "test, 100 bags",
    "2,000 clean bags", "chosen on the test set", "would have claimed", "is, on 2,000", "the paper's best, on 2,000",
)  # fmt: skip


def grid_cells(choice: Choice) -> list[str]:
    chosen, claimed = choice.by_validation, choice.by_test
    return [
        choice.model, choice.dataset, f"{choice.parts} of {choice.parts_planned}", chosen.text(), choice.paper,
        f"{chosen.validation:.3f}", f"{chosen.test:.3f}", f"{chosen.test_large:.3f}", claimed.text(),
        f"{claimed.test:.3f}", f"{claimed.test_large:.3f}",
        "–" if choice.as_paper is None else f"{choice.as_paper.test_large:.3f}",
    ]  # fmt: skip


def grid_markdown(protocol: str, found: Sequence[Choice]) -> str:
    """The table of best settings beside the paper's."""
    lines = [
        f"# The search for settings ({protocol} protocol)",
        "",
        "Balanced accuracy of one seed per setting. `parts`: finished combinations of hidden size and pooling; each "
        "trains nine learning rates and weight decays. The choice is made by the clean validation bags; the last "
        "columns say what the authors' way, choosing by the test set itself, would have claimed, and what the paper's "
        "setting has here.",
        "",
        *(f"- {text}" for text in grid_claims(found)),
        "",
    ]
    return "\n".join([*lines, *_grid(GRID_HEAD, [grid_cells(choice) for choice in found], 5)]) + "\n"
