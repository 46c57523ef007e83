"""Comparisons of models: values that can be worked out by hand, and chance that is not taken for a finding."""

from __future__ import annotations

import numpy as np
import pytest

from dasmil.errors import InputError
from dasmil.stats import auroc
from dasmil.stats.compared import Compared, Gap, ModelScore, ScoredPart, class_part, compare_scores, holm


def part(scores: list[np.ndarray], labels: np.ndarray, first: int = 0) -> ScoredPart:
    return class_part(labels, [f"p{first + i}" for i in range(len(labels))], scores)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == [0.02]


def test_scores_are_means_over_folds_and_seeds() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    good = [[labels + rng.normal(0, 0.8, 20) for _ in range(2)] for _ in range(3)]
    blind = [[rng.normal(0, 1, 20) for _ in range(2)] for _ in range(3)]
    found = compare_scores(
        {"blind": [part(s, labels, 20 * i) for i, s in enumerate(blind)],
         "good": [part(s, labels, 20 * i) for i, s in enumerate(good)]}
    )  # fmt: skip
    expected = np.mean([[auroc(s, labels == 1)[0] for s in fold] for fold in good])
    assert [m.name for m in found.models] == ["good", "blind"]
    assert found.models[0].score == pytest.approx(expected)
    assert (found.bags, found.patients, found.folds, found.seeds) == (60, 60, 3, 2)
    gap = found.gap("good", "blind")
    assert gap.difference == pytest.approx(found.models[0].score - found.models[1].score)
    assert gap.low < gap.difference < gap.high
    assert gap.shown
    assert found.models[0].rank < 1.1
    back = found.gap("blind", "good")
    assert (back.difference, back.low, back.high) == (-gap.difference, -gap.high, -gap.low)


def test_the_same_scores_have_no_difference_and_share_a_rank() -> None:
    labels = np.arange(12) % 2
    scores = np.random.default_rng(1).normal(size=12)
    found = compare_scores({"a": [part([scores], labels)], "b": [part([scores], labels)]})
    gap = found.gap("a", "b")
    assert (gap.difference, gap.low, gap.high, gap.p_holm) == (0, 0, 0, 1)
    assert [m.rank for m in found.models] == [1.5, 1.5]
    assert found.alike() == [["a", "b"]]


def test_chance_is_rarely_shown() -> None:
    """Twenty blind comparisons of two: at a level of 5 % more than four would be a fault."""
    rng, labels = np.random.default_rng(2), np.arange(60) % 2
    shown = sum(
        compare_scores({name: [part([rng.normal(size=60)], labels)] for name in ("a", "b")}, resamples=400)
        .gaps[0]
        .shown
        for _ in range(20)
    )
    assert shown <= 4


def test_patients_with_several_bags_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(10) % 2, 8)
    scores = np.repeat(rng.normal(size=10), 8) + rng.normal(0, 0.01, 80)
    other = rng.normal(size=80)
    owned = class_part(labels, [f"p{i // 8}" for i in range(80)], [scores])
    alone = part([scores], labels)

    def width(one: ScoredPart) -> float:
        gap = compare_scores({"a": [one], "b": [class_part(labels, one.patients, [other])]}).gap("a", "b")
        return gap.high - gap.low

    assert width(owned) > 1.5 * width(alone)


def test_groups_without_a_shown_difference() -> None:
    models = [ModelScore(name, 0.9 - i / 10, 0, 1, i + 1) for i, name in enumerate("abcd")]

    def gap(first: str, second: str, p: float) -> Gap:
        return Gap(first, second, 0.1, 0, 0.2, p, p)

    p = {"ab": 0.5, "ac": 0.01, "ad": 0.01, "bc": 0.2, "bd": 0.3, "cd": 0.9}
    found = Compared(10, 10, 1, 1, models, [gap(pair[0], pair[1], value) for pair, value in p.items()])
    assert found.alike() == [["a", "b"], ["b", "c", "d"]]


def test_three_classes_and_other_bags() -> None:
    labels = np.arange(30) % 3
    perfect, blind = np.eye(3)[labels], np.random.default_rng(4).random((30, 3))
    found = compare_scores({"a": [part([perfect], labels)], "b": [part([blind], labels)]})
    assert found.models[0].score == 1
    with pytest.raises(InputError, match="b was scored on other bags or folds"):
        compare_scores({"a": [part([perfect], labels)], "b": [part([perfect], labels[::-1].copy())]})
    with pytest.raises(InputError, match="1 model was given"):
        compare_scores({"a": [part([perfect], labels)]})


def test_a_part_without_the_metric_does_not_count_and_none_at_all_is_said() -> None:
    labels = np.arange(12) % 2
    one_class = part([np.arange(12.0)], np.ones(12, np.int64), 12)
    good = part([labels + 0.0], labels)
    found = compare_scores({"a": [good, one_class], "b": [part([-labels + 0.0], labels), one_class]})
    assert [m.score for m in found.models] == [1, 0]
    with pytest.raises(InputError, match="a has no auroc on these bags"):
        compare_scores({"a": [one_class], "b": [one_class]})


def test_a_difference_can_be_shown_among_many_models() -> None:
    """Of 14 models, 91 pairs: one that ranks all bags right against thirteen that guess."""
    rng, labels = np.random.default_rng(5), np.arange(60) % 2
    models = {f"blind {i}": [part([rng.normal(size=60)], labels)] for i in range(13)}
    found = compare_scores({"good": [part([labels + 0.0], labels)], **models})
    assert all(found.gap("good", name).shown for name in models)
