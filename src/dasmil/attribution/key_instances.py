"""Do the scores find the right instances? AUROC against known key instances, within every positive bag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dasmil.attribution.account import Account
from dasmil.errors import DataError
from dasmil.models.base import MILModel
from dasmil.stats import auroc, mean_over_patients
from dasmil.types import Bag

SIGNED = "contribution"
ABSOLUTE = "|contribution|"
GRADIENTS = "integrated gradients"


@dataclass(frozen=True)
class KeyScore:
    """One score of one run: its mean AUROC within positive bags for every seed, and an interval of their mean.

    low, high: 95 %, from a bootstrap over patients (a bag without one is its own) that all seeds share.
    """

    model: str
    score: str
    seeds: tuple[float, ...]
    low: float
    high: float
    n_bags: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.seeds))


def usable(bags: Sequence[Bag]) -> list[Bag]:
    """Positive bags whose key instances are known and are not all instances."""
    found = [
        bag
        for bag in bags
        if bag.label and bag.key_instances is not None and 0 < int(bag.key_instances.sum()) < len(bag)
    ]
    if not found:
        raise DataError(
            f"none of {len(bags)} bags is positive with known key instances: use mnist-collage, mnist-collage-inv or "
            "bag files with a dataset 'key_instances'"
        )
    return found


def bag_aurocs(
    model: MILModel, bags: Sequence[Bag], *, gradient_bags: int = 0, progress: Callable[[], None] | None = None
) -> dict[str, np.ndarray]:
    """AUROC of every instance score within each bag; integrated gradients only for the first `gradient_bags` bags."""
    found: dict[str, list[float]] = {}
    for number, bag in enumerate(bags):
        assert bag.key_instances is not None
        key = bag.key_instances.numpy()
        account = Account(model, bag)
        scores = {}
        if account.structure is not None:
            explanation = account.explain(method="exact", top=0)
            scores = dict(explanation.scores) | {ABSOLUTE: explanation.contributions.abs()}
        elif (own := account.explain_attention()) is not None:
            scores["attention"] = own
        if number < gradient_bags:
            scores[GRADIENTS] = account.explain(method="integrated-gradients", attention=False).contributions
        for name, score in scores.items():
            found.setdefault(name, []).append(float(auroc(score.double().cpu().numpy(), key)[0]))
        if progress:
            progress()
    return {name: np.array(values) for name, values in found.items()}


def key_scores(
    name: str,
    models: Sequence[MILModel],
    bags: Sequence[Bag],
    *,
    gradient_bags: int = 0,
    resamples: int = 2000,
    progress: Callable[[], None] | None = None,
) -> list[KeyScore]:
    """Every score of the seeds of one run, best first."""
    bags = usable(bags)
    tables = [bag_aurocs(model, bags, gradient_bags=gradient_bags, progress=progress) for model in models]
    patients = [bag.patient_id or bag.bag_id for bag in bags]
    rows = []
    for score in tables[0]:
        values = np.stack([table[score] for table in tables])  # [seeds, bags]
        mine = patients[: values.shape[1]]  # integrated gradients: of the first bags only
        low, high = mean_over_patients(values.mean(0), mine, resamples)
        seeds = tuple(float(v) for v in values.mean(1))
        rows.append(KeyScore(name, score, seeds, low, high, values.shape[1]))
    return sorted(rows, key=lambda row: -row.mean)
