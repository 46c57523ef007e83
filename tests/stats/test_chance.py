"""What luck reaches: the exact distribution against all orders and against simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from dasmil.stats import auroc, auroc_to_find, bootstrap_difference, hanley_mcneil, mann_whitney, mean_difference
from dasmil.stats import smallest_auroc as smallest


def test_the_distribution_is_that_of_all_orders():
    counts = np.zeros(3 * 4 + 1)
    for positives in itertools.combinations(range(7), 3):
        counts[sum(sum(1 for q in range(p) if q not in positives) for p in positives)] += 1
    np.testing.assert_allclose(mann_whitney(3, 4), counts / math.comb(7, 3), rtol=1e-12)


def test_few_bags_show_nothing_and_more_show_less_than_perfect():
    assert smallest([(3, 3)]) is None  # one order of twenty is perfect: 5 %, not 2.5 %
    assert smallest([(4, 4)]) == 1.0  # one of seventy: 1.4 %
    assert smallest([(0, 10)]) is None
    assert smallest([(12, 13)]) == pytest.approx(0.737, abs=5e-4)  # 115 of 156: table of Mann and Whitney, U = 41
    assert smallest([(5000, 5000)]) == pytest.approx(0.5113, abs=1e-4)


def aurocs(rng, positives, negatives, shift, draws):
    a, b = rng.standard_normal((draws, positives)) + shift, rng.standard_normal((draws, negatives))
    return (a[:, :, None] > b[:, None]).mean((1, 2))


@pytest.mark.parametrize("sets", [[(8, 14)], [(40, 80)], [(10, 10)] * 5, [(5, 9), (6, 8), (4, 10)]])
def test_blind_guesses_reach_it_as_rarely_as_stated(sets):
    rng = np.random.default_rng(0)
    found = np.mean([aurocs(rng, p, n, 0.0, 4000) for p, n in sets], axis=0)
    least = smallest(sets)
    assert least is not None
    share = (found >= least - 1e-9).mean()
    assert 0.012 < share < 0.035  # 2.5 % of 4,000, give or take; of small sets a little less


@pytest.mark.parametrize("sets", [[(12, 20)], [(10, 10)] * 5])
def test_a_true_auroc_that_large_is_found_in_four_of_five_cohorts(sets):
    true, least = auroc_to_find(sets), smallest(sets)
    assert true is not None
    assert least is not None
    rng = np.random.default_rng(1)
    shift = math.sqrt(2) * float(norm.ppf(true))
    found = np.mean([aurocs(rng, p, n, shift, 2000) for p, n in sets], axis=0)
    assert found.mean() == pytest.approx(true, abs=0.01)
    assert (found >= least - 1e-9).mean() == pytest.approx(0.8, abs=0.05)
    assert auroc_to_find([(4, 4)]) is None


def test_the_standard_error_of_hanley_and_mcneil():
    rng = np.random.default_rng(2)
    found = aurocs(rng, 30, 40, math.sqrt(2) * float(norm.ppf(0.8)), 3000)
    assert hanley_mcneil(0.8, 30, 40) == pytest.approx(found.std(), rel=0.06)


def test_the_difference_over_folds_is_paired_and_left_out_where_a_class_is_missing():
    rng = np.random.default_rng(3)
    parts = []
    for n in (30, 40):
        y = np.arange(n) % 2
        base = y + 1.5 * rng.standard_normal(n)
        good, bad = 1 / (1 + np.exp(-base)), 1 / (1 + np.exp(-(base + 2 * rng.standard_normal(n))))
        parts.append((y, [good], [bad], None))
    found = mean_difference(parts)
    wanted = np.mean([auroc(a[0], y == 1)[0] - auroc(b[0], y == 1)[0] for y, a, b, _ in parts])
    assert found["difference"] == pytest.approx(wanted)
    assert found["interval"][0] < wanted < found["interval"][1]
    one_class = (np.zeros(5, int), [np.full(5, 0.2)], [np.full(5, 0.3)], None)
    assert mean_difference([*parts, one_class]) == found
    y, a, b, _ = parts[0]
    single = bootstrap_difference(y, a, b, "auroc")
    assert mean_difference([parts[0]])["interval"] == pytest.approx(single["interval"])
    same = mean_difference([(y, a, a, None) for y, a, _, _ in parts])
    assert same["difference"] == 0
    assert same["interval"] == [0, 0]
