"""What rules are asked: classes, times and numbers are one rank statistic, and losses of a constant guess are one."""

import numpy as np
import pytest

from dasmil.baselines.question import Classes, Numbers, Times, cumulative_hazard
from dasmil.baselines.rules import cross_fitted, parting_value
from dasmil.stats import FollowUp, auroc


def times(n=80, ratio=6.0, seed=0):
    """Events come sooner where x is 1; a third is censored."""
    rng = np.random.default_rng(seed)
    x = np.arange(n) % 2
    when, left = rng.exponential(np.where(x, 1 / ratio, 1.0)), rng.uniform(0, 2, n)
    return Times(np.minimum(when, left), when <= left), x.astype(float)


ASKED = {
    "classes": Classes(np.random.default_rng(1).integers(0, 2, 80)),
    "times": times()[0],
    "numbers": Numbers(np.random.default_rng(2).standard_normal(80)),
}


def test_the_cumulative_hazard_is_that_of_nelson_and_aalen():
    # Four bags; events at 1 (4 at risk) and 3 (2 at risk), one censored at 2, one at 5.
    follow = FollowUp(np.array([1.0, 2, 3, 5]), np.array([True, False, True, False]))
    np.testing.assert_allclose(cumulative_hazard(follow), [1 / 4, 1 / 4, 3 / 4, 3 / 4])


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_constant_guess_has_residuals_of_sum_0_and_a_loss_of_1(asked):
    assert asked.residuals.sum() == pytest.approx(0, abs=1e-9)
    numbers = Numbers(ASKED["numbers"].residuals) if isinstance(asked, Numbers) else asked  # standardised
    assert numbers.losses(np.zeros(80)).mean() == pytest.approx(1)
    assert asked.scores(asked.residuals[:, None])[0] == pytest.approx(1)
    assert asked.scores(-asked.residuals[:, None])[0] == pytest.approx(0)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_blind_guesses_order_the_bags_as_often_as_is_said(asked):
    rng = np.random.default_rng(0)
    found = [asked.chance(rng.standard_normal(80), 1) for _ in range(1000)]
    np.testing.assert_allclose(np.quantile(found, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.05)
    assert asked.chance(asked.residuals, 3) < 1e-6


def test_of_two_classes_the_score_is_the_auroc():
    rng = np.random.default_rng(0)
    columns, labels = rng.integers(0, 5, (30, 7)).astype(float), rng.permutation(np.arange(30) % 2)
    wanted = [auroc(column, labels == 1)[0] for column in columns.T]
    np.testing.assert_allclose(Classes(labels).scores(columns), wanted, rtol=1e-12)


def test_the_regression_of_times_finds_the_planted_log_hazard_ratio_or_somewhat_less():
    asked, x = times(4000, ratio=6.0)
    weights, constant = asked.fitted(x[:, None], strength=100.0)
    assert 0.7 * np.log(6) < weights[0] < np.log(6)  # bags at high risk leave early, and the baseline hears of it
    small, y = times(4000, ratio=1.3)
    assert small.fitted(y[:, None], strength=100.0)[0][0] == pytest.approx(np.log(1.3), abs=0.1)
    said = x * weights[0] + constant
    assert asked.losses(said).mean() < asked.losses(0.5 * said).mean() < 1
    assert asked.losses(said).mean() < asked.losses(2 * said).mean()


def test_a_regression_of_numbers_and_of_times_holds_on_other_bags():
    rng = np.random.default_rng(5)
    asked, x = times(120, ratio=10.0)
    columns = np.concatenate([rng.standard_normal((120, 40)), (x + 0.3 * rng.standard_normal(120))[:, None]], axis=1)
    said = cross_fitted(columns, asked, [str(i) for i in range(120)])
    assert asked.concordance(said) > 0.65
    assert asked.losses(said).mean() < 0.95
    numbers = Numbers(columns[:, 40] + 0.2 * rng.standard_normal(120))
    said = cross_fitted(columns, numbers, [str(i) for i in range(120)])
    assert numbers.losses(said).mean() < 0.3 * numbers.values.var()
    assert numbers.concordance(said) > 0.85


def test_times_part_where_events_begin_to_come_late():
    rng = np.random.default_rng(0)
    distance = rng.uniform(100, 900, 400)
    when = rng.exponential(np.where(distance < 450, 0.05, 1.0))
    asked = Times(when, np.ones(400, dtype=bool))
    assert asked.scores(distance[:, None])[0] < 0.3  # far means late
    assert parting_value(distance, asked.residuals) == pytest.approx(450, abs=25)


def test_a_part_of_the_bags_asks_the_same_of_them():
    asked, _ = times()
    some = np.arange(10, 50)
    whole = Times(asked.follow.times[some], asked.follow.events[some])
    np.testing.assert_allclose(asked.part(some).residuals, whole.residuals)
