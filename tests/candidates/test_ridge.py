"""Regressions of candidates against scikit-learn, and their folds."""

import numpy as np
import pytest

from dasmil.candidates.folds import patient_folds, patient_weights
from dasmil.candidates.objective import Classes, Number
from dasmil.candidates.ridge import Coordinates, cross_fitted, fit_line


def test_a_logistic_ridge_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 100)) * rng.uniform(0.1, 5, 100)
    y = (x[:, 0] / x[:, 0].std() + rng.normal(size=60) > 0).astype(int)
    where = Coordinates.of(x)
    line = fit_line(where.rows, Classes(y, 2), np.ones(60), 50.0)
    scaled = (x - x.mean(0)) / x.std(0)
    expected = LogisticRegression(C=1 / 50, tol=1e-10, max_iter=10_000).fit(scaled, y)
    np.testing.assert_allclose((where.back @ line.weights)[:, 0] * x.std(0), expected.coef_[0], atol=1e-5)
    assert line.constant[0] == pytest.approx(expected.intercept_[0], abs=1e-5)


def test_a_linear_ridge_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 6))
    y = x[:, 1] - 0.5 * x[:, 3] + rng.normal(size=40)
    where = Coordinates.of(x)
    line = fit_line(where.rows, Number(y), np.ones(40), 2 * 7.0)  # the loss is the square, not half of it
    expected = Ridge(alpha=7.0).fit((x - x.mean(0)) / x.std(0), y)
    np.testing.assert_allclose((where.back @ line.weights)[:, 0] * x.std(0), expected.coef_, atol=1e-5)


def test_columns_that_do_not_vary_get_no_weight() -> None:
    x = np.concatenate([np.random.default_rng(0).normal(size=(20, 2)), np.full((20, 1), 7.0)], axis=1)
    assert not Coordinates.of(x).back[2].any()


def test_folds_keep_patients_together_and_weights_count_patients_once() -> None:
    patients = [f"p{i // 3}" for i in range(60)]
    objective = Classes(np.arange(60) // 3 % 2, 2)
    for fold in patient_folds(objective, patients):
        assert not {patients[i] for i in fold.rest} & {patients[i] for i in fold.held}
    assert patient_weights(patients).sum() == pytest.approx(20)


def test_a_held_out_outcome_does_not_change_its_own_prediction() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(40, 5)), rng.normal(size=40)
    patients = [str(i) for i in range(40)]
    folds = patient_folds(Number(y), patients)
    rows = Coordinates.of(x).rows
    before = cross_fitted(rows, Number(y), patients, folds)
    changed = y.copy()
    changed[folds[0].held] += 10 * rng.normal(size=len(folds[0].held))
    after = cross_fitted(rows, Number(changed), patients, folds)
    np.testing.assert_allclose(after[folds[0].held], before[folds[0].held])
    assert np.abs(after - before).max() > 0.01
