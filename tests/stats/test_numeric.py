"""Figures of predicted numbers against scikit-learn and scipy, and weights against repeated bags."""

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sk

from dasmil.errors import InputError
from dasmil.stats import NUMERIC_METRICS, bland_altman, numeric_scores, resampled


def numbers(n=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.normal(20, 5, n).round(0)  # rounded, so that there are ties
    return y, (0.8 * y + rng.normal(5, 3, n)).round(1)


def test_scores_equal_scikit_learn_and_scipy():
    y, p = numbers()
    found = {name: value[0] for name, value in numeric_scores(y, p).items()}
    assert tuple(found) == NUMERIC_METRICS
    assert found["r2"] == pytest.approx(sk.r2_score(y, p), abs=1e-12)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, p), abs=1e-12)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p), abs=1e-12)
    assert found["pearson"] == pytest.approx(scipy.stats.pearsonr(y, p).statistic, abs=1e-12)
    assert found["spearman"] == pytest.approx(scipy.stats.spearmanr(y, p).statistic, abs=1e-12)


def test_weights_are_repeated_bags():
    y, p = numbers(n=30, seed=3)
    weights = next(resampled(np.zeros(30, np.int64), None, 5, 0))
    found = numeric_scores(y, p, weights) | bland_altman(y, p, weights)
    for k, row in enumerate(weights.astype(int)):
        rows = np.repeat(np.arange(30), row)
        again = numeric_scores(y[rows], p[rows]) | bland_altman(y[rows], p[rows])
        for name, value in again.items():
            assert found[name][k] == pytest.approx(value[0], abs=1e-10)
        assert found["spearman"][k] == pytest.approx(scipy.stats.spearmanr(y[rows], p[rows]).statistic, abs=1e-10)


def test_limits_of_agreement():
    y, p = numbers(seed=5)
    found = bland_altman(y, p)
    gap = p - y
    assert found["bias"][0] == pytest.approx(gap.mean())
    assert found["upper"][0] == pytest.approx(gap.mean() + 1.959964 * gap.std(ddof=1))
    assert found["lower"][0] == pytest.approx(gap.mean() - 1.959964 * gap.std(ddof=1))
    assert np.isnan(bland_altman([1.0], [2.0])["lower"][0])  # one difference has no spread


def test_what_does_not_vary_has_no_correlation():
    constant = numeric_scores([0.1] * 5, [1.0, 2, 3, 4, 5])
    assert np.isnan([constant[name][0] for name in ("r2", "pearson", "spearman")]).all()
    assert constant["mae"][0] == pytest.approx(2.9)
    flat = numeric_scores([1.0, 2, 3], [0.1] * 3)
    assert np.isnan(flat["pearson"][0])
    assert flat["r2"][0] == pytest.approx(1 - (0.81 + 1.9**2 + 2.9**2) / 2)
    assert numeric_scores([1.0, 2, 3], [2.0] * 3)["r2"][0] == 0


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match="1 of 2 targets are missing or infinite"):
        numeric_scores([1.0, np.nan], [1.0, 2.0])
    with pytest.raises(InputError, match="the model diverged"):
        numeric_scores([1.0, 2.0], [1.0, np.inf])
    with pytest.raises(InputError, match="expected one of each per bag"):
        bland_altman([1.0, 2.0], [1.0])
