"""Survival figures against lifelines."""

import numpy as np
import pytest

from dasmil.stats import FollowUp, calibration_at, harrell, kaplan_meier, log_rank

lifelines = pytest.importorskip("lifelines", reason="the package lifelines is not installed")
statistics = pytest.importorskip("lifelines.statistics")
lifelines_utils = pytest.importorskip("lifelines.utils")


def cohort(n=80, seed=0, decimals=1):
    """Times with many ties between events, censorings and both, and a risk with ties."""
    rng = np.random.default_rng(seed)
    risk = rng.normal(0, 1, n).round(decimals)
    event, censored = rng.exponential(np.exp(-0.7 * risk)), rng.exponential(1.5, n)
    times = np.minimum(event, censored).round(decimals)
    return FollowUp(times, event <= censored), risk


@pytest.mark.parametrize("seed", range(5))
def test_harrell_equals_lifelines(seed):
    follow, risk = cohort(seed=seed)
    theirs = lifelines_utils.concordance_index(follow.times, -risk, follow.events)
    assert harrell(follow, risk)[0] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_kaplan_meier_equals_lifelines(seed):
    follow, _ = cohort(seed=seed)
    theirs = lifelines.KaplanMeierFitter().fit(follow.times, follow.events)
    ours = kaplan_meier(follow)
    assert ours.survival == pytest.approx(theirs.predict(ours.times).to_numpy(), abs=1e-12)
    ends = theirs.confidence_interval_.loc[ours.times].to_numpy()
    inner = (ours.survival > 0) & (ours.survival < 1)
    assert np.stack([ours.low, ours.high], 1)[inner] == pytest.approx(ends[inner], abs=1e-6)
    assert ours.median == theirs.median_survival_time_
    table = theirs.event_table.loc[ours.times]
    assert ours.at_risk.tolist() == table["at_risk"].tolist()
    assert ours.numbers_at_risk([0, 0.35, 0.4, 99]).tolist() == [
        int((follow.times >= t).sum()) for t in (0, 0.35, 0.4, 99)
    ]
    assert ours.at([0, 0.35, 99]) == pytest.approx(theirs.predict([0, 0.35, 99]).to_numpy(), abs=1e-12)


@pytest.mark.parametrize("groups", [2, 3])
def test_log_rank_equals_lifelines(groups):
    follow, risk = cohort(seed=9)
    member = np.searchsorted(np.quantile(risk, np.arange(1, groups) / groups), risk)
    theirs = statistics.multivariate_logrank_test(follow.times, member, follow.events)
    statistic, p = log_rank(follow, member)
    assert statistic == pytest.approx(theirs.test_statistic, rel=1e-9)
    assert p == pytest.approx(theirs.p_value, rel=1e-9)


def test_calibration_observes_the_kaplan_meier_of_each_group():
    follow, risk = cohort(n=100, seed=3, decimals=6)  # equal risks would stay together in one group
    told = np.exp(-np.exp(risk) * 0.5)
    rows = calibration_at(follow, told, 0.5)
    cut = np.quantile(1 - told, 0.8)
    top = (1 - told) >= cut
    theirs = lifelines.KaplanMeierFitter().fit(follow.times[top], follow.events[top]).predict(0.5)
    assert sum(row["n"] for row in rows) == 100
    assert rows[-1]["observed"] == pytest.approx(1 - theirs, abs=1e-12)
