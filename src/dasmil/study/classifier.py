"""Training as scikit-learn does it: an estimator of bags with fit, predict and predict_proba."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from dasmil.errors import InputError, shown
from dasmil.models.base import MILModel
from dasmil.stats import probabilities
from dasmil.study.apply import MEMORY_GB, check_fits
from dasmil.train.evaluate import model_logits
from dasmil.train.feed import Feed
from dasmil.train.fit import fit
from dasmil.train.fit_auto import default_model
from dasmil.types import Bag, need_bag, need_bags


class MILClassifier(ClassifierMixin, BaseEstimator):
    """A model of bags as a scikit-learn classifier: X is a sequence of bags, y their classes.

    Example: ``cross_val_score(dasmil.MILClassifier("das-mil", epochs=20), bags, y, scoring="roc_auc")``

    Parameters
    ----------
    model
        auto or one of `dasmil models`; None: auto, or das-mil where options or settings of a single model are given.
    epochs, lr, weight_decay
        Settings of training that people search over; None: as `dasmil train` would choose.
    seeds
        Models that are trained together; probabilities are their mean.
    random_state
        The first of the seeds: a whole number.
    preset, options, settings
        Sizes as in the paper, options of the model, and any further setting of training, as `dasmil.fit` takes them.

    Nothing is written, and no bag is held out: cross-validation is scikit-learn's to do. Patients with several bags
    need a splitter that knows them (GroupKFold with groups=patients); `dasmil.cross_validate` does it by itself.
    After `fit`: `models_` (one a seed), `classes_`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        seeds: int = 1,
        random_state: int = 0,
        preset: str | None = None,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.seeds = seeds
        self.random_state = random_state
        self.preset = preset
        self.options = options
        self.settings = settings

    def fit(self, bags: Sequence[Bag], y: ArrayLike | None = None) -> MILClassifier:
        """Train on bags and their classes (any values that can be sorted); y None: the labels of the bags."""
        need_bags(bags)
        self.classes_, numbers = _classes(_labels(bags) if y is None else y, len(bags))
        if len(self.classes_) < 2:
            raise InputError(f"all bags are of class {shown(self.classes_[0])}, expected two classes or more")
        chosen = {"epochs": self.epochs, "lr": self.lr, "weight_decay": self.weight_decay}
        for name, given in (("options", self.options), ("settings", self.settings)):
            if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
                raise InputError(f"{name} are {shown(given)}, expected a dictionary of names and values")
        settings = {**(self.settings or {}), **{name: value for name, value in chosen.items() if value is not None}}
        runs = fit(
            self.model or default_model(settings, self.options, self.preset),
            _Labelled(bags, numbers),
            seeds=_seeds(self.random_state, self.seeds),
            model_options=self.options,
            preset=self.preset,
            progress=False,
            **settings,
        )
        self.models_: list[MILModel] = [run.model for run in runs]
        return self

    def predict_proba(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        """Probability of every class [bags, classes], in the order of `classes_`; the mean over the seeds."""
        logits = self._logits(bags)
        mean = probabilities(logits, len(self.classes_)).mean(0)
        return np.stack([1 - mean, mean], axis=1) if mean.ndim == 1 else mean

    def decision_function(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        """Mean logit over the seeds: [bags] of two classes, else [bags, classes]."""
        return self._logits(bags).mean(0)

    def predict(self, bags: Sequence[Bag]) -> NDArray[Any]:
        """The class that is most probable."""
        likely = self.predict_proba(bags).argmax(axis=1)
        return self.classes_[likely]

    def _logits(self, bags: Sequence[Bag]) -> NDArray[np.float64]:
        if not hasattr(self, "models_"):
            raise NotFittedError("this MILClassifier is not trained: call fit(bags, y) first")
        need_bags(bags)
        feed = Feed(bags, torch.device("cpu"), memory_gb=MEMORY_GB, name="given", labelled=False)
        check_fits(self.models_[0], feed.facts)
        return model_logits(self.models_, feed)


class _Labelled(Sequence[Bag]):
    """Bags under other labels; each is read when it is asked for."""

    def __init__(self, bags: Sequence[Bag], labels: NDArray[np.int64]) -> None:
        self.bags, self.labels = bags, labels

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Labelled(self.bags[index], self.labels[index])
        return replace(need_bag(self.bags[index], index), label=int(self.labels[index]))


def _classes(y: Any, bags: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different classes in their order, and the number of each bag's among them."""
    try:
        labels = np.asarray(y)
        classes, numbers = np.unique(labels, return_inverse=True)
    except (TypeError, ValueError, RuntimeError):  # values of several kinds, rows of several lengths, tensors elsewhere
        raise InputError(f"y is {shown(y)}, expected one class for each bag, of values that can be sorted") from None
    if labels.ndim != 1 or len(labels) != bags:
        raise InputError(f"y has shape {labels.shape}, expected one class for each of {bags} bags")
    if (classes != classes).any() or None in classes.tolist():
        raise InputError("y holds NaN or None, expected a class for each bag: leave bags without one out")
    return classes, numbers


def _seeds(first: Any, count: Any) -> range:
    for name, value in (("random_state", first), ("seeds", count)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"{name} is {shown(value)}, expected a whole number")
    if count < 1 or not 0 <= first < 2**32:
        raise InputError(
            f"random_state is {shown(first)} and seeds is {shown(count)}, expected 0 or more, and 1 or more"
        )
    return range(int(first), int(first) + int(count))


def _labels(bags: Sequence[Bag]) -> NDArray[np.int64]:
    labels = [bag.label for bag in bags]
    if None in labels:
        missing = bags[labels.index(None)].bag_id
        raise InputError(f"y was left out and bag {shown(missing)} carries no label: give y")
    return np.array(labels, dtype=np.int64)
