"""Numbers behind the figures, against other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, roc_auc_score
from sklearn.metrics import roc_curve as sk_roc_curve

from dasmil.stats import confusion_counts, roc_curve, wilson


def test_roc_agrees_with_scikit_learn_and_its_band_holds_it():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    scores = [np.round(truth * 0.7 + rng.normal(size=400), 1) for _ in range(3)]
    curve = roc_curve((truth, scores, None))
    assert curve is not None
    for score, tpr in zip(scores, curve.seeds):
        fpr, expected, _ = sk_roc_curve(truth, score, drop_intermediate=False)
        np.testing.assert_allclose(tpr, np.interp(curve.fpr, fpr, expected), atol=1e-12)
        assert abs(np.trapezoid(tpr, curve.fpr) - roc_auc_score(truth, score)) < 0.01
    np.testing.assert_allclose(curve.mean, np.mean(curve.seeds, axis=0))
    assert curve.low is not None
    assert curve.high is not None
    inside = (curve.low <= curve.mean + 1e-9) & (curve.mean <= curve.high + 1e-9)
    assert inside.mean() > 0.95
    assert 0.02 < (curve.high - curve.low)[30] < 0.3
    assert roc_curve((np.ones(5), [np.arange(5)], None)) is None


def test_the_roc_of_folds_is_the_mean_of_their_curves():
    rng = np.random.default_rng(1)
    folds = []
    for shift in (0.0, 3.0):  # the second fold's scores are all higher: put together, they would rank the folds
        truth = np.arange(60) % 2
        folds.append((truth, [truth + shift + rng.normal(size=60) for _ in range(2)], None))
    curve = roc_curve(*folds, (np.zeros(8), [np.arange(8)] * 2, None))
    assert curve is not None
    each = [roc_curve(fold) for fold in folds]
    np.testing.assert_allclose(curve.mean, np.mean([c.mean for c in each if c], axis=0))
    for k in (0, 1):
        expected = np.mean([roc_auc_score(truth, scores[k]) for truth, scores, _ in folds])
        assert abs(np.trapezoid(curve.seeds[k], curve.fpr) - expected) < 0.01
    together = roc_auc_score(np.tile(np.arange(60) % 2, 2), np.concatenate([scores[0] for _, scores, _ in folds]))
    assert together < expected - 0.1
    assert curve.low is not None
    assert curve.high is not None
    assert ((curve.low <= curve.mean + 1e-9) & (curve.mean <= curve.high + 1e-9)).mean() > 0.95


def test_identical_slides_of_a_patient_leave_the_roc_band_as_it_is():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 30)
    score = truth * 0.7 + rng.normal(size=30)
    one = roc_curve((truth, [score], None))
    many = roc_curve((np.repeat(truth, 5), [np.repeat(score, 5)], [f"p{i // 5}" for i in range(150)]))
    assert one is not None
    assert many is not None
    for name in ("mean", "low", "high"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(0, 7), (3, 7), (7, 7), (150, 200)])
def test_wilson_interval_agrees_with_scipy(k: int, n: int):
    expected = binomtest(k, n).proportion_ci(method="wilson")
    assert wilson(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_confusion_counts_agree_with_scikit_learn():
    rng = np.random.default_rng(1)
    truth, guess = rng.integers(0, 4, 100), rng.integers(0, 4, 100)
    np.testing.assert_array_equal(confusion_counts(truth, guess, 4), confusion_matrix(truth, guess))
