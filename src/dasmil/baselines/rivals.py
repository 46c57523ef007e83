"""Rules of a few numbers per bag, fitted on training bags without a network, to stand beside every trained model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.candidates.types_of_instances import composition, find_types, nearest_distances, type_of
from dasmil.candidates.whitening import Directions, Sample, WhitenedBags
from dasmil.errors import InputError
from dasmil.types import Bag

Array = NDArray[np.float64]

FITTED_BAGS = 200
"""Directions and types are found in at most so many training bags, drawn at random."""
TYPES = (8, 12, 16, 24)
"""Numbers of types, all of which are counted: nobody knows beforehand how many there are."""
MOST_FEATURES = 2048
"""More features than this are first projected at random onto so many."""
TREES, SHARE = 100, 0.3
RIDGES = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Baseline:
    """A rule by name: what it is called, and what it sees of a bag."""

    name: str
    title: str
    sees: str


BASELINES: Mapping[str, Baseline] = {
    rule.name: rule
    for rule in (
        Baseline("mean", "Mean features", "the mean features of a bag, by a logistic regression"),
        Baseline("composition", "Composition", "the shares of the types of instances, by a random forest"),
        Baseline("pairs", "Pair distances", "how near each two types of instances come, by a random forest"),
    )
}
"""The baselines in the order in which they are shown; types of instances are centres of k-means."""


class FittedBaselines:
    """All baselines, fitted on training bags; ``predict`` takes any bags with features of the same encoder."""

    def __init__(self, reader: _Reader, rules: Mapping[str, Any], classes: int) -> None:
        self._reader, self._rules, self.classes = reader, rules, classes

    def predict(self, bags: Sequence[Bag]) -> dict[str, Array]:
        """Per baseline the probability of class 1 [n], or with more than two classes of every class [n, classes]."""
        numbers = self._reader.numbers(bags)
        found = {}
        for name, rule in self._rules.items():
            every = np.zeros((len(numbers[name]), self.classes))
            every[:, rule.classes_.astype(int)] = rule.predict_proba(numbers[name])
            found[name] = every[:, 1] if self.classes == 2 else every
        return found


def fit_baselines(
    bags: Sequence[Bag], labels: Sequence[int] | None = None, *, classes: int | None = None, seed: int = 0
) -> FittedBaselines:
    """Fit every baseline on labelled training bags, whose features are vectors of any length.

    Example: ``fit_baselines(train_bags).predict(test_bags)["composition"]``

    Features are read in whitened directions within bags, instances fall into types by k-means (8, 12, 16 and 24 of
    them), distances are taken within sections. Only these bags are looked at. Every bag is read twice, and at most 200
    decide about directions and types: 100 bags of 1,500 instances with 1,024 features take some ten seconds of one
    core. labels: of the bags, where they do not carry them; classes: how many there are, where the bags may lack some.
    Equal bags and seed give equal answers.
    """
    known = _labels(bags, labels)
    classes = max(2, int(known.max()) + 1) if classes is None else classes
    if known.min() < 0 or known.max() >= classes:
        wrong = known.min() if known.min() < 0 else known.max()
        raise InputError(f"a bag has the label {wrong}, expected 0 to {classes - 1}")
    reader = _Reader.fitted(bags, seed)
    numbers = reader.numbers(bags)
    rules = {
        "mean": _logistic(numbers["mean"], known),
        "composition": _forest(numbers["composition"], known, seed),
        "pairs": _forest(numbers["pairs"], known, seed),
    }
    return FittedBaselines(reader, rules, classes)


def _labels(bags: Sequence[Bag], given: Sequence[int] | None) -> NDArray[np.int64]:
    found = [bag.label for bag in bags] if given is None else list(given)
    if len(found) != len(bags):
        raise InputError(f"{len(found)} labels for {len(bags)} bags: expected one each")
    missing = [i for i, label in enumerate(found) if label is None]
    if missing:
        raise InputError(f"bag {bags[missing[0]].bag_id!r} has no label: baselines are fitted on labelled bags")
    labels = np.array(found, dtype=np.int64)
    if len(np.unique(labels)) < 2:
        raise InputError(f"{len(labels)} training bags of {len(np.unique(labels))} classes: expected at least two")
    return labels


class _Reader:
    """Turns a bag into the numbers that the rules see; directions and types come from training bags."""

    def __init__(self, projection: Tensor | None, directions: Directions, centres: list[NDArray[np.float32]]) -> None:
        self.projection, self.directions, self.centres = projection, directions, centres

    @classmethod
    def fitted(cls, bags: Sequence[Bag], seed: int) -> _Reader:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(bags))[:FITTED_BAGS])
        first = bags[int(chosen[0])]
        width = as_vectors(first).features.shape[1]
        generator = torch.Generator().manual_seed(seed)
        wide = torch.randn(width, MOST_FEATURES, generator=generator) / width**0.5 if width > MOST_FEATURES else None
        sample = Sample()
        some = _Projected(bags, chosen, wide)
        for i in range(len(some)):
            sample.add(some[i])
        directions = sample.directions()
        read = list(WhitenedBags(some, directions))
        centres = [find_types(read, count, directions.within, seed) for count in TYPES]
        return cls(wide, directions, centres)

    def numbers(self, bags: Sequence[Bag]) -> dict[str, Array]:
        """What each rule sees of every bag [bags, numbers]; bags are read one after the other."""
        rows: dict[str, list[Array]] = {name: [] for name in BASELINES}
        read = WhitenedBags(_Projected(bags, np.arange(len(bags)), self.projection), self.directions)
        for i in range(len(bags)):
            bag = read[i]
            x = bag.features.numpy()
            kinds = [type_of(x, centres) for centres in self.centres]
            counts = [len(centres) for centres in self.centres]
            rows["mean"].append(x.mean(0).astype(np.float64))
            rows["composition"].append(np.concatenate([composition(k, c) for k, c in zip(kinds, counts, strict=True)]))
            near = [nearest_distances(bag, k, c) for k, c in zip(kinds, counts, strict=True)]
            rows["pairs"].append(np.log1p(np.concatenate(near)))
        return {name: np.array(values) for name, values in rows.items()}


def as_vectors(bag: Bag) -> Bag:
    """A bag whose instances are pictures, told by their colours: of each channel mean, spread and mean of the middle.

    The middle (half of the height and width) is where a patch that was cut around a cell shows the cell.
    """
    if bag.features.ndim == 2:
        return bag
    if bag.features.ndim != 4:
        shape = tuple(bag.features.shape[1:])
        raise InputError(f"bag {bag.bag_id!r} has instances of shape {shape}: baselines read vectors and pictures")
    pixels = bag.features.float()
    height, width = pixels.shape[2:]
    middle = pixels[:, :, height // 4 : height - height // 4, width // 4 : width - width // 4]
    told = [pixels.mean((2, 3)), pixels.std((2, 3), correction=0), middle.mean((2, 3))]
    return replace(bag, features=torch.cat(told, 1))


class _Projected(Sequence[Bag]):
    """Some of the bags, with very wide features projected at random."""

    def __init__(self, bags: Sequence[Bag], chosen: NDArray[np.int64], projection: Tensor | None) -> None:
        self._bags, self._chosen, self._projection = bags, chosen, projection

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        bag = as_vectors(self._bags[int(self._chosen[index])])
        return bag if self._projection is None else replace(bag, features=bag.features.float() @ self._projection)


def _forest(numbers: Array, labels: NDArray[np.int64], seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    # Of hundreds of pairs one or two may count: a tree that sees a third of them at each cut finds them, one that sees
    # the usual square root does not.
    share: Any = SHARE
    forest = RandomForestClassifier(TREES, min_samples_leaf=2, max_features=share, random_state=seed)
    return forest.fit(numbers, labels)


def _logistic(numbers: Array, labels: NDArray[np.int64]) -> Any:
    """With a ridge that folds of the training bags choose, where every class has two bags for them."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    counts = np.bincount(labels)
    folds = min(5, int(counts[counts > 0].min()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of coming changes in scikit-learn's names
        if folds < 2:
            return make_pipeline(StandardScaler(), LogisticRegression(C=RIDGES[1], max_iter=500)).fit(numbers, labels)
        chosen = LogisticRegressionCV(Cs=list(RIDGES), cv=folds, scoring="neg_log_loss", max_iter=500)  # pyright: ignore[reportArgumentType]
        return make_pipeline(StandardScaler(), chosen).fit(numbers, labels)
