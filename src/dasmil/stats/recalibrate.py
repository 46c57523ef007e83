"""Recalibration of probabilities: maps that are fitted on bags which did not train the model, and saved as numbers.

platt: a line on the logit (Platt 1999, with his smoothed targets, so that separated classes still have a finite line);
isotonic: a rising step function (Zadrozny and Elkan 2002); temperature: one factor on the logit (Guo et al. 2017).
Of more than two classes platt and isotonic map every class against the rest and divide by the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

from dasmil.errors import DataError, InputError, unknown_name
from dasmil.stats.calibration import SMALLEST, logistic_line, logistic_shift, logits
from dasmil.stats.metrics import _checked

Array = NDArray[np.float64]
Method = Literal["platt", "isotonic", "temperature", "in-the-large"]
METHODS: tuple[str, ...] = get_args(Method)
FEWEST_BAGS = 20
"""Below this many bags, or four of a class, a map would follow chance."""
FEWEST_OF_CLASS = 4


@dataclass(frozen=True)
class Recalibration:
    """A fitted map. maps: one per class (one for two classes), each the numbers of its method.

    fitted_on: names of the bags that it was fitted on, which must not judge it.
    """

    method: str
    maps: tuple[Mapping[str, Any], ...]
    fitted_on: frozenset[str] = frozenset()

    def __call__(self, probabilities: ArrayLike) -> Array:
        """Recalibrated probabilities, [..., n] of class 1 or [..., n, classes] as they were fitted."""
        p = np.asarray(probabilities, dtype=np.float64)
        if self.method == "temperature" and "classes" in self.maps[0]:
            return softmax(self.maps[0]["slope"] * np.log(np.clip(p, SMALLEST, 1)), axis=-1)
        if len(self.maps) == 1:
            return _mapped(self.method, self.maps[0], p)
        each = np.stack([_mapped(self.method, one, p[..., c]) for c, one in enumerate(self.maps)], axis=-1)
        total = each.sum(-1, keepdims=True)
        return np.where(total > 0, each / np.where(total > 0, total, 1), 1 / each.shape[-1])

    def refuse(self, bag_ids: Iterable[str]) -> None:
        """Refuse bags that the map was fitted on: a figure of them would be too good."""
        if shared := sorted(self.fitted_on.intersection(bag_ids)):
            raise DataError(
                f"{len(shared)} bags, for example {shared[0]!r}, were used to fit the recalibration: it can only be "
                "judged on other bags"
            )

    def as_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {"method": self.method, "maps": [dict(one) for one in self.maps], "fitted_on": sorted(self.fitted_on)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Recalibration:
        """The map that `as_json` wrote; anything else is one error."""
        try:
            method, maps = value["method"], value["maps"]
            names = {"isotonic": ("x", "y"), "temperature": ("slope",)}.get(method, ("slope", "intercept"))
            if method not in METHODS or not maps:
                raise KeyError(method)
            for one in maps:
                for name in names:
                    if not np.isfinite(np.asarray(one[name], dtype=np.float64)).all():
                        raise ValueError(name)
            return cls(method, tuple(maps), frozenset(map(str, value.get("fitted_on", []))))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the recalibration of this run is not readable ({error}): fit it again") from None


def fit_recalibration(
    labels: ArrayLike, probabilities: ArrayLike, method: str = "platt", *, bag_ids: Sequence[str] = ()
) -> Recalibration:
    """Fit a map on predictions of bags that did not train the model; probabilities [n] of class 1, or [n, classes]."""
    if method not in METHODS:
        raise unknown_name("recalibration", method, METHODS)
    y, p = _checked(labels, probabilities)
    classes = 2 if p.ndim == 1 else p.shape[1]
    counts = np.bincount(y, minlength=classes)
    if len(y) < FEWEST_BAGS or counts.min() < FEWEST_OF_CLASS:
        raise InputError(
            f"{len(y)} bags ({', '.join(map(str, counts))} by class) are too few to fit a recalibration: expected "
            f"{FEWEST_BAGS} bags and {FEWEST_OF_CLASS} of every class"
        )
    if float(np.ptp(p, axis=0).max()) < SMALLEST:
        raise InputError("all predictions are equal: there is nothing to recalibrate")
    used = frozenset(bag_ids)
    if p.ndim == 1:
        return Recalibration(method, (_fitted(method, y, p),), used)
    if method == "temperature":
        return Recalibration(method, ({"slope": _temperature(y, p), "classes": classes},), used)
    return Recalibration(method, tuple(_fitted(method, (y == c).astype(int), p[:, c]) for c in range(classes)), used)


def cross_fitted(labels: ArrayLike, probabilities: ArrayLike, folds: ArrayLike, method: str = "platt") -> Array:
    """Probabilities recalibrated by maps that were fitted on the other folds [n]: no bag has a part in its own map."""
    y, p = _checked(labels, probabilities)
    member = np.asarray(folds)
    found = np.empty_like(p)
    for fold in np.unique(member):
        own = member == fold
        found[own] = fit_recalibration(y[~own], p[~own], method)(p[own])
    return found


def _fitted(method: str, y: NDArray[Any], p: Array) -> dict[str, Any]:
    x = logits(p)
    if method == "in-the-large":
        return {"slope": 1.0, "intercept": float(logistic_shift(x, y)[0])}
    if method == "temperature":
        return {"slope": _temperature(y, np.stack([1 - p, p], axis=1)), "intercept": 0.0}
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression

        found = IsotonicRegression(out_of_bounds="clip").fit(p, y)
        return {"x": found.X_thresholds_.tolist(), "y": found.y_thresholds_.tolist()}
    positives, negatives = int(y.sum()), int(len(y) - y.sum())
    target = np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    intercept, slope = logistic_line(x, target)
    if not np.isfinite(slope[0]):
        raise InputError("no finite line fits these predictions: they hardly differ; leave the recalibration out")
    if slope[0] <= 0:
        raise InputError(
            f"the label does not rise with the predictions (slope {slope[0]:.2f}): the model is no better than chance, "
            "and a recalibration would turn its order round; leave it out"
        )
    return {"slope": float(slope[0]), "intercept": float(intercept[0])}


def _mapped(method: str, numbers: Mapping[str, Any], p: Array) -> Array:
    if method == "isotonic":
        return np.interp(p, numbers["x"], numbers["y"])
    return expit(numbers.get("intercept", 0.0) + numbers["slope"] * logits(p))


def _temperature(y: NDArray[Any], p: Array) -> float:
    """The factor on log probabilities with the greatest likelihood; between a twentieth and twenty."""
    x = np.log(np.clip(p, SMALLEST, 1))

    def loss(log_slope: float) -> float:
        return -float(log_softmax(np.exp(log_slope) * x, axis=1)[np.arange(len(y)), y].mean())

    found: Any = minimize_scalar(loss, bounds=(-np.log(20), np.log(20)), method="bounded")
    return float(np.exp(found.x))
