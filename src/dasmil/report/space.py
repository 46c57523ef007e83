"""The page of a study of space: the answer, pairs of types and lengths, classical statistics beside it, power."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dasmil.files import replacing
from dasmil.report.page import Cell, Column, Headline, Page, Picture, Section, Table, picture, write_page
from dasmil.report.style import ACCENT, FAINT, FONT, GREY, INK, LINE, ORANGE, SIGNED, look, new_figure
from dasmil.space import LEVEL, PairFinding, PlantedPower, SpaceStudy, p_text, type_pairs
from dasmil.space.contacts import log_ratios
from dasmil.space.pairs import associations
from dasmil.space.result import PAGE
from dasmil.space.units import mean_of_patients

SHOWN, DRAWN, MAPPED = 15, 3, 20
GROUPS = (ACCENT, ORANGE, GREY, FAINT)


def write_space_page(study: SpaceStudy, folder: Path) -> Path:
    """The page, and every figure as SVG and PDF in `figures/`."""
    drawn: list[tuple[str, Figure, str, str]] = []
    sections = [_description(study, drawn)]
    if study.outcome is not None and study.adds is not None:
        sections = [_adds(study, drawn), _pairs(study, drawn), _classical(study), _power(study, drawn), *sections]
    for name, figure, _, _ in drawn:
        for kind in ("svg", "pdf"):
            dated = {"Date": None} if kind == "svg" else {"CreationDate": None}
            with replacing(folder / "figures" / f"{name}.{kind}") as temporary, look():
                figure.savefig(temporary, format=kind, metadata=dated)
    page = Page(
        title="Does space matter?",
        kicker="dasmil space",
        lead=study.sentence,
        headlines=_headlines(study),
        remarks=[*study.sentences[1:], _measured(study)],
        notices=list(study.notes),
        sections=[*[part for part in sections if part is not None], _method(study)],
    )
    return write_page(page, folder / PAGE)


def _drawn(drawn: list[tuple[str, Figure, str, str]], name: str, figure: Figure, label: str, caption: str) -> Picture:
    drawn.append((name, figure, label, caption))
    return picture(figure, label, caption)


def _headlines(study: SpaceStudy) -> list[Headline]:
    adds = study.adds
    if adds is None:
        return []
    metric = adds.metric
    return [
        Headline(f"{metric}, composition", f"{adds.composition:.2f}", _interval(adds.composition_interval), "grey"),
        Headline(f"{metric}, with positions", f"{adds.both:.2f}", _interval(adds.both_interval)),
        Headline("Positions add", f"{adds.difference:+.2f}", f"{_interval(adds.interval)}, p = {p_text(adds.p)}"),
    ]


def _interval(ends: Sequence[float]) -> str:
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def _measured(study: SpaceStudy) -> str:
    cells = sum(map(len, study.sections))
    return (
        f"{len(study.names)} patients, {len(study.sections)} sections, {cells:,} instances, {len(study.types)} types; "
        f"lengths from {study.lengths[0]:.3g} to {study.lengths[-1]:.3g} {study.unit}."
    )


def _adds(study: SpaceStudy, drawn: list[tuple[str, Figure, str, str]]) -> Section:
    adds = study.adds
    assert adds is not None
    text = [
        f"Both predictions are out of fold, by patient. Composition is the share of every type and the number of "
        f"instances per section. The p-value is from {adds.draws} permutations in which what composition leaves of the "
        "contacts is dealt out anew among the patients, and everything is fitted again. So clustering of types that "
        "has no link with the outcome does not count.",
    ]
    if adds.p_labelling is not None:
        text.append(
            f"With the types dealt out at random among the positions of each section ({adds.labelling_draws} "
            f"permutations), the gain is as large with p = {p_text(adds.p_labelling)}. This second null also says that "
            "types do not cluster at all, so it is a check and not the headline."
        )
    caption = f"Gain in {adds.metric} in the permutations; the line is the cohort as it is."
    figure = gain_figure(adds.null, adds.difference, adds.metric)
    return Section("How much do positions add?", text=text, pictures=[
        _drawn(drawn, "gain", figure, "Gain against permutations", caption)
    ])  # fmt: skip


def gain_figure(null: np.ndarray, difference: float, metric: str) -> Figure:
    """A histogram of the gains of permutations with the observed one."""
    with look():
        figure, (axis,) = new_figure(420, 210)
        axis.hist(null, bins=24, color=GREY, alpha=0.6)
        axis.axvline(difference, color=ORANGE, linewidth=2)
        axis.annotate("observed", (difference, 1), xycoords=("data", "axes fraction"), xytext=(4, -4),
                      textcoords="offset points", va="top", color=ORANGE, fontsize=FONT - 1)  # fmt: skip
        axis.set(xlabel=f"gain in {metric}", ylabel="permutations")
    return figure


def _pairs(study: SpaceStudy, drawn: list[tuple[str, Figure, str, str]]) -> Section:
    assert study.outcome is not None
    several = len(study.outcome.directions) > 1
    columns = [
        Column("Types"), *([Column("Class")] if several else []), Column(f"Length, {study.unit}", True),
        Column("Contacts, ratio", True), Column("p", True), Column("p adjusted", True),
        Column("Cross-L, p adjusted", True),
    ]  # fmt: skip
    usual = {one.pair: one for one in study.classical}
    rows: list[list[str | Cell]] = []
    for pair in study.pairs[:SHOWN]:
        ratio = f"{np.exp(pair.effect):.2f}"
        rows.append([
            Cell(study.pair_name(pair.pair), _verdict(study, pair), pair.p_adjusted <= LEVEL),
            *([study.outcome.directions[pair.target]] if several else []),
            Cell(f"{pair.length:.3g}", f"[{pair.low:.3g}, {pair.high:.3g}]"),
            Cell(ratio, f"[{np.exp(pair.effect_low):.2f}, {np.exp(pair.effect_high):.2f}]"),
            p_text(pair.p), p_text(pair.p_adjusted), p_text(usual[pair.pair].p_adjusted),
        ])  # fmt: skip
    adjusted = study.patients.adjusted
    text = [
        "For every pair of types and every length: contacts of the pair, relative to what chance expects of the "
        "section's own composition and positions, against the outcome. Each row shows the length at which a pair goes "
        "with the outcome most clearly.",
        f"Tests adjust for instances per section and {adjusted.directions} directions of composition "
        f"({100 * adjusted.share:.0f} % of its variance). p adjusted holds for all pairs and lengths together "
        "(family-wise, so it bounds the false discovery rate as well). Intervals are from resampled patients.",
        _ratio_text(study),
    ]
    pictures = [
        _drawn(drawn, "pairs", map_figure(study), "Association of pairs and lengths",
               "Association (z) of contacts with the outcome at every length; a ring marks adjusted p at most 0.05."),
    ]  # fmt: skip
    if study.outcome.kind == "classes":
        pictures.append(
            _drawn(drawn, "contacts", curves_figure(study), "Contacts by class",
                   "Contacts over what chance expects, mean over patients with its 95 % interval.")
        )  # fmt: skip
    return Section("Which pairs of types, at which length?", text, [Table(columns, rows)], pictures)


def _ratio_text(study: SpaceStudy) -> str:
    assert study.outcome is not None
    if study.outcome.kind == "classes":
        return "Ratio: how many times the contacts of the other class(es), at equal composition."
    return f"Ratio: contacts multiply by this when {study.outcome.directions[0]} rises by one unit."


def _verdict(study: SpaceStudy, pair: PairFinding) -> str:
    """Whether ours and the classical test agree."""
    usual = next(one for one in study.classical if one.pair == pair.pair)
    ours, theirs = pair.p_adjusted <= LEVEL, usual.p_adjusted <= LEVEL
    if ours == theirs:
        return "both find it" if ours else ""
    return "cross-L does not find it" if ours else "only cross-L, which does not adjust for composition"


def map_figure(study: SpaceStudy) -> Figure:
    """z of the clearest pairs at every length."""
    assert study.outcome is not None
    columns = study.patients.columns()
    z = associations(study.patients.residuals(), study.outcome.targets(), study.patients.adjusted.basis)
    shown = study.pairs[:MAPPED]
    values = np.full((len(shown), len(study.lengths)), np.nan)
    for row, pair in enumerate(shown):
        for number, (length, own) in enumerate(columns):
            if own == pair.pair:
                values[row, length] = z[pair.target, number]
    limit = max(3.0, float(np.nanmax(np.abs(values))))
    several = len(study.outcome.directions) > 1
    names = [
        study.pair_name(pair.pair) + (f" ({study.outcome.directions[pair.target]})" if several else "")
        for pair in shown
    ]
    with look():
        figure, (axis,) = new_figure(330 + 6 * min(40, max(map(len, names))), 70 + 19 * len(shown))
        image = axis.imshow(values, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto")
        axis.set_yticks(range(len(shown)), [_cut(name) for name in names])
        axis.set_xticks(range(len(study.lengths)), [f"{length:.3g}" for length in study.lengths], rotation=60)
        axis.set_xlabel(f"within, {study.unit}")
        for row, pair in enumerate(shown):
            if pair.p_adjusted <= LEVEL:
                at = int(np.abs(study.lengths - pair.length).argmin())
                axis.plot(at, row, "o", markersize=9, markerfacecolor="none", markeredgecolor=INK)
        figure.colorbar(image, ax=axis, label="z", fraction=0.05)
    return figure


def _cut(name: str, most: int = 40) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def curves_figure(study: SpaceStudy) -> Figure:
    """Contacts over chance of the clearest pairs, by class."""
    assert study.outcome is not None
    every = {pair.pair: pair for pair in reversed(study.pairs)}
    shown = sorted(every.values(), key=lambda pair: (pair.p_adjusted, pair.p, -abs(pair.z)))[:DRAWN]
    ratios = log_ratios(study.patients.contacts[0], study.patients.expected)
    places = {pair: k for k, pair in enumerate(type_pairs(len(study.types)))}
    with look():
        figure, axes = new_figure(245 * len(shown) + 20, 250, len(shown))
        for axis, pair in zip(axes, shown, strict=True):
            for code, name in enumerate(study.outcome.classes):
                own = ratios[study.outcome.strata == code][:, :, places[pair.pair]]
                known = np.isfinite(own).sum(0)
                with np.errstate(invalid="ignore", divide="ignore"):
                    mean = np.where(known > 1, np.nansum(own, 0) / np.maximum(known, 1), np.nan)
                    spread = np.sqrt(np.nansum((own - mean) ** 2, 0) / np.maximum(known - 1, 1) / np.maximum(known, 1))
                colour = GROUPS[code % len(GROUPS)]
                axis.fill_between(study.lengths, np.exp(mean - 1.96 * spread), np.exp(mean + 1.96 * spread),
                                  color=colour, alpha=0.15, linewidth=0)  # fmt: skip
                axis.plot(study.lengths, np.exp(mean), color=colour, label=name)
            axis.axhline(1, color=LINE, linewidth=0.8)
            axis.axvline(pair.length, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
            axis.set(xscale="log", xlabel=f"within, {study.unit}")
            ticks = study.lengths[:: max(1, len(study.lengths) // 4)]
            axis.set_xticks(ticks, [f"{at:.3g}" for at in ticks])
            axis.minorticks_off()
            axis.set_title(_cut(study.pair_name(pair.pair), 30), fontsize=FONT - 1)
        axes[0].set_ylabel("contacts / chance")
        axes[-1].legend(frameon=False, fontsize=FONT - 2)
    return figure


def _classical(study: SpaceStudy) -> Section:
    rows: list[list[str]] = []
    ours = {pair.pair: pair for pair in reversed(study.pairs)}
    for one in sorted(study.classical, key=lambda test: test.p)[:SHOWN]:
        pair = ours.get(one.pair)
        own = "not tested" if pair is None else p_text(pair.p_adjusted)
        sign = {1: "more", -1: "less", 0: ""}[one.direction]
        rows.append([study.pair_name(one.pair), sign, p_text(one.p), p_text(one.p_adjusted), own])
    text = [
        "Cross-L (Ripley's K of two types as a length, translation edge correction in the bounding box) minus the "
        "length, mean over lengths and over the sections of a patient; a test of patients by class (Welch, analysis of "
        "variance) or by correlation, adjusted after Benjamini and Hochberg. It does not adjust for composition, and "
        "tissue that leaves gaps in the box raises it for all pairs alike.",
    ]
    columns = [
        Column("Types"),
        Column("Direction"),
        Column("p", True),
        Column("p adjusted", True),
        Column("Ours, p adjusted", True),
    ]
    return Section("Classical statistics", text, [Table(columns, rows)])


def _power(study: SpaceStudy, drawn: list[tuple[str, Figure, str, str]]) -> Section | None:
    if not study.power:
        return None
    n = len(study.names)
    own = {(one.pair, one.length): one for one in study.power if one.patients == n}
    lengths = sorted({length for _, length in own})
    rows = [
        [study.pair_name(pair), *(_percent(own[pair, at].smallest) if (pair, at) in own else "" for at in lengths)]
        for pair in sorted({pair for pair, _ in own})
    ]
    text = [
        "Differences of known size were planted into the contacts of this cohort: the contacts of one pair within a "
        "length are multiplied in the patients of one class, chosen at random, and the test above (adjusted for all "
        "pairs) is made. The table has the smallest difference that 80 % of such cohorts find.",
        power_text(study.power, n, study.unit),
    ]
    pictures = [
        _drawn(drawn, "power", power_figure(study), "Smallest difference by number of patients",
               "Median over pairs of types; larger cohorts are drawn from this one.")
    ]  # fmt: skip
    columns = [Column("Types"), *(Column(f"Within {at:.3g} {study.unit}", True) for at in lengths)]
    return Section("What could this cohort have shown?", text, [Table(columns, rows)], pictures)


def _percent(value: float | None) -> str:
    return "more than +300 %" if value is None else f"+{100 * value:.0f} %"


def power_text(power: Sequence[PlantedPower], patients: int, unit: str) -> str:
    """The smallest differences at each length in one sentence, median over pairs."""
    parts = []
    for length in sorted({one.length for one in power}):
        value = _median([one for one in power if one.length == length and one.patients == patients])
        parts.append(f"{_percent(value)} within {length:.3g} {unit}")
    return f"With {patients} patients a usual pair of types needs {', '.join(parts)} to be found (power 80 %)."


def _median(power: Sequence[PlantedPower]) -> float | None:
    values = [np.inf if one.smallest is None else one.smallest for one in power]
    middle = float(np.median(values)) if values else np.inf
    return middle if np.isfinite(middle) else None


def power_figure(study: SpaceStudy) -> Figure:
    """The smallest difference against the number of patients, a line for each length."""
    sizes = sorted({one.patients for one in study.power})
    with look():
        figure, (axis,) = new_figure(420, 260)
        for k, length in enumerate(sorted({one.length for one in study.power})):
            found = [_median([o for o in study.power if o.length == length and o.patients == n]) for n in sizes]
            points = [(n, 100 * value) for n, value in zip(sizes, found, strict=True) if value is not None]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", color=GROUPS[k % len(GROUPS)],
                          label=f"within {length:.3g} {study.unit}")  # fmt: skip
        axis.axvline(len(study.names), color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set(xscale="log", xlabel="patients", ylabel="smallest difference, %")
        axis.set_xticks(sizes, map(str, sizes))
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=FONT - 2)
    return figure


def _description(study: SpaceStudy, drawn: list[tuple[str, Figure, str, str]]) -> Section:
    z = mean_of_patients(study.sections, study.per_section["enrichment"])
    outside = study.per_section["outside"]
    moran = mean_of_patients(study.sections, study.per_section["moran"])
    shares = study.patients.counts / study.patients.counts.sum(1, keepdims=True)
    rows = [
        [
            name,
            f"{int(study.patients.counts[:, k].sum()):,}",
            f"{100 * shares[:, k].mean():.1f} %",
            _mean(moran[:, 0, k]),
        ]
        for k, name in enumerate(study.types)
    ]
    draws = int(study.settings["permutations"])
    with np.errstate(invalid="ignore"):
        share = [float((np.nan_to_num(outside[:, at]) != 0).mean()) for at in (0, outside.shape[1] // 2, -1)]
    text = [
        "Within sections, whatever the outcome: contacts against the same positions with the types dealt out at random "
        f"({draws} times). Of all pairs of types and sections {100 * share[0]:.0f} % lie outside the envelope of these "
        f"draws at the shortest length, {100 * share[1]:.0f} % at the middle, {100 * share[2]:.0f} % at the longest; "
        f"by chance {200 / (draws + 1):.2g} % would. Values of every section are in sections.csv.",
    ]
    pictures = [
        _drawn(drawn, "enrichment", enrichment_figure(study, z), "Neighbourhood enrichment",
               f"z against random types within {study.lengths[0]:.3g} {study.unit}, mean over patients.")
    ]  # fmt: skip
    columns = [
        Column("Type"),
        Column("Instances", True),
        Column("Mean share", True),
        Column("Moran's I, shortest length", True),
    ]
    return Section("Sections", text, [Table(columns, rows)], pictures)


def _mean(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return f"{known.mean():.2f}" if len(known) else ""


def enrichment_figure(study: SpaceStudy, z: np.ndarray) -> Figure:
    """Types against types at the shortest length; z [patients, lengths, pairs]."""
    types = len(study.types)
    matrix = np.full((types, types), np.nan)
    for k, (a, b) in enumerate(type_pairs(types)):
        known = z[:, 0, k][np.isfinite(z[:, 0, k])]
        if len(known):
            matrix[a, b] = matrix[b, a] = known.mean()
    limit = max(2.0, float(np.nanmax(np.abs(matrix))) if np.isfinite(matrix).any() else 2.0)
    names = [_cut(name, 22) for name in study.types]
    with look():
        side = 22 * types + 7 * max(map(len, names))
        figure, (axis,) = new_figure(min(680, side + 90), min(640, side + 20))
        image = axis.imshow(matrix, cmap=SIGNED, vmin=-limit, vmax=limit)
        axis.set_xticks(range(types), names, rotation=90)
        axis.set_yticks(range(types), names)
        figure.colorbar(image, ax=axis, label="z", fraction=0.04)
    return figure


def _method(study: SpaceStudy) -> Section:
    return Section("How it is computed", text=[
        "Contacts of two types within a length are counted in every section and summed over the sections of a patient; "
        "so are the contacts that the section's composition and positions let expect, which needs no edge correction "
        "because both use the same neighbours. The logarithm of their ratio is what is tested; pairs with fewer than 5 "
        "expected contacts in a patient are left out there.",
        "Prediction is ridge regression (of class membership, of the number, or of the martingale residuals of "
        "survival) on composition, and on composition with the contacts of all pairs and lengths; penalties are chosen "
        "within the training patients of each of 5 folds, three times. Associations have a variance that is robust "
        "to patients measured unequally well. Everything is in docs/space.md.",
        f"Seed {study.settings['seed']}, {study.settings['permutations']} permutations of each section.",
    ])  # fmt: skip
