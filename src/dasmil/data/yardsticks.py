"""Made bags whose rule is known: the tests of the multiple-instance assumption, with and without positions.

The multiple-instance assumption: a bag is positive iff it holds a certain instance or pair. What else it holds must not
make it negative. Raff and Holt (2023, "Reproducibility in multiple instance learning: a case for algorithmic unit
tests", NeurIPS) test this. Training bags offer a shortcut (an instance that only negative bags hold, or how often a
type occurs); test bags turn the shortcut round. A model that took it has a test AUROC below one half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from dasmil.errors import InputError, unknown_name
from dasmil.types import Bag

Array = NDArray[np.float64]
Split = Literal["train", "test"]
FEATURES = 16
NEAR_UM = 50.0
"""The spatial tests: a bag is positive iff an A lies within this distance of a C."""
FIELD_UM = 1000.0
FAR = 2.0
"""In negative bags every A keeps at least so many times NEAR_UM from every C."""
PATCH_UM = 15.0
"""Standard deviation of the instances of a dense patch around its centre."""
BACKGROUND, POISON, TYPE_A, TYPE_C, GOOD = 0, 1, 2, 3, 4
TYPE_NAMES = ["background", "poison", "type A", "type C", "positive"]
Draw = Callable[[np.random.Generator, bool, bool], list[int]]
Place = Callable[[np.random.Generator, bool, bool], tuple[list[int], Array]]


def _whole(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(rng.integers(low, high, endpoint=True))


def _single_concept(rng: np.random.Generator, train: bool, positive: bool) -> list[int]:
    """Poison stands in negative training bags and in positive test bags."""
    poison = [POISON] * (train != positive)
    if positive:
        return poison + [GOOD] * _whole(rng, 1, 3) + [BACKGROUND] * _whole(rng, 1, 4)
    return poison + [BACKGROUND] * _whole(rng, 1, 9)


def _multi_concept(rng: np.random.Generator, train: bool, positive: bool) -> list[int]:
    """As single-concept; a positive bag holds A and C, a negative one only one of them."""
    background = [BACKGROUND] * _whole(rng, 1, 4)
    if positive:
        poison = [POISON] * (not train or rng.random() < 0.1)
        return poison + [TYPE_A] * _whole(rng, 1, 4) + [TYPE_C] * _whole(rng, 1, 4) + background
    return [POISON] * train + [TYPE_A if rng.random() < 0.5 else TYPE_C] + background


def _false_frequency(rng: np.random.Generator, train: bool, positive: bool) -> list[int]:
    """A positive bag holds one A and one C, a negative one only one of them: in test bags very often."""
    background = [BACKGROUND] * _whole(rng, 1, 9)
    if positive:
        return [TYPE_A, TYPE_C, *background]
    if train:
        return [TYPE_A if rng.random() < 0.5 else TYPE_C, *background]
    return [TYPE_A if rng.random() < 4 / 9 else TYPE_C] * _whole(rng, 35, 39) + background


_MEANS = {  # mean and standard deviation of each feature
    "single-concept": {BACKGROUND: (0.0, 1.0), POISON: (-10.0, 0.1)},
    "multi-concept": {BACKGROUND: (0.0, 1.0), POISON: (-10.0, 0.1), TYPE_A: (2.0, 0.1), TYPE_C: (3.0, 0.1)},
    "false-frequency": {BACKGROUND: (0.0, 1.0), TYPE_A: (-2.0, 0.1), TYPE_C: (2.0, 0.1)},
}
_DRAWS: dict[str, Draw] = {
    "single-concept": _single_concept,
    "multi-concept": _multi_concept,
    "false-frequency": _false_frequency,
}


def _scattered(rng: np.random.Generator, n: int) -> Array:
    return rng.uniform(0, FIELD_UM, (n, 2))


def _apart(rng: np.random.Generator, kinds: list[int]) -> Array:
    """Places of A and C instances such that no A lies near a C: each type stays on its own side of an empty strip."""
    angle = rng.uniform(0, 2 * np.pi)
    normal, middle = np.array([np.cos(angle), np.sin(angle)]), FIELD_UM / 2
    places = np.empty((len(kinds), 2))
    for i, kind in enumerate(kinds):
        from_middle = np.zeros(2)
        while abs(from_middle @ normal) <= FAR * NEAR_UM / 2:
            from_middle = rng.uniform(-middle, middle, 2)
        places[i] = middle + from_middle * (1 if (from_middle @ normal > 0) == (kind == TYPE_A) else -1)
    return places


def _pair(rng: np.random.Generator, kinds: list[int]) -> Array:
    """Places of A and C instances of which the first A and the first C are near."""
    places = _apart(rng, kinds)
    angle, distance = rng.uniform(0, 2 * np.pi), NEAR_UM * np.sqrt(rng.random())
    first = places[kinds.index(TYPE_A)]
    places[kinds.index(TYPE_C)] = first + distance * np.array([np.cos(angle), np.sin(angle)])
    return places


def _with_background(rng: np.random.Generator, kinds: list[int], places: Array, patch: bool) -> tuple[list[int], Array]:
    """20 instances of background, of which 10 may lie in a dense patch; their number does not depend on the class."""
    background = _scattered(rng, 20)
    if patch:
        background[:10] = _scattered(rng, 1) + PATCH_UM * rng.standard_normal((10, 2))
    return [*kinds, *[BACKGROUND] * 20], np.vstack([places, background])


def _single_concept_near(rng: np.random.Generator, train: bool, positive: bool) -> tuple[list[int], Array]:
    """One to three of A and of C in every bag; the patch stands in negative training bags and positive test bags."""
    kinds = [TYPE_A] * _whole(rng, 1, 3) + [TYPE_C] * _whole(rng, 1, 3)
    places = (_pair if positive else _apart)(rng, kinds)
    return _with_background(rng, kinds, places, train != positive)


def _multi_concept_near(rng: np.random.Generator, train: bool, positive: bool) -> tuple[list[int], Array]:
    """As single-concept-near; half of the negative bags lack A or C, 10 % of positive training bags have a patch."""
    kinds = [TYPE_A] * _whole(rng, 1, 4) + [TYPE_C] * _whole(rng, 1, 4)
    if positive:
        return _with_background(rng, kinds, _pair(rng, kinds), not train or rng.random() < 0.1)
    if rng.random() < 0.5:
        lacking = TYPE_A if rng.random() < 0.5 else TYPE_C
        kinds = [kind for kind in kinds if kind != lacking]
    return _with_background(rng, kinds, _apart(rng, kinds), train)


def _false_frequency_near(rng: np.random.Generator, train: bool, positive: bool) -> tuple[list[int], Array]:
    """One A and one C, near or not; in negative test bags one of the two types is very often there, but far away."""
    kinds = [TYPE_A, TYPE_C]
    if positive:
        return _with_background(rng, kinds, _pair(rng, kinds), False)
    if not train:
        kinds += [TYPE_A if rng.random() < 4 / 9 else TYPE_C] * (_whole(rng, 35, 39) - 1)
    return _with_background(rng, kinds, _apart(rng, kinds), False)


_PLACES: dict[str, Place] = {
    "single-concept-near": _single_concept_near,
    "multi-concept-near": _multi_concept_near,
    "false-frequency-near": _false_frequency_near,
}
MIL_TESTS = (*_DRAWS, *_PLACES)
"""The three tests of Raff and Holt, whose bags have no positions, and their twins with positions ("-near")."""


def mil_test(name: str, bags: int, split: Split = "train", seed: int = 0) -> list[Bag]:
    """Bags of a test of the multiple-instance assumption, negative and positive in turn.

    name: one of MIL_TESTS. Bags of the first three have no positions: all instances lie at (0, 0). In their twins a bag
    is positive iff an A lies within NEAR_UM of a C, and the shortcut is a dense patch of background (or, in
    false-frequency-near, how often A or C occurs). Equal arguments give equal bags.
    """
    if name not in MIL_TESTS:
        raise unknown_name("test of the multiple-instance assumption", name, MIL_TESTS)
    if split not in ("train", "test"):
        raise InputError(f"split is {split!r}, expected 'train' or 'test'")
    if bags < 2:
        raise InputError(f"bags is {bags}, expected at least 2: one of each class")
    number = [MIL_TESTS.index(name), ("train", "test").index(split), seed]
    return [_bag(name, split, i, np.random.default_rng([*number, i])) for i in range(bags)]


def _bag(name: str, split: Split, number: int, rng: np.random.Generator) -> Bag:
    train, positive = split == "train", bool(number % 2)
    if name in _DRAWS:
        kinds = _DRAWS[name](rng, train, positive)
        coords = np.zeros((len(kinds), 2))
    else:
        kinds, coords = _PLACES[name](rng, train, positive)
    types = np.array(kinds)
    means = _MEANS.get(name, _MEANS["false-frequency"])
    features = np.stack([_features(rng, kind, means) for kind in kinds])
    return Bag(
        features=torch.from_numpy(features.astype(np.float32)),
        coords=torch.from_numpy(coords.astype(np.float32)),
        unit="um",
        bag_id=f"{name}-{split}-{number:04d}",
        label=int(positive),
        instance_labels=torch.from_numpy(types),
        key_instances=torch.from_numpy(_keys(name, types, coords, positive)),
        metadata={"instance_label_names": TYPE_NAMES},
    )


def _features(rng: np.random.Generator, kind: int, means: dict[int, tuple[float, float]]) -> Array:
    if kind == GOOD:
        mean, deviation = (0.0, 3.0) if rng.random() < 0.5 else (1.0, 1.0)
    else:
        mean, deviation = means[kind]
    return rng.normal(mean, deviation, FEATURES)


def _keys(name: str, types: NDArray[np.int64], coords: Array, positive: bool) -> NDArray[np.bool_]:
    """The instances that make the bag positive."""
    keys = np.zeros(len(types), dtype=bool)
    if not positive:
        return keys
    if name in _DRAWS:
        return (types == GOOD) | (types == TYPE_A) | (types == TYPE_C)
    first, second = np.flatnonzero(types == TYPE_A), np.flatnonzero(types == TYPE_C)
    near = cdist(coords[first], coords[second]) <= NEAR_UM
    keys[first[near.any(1)]] = True
    keys[second[near.any(0)]] = True
    return keys


EVIDENCE_TESTS = ("positive-negative", "four-bags", "adjacent-pairs")
"""Tests of explanations: which instances speak for a class, and which against it, is known."""
KINDS = 10
SPREAD = 0.3
"""Standard deviation of a feature; instances of a type have 3 in the feature of its number."""


def evidence_test(name: str, bags: int, seed: int = 0) -> list[Bag]:
    """Bags of instances of ten types in which it is known what every instance says about every class.

    positive-negative: class 1 iff more instances are of the types 4, 6, 8 than of 5, 7, 9. four-bags: class 1 with type
    8, class 2 with type 9, class 3 with both, class 0 with neither. adjacent-pairs: class 1 iff two types k and k + 1
    of 0 to 4 are there. They follow the tests of Hense et al. (2024, "xMIL", NeurIPS) with types instead of digits.
    ``metadata["evidence"]`` [classes][n] is 1 for instances that speak for a class, -1 against it, 0 for neither.
    Equal arguments give equal bags.
    """
    if name not in EVIDENCE_TESTS:
        raise unknown_name("test of explanations", name, EVIDENCE_TESTS)
    if bags < 2:
        raise InputError(f"bags is {bags}, expected at least 2: one of each class")
    number = EVIDENCE_TESTS.index(name)
    return [_evidence_bag(name, i, np.random.default_rng([number, 17, seed, i])) for i in range(bags)]


def _evidence_bag(name: str, number: int, rng: np.random.Generator) -> Bag:
    classes = 4 if name == "four-bags" else 2
    wanted, label, types = number % classes, -1, np.zeros(0, np.int64)
    while label != wanted:
        types = _types(name, rng)
        label = _label(name, types)
    features = rng.normal(0, SPREAD, (len(types), KINDS))
    features[np.arange(len(types)), types] += 3.0
    return Bag(
        features=torch.from_numpy(features.astype(np.float32)),
        coords=torch.from_numpy(_scattered(rng, len(types)).astype(np.float32)),
        unit="um",
        bag_id=f"{name}-{number:04d}",
        label=label,
        instance_labels=torch.from_numpy(types),
        metadata={"evidence": [_evidence(name, types, target).tolist() for target in range(classes)]},
    )


def _types(name: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ten to twenty types at random; of four-bags and adjacent-pairs those that decide are rarer."""
    chances = np.ones(KINDS)
    if name == "four-bags":
        chances[8:] = 0.5
    elif name == "adjacent-pairs":
        chances[:5] = 0.3
    return rng.choice(KINDS, _whole(rng, 10, 20), p=chances / chances.sum())


def _label(name: str, types: NDArray[np.int64]) -> int:
    """The class; -1 where it is undecided."""
    if name == "positive-negative":
        balance = int(_sign(types).sum())
        return -1 if balance == 0 else int(balance > 0)
    there = np.bincount(types, minlength=KINDS) > 0
    if name == "four-bags":
        return int(there[8]) + 2 * int(there[9])
    return int((there[:4] & there[1:5]).any())


def _sign(types: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.isin(types, (4, 6, 8)).astype(np.int64) - np.isin(types, (5, 7, 9))


def _evidence(name: str, types: NDArray[np.int64], target: int) -> NDArray[np.int64]:
    """What every instance says about a class."""
    if name == "positive-negative":
        return _sign(types) * (1 if target == 1 else -1)
    if name == "four-bags":
        first, second = (1 if target & bit else -1 for bit in (1, 2))
        return first * (types == 8) + second * (types == 9)
    there = np.bincount(types, minlength=KINDS + 1) > 0
    paired = np.array([k < 5 and ((k > 0 and there[k - 1]) or (k < 4 and there[k + 1])) for k in range(KINDS)])
    paired &= there[:KINDS]
    return paired[types].astype(np.int64) * (1 if target == 1 else -1)


SHIFTED_FEATURES = 768
RUN = 3
"""Neighbouring instances of a positive bag whose first feature is shifted."""


def shifted_mean(bags: int, delta: float = 2.0, split: Split = "train", seed: int = 0) -> list[Bag]:
    """Bags on a line in which a run of three neighbours is shifted by ``delta`` in one of 768 features.

    A bag has 15 to 45 instances at (0, 0), (1, 0), ... with features N(0, 1). In a positive bag (every second) the
    first feature of three neighbours, at a random place, is raised by delta. No single instance and no mean tells much,
    so that a model has to find the feature and use the order. ``shifted_mean_score`` is the best possible score (after
    arXiv 2510.25759). Equal arguments give equal bags.
    """
    if bags < 2:
        raise InputError(f"bags is {bags}, expected at least 2: one of each class")
    if not np.isfinite(delta):
        raise InputError(f"delta is {delta}, expected a number: how far the run is shifted, in standard deviations")
    if split not in ("train", "test"):
        raise InputError(f"split is {split!r}, expected 'train' or 'test'")
    number = [("train", "test").index(split), 23, seed]
    return [_shifted_bag(i, delta, split, np.random.default_rng([*number, i])) for i in range(bags)]


def _shifted_bag(number: int, delta: float, split: Split, rng: np.random.Generator) -> Bag:
    n, positive = _whole(rng, 15, 45), bool(number % 2)
    features = rng.standard_normal((n, SHIFTED_FEATURES))
    keys = np.zeros(n, dtype=bool)
    if positive:
        start = int(rng.integers(n - RUN + 1))
        keys[start : start + RUN] = True
        features[keys, 0] += delta
    coords = np.stack([np.arange(n), np.zeros(n)], 1)
    return Bag(
        features=torch.from_numpy(features.astype(np.float32)),
        coords=torch.from_numpy(coords.astype(np.float32)),
        unit="um",
        bag_id=f"shifted-mean-{split}-{number:04d}",
        label=int(positive),
        key_instances=torch.from_numpy(keys),
        metadata={"delta": delta},
    )


def shifted_mean_score(bag: Bag) -> float:
    """The logit of class 1 by Bayes: log mean over places u of exp(sum over the run of delta x - delta^2 / 2)."""
    delta = float(bag.metadata["delta"])
    each = delta * bag.features[:, 0].double().numpy() - delta**2 / 2
    runs = np.convolve(each, np.ones(RUN), mode="valid")
    return float(np.logaddexp.reduce(runs) - np.log(len(runs)))
