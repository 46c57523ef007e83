"""Metrics against scikit-learn, and the bootstrap against explicit resampling."""

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve as sk_calibration_curve

from dasmil.errors import InputError
from dasmil.stats import (
    METRICS,
    bootstrap_difference,
    calibration_curve,
    choose_threshold,
    mean_interval,
    score,
    summarise,
)


def binary(n=200, seed=0, decimals=2):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    p = np.clip(0.5 + 0.25 * (y - 0.5) + rng.normal(0, 0.2, n), 0.001, 0.999)
    return y, p.round(decimals)  # rounded, so that there are ties


def test_binary_metrics_equal_scikit_learn():
    y, p = binary()
    found = score(y, p, threshold=0.37)
    at_half, at_threshold = p >= 0.5, p >= 0.37
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, at_half), abs=1e-12)
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p), abs=1e-12)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(y, p), abs=1e-12)
    assert found["f1"] == pytest.approx(sk.f1_score(y, at_half), abs=1e-12)
    assert found["sensitivity"] == pytest.approx(sk.recall_score(y, at_threshold), abs=1e-12)
    assert found["specificity"] == pytest.approx(sk.recall_score(y, at_threshold, pos_label=0), abs=1e-12)
    assert found["brier"] == pytest.approx(sk.brier_score_loss(y, p), abs=1e-12)
    assert tuple(found) == METRICS


def test_multi_class_metrics_equal_scikit_learn():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 150)
    logits = rng.normal(0, 1, (150, 3)) + 1.2 * np.eye(3)[y]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = score(y, p)
    predicted = p.argmax(1)
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, predicted), abs=1e-12)
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr", average="macro"), abs=1e-12)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(np.eye(3)[y], p), abs=1e-12)
    assert found["f1"] == pytest.approx(sk.f1_score(y, predicted, average="macro"), abs=1e-12)
    assert found["brier"] == pytest.approx(np.square(p - np.eye(3)[y]).sum(1).mean(), abs=1e-12)


def test_calibration_equals_scikit_learn():
    y, p = binary(decimals=6)
    observed, predicted = sk_calibration_curve(y, p, n_bins=10)
    rows = calibration_curve(y, p)
    assert [r["observed"] for r in rows] == pytest.approx(list(observed))
    assert [r["predicted"] for r in rows] == pytest.approx(list(predicted))
    error = sum(r["n"] * abs(r["observed"] - r["predicted"]) for r in rows) / len(y)
    assert score(y, p)["calibration_error"] == pytest.approx(error, abs=1e-12)


def test_one_class_only_gives_nan_not_an_error():
    found = score([1, 1, 1], [0.2, 0.7, 0.9])
    assert np.isnan(found["auroc"])
    assert np.isnan(found["specificity"])
    assert found["sensitivity"] == pytest.approx(2 / 3)


def test_nan_predictions_are_refused():
    with pytest.raises(InputError, match="1 predictions are NaN"):
        score([0, 1], [0.1, float("nan")])


def test_labels_that_the_predictions_do_not_know_are_refused():
    with pytest.raises(InputError, match="label 2, but the predictions are of 2 classes: expected labels 0 to 1"):
        score([0, 1, 2, 2], [0.1, 0.9, 0.5, 0.5])
    with pytest.raises(InputError, match="label -1"):
        choose_threshold([0, -1], [0.1, 0.9])
    three = np.full((4, 3), 1 / 3)
    with pytest.raises(InputError, match="label 3, but the predictions are of 3 classes"):
        score([0, 1, 2, 3], three)
    with pytest.raises(InputError, match="label 2, but the predictions are of 2 classes"):
        summarise([0, 1, 2], [[0.1, 0.9, 0.5]] * 3, [0.5] * 3)
    assert summarise([0, 1, 2, 2], [three] * 2, [0.5] * 2)["mean"]["brier"] == pytest.approx(2 / 3)


def test_threshold_maximises_balanced_accuracy():
    y, p = binary(seed=5)
    chosen = choose_threshold(y, p)
    candidates = np.linspace(0, 1, 2001)
    best = max(sk.balanced_accuracy_score(y, p >= t) for t in candidates)
    assert sk.balanced_accuracy_score(y, p >= chosen) == pytest.approx(best, abs=1e-12)
    assert choose_threshold([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]) == pytest.approx(0.25)
    assert choose_threshold([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9]) == 0.5  # of equals the one nearest 0.5


def test_intervals_equal_explicit_stratified_resampling():
    y, p = binary(n=90, seed=7)
    summary = summarise(y, [p], [0.5], resamples=400, seed=11)
    rng = np.random.default_rng(2)
    draws = []
    for _ in range(1200):
        rows = np.concatenate([rng.choice(np.flatnonzero(y == c), (y == c).sum()) for c in (0, 1)])
        draws.append(sk.roc_auc_score(y[rows], p[rows]))
    assert summary["interval"]["auroc"] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.02)
    assert summary["mean"]["auroc"] == pytest.approx(sk.roc_auc_score(y, p))


def test_summary_over_seeds():
    y, p = binary(seed=1)
    _, q = binary(seed=2)
    q = np.where(y == 1, np.maximum(q, 1 - q), np.minimum(q, 1 - q))
    summary = summarise(y, [p, q], [0.5, 0.4], resamples=50)
    auroc = [sk.roc_auc_score(y, p), sk.roc_auc_score(y, q)]
    assert summary["mean"]["auroc"] == pytest.approx(np.mean(auroc))
    assert summary["std"]["auroc"] == pytest.approx(np.std(auroc, ddof=1))
    assert summary["ensemble"]["auroc"] == pytest.approx(sk.roc_auc_score(y, (p + q) / 2))
    assert summary["per_seed"][1]["sensitivity"] == pytest.approx(sk.recall_score(y, q >= 0.4))
    assert (summary["n"], summary["positives"]) == (200, int(y.sum()))


def test_paired_difference_is_tighter_than_unpaired():
    y, p = binary(seed=1, decimals=6)
    better = np.clip(p + 0.05 * (y - 0.5), 0, 1)
    found = bootstrap_difference(y, [better], [p], "auroc", resamples=400)
    assert found["difference"] == pytest.approx(sk.roc_auc_score(y, better) - sk.roc_auc_score(y, p), abs=1e-12)
    low, high = found["interval"]
    assert 0 < low < found["difference"] < high
    alone = summarise(y, [p], [0.5], resamples=400)["interval"]["auroc"]
    assert high - low < (alone[1] - alone[0]) / 2
    assert bootstrap_difference(y, [p], [p], "brier", resamples=10)["interval"] == [0.0, 0.0]


def test_interval_of_the_mean_over_folds():
    parts = [binary(n=80, seed=s) for s in range(4)]
    found = mean_interval([(y, [p], [0.5], None) for y, p in parts], resamples=300)["auroc"]
    values = [sk.roc_auc_score(y, p) for y, p in parts]
    assert found[0] < np.mean(values) < found[1]
    single = summarise(*(lambda y, p: (y, [p], [0.5]))(*parts[0]), resamples=300)["interval"]["auroc"]
    assert found[1] - found[0] == pytest.approx((single[1] - single[0]) / 2, rel=0.35)  # four folds: half the width


def test_a_fold_with_one_class_is_left_out_of_the_interval_as_of_the_mean():
    parts = [(y, [p], [0.5], None) for y, p in (binary(n=40, seed=s) for s in range(3))]
    y, p = binary(n=20, seed=9)
    whole = mean_interval(parts, resamples=200)
    found = mean_interval([*parts, (np.ones_like(y), [p], [0.5], None)], resamples=200)
    for name in ("auroc", "balanced_accuracy", "specificity"):
        assert found[name] == whole[name]  # the last fold has none of these
    assert found["sensitivity"] != whole["sensitivity"]
    assert np.isfinite(found["sensitivity"]).all()
    alone = mean_interval([(np.ones_like(y), [p], [0.5], None)], resamples=20)
    assert np.isnan(alone["auroc"]).all()


def test_identical_slides_of_a_patient_leave_every_interval_as_it_is():
    y, p = binary(n=20, seed=1)
    _, q = binary(n=20, seed=2)
    names = [f"p{i}" for i in reversed(range(20))]
    ys, ps, qs, patients = (np.repeat(v, 10) for v in (y, p, q, names))
    one = summarise(y, [p, q], [0.5, 0.4])
    many = summarise(ys, [ps, qs], [0.5, 0.4], patients=patients.tolist())
    for name in METRICS:
        assert many["interval"][name] == pytest.approx(one["interval"][name], abs=1e-12), name
        assert many["ensemble"]["interval"][name] == pytest.approx(one["ensemble"]["interval"][name], abs=1e-12), name
    assert (many["n"], many["patients"], one["n"], one["patients"]) == (200, 20, 20, 20)
    assert [row["patients"] for row in many["calibration"]] == [row["n"] for row in one["calibration"]]
    low, high = one["interval"]["auroc"]
    apart = summarise(ys, [ps, qs], [0.5, 0.4])["interval"]["auroc"]
    assert apart[1] - apart[0] < 0.5 * (high - low)  # as if 200 patients had been seen
    gap = bootstrap_difference(y, [p], [q], "auroc")
    same = bootstrap_difference(ys, [ps], [qs], "auroc", patients=patients.tolist())
    assert same["difference"] == pytest.approx(gap["difference"], abs=1e-12)
    assert same["interval"] == pytest.approx(gap["interval"], abs=1e-12)
    folds = [(y, [p], [0.5], None), (y, [q], [0.5], None)]
    slides = [(ys, [ps], [0.5], patients.tolist()), (ys, [qs], [0.5], patients.tolist())]
    assert mean_interval(slides)["auroc"] == pytest.approx(mean_interval(folds)["auroc"], abs=1e-12)


def test_patients_of_one_bag_each_give_exactly_the_numbers_without_patients():
    y, p = binary(n=50, seed=3)
    names = [f"p{(7 * i) % 50}" for i in range(50)]
    assert summarise(y, [p], [0.5], patients=names) == summarise(y, [p], [0.5])


def test_intervals_equal_explicit_resampling_of_patients():
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(60), rng.integers(1, 5, 60))
    kind = rng.permutation(np.repeat([0, 1, 2], 20))[owner]  # class 0, class 1, bags of both
    y = np.where(kind == 2, rng.integers(0, 2, len(owner)), kind)
    p = np.clip(0.5 + 0.2 * (y - 0.5) + rng.normal(0, 0.2, 60)[owner] + rng.normal(0, 0.05, len(owner)), 0, 1)
    found = summarise(y, [p], [0.5], patients=[f"{o}" for o in owner])["interval"]["auroc"]
    classes = [frozenset(y[owner == o].tolist()) for o in range(60)]
    strata = [[o for o in range(60) if classes[o] == s] for s in set(classes)]
    draws = []
    for _ in range(800):
        drawn = np.concatenate([rng.choice(members, len(members)) for members in strata])
        rows = np.concatenate([np.flatnonzero(owner == o) for o in drawn])
        draws.append(sk.roc_auc_score(y[rows], p[rows]))
    assert found == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.02)
