"""The fast summary equals the general metrics, resample for resample."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dasmil.stats import bootstrap_difference, summarise
from dasmil.stats.pairs import METRICS, difference, scores


def bags(seed: int = 0, n: int = 90, runs: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.r_[np.ones(n // 3, int), np.zeros(n - n // 3, int)])
    first = (rng.normal(size=(runs, n)) + 1.2 * labels - 0.4).astype(np.float16)
    second = (np.round(rng.normal(size=(runs, n)), 1) + 0.5 * labels).astype(np.float16)  # with ties
    return labels, first, second


@pytest.mark.parametrize("side", [1, 2])
def test_scores_equal_the_general_metrics(side: int) -> None:
    found = bags()
    labels, logits = found[0], found[side]
    general = summarise(labels, [expit(row.astype(np.float64)) for row in logits], [0.5] * len(logits))
    ours = scores(labels, logits)
    for metric in METRICS:
        assert ours[metric]["per_seed"] == pytest.approx([s[metric] for s in general["per_seed"]], abs=1e-6)
        assert ours[metric]["mean"] == pytest.approx(general["mean"][metric], abs=1e-6)
        assert ours[metric]["std"] == pytest.approx(general["std"][metric], abs=1e-6)
        assert ours[metric]["interval"] == pytest.approx(general["interval"][metric], abs=1e-6)


def test_difference_equals_the_general_paired_bootstrap() -> None:
    labels, first, second = bags(1)
    ours = difference(labels, first, second)
    sides = [[expit(row.astype(np.float64)) for row in side] for side in (first, second)]
    for metric in METRICS:
        general = bootstrap_difference(labels, sides[0], sides[1], metric)
        assert ours[metric]["difference"] == pytest.approx(general["difference"], abs=1e-6)
        assert ours[metric]["interval"] == pytest.approx(general["interval"], abs=1e-6)


def test_a_paired_interval_is_narrower_than_the_sum_of_two() -> None:
    labels, first, _ = bags(2, n=300)
    nearly = first + np.float16(0.05)
    gap = difference(labels, nearly, first)["auroc"]["interval"]
    alone = scores(labels, first)["auroc"]["interval"]
    assert gap[1] - gap[0] < 0.1 * (alone[1] - alone[0])
