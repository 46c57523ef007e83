"""Candidates that need no training: a ridge regression on fixed numbers of a bag, each written as a model."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.candidates.objective import Objective
from dasmil.candidates.ridge import Coordinates, fit_chosen
from dasmil.candidates.rules import usual_lengths
from dasmil.candidates.types_of_instances import find_types
from dasmil.candidates.whitening import Directions, Sample
from dasmil.models.bag_summary import TYPED, BagNumbers, BagSummary, Summary
from dasmil.nn import Linear
from dasmil.types import Bag, Unit

Array = NDArray[np.float64]
TYPES = 16
"""Types of instances that composition and contacts count, where the features are no categories."""
PRODUCTS = 16
"""Leading whitened directions whose products are taken."""
LENGTHS = 4
"""Lengths within which instances of types are counted, from neighbours to a quarter of the section."""
FITTED_BAGS = 200
"""Directions and types are found in at most so many bags, drawn at random; no label is looked at."""


@dataclass(frozen=True)
class LinearCandidate:
    """A summary of bags by name."""

    name: str
    title: str
    summary: Summary
    whitened: bool
    spatial: bool = False
    categories: bool = True
    """Whether it says something of its own where the features are categories (cell types)."""


LINEAR = (
    LinearCandidate("mean", "Mean features", "mean", whitened=False),
    LinearCandidate("spread", "Means, quantiles and maxima of features", "spread", whitened=False, categories=False),
    LinearCandidate("composition", "Shares of types of instances", "types", whitened=True),
    LinearCandidate("moments", "Means and covariances", "moments", whitened=True, categories=False),
    LinearCandidate(
        "neighbours", "Products with neighbours", "neighbours", whitened=True, spatial=True, categories=False
    ),
    LinearCandidate("contacts", "Contacts between types", "contacts", whitened=True, spatial=True),
    LinearCandidate("within", "Counts of types within lengths", "within", whitened=True, spatial=True),
    LinearCandidate("near", "Nearest pairs of types", "near", whitened=True, spatial=True),
)
"""From the simplest to the richest."""


class Reader:
    """The label-free part of all linear candidates, fitted once on training bags: directions and types.

    If the instances of a bag do not differ (one row a slide), only the mean is a candidate.
    """

    def __init__(
        self,
        directions: Directions,
        centres: Tensor,
        lengths: Tensor,
        categories: bool,
        unit: Unit,
        names: Container[str] | None = None,
    ) -> None:
        self.directions, self.centres, self.lengths = directions, centres, lengths
        self.categories, self.unit = categories, unit
        wanted = [c for c in LINEAR if (c.categories or not categories) and (names is None or c.name in names)]
        self.summarised = {c.name: self._summarised(c) for c in wanted if directions.within or c.name == "mean"}

    @staticmethod
    def fitted(
        bags: Sequence[Bag], directions: Directions | None = None, names: Container[str] | None = None
    ) -> Reader:
        """names: of the candidates that are read; None: all."""
        chosen = np.sort(np.random.default_rng(0).permutation(len(bags))[:FITTED_BAGS])
        some = [bags[int(i)] for i in chosen]
        if directions is None:
            sample = Sample()
            for bag in some:
                sample.add(bag)
            directions = sample.directions()
        scales = category_scales(some)
        categories = scales is not None
        if scales is not None:
            centres = torch.diag(scales)
        elif not directions.within:
            centres = torch.zeros(1, 1)
        else:
            read = [replace(bag, features=directions.read(bag.features)) for bag in some]
            centres = torch.from_numpy(find_types(read, TYPES, directions.within))
        lengths = torch.from_numpy(usual_lengths(some, LENGTHS)).float()
        return Reader(directions, centres, lengths, categories, some[0].unit, names)

    def numbers(self, bags: Sequence[Bag]) -> dict[str, Array]:
        """The numbers of every bag for every candidate [bags, p]; each bag is read once."""
        rows: dict[str, list[Array]] = {name: [] for name in self.summarised}
        for i in range(len(bags)):
            bag = bags[i]
            raw = bag.features.float()
            whitened = self.directions.read(raw)
            for candidate in LINEAR:
                if candidate.name in rows:
                    z = whitened if self._whitens(candidate) else raw
                    with torch.no_grad():
                        found = self.summarised[candidate.name].numbers(z, bag.coords, bag.section)
                    rows[candidate.name].append(found.double().numpy())
        return {name: np.array(values) for name, values in rows.items()}

    def model(self, name: str, numbers: Array, objective: Objective, patients: Sequence[str]) -> BagSummary:
        """The candidate fitted to all these bags, penalty included, as a model."""
        where = Coordinates.of(numbers)
        line = fit_chosen(where.rows, objective, patients)
        weights = where.back @ line.weights @ objective.link
        constant = line.constant - where.centre @ weights
        return self.written(name, weights, constant)

    def written(self, name: str, weights: Array, constant: Array) -> BagSummary:
        """A model with these weights [p, outputs] on the numbers of a candidate."""
        candidate = next(c for c in LINEAR if c.name == name)
        options = self._options(candidate)
        if self._whitens(candidate):
            options |= {"encoder": "whitened", "encoder_features": len(self.directions)}
        options |= {"n_classes": 2} if len(constant) == 1 else {"outputs": len(constant)}
        model = BagSummary(in_features=len(self.directions.mean), unit=self.unit, **options)  # pyright: ignore[reportArgumentType]
        if self._whitens(candidate):
            model.encoder.mean.copy_(self.directions.mean)  # pyright: ignore
            model.encoder.directions.copy_(self.directions.axes)  # pyright: ignore
        model.aggregator.load_state_dict(self.summarised[name].state_dict())
        assert isinstance(model.classifier, Linear)
        with torch.no_grad():
            model.classifier.weight.copy_(torch.from_numpy(weights.T))
            model.classifier.bias.copy_(torch.from_numpy(constant))
        return model.eval()

    def _whitens(self, candidate: LinearCandidate) -> bool:
        return candidate.whitened and not self.categories

    def _options(self, candidate: LinearCandidate) -> dict[str, Any]:
        typed = candidate.summary in TYPED
        return {
            "summary": candidate.summary,
            "within": self.centres.shape[1] if typed else max(1, min(PRODUCTS, self.directions.within)),
            "types": len(self.centres),
            "lengths": len(self.lengths),
        }

    def _summarised(self, candidate: LinearCandidate) -> BagNumbers:
        options = self._options(candidate)
        width = len(self.directions) if self._whitens(candidate) else len(self.directions.mean)
        made = BagNumbers(
            candidate.summary, width, min(options["within"], width), options["types"], 8, options["lengths"]
        )
        if len(made.centres):
            made.centres.copy_(self.centres)
        if len(made.lengths):
            made.lengths.copy_(self.lengths)
        return made


def category_scales(bags: Sequence[Bag]) -> Tensor | None:
    """The value of every category [f], where every instance is of exactly one (a one-hot code, perhaps scaled)."""
    scales = torch.zeros(bags[0].features.shape[1]) if bags[0].features.ndim == 2 else torch.zeros(0)
    for bag in bags:
        if bag.features.ndim != 2 or len(scales) < 2 or not bool(((bag.features != 0).sum(1) == 1).all()):
            return None
        scales = torch.maximum(scales, bag.features.float().amax(0))
    return torch.where(scales > 0, scales, torch.ones(()))
