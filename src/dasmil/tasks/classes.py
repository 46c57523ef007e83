"""One of several classes: class names, the threshold, the weights, the cross entropy, the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import norm
from torch import Tensor
from torch.nn import functional as F

from dasmil.errors import DataError
from dasmil.stats.chance import auroc_to_find, smallest_auroc
from dasmil.stats.metrics import METRICS, calibration_curve, choose_threshold
from dasmil.stats.ranking import auroc, divide
from dasmil.stats.sets import class_set
from dasmil.stats.small import class_patients
from dasmil.tasks.target import Array, Detectable, LabelColumn, Said, Target, TargetLoss
from dasmil.vocabulary import A_CLASS, Meaning


@dataclass(frozen=True)
class ClassTarget(Target):
    """One of several classes, numbered 0, 1, ... in a column; two classes have one output, more one each.

    threshold: from which probability on class 1 is predicted, of two. own: whether it is the label of the bag itself.
    """

    name: str
    classes: tuple[str, ...] = ("0", "1")
    threshold: float = field(default=0.5, compare=False, repr=False)
    own: bool = field(default=False, repr=False)
    kind: ClassVar[str] = "classes"
    task: ClassVar[str] = "classification"
    main: ClassVar[str] = "auroc"
    metrics: ClassVar[tuple[str, ...]] = ("auroc", "balanced_accuracy")
    headlines: ClassVar[tuple[str, ...]] = ("auroc", "balanced_accuracy")
    trained: ClassVar[str] = "balanced_accuracy"
    rank: ClassVar[str] = "auroc"
    exact: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return 1 if len(self.classes) <= 2 else len(self.classes)

    @property
    def text(self) -> str:
        return f"{self.name!r} ({', '.join(self.classes)})"

    def fitted(self, values: Array) -> ClassTarget:
        if self.own:
            return self._fitted_to_labels(values[np.isfinite(values[:, 0]), 0].astype(np.int64))
        need_every_class(self.name, self.classes, values)
        return self

    def _fitted_to_labels(self, labels: NDArray[np.int64]) -> ClassTarget:
        """With as many classes as the labels of the training bags have."""
        count = max(2, int(labels.max()) + 1)
        counts = np.bincount(labels, minlength=count)
        if (counts == 0).any():
            found = ", ".join(f"{n} of class {c}" for c, n in enumerate(counts))
            if count == 2:
                missing = "positive" if counts[1] == 0 else "negative"
                raise DataError(f"the training bags hold no {missing} bag ({found}): training needs both classes")
            raise DataError(f"a class has no training bag ({found}): every class 0 ... {count - 1} needs some")
        names = self.classes if len(self.classes) == count else tuple(map(str, range(count)))
        return replace(self, classes=names)

    def decided(self, values: Array, said: Said) -> ClassTarget:
        known = np.isfinite(values[:, 0])
        if self.outputs > 1 or len(np.unique(values[known, 0])) < 2:  # bags of one class leave nothing to choose
            return self
        return replace(self, threshold=choose_threshold(values[known, 0], self.probabilities(said)[known]))

    def loss_of(self, values: Array, *, balance: bool) -> ClassLoss:
        return ClassLoss(self, values, balance)

    @classmethod
    def of_column(cls, column: LabelColumn) -> ClassTarget:
        return cls(column.name, column.names())

    @property
    def valid(self) -> bool:
        return 2 <= len(set(self.classes)) == len(self.classes)

    @property
    def strata_title(self) -> str:
        return "Label" if self.own else self.name

    def detectable(self, sets: Sequence[Array]) -> Detectable:
        counts = np.array([[int((rows[:, 0] == c).sum()) for c in range(len(self.classes))] for rows in sets])
        rare = int(counts.sum(0).argmin()) if len(self.classes) > 2 else 1
        pairs = [(int(row[rare]), int(row.sum() - row[rare])) for row in counts]
        return Detectable("AUROC", int(counts.sum(0)[rare]), smallest_auroc(pairs), auroc_to_find(pairs))

    def said(self, outputs: Array) -> Said:
        """The probability of class 1 (or of every class) and the likelier class, from outputs [..., outputs]."""
        if self.outputs == 1:
            found = {f"{self.name}_probability": expit(outputs[..., 0])}
        else:
            every = softmax(outputs, axis=-1)
            found = {f"{self.name}_probability_{c}": every[..., k] for k, c in enumerate(self.classes)}
        return self.mean_of(found)

    def mean_of(self, said: Said) -> Said:
        """The class is that of the mean probability."""
        p = self.probabilities(said)
        predicted = p >= self.threshold if self.outputs == 1 else p.argmax(-1)
        return {**said, self.name: predicted.astype(np.float64)}

    def probabilities(self, said: Said) -> Array:
        """Of class 1 [n] for two classes, else of every class [n, classes]."""
        if self.outputs == 1:
            return said[f"{self.name}_probability"]
        return np.stack([said[f"{self.name}_probability_{c}"] for c in self.classes], axis=-1)

    def answer(self, outputs: Array) -> Array:
        return self.probabilities(self.said(outputs))

    def order(self, outputs: Array) -> Array:
        return outputs[..., 0] if self.outputs == 1 else softmax(outputs, axis=-1) @ np.arange(len(self.classes))

    def figures(self, values: Array, said: Said, weights: Array, reference: Array | None = None) -> dict[str, Array]:
        known = np.isfinite(values[:, 0])
        if not known.any():
            return dict.fromkeys(METRICS, np.full(len(weights), np.nan))
        p = self.probabilities(said)[known]
        return class_set(values[known, 0], [p], [self.threshold]).runs[0](weights[:, known])

    def figures_of_several(self, values: Array, said: Said, weights: Array) -> dict[str, Array]:
        known = np.isfinite(values[:, 0])
        if not known.any():
            return dict.fromkeys(self.metrics, np.full(len(weights), np.nan))
        y, w, p = values[known, 0].astype(np.int64), weights[:, known], self.probabilities(said)[known]
        every = np.stack([1 - p, p], axis=1) if self.outputs == 1 else p
        classes = range(1, 2) if self.outputs == 1 else range(len(self.classes))
        predicted = every.argmax(1) if self.outputs > 1 else (p >= self.threshold).astype(np.int64)
        right = [
            divide(w @ ((y == c) & (predicted == c)), w @ (y == c).astype(np.float64)) for c in range(every.shape[1])
        ]
        return {
            "auroc": np.mean([auroc(every[:, c], y == c, w) for c in classes], axis=0),
            "balanced_accuracy": np.mean(right, axis=0),
        }

    def chance(self, values: Array, value: float, tried: int) -> float:
        return chance_of(values[:, 0].astype(np.int64), value, tried) if self.outputs == 1 else 1.0

    def patients(self, values: Array, owners: Sequence[str]) -> tuple[int, NDArray[np.int64] | None]:
        known = np.isfinite(values[:, 0])
        labels = values[known, 0].astype(np.int64)
        counts = class_patients(labels, np.array(owners)[known].tolist(), max(2, len(self.classes)))
        return int(counts.min()), counts

    def describe(self, values: Array) -> dict[str, Any]:
        if not self.own:
            return super().describe(values)
        labels = values[np.isfinite(values[:, 0]), 0].astype(np.int64)
        counts = {str(c): int((labels == c).sum()) for c in np.unique(labels)}
        return {"positives": int((labels == 1).sum()), "classes": counts}

    def curves(self, values: Array, said: Said, patients: Sequence[str]) -> dict[str, Any]:
        return {"calibration": calibration_curve(values[:, 0], self.probabilities(said), patients)}

    def known_text(self, values: Array) -> str:
        return f"{self.name} {self.classes[int(values[0])]}" if np.isfinite(values[0]) else ""

    def meaning(self, output: int) -> Meaning:
        if self.own:
            return A_CLASS
        called = self.classes[1 if self.outputs == 1 else output]
        sure = f"{self.name} = {called}" if self.outputs == 1 else ""
        return Meaning(
            f"the logit of {self.name} = {called}", f"speaks for {called}", f"speaks against {called}", probability=sure
        )

    def output_names(self) -> list[str]:
        if self.own:
            return list(self.classes)
        return [f"less {self.name}", f"more {self.name}"] if self.outputs == 1 else [
            f"{self.name} {k}" for k in range(self.outputs)
        ]  # fmt: skip

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "classes": list(self.classes)}


class ClassLoss(TargetLoss):
    """Cross entropy; weights [classes]: by the inverse frequency of classes in the training bags, or 1."""

    def __init__(self, target: ClassTarget, values: Array, balance: bool) -> None:
        known = values[np.isfinite(values[:, 0]), 0].astype(np.int64)
        counts = np.bincount(known, minlength=len(target.classes)).astype(np.float64)
        weights = class_weights(counts) if balance else np.ones(len(counts))
        mass = weights * counts
        self.guess = float(-(mass * np.log(mass / mass.sum())).sum() / counts.sum())
        self.weights = torch.tensor(weights, dtype=torch.float32)

    def each(self, outputs: Tensor, values: Tensor) -> Tensor:
        weights = self.weights.to(outputs.device)
        return entropy(outputs[..., 0] if len(weights) == 2 else outputs, values[..., 0].long(), weights)


def need_every_class(name: str, classes: Sequence[str], values: Array) -> None:
    """Refuse training bags with other values [n, 1] than the numbers of classes, and without a bag of each class."""
    known = values[np.isfinite(values[:, 0]), 0]
    odd = known[(known < 0) | (known != known.round()) | (known >= len(classes))]
    if len(odd):
        raise DataError(f"target {name!r} holds {odd[0]:g}, expected a class 0 to {len(classes) - 1}")
    missing = set(range(len(classes))) - set(known.astype(int).tolist())
    if missing:
        raise DataError(
            f"no training bag has class {classes[min(missing)]!r} of the target {name!r}: every class needs some, or "
            "leave the target out"
        )


def class_weights(counts: Array) -> Array:
    """Weights of classes by their inverse frequency; of two, that of class 1 relative to class 0, as in the paper."""
    if len(counts) == 2:
        return np.array([1.0, counts[0] / counts[1]])
    return counts.sum() / (len(counts) * counts)


def entropy(logit: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross entropy [*batch] of logits [*batch] (two classes) or [*batch, classes], classes weighed."""
    logit = logit.float()
    if len(weights) == 2:
        target = labels.to(logit.dtype)
        return F.binary_cross_entropy_with_logits(logit, target, pos_weight=weights[1], reduction="none")
    rows, flat = logit.reshape(-1, logit.shape[-1]), labels.reshape(-1)
    return F.cross_entropy(rows, flat, weight=weights, reduction="none").view(labels.shape)


def chance_of(labels: NDArray[np.int64], auroc: float, tried: int) -> float:
    """How often the best of so many random predictions would have this AUROC or more on these bags, at most.

    Two classes; the AUROC of a random prediction taken as normal, as in the test of Mann and Whitney.
    """
    positives = int((labels == 1).sum())
    negatives = len(labels) - positives
    spread = np.sqrt((len(labels) + 1) / (12 * positives * negatives))
    return float(min(1.0, tried * norm.sf((auroc - 0.5) / spread)))
