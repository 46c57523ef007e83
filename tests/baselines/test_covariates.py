"""Cox regression against lifelines and against its own definition; covariates as numbers."""

import numpy as np
import pytest

from dasmil.baselines.covariates import CovariateTable, fit_classes, fit_cox_risk, fit_number, standardised
from dasmil.baselines.cox import fit_cox
from dasmil.errors import InputError
from dasmil.stats import FollowUp, auroc, harrell, numeric_scores


def cohort(n=120, seed=0, decimals=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (n, 3))
    event, lost = rng.exponential(np.exp(-x @ [0.8, -0.4, 0.0])), rng.exponential(2, n)
    return x, FollowUp(np.minimum(event, lost).round(decimals), event <= lost)


@pytest.mark.parametrize("ridge", [0.0, 5.0])
def test_cox_equals_lifelines(ridge):
    lifelines = pytest.importorskip("lifelines", reason="the package lifelines is not installed")
    pandas = pytest.importorskip("pandas")
    x, follow = cohort()
    x = (x - x.mean(0)) / x.std(0, ddof=1)  # their penalty is on values in such units
    frame = pandas.DataFrame(x, columns=["a", "b", "c"]).assign(t=follow.times, e=follow.events)
    theirs = lifelines.CoxPHFitter(penalizer=ridge / len(x), l1_ratio=0.0).fit(frame, "t", "e")
    ours = fit_cox(x, follow, ridge=ridge)
    assert ours.coefficients == pytest.approx(theirs.params_.to_numpy(), abs=2e-4)
    if not ridge:
        assert ours.log_likelihood == pytest.approx(theirs.log_likelihood_, abs=1e-6)


def test_cox_is_the_maximum_of_efrons_likelihood_written_out():
    x, follow = cohort(n=40, seed=3)

    def likelihood(b):
        eta, total = (x - x.mean(0)) @ b, 0.0
        for t in np.unique(follow.times[follow.events]):
            dead = np.flatnonzero((follow.times == t) & follow.events)
            watched = np.exp(eta[follow.times >= t]).sum()
            for k in range(len(dead)):
                total -= np.log(watched - k / len(dead) * np.exp(eta[dead]).sum())
            total += eta[dead].sum()
        return total - 0.5 * 2.0 * b @ b

    found = fit_cox(x, follow, ridge=2.0)
    assert max(np.unique(follow.times[follow.events], return_counts=True)[1]) > 1  # there are ties
    assert found.log_likelihood == pytest.approx(likelihood(found.coefficients), abs=1e-9)
    for step in np.eye(3) * 1e-4:
        for sign in (-1, 1):
            assert likelihood(found.coefficients + sign * step) < found.log_likelihood


def test_cox_without_an_answer_says_so():
    follow = FollowUp(np.arange(1.0, 9), np.ones(8))
    with pytest.raises(InputError, match="tell the order of events perfectly"):
        fit_cox(-np.arange(8.0)[:, None] * 10, follow, ridge=0.0)
    assert harrell(follow, fit_cox(-np.arange(8.0)[:, None], follow).risk(-np.arange(8.0)[:, None]))[0] == 1
    with pytest.raises(InputError, match="none of 8 bags has the event"):
        fit_cox(np.zeros((8, 1)), FollowUp(np.arange(8.0), np.zeros(8)))
    with pytest.raises(InputError, match="NaN"):
        fit_cox(np.full((8, 1), np.nan), follow)


def test_a_value_that_never_varies_has_no_weight():
    x, follow = cohort()
    found = fit_cox(np.concatenate([x, np.ones((len(x), 1))], axis=1), follow)
    assert found.coefficients[3] == pytest.approx(0)
    assert found.coefficients[:3] == pytest.approx(fit_cox(x, follow).coefficients)


def test_columns_become_numbers_as_training_bags_say():
    columns = {"age": ["50", "60", None, "70"], "gender": ["F", "M", "F", None], "stage": ["1", "2", "2", "4"]}
    table = CovariateTable.fitted(columns)
    assert table.names == ["age", "age (missing)", "stage", "gender = (missing)", "gender = M"]
    x = table.numbers_of(columns)
    spread = np.std([50, 60, 70])
    assert x[:, 0] == pytest.approx(np.array([-10, 0, 0, 10]) / spread)
    assert x[:, 1].tolist() == [0, 0, 1, 0]
    assert x[:, 3:].tolist() == [[0, 0], [0, 1], [0, 0], [1, 0]]
    other = table.numbers_of({"age": ["60"], "gender": ["X"], "stage": [None]})  # a word that training lacks
    assert other[0, [0, 1, 3, 4]].tolist() == [0, 0, 0, 0]
    with pytest.raises(InputError, match="covariate 'age' holds 'old', expected a number as in training"):
        table.numbers_of({"age": ["old"], "gender": ["F"], "stage": ["1"]})
    with pytest.raises(InputError, match="covariate 'age' is empty in all 2 training bags"):
        CovariateTable.fitted({"age": [None, None]})


def test_regressions_find_what_is_there():
    x, follow = cohort(n=400)
    assert harrell(follow[200:], fit_cox_risk(x[:200], follow[:200])(x[200:]))[0] > 0.65
    rng = np.random.default_rng(1)
    labels = (x[:, 0] + rng.normal(0, 0.5, 400) > 0).astype(np.int64)
    assert auroc(fit_classes(x[:200], labels[:200], 2)(x[200:]), labels[200:] == 1)[0] > 0.85
    three = fit_classes(x[:200], labels[:200], 3)(x[200:])
    assert three.shape == (200, 3)
    assert (three[:, 2] == 0).all()  # a class that the training bags lack
    truth = x @ [1.0, 2.0, 0.0]
    assert numeric_scores(truth[200:], fit_number(x[:200], truth[:200])(x[200:]))["r2"][0] > 0.99
    a, b = standardised(np.array([[1.0, 5], [3, 5]]), np.array([[2.0, 9]]))
    assert (a.tolist(), b.tolist()) == ([[-1], [1]], [[0]])
