"""Figures of survival and numbers: what is drawn is what was computed."""

import numpy as np
import pytest

from dasmil.report.numeric_figures import bland_altman_figure, scatter
from dasmil.report.style import to_svg
from dasmil.report.survival_figures import RiskGroup, log_rank_text, survival_calibration, survival_curves
from dasmil.stats import FollowUp, calibration_at, in_groups, kaplan_meier, risk_cuts


def groups():
    rng = np.random.default_rng(0)
    risk = rng.normal(0, 1, 90)
    event, lost = rng.exponential(900 * np.exp(-risk)), rng.exponential(1500, 90)
    follow = FollowUp(np.minimum(event, lost).round(), event <= lost)
    member = in_groups(risk, risk_cuts(risk, 3))
    return [RiskGroup(name, follow[member == k]) for k, name in enumerate(("low", "middle", "high"))], follow, risk


def texts(figure):
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_curves_are_kaplan_meier_with_the_numbers_at_risk_below():
    parts, _, _ = groups()
    figure = survival_curves(parts, "days")
    axis = figure.axes[0]
    steps = [line for line in axis.get_lines() if line.get_drawstyle() == "steps-post"]
    for line, group in zip(steps, parts, strict=True):
        curve = kaplan_meier(group.follow)
        assert list(line.get_xdata()) == [0, *curve.times]
        assert list(line.get_ydata()) == pytest.approx([1, *curve.survival])
    assert axis.get_xlabel() == "time (days)"
    assert axis.get_title("left").endswith("log-rank p < 0.001")
    ticks = [t for t in axis.get_xticks() if 0 <= t <= axis.get_xlim()[1]]
    told = [text for text in texts(figure) if text.isdigit()]
    assert told == [str(int((g.follow.times >= t).sum())) for g in parts for t in ticks]
    assert f"low\n30, {int(parts[0].follow.events.sum())} with event" in texts(figure)
    assert "var(--orange)" in to_svg(figure, "curves")


def test_where_no_log_rank_test_can_be_made_the_figure_says_why():
    parts, _, _ = groups()
    assert log_rank_text(parts[:1]) == "one group only: no log-rank test"
    nobody = FollowUp(np.array([1.0, 2, 3]), np.zeros(3))
    assert log_rank_text([RiskGroup("a", nobody), RiskGroup("b", nobody)]) == "no log-rank test: too few events"


def test_groups_are_cut_on_other_bags():
    cuts = risk_cuts([1.0, 2, 3, 4], 2)
    assert cuts == [2.5]
    assert in_groups([2.5, 2.6, 0, 9], cuts).tolist() == [0, 1, 0, 1]
    assert in_groups([0.0, 1.5, 9], risk_cuts(np.arange(4.0), 3)).tolist() == [0, 1, 2]


def test_calibration_at_times():
    _, follow, risk = groups()
    rows = {t: calibration_at(follow, np.exp(-np.exp(risk) * t / 900), t) for t in (300.0, 9000.0)}
    first, late = (survival_calibration(found, t, "days").axes[0] for t, found in rows.items())
    points = first.get_lines()[-1]
    assert list(points.get_ydata()) == pytest.approx([row["observed"] for row in rows[300.0]])
    assert first.get_title("left") == "Up to 300 days"
    missing = sum(np.isnan(row["observed"]) for row in rows[9000.0])
    assert late.get_title("left") == f"Up to 9000 days ({missing} not watched so long)"


def test_scatter_has_the_line_of_identity_and_equal_axes():
    axis = scatter([1.0, 2, 5], [2.0, 2, 4], "cells per mm2", "R2 0.5").axes[0]
    line = axis.get_lines()[0]
    assert list(line.get_xdata()) == list(line.get_ydata())
    assert axis.get_xlim() == axis.get_ylim()
    assert axis.get_xlabel() == "true cells per mm2"
    assert np.asarray(axis.collections[0].get_offsets()).tolist() == [[1, 2], [2, 2], [5, 4]]


def test_bland_altman_draws_bias_and_limits():
    figure = bland_altman_figure([1.0, 2, 3], [2.0, 2, 5], "mm", {"bias": [0.2, 1.8], "lower": [np.nan, np.nan]})
    axis = figure.axes[0]
    heights = [line.get_ydata()[0] for line in axis.get_lines()]
    assert heights == pytest.approx([0, 1, 1 - 1.959964, 1 + 1.959964])
    assert np.asarray(axis.collections[0].get_offsets()).tolist() == [[1.5, 1], [2, 0], [4, 2]]
    assert texts(figure) == ["bias\n+1", "lower limit\n-0.96", "upper limit\n+2.96"]
    assert len(axis.patches) == 1  # the interval of the bias; the lower limit has none
