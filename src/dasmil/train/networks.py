"""Candidates that are trained: attention over single instances, and DAS-MIL begun from a pair of types.

Each is trained on all folds at once (`crossfit.py`); the models of the folds together are what the candidate predicts
with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dasmil.candidates.folds import Fold, patient_weights
from dasmil.candidates.objective import Objective
from dasmil.candidates.ridge import fit_line
from dasmil.candidates.rules import PENALTY as RULE_PENALTY
from dasmil.candidates.rules import Rule, RuleKind, Scan, Type, rule_outputs, scan_bags
from dasmil.candidates.selection import patient_losses
from dasmil.candidates.whitening import Directions
from dasmil.models import create_model
from dasmil.models.base import MILModel
from dasmil.nn import Linear
from dasmil.train.crossfit import FoldFit, Recipe, train_folds
from dasmil.train.distances import Lengths, measure_lengths
from dasmil.train.evaluate import model_outputs
from dasmil.train.feed import Feed
from dasmil.train.loss import Loss
from dasmil.types import Bag

Array = NDArray[np.float64]
FEATURES, HIDDEN = 64, 32
"""Sizes of the attention model: encoded features and hidden units."""
COMPONENTS = 256
"""Wider features are read in so many principal components: they hold nearly all variance and train faster."""
AB_MIL = Recipe(epochs=30, lr=5e-4, weight_decay=1e-3, accumulate=8, patience=6)
DAS_MIL = Recipe(epochs=40, lr=5e-3, weight_decay=1e-2, accumulate=4, instances=1000, patience=5, clip=1.0)
ENOUGH = 0.05
"""A candidate whose out-of-fold loss is below this share of a constant guess leaves nothing to gain."""
SAMPLED = 25_000
"""Instances from which principal components are computed."""
OUTPUTS = 16
"""Outputs of attention in DAS-MIL."""
STEEPNESS = 5.0
"""beta x theta, as in the paper."""


@dataclass(frozen=True, eq=False)
class NetworkFit:
    """Out-of-fold outputs [bags, outputs] of a candidate, and its models, whose mean it predicts."""

    outputs: Array
    models: list[MILModel]
    epoch: int


@dataclass(frozen=True, eq=False)
class Setting:
    """What all networks of a training share."""

    feed: Feed
    objective: Objective
    loss: Loss
    folds: Sequence[Fold]
    constant_loss: float
    """The out-of-fold loss of a constant guess."""
    seed: int

    @property
    def patients(self) -> list[str]:
        return self.feed.facts.patients

    @property
    def shape(self) -> dict[str, Any]:
        """The option of a model that says how many outputs it has."""
        labels = self.feed.facts.task.labels
        return {"outputs": self.objective.outputs} if labels is None else {"n_classes": len(labels.classes)}

    def train(self, models: Sequence[MILModel], feed: Feed, recipe: Recipe) -> FoldFit:
        lesson = self.loss.lesson(feed.facts, lambda: np.zeros((len(models), len(feed.facts.ids), 1)), feed.device)
        return train_folds(
            models, feed, lesson, patient_weights(self.patients), [fold.held for fold in self.folds], recipe,
            losses=self.objective.losses, outputs=self.objective.outputs, enough=ENOUGH * self.constant_loss,
            seed=self.seed,
        )  # fmt: skip

    @torch.no_grad()
    def begin_constant(self, model: MILModel) -> MILModel:
        assert isinstance(model.classifier, Linear)
        assert model.classifier.bias is not None
        model.classifier.bias.copy_(torch.from_numpy(self.objective.guess()))
        return model


class Projection:
    """Standardised features in principal components: x -> (x - mean) / spread @ axes; axes: identity where few."""

    def __init__(self, bags: Sequence[Bag]) -> None:
        rng = np.random.default_rng(0)
        each = max(20, SAMPLED // len(bags))
        rows = [
            bags[i].features[torch.from_numpy(rng.permutation(len(bags[i]))[:each])].float() for i in range(len(bags))
        ]
        some = torch.cat(rows)
        self.mean, spread = some.mean(0), some.std(0)
        self.scale = torch.where(spread > 1e-6 * spread.max(), 1 / spread.clamp_min(1e-12), torch.zeros(()))
        self.axes: Tensor | None = None
        if some.shape[1] > COMPONENTS:
            x = (some - self.mean) * self.scale
            self.axes = torch.linalg.eigh(x.T @ x).eigenvectors[:, -COMPONENTS:].contiguous()

    @property
    def width(self) -> int:
        return len(self.mean) if self.axes is None else self.axes.shape[1]

    def read(self, features: Tensor) -> Tensor:
        x = (features.float() - self.mean) * self.scale
        return x if self.axes is None else x @ self.axes

    @torch.no_grad()
    def unfolded(self, model: MILModel) -> MILModel:
        """The same model for features as they are: the projection becomes part of its first layer."""
        made = create_model(model.name, **{**model.config, "in_features": len(self.mean)})
        state = model.state_dict()
        weight = state["encoder.linear.weight"]
        weight = (weight if self.axes is None else weight @ self.axes.T) * self.scale
        state["encoder.linear.weight"] = weight
        state["encoder.linear.bias"] = state["encoder.linear.bias"] - weight @ self.mean
        made.load_state_dict(state)
        return made.eval()


class Read(Sequence[Bag]):
    """Bags with their features read anew, and at most so many random instances of each."""

    def __init__(self, bags: Sequence[Bag], read: Callable[[Tensor], Tensor], most: int) -> None:
        self.bags, self.read, self.most = bags, read, most

    def __len__(self) -> int:
        return len(self.bags)

    def __getitem__(self, index: int) -> Bag:  # pyright: ignore[reportIncompatibleMethodOverride]
        bag = self.bags[index]
        if len(bag) > self.most:
            kept = np.sort(np.random.default_rng(index).permutation(len(bag))[: self.most])
            some = torch.from_numpy(kept)
            section = None if bag.section is None else bag.section[some]
            bag = Bag(
                bag.features[some], bag.coords[some], bag.unit, bag.bag_id, bag.label, bag.patient_id, section=section,
                targets=bag.targets,
            )  # fmt: skip
        return replace(bag, features=self.read(bag.features))


def read_feed(feed: Feed, read: Callable[[Tensor], Tensor], width: int, memory_gb: float) -> Feed:
    """The bags with features [n, width] in memory; of larger sets so many random instances as fit."""
    most = int(memory_gb * 2**30 / (4 * width * len(feed.facts.ids)))
    bags = list(Read(feed.bags, read, max(most, 1000)))
    made = Feed(bags, feed.device, memory_gb=float("inf"), task=feed.facts.task)
    made.facts = replace(made.facts, task=feed.facts.task)
    return made


def train_ab_mil(setting: Setting, memory_gb: float) -> NetworkFit:
    """Gated attention over single instances, on all features."""
    projection = Projection(setting.feed.bags)
    feed = read_feed(setting.feed, projection.read, projection.width, memory_gb)
    models = []
    for number in range(len(setting.folds)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(setting.seed, number))
            model = create_model(
                "gated-ab-mil", in_features=projection.width, encoder="linear-relu", encoder_features=FEATURES,
                encoder_dropout=0.25, hidden=HIDDEN, unit=feed.facts.unit, **setting.shape,
            )  # fmt: skip
        models.append(setting.begin_constant(model))
    fitted = setting.train(models, feed, AB_MIL)
    return NetworkFit(fitted.outputs, [projection.unfolded(model) for model in fitted.models], fitted.epoch)


DAS_OPTIONS: dict[str, dict[str, object]] = {
    "near": {"pooling": "max"},
    "within": {"pooling": "mean", "heads": 2, "self_pair": True},
    "count": {"pooling": "sum", "heads": 2, "self_pair": True},
}
"""A near pair decides by itself; how many instances lie near others is a mean (or a sum) over all of them, less what a
second head knows of the whole bag."""


@dataclass(frozen=True, eq=False)
class Attention:
    """Whitened bags with the numbers that DAS-MIL can be begun from."""

    feed: Feed
    directions: Directions
    scan: Scan
    lengths: Lengths

    @staticmethod
    def of(feed: Feed, directions: Directions, memory_gb: float) -> Attention:
        read = read_feed(feed, directions.read, len(directions), memory_gb)
        scan = scan_bags([read.bags[i] for i in range(len(read.bags))], directions)
        return Attention(read, directions, scan, measure_lengths(read))


def train_das_mil(setting: Setting, known: Attention, kind: RuleKind) -> NetworkFit | None:
    """DAS-MIL from the best rule of a kind in every fold; None where the rules are no better than a constant guess."""
    objective, columns = setting.objective, known.scan.kinds[kind]
    rules, outputs = rule_outputs(columns, objective, setting.patients, setting.folds)
    if float(patient_losses(objective, outputs, setting.patients).mean()) >= setting.constant_loss:
        return None
    options = {
        "encoder": "whitened", "encoder_features": 2, "in_features": len(known.directions), "hidden": 10,
        "out_features": OUTPUTS, "self_pair": False, "unit": known.feed.facts.unit,
        "distance_scale": 2 * known.lengths.at(0.5), **DAS_OPTIONS[kind], **setting.shape,
    }  # fmt: skip
    models = [
        _begun(setting, known, rule, options, fold.rest, _seed(setting.seed, number))
        for number, (rule, fold) in enumerate(zip(rules, setting.folds, strict=True))
    ]
    fitted = setting.train(models, known.feed, DAS_MIL)
    return NetworkFit(fitted.outputs, [_unread(model, known.directions) for model in fitted.models], fitted.epoch)


def _begun(
    setting: Setting, known: Attention, rule: Rule, options: Mapping[str, Any], rows: NDArray[np.int64], seed: int
) -> MILModel:
    """A model that says what the rule says, calibrated on these bags."""
    feed = known.feed.part(rows.tolist())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        length = rule.length / float(options["distance_scale"])
        model = create_model("das-mil", **options, theta_init=length, beta_init=STEEPNESS / length)
    with torch.no_grad():
        seen, zero = reading(rule.types, len(known.directions))
        model.encoder.directions.copy_(seen)  # pyright: ignore
        model.encoder.mean.copy_(zero)  # pyright: ignore
    first, second = torch.eye(2)[0], torch.eye(2)[len(rule.types) - 1]
    instances = float(np.median(feed.facts.sizes))
    if rule.kind == "near":
        begun = model.begin_near(first, second, rule.length, instances)
    else:
        looks = None if rule.first is None else first
        begun = model.begin_within(looks, second, rule.length, instances, rule.second.share)
    assert begun
    _calibrate(model, feed, setting.objective.part(rows), feed.facts.patients)
    return model


@torch.no_grad()
def _calibrate(model: MILModel, feed: Feed, objective: Objective, patients: Sequence[str]) -> None:
    """Scale and shift the first output of attention so that the model says what these bags ask for."""
    last = model.classifier
    assert isinstance(last, Linear)
    assert last.bias is not None
    logits = model_outputs([model], feed)[0][:, 0]
    centre, spread = logits.mean(), max(float(logits.std()), 1e-6)
    x = ((logits - centre) / spread)[:, None]
    line = fit_line(x, objective, patient_weights(patients), RULE_PENALTY)
    scale = (line.weights @ objective.link)[0] / spread
    first = last.weight[:1].clone()
    start = float(last.bias[0])
    last.weight.copy_(torch.from_numpy(scale)[:, None].to(first) * first)
    last.bias.copy_(torch.from_numpy(line.constant + scale * (start - centre)))
    model.train()


def reading(types: Sequence[Type], directions: int) -> tuple[Tensor, Tensor]:
    """What a model reads of whitened directions [k, 2], and where that is 0 [k]: of every type a number that is 1 at
    its place and about 0 for all other instances.
    """
    seen, constants = torch.zeros(directions, 2), torch.zeros(2)
    for column, kind in enumerate(types):
        weights, constants[column] = kind.reading
        seen[: len(weights), column] = torch.from_numpy(weights)
    return seen, -_reaching(constants, seen)


@torch.no_grad()
def _unread(model: MILModel, directions: Directions) -> MILModel:
    """The same model for features as they are: the directions become part of its encoder."""
    state = model.state_dict()
    seen, zero = state["encoder.directions"], state["encoder.mean"]
    read = directions.axes.to(seen) @ seen
    state["encoder.mean"] = directions.mean.to(zero) + _reaching(zero @ seen, read)
    state["encoder.directions"] = read
    made = create_model(model.name, **{**model.config, "in_features": len(directions.mean)})
    made.load_state_dict(state)
    return made.eval()


def _reaching(values: Tensor, directions: Tensor) -> Tensor:
    """The shortest features [f] that are read as these values [k] in directions [f, k]."""
    return (values.double() @ torch.linalg.pinv(directions.double())).to(directions)


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]) >> 1
