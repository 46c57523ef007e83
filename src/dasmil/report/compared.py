"""The page and the tables of a comparison: the answer first, then scores, differences and what uses space."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dasmil.errors import InputError
from dasmil.models import MODELS
from dasmil.report.figures import Score, scores
from dasmil.report.page import Column, Headline, Page, Picture, Section, Table, picture, write_page
from dasmil.report.style import ACCENT, FAINT, FONT, GREY, INK, look, new_figure
from dasmil.report.words import display_name, plural, seed_name, stuck_notice
from dasmil.runs import Run
from dasmil.stats.compared import Compared, Gap, ModelScore
from dasmil.vocabulary import task_metric, task_metric_of

WITHOUT_DISTANCE = "sa"
DISTANCE = ("das-mil", "disc-rel-sa", "sa-alibi", "sa-rope")
"""The same attention as WITHOUT_DISTANCE, with distances."""


def _word(found: Compared) -> str:
    return task_metric_of(found.metric).short


def answer(found: Compared) -> str:
    """The sentence at the top: what distance adds where that was asked, else the best model and the next."""
    names = [m.name for m in found.models]
    for name in DISTANCE:
        if name in names and WITHOUT_DISTANCE in names:
            gap = found.gap(name, WITHOUT_DISTANCE)
            return (
                f"On this cohort distance adds {_signed(gap.difference)} {_interval(gap)} {_word(found)} over the same "
                f"attention without it ({name} against {WITHOUT_DISTANCE}): {_verdict(gap)}."
            )
    gap = found.gap(names[0], names[1])
    return (
        f"On this cohort {names[0]} has the highest {_word(found)}, {found.models[0].score:.3f}, "
        f"{abs(gap.difference):.3f} "
        f"{_interval(gap)} above {names[1]}: {_verdict(gap)}."
    )


def non_inferior(found: Compared, margin: float) -> list[str]:
    """Whether each model is at most ``margin`` worse than the best, by its paired interval."""
    if not 0 < margin < 1:
        raise InputError(f"the non-inferiority margin is {margin:g}, expected a difference such as 0.05")
    best, told = found.models[0].name, []
    for model in found.models[1:]:
        gap = found.gap(model.name, best)
        difference = f"{_signed(gap.difference)} {_interval(gap)} {_word(found)}, margin {margin:g}"
        shown = f"{model.name} is non-inferior to {best}" if gap.low > -margin else (
            f"non-inferiority of {model.name} to {best} is not shown"
        )  # fmt: skip
        told.append(f"{shown[0].upper()}{shown[1:]} ({difference}).")
    return told


def cautions(runs: Mapping[str, Run], chosen: Mapping[str, Any]) -> list[str]:
    """What a reader of the answer must know: runs that did not fit, models without a distance, other settings."""
    found = [f"{name}: {text}" for name, run in runs.items() if (text := stuck_notice(run))]
    for name, run in runs.items():
        learns = run.model in MODELS and MODELS[run.model].learns_lengths
        without = [seed for seed in run.all_seeds if learns and not (seed.trained and seed.distances)]
        if without:
            which = ", ".join(seed_name(seed, run) for seed in without)
            found.append(
                f"{name}: {len(without)} of {plural(len(run.all_seeds), 'model')} use no distance ({which}), so this "
                "score is only partly that of distance."
                if len(without) < len(run.all_seeds)
                else f"{name}: no model of this run uses a distance, so its score says nothing about distance."
            )
    differing = _differing(runs, {setting for rounds in chosen.values() for one in rounds for setting in one})
    return [*found, f"Settings differ: {'; '.join(differing)}."] if differing else found


def _differing(runs: Mapping[str, Run], chosen: set[str]) -> list[str]:
    """Settings of training that differ, except those that folds chose: "lr 0.001 (das-mil), 0.01 (sa)"."""
    settings = {name: {"seeds": len(run.parts[0].seeds), **run.config["training"]} for name, run in runs.items()}
    found = []
    for setting in dict.fromkeys(key for values in settings.values() for key in values):
        values = {name: given.get(setting) for name, given in settings.items()}
        if setting in chosen or len({repr(value) for value in values.values()}) < 2:
            continue
        texts = [f"{'none' if value is None else value} ({name})" for name, value in values.items()]
        found.append(f"{setting} {', '.join(texts)}")
    return found


def _verdict(gap: Gap) -> str:
    if not gap.shown:
        return "not shown"
    return "shown" if gap.difference > 0 else "shown, it does harm"


def _signed(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else f"-{-value:.3f}"


def _interval(gap: Gap) -> str:
    return f"[{_signed(gap.low)}, {_signed(gap.high)}]"


def _own_interval(model: ModelScore) -> str:
    """The interval of a score; few patients have none."""
    return f"[{model.low:.3f}, {model.high:.3f}]" if math.isfinite(model.low) else "none"


def _rows(found: Compared) -> list[list[str]]:
    """Model, position, score, interval, difference from the best with its interval, corrected p."""
    best, rows = found.models[0], []
    for m in found.models:
        row = [m.name, _position(m.name), f"{m.score:.3f}", _own_interval(m), f"{m.rank:.2f}"]
        if m is best:
            rows.append([*row, "", "", ""])
            continue
        gap = found.gap(m.name, best.name)
        rows.append([*row, _signed(gap.difference), _interval(gap), _p(gap.p_holm)])
    return rows


def _head(found: Compared) -> list[str]:
    score = _word(found)[0].upper() + _word(found)[1:]
    return ["Model", "Position", score, "95 % interval", "Mean rank", "Minus the best", "95 % interval", "p (Holm)"]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _position(name: str) -> str:
    model = MODELS.get(name.split(" ")[0])
    return "" if model is None else model.position


def markdown_table(found: Compared) -> str:
    head = _head(found)
    lines = [head, ["---"] * len(head), *_rows(found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{_measured(found)}\n"


def latex_table(found: Compared) -> str:
    """A tabular for the booktabs package."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(_escaped(cell) for cell in cells) + r" \\"

    body = "\n".join(line(row) for row in _rows(found))
    return (
        "\\begin{tabular}{llrlrrlr}\n\\toprule\n" + line(_head(found)) + "\n\\midrule\n" + body
        + "\n\\bottomrule\n\\end{tabular}\n% " + _measured(found) + "\n"
    )  # fmt: skip


def _escaped(cell: str) -> str:
    """Text as LaTeX reads it."""
    return cell.replace("%", r"\%").replace("<", "$<$").replace("_", r"\_").replace("R²", "$R^2$")


def csv_table(found: Compared) -> str:
    """One row for each pair of models, unrounded."""
    one, other = f"{found.metric}_first", f"{found.metric}_second"
    head = ["first", "second", one, other, "difference", "low", "high", "p", "p_holm"]
    score = {m.name: m.score for m in found.models}
    rows = [
        [g.first, g.second, score[g.first], score[g.second], g.difference, g.low, g.high, g.p, g.p_holm]
        for g in found.gaps
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def _measured(found: Compared) -> str:
    folds = f"{found.folds} folds" if found.folds > 1 else "one split"
    seeds = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    return (
        f"{found.bags} bags of {found.patients} patients, {folds}, {seeds} each; {_meaning(found)} is the mean over "
        "folds and seeds, its interval that of the run's report; differences, their intervals and p from resampled "
        "patients, the same for all models, p corrected by Holm for "
        f"{len(found.gaps)} comparisons."
    )


def _meaning(found: Compared) -> str:
    """The metric where it is explained."""
    whole = {
        "c_index": task_metric("c_index"),
        "macro": "the mean score over the targets (AUROC of classes, R² of numbers)",
    }
    return whole.get(found.metric, _word(found))


def write_compared(
    found: Compared,
    sentence: str,
    runs: Mapping[str, Run],
    split: str,
    path: Path,
    *,
    chosen: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    cautions: Sequence[str] = (),
) -> Path:
    """The page of a comparison; chosen: of each model the settings that its folds chose; cautions: stand at the top."""
    best = found.models[0]
    pairs = [
        [g.first, g.second, _signed(g.difference), _interval(g), _p(g.p), _p(g.p_holm), "yes" if g.shown else "no"]
        for g in found.gaps
    ]
    names = ("First", "Second", "Difference", "95 % interval", "p", "p (Holm)", "Shown")
    caption = (
        "Mean rank over resamples of the patients, 1 is the best. A bar joins models among whom no difference is shown."
    )
    page = Page(
        title=sentence,
        kicker="dasmil compare",
        lead=sentence,
        headlines=[
            Headline(
                f"{display_name(best.name)}, {_word(found)}", f"{best.score:.3f}", _own_interval(best)
            )
        ],
        remarks=[_measured(found), f"Scored on {split}."],
        notices=list(cautions),
        sections=[
            Section("Ranks", pictures=[picture(critical_difference(found), "Critical-difference plot", caption)]),
            Section("Models", pictures=[_drawn(found)], tables=[
                Table([Column(h, i > 1) for i, h in enumerate(_head(found))], _rows(found)),
            ]),
            Section("Every pair", tables=[Table([Column(h, i > 1) for i, h in enumerate(names)], pairs)]),
            *([_space_section(found)] if found.space else []),
            Section("Budget", text=[_BUDGET], tables=[_budget(runs, chosen or {})]),
        ],
    )  # fmt: skip
    return write_page(page, path)


def _drawn(found: Compared) -> Picture:
    """Every model's score with its interval."""
    rows = [
        Score(
            display_name(m.name),
            m.score,
            (m.low, m.high) if math.isfinite(m.low) else None,
            colour=GREY if place else ACCENT,
        )
        for place, m in enumerate(found.models)
    ]
    caption = "Dot: mean over folds and seeds; bar: 95 % interval."
    return picture(scores(rows, _word(found)), f"{_word(found)} of every model", caption)


_BUDGET = (
    "What each model cost, from its own curves. Models that this comparison trained have the same bags, folds, number "
    "of epochs and number of settings to choose from; each fold chose by its validation bags, and the trials are not "
    "in the seconds. Of finished runs that were handed over, their own pages tell."
)


def _budget(runs: Mapping[str, Run], chosen: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows = []
    for name, run in runs.items():
        parameters = sum(p.numel() for p in run.all_seeds[0].model().parameters())
        histories = [seed.history for seed in run.all_seeds]
        seconds = sum(float(h["seconds"].sum()) for h in histories if "seconds" in h)
        epochs = max(int(h["epoch"][-1]) for h in histories)
        settings = [_choices(chosen[name]) if name in chosen else "none"] if chosen else []
        rows.append([name, f"{parameters:,}", str(epochs), f"{seconds:,.0f}", *settings, str(run.path)])
    numbers = [Column(name, True) for name in ("Parameters", "Epochs", "Seconds")]
    return Table([Column("Model"), *numbers, *([Column("Chosen")] if chosen else []), Column("Run")], rows)


def _choices(rounds: Sequence[Mapping[str, Any]]) -> str:
    """What the folds chose, most frequent first: "lr 0.001 (3 folds), lr 0.005 (2)"."""
    texts = [", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                       for name, value in one.items()) for one in rounds]  # fmt: skip
    counts = sorted({text: texts.count(text) for text in texts}.items(), key=lambda item: -item[1])
    folds = [f"{text} ({count}{' folds' if not place and len(rounds) > 1 else ''})"
             for place, (text, count) in enumerate(counts)]  # fmt: skip
    return "; ".join(folds)


def _space_section(found: Compared) -> Section:
    """Which models use positions at all, and which only the order of the file."""
    rows = []
    for s in found.space:
        uses = "positions" if s.coords.p < 0.05 and s.coords.difference > 0 else ""
        order = "the order of the file" if s.rows.p < 0.05 and s.rows.difference > 0 else ""
        rows.append([
            s.name, f"{_signed(s.coords.difference)} {_interval(s.coords)}",
            f"{_signed(s.rows.difference)} {_interval(s.rows)}",
            " and ".join(filter(None, (uses, order))) or "neither is shown",
        ])  # fmt: skip
    lost = [Column(f"Lost, {what} shuffled", True) for what in ("coordinates", "rows")]
    columns = [Column("Model"), *lost, Column("Uses")]
    text = [
        f"{_word(found)[0].upper()}{_word(found)[1:]} lost when positions are dealt out anew among the instances of a "
        "bag, and when a bag only lists its instances in another order. A model that knows no positions loses exactly "
        "nothing by the first."
    ]
    return Section("Does it use space?", text=text, tables=[Table(columns, rows)])


def critical_difference(found: Compared) -> Figure:
    """Models on the line of their mean ranks, groups without a shown difference joined by bars."""
    models = sorted(found.models, key=lambda m: m.rank)
    groups, half = found.alike(), (len(models) + 1) // 2
    depth = 0.35 * (1 + len(groups))
    with look():
        figure, (axis,) = new_figure(620, 70 + 22 * half + 14 * len(groups))
        low, high = 1, max(len(models), 2)
        axis.set_xlim(low - 0.9, high + 0.9)
        axis.set_ylim(-depth - half, 0.6)
        axis.axis("off")
        axis.plot([low, high], [0, 0], color=FAINT, linewidth=1)
        for tick in range(low, high + 1):
            axis.plot([tick, tick], [0, 0.15], color=FAINT, linewidth=1)
            axis.text(tick, 0.22, str(tick), ha="center", va="bottom", fontsize=FONT - 1)
        for place, model in enumerate(models):
            left = place < half
            y = -depth - (place if left else len(models) - 1 - place)
            side = low - 0.1 if left else high + 0.1
            colour = ACCENT if place == 0 else GREY
            axis.plot([model.rank, model.rank, side], [0, y, y], color=colour, linewidth=1)
            label = f"{display_name(model.name)} ({model.rank:.2f})"
            axis.text(side, y, label, ha="right" if left else "left", va="center", fontsize=FONT)
        ranks = {m.name: m.rank for m in models}
        for number, group in enumerate(groups):
            y = -0.35 * (number + 1)
            ends = [ranks[group[0]] - 0.04, ranks[group[-1]] + 0.04]
            axis.plot(ends, [y, y], color=INK, linewidth=3)
    return figure
