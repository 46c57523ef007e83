"""Columns of a table of cells that say the label, or name the bag, instead of describing cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dasmil.data.checks import Finding
from dasmil.errors import named, shown
from dasmil.stats import auroc
from dasmil.types import Bag

FEWEST, BETWEEN, TELLS = 8, 0.9, 0.99
"""Of fewer bags nothing is said. A column describes bags and not cells where this part of its variance lies between
bags; it says the label where its means per bag have this AUROC."""


def leaking_columns(bags: Sequence[Bag], labels: Sequence[int | None]) -> list[Finding]:
    """Warnings of columns that describe the bag; nothing of categories."""
    names = bags[0].metadata.get("feature_names") if bags else None
    if not names or bags[0].instance_labels is not None or len(bags) < FEWEST:
        return []
    found: list[Finding] = []
    values = [bag.features.double().numpy().reshape(len(bag), -1) for bag in bags]
    means = np.array([value.mean(0) for value in values])
    inside = np.mean([value.var(0) for value in values], axis=0)
    between = means.var(0)
    of_bags = between > BETWEEN * (between + inside)
    known = np.array([-1 if label is None else label for label in labels])
    says = [name for k, name in enumerate(names) if of_bags[k] and _says(means[:, k], known)]
    if says:
        message = f"the columns {named(map(shown, says))} have nearly one value a bag, and it says the label"
        found.append(Finding("warning", "leak", f"{message}: leave them out with --feature-columns"))
    rest = [name for k, name in enumerate(names) if of_bags[k] and name not in says]
    if rest:
        message = f"the columns {named(map(shown, rest))} have nearly one value a bag: a model may know bags by them"
        found.append(Finding("warning", "leak", f"{message}; leave them out with --feature-columns"))
    return found


def _says(means: np.ndarray, labels: np.ndarray) -> bool:
    """Whether the values tell a class from the others."""
    for label in np.unique(labels[labels >= 0]):
        own = labels[labels >= 0] == label
        if own.all():
            continue
        area = float(auroc(means[labels >= 0], own, None)[0])
        if max(area, 1 - area) >= TELLS:
            return True
    return False
