"""One model and one bag: the account of its logit, and of what any single instance looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dasmil.attribution.contributions import LayerSplit, place, pooling_weights, split_layer
from dasmil.attribution.gradients import integrated_gradients, target_logit
from dasmil.attribution.layers import PlainPooling, Stack, WeightedPooling, read_structure
from dasmil.attribution.rows import PairAttention
from dasmil.errors import InputError, unknown_name
from dasmil.models.base import MILModel
from dasmil.types import Bag, Explanation, Pair

METHODS = ("auto", "exact", "integrated-gradients")
MOST_FOR_ATTENTION = 20_000  # above this, the attention of *all* rows (n^2 pairs) is computed only when asked for


@dataclass(frozen=True)
class Partner:
    """An instance j that instance i attends to; contribution: to the logit, None before the account has been made."""

    j: int
    head: int
    weight: float
    distance: float | None
    phi: float | None
    contribution: float | None


class Account:
    """What `explain` and `partners` share, computed once for a bag: encoded instances and the attention layers.

    The model is put into evaluation mode.
    """

    def __init__(self, model: MILModel, bag: Bag) -> None:
        check_fit(model, bag)
        self.model, self.bag = model.eval(), bag
        parameter = next(model.parameters())
        self.features = bag.features.to(parameter)
        self.coords = bag.coords.to(parameter)
        self.section = None if bag.section is None else bag.section.to(parameter.device)
        with torch.no_grad():
            self.structure = read_structure(model, self.features, self.coords, self.section)
        self._row_weights: tuple[int, Tensor] | None = None

    def explain(
        self, *, method: str = "auto", target: int | None = None, top: int = 100, attention: bool | None = None
    ) -> Explanation:
        """The account; see `dasmil.attribution.explain`."""
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        structure = self.structure
        if method == "exact" and structure is None:
            raise InputError(
                f"{self.model.name} has no exact split of its logit: use method='integrated-gradients' (or 'auto')"
            )
        if method == "integrated-gradients" or structure is None:
            explanation = self._integrate(target)
        else:
            with torch.no_grad():
                explanation = self._split(structure, target, top)
        scores = dict(explanation.scores)
        received = self.explain_attention(attention)
        if received is not None:
            scores["attention"] = received
        return replace(explanation, scores=scores)

    def logits(self) -> Tensor:
        """What the model says about the bag: one logit for each class, a single one for two."""
        with torch.no_grad():
            if self.structure is None:
                return self.model(self.features, self.coords, section=self.section).logit
            return self.model.classifier(self.structure.pooled())

    def _target(self, logits: Tensor, target: int | None) -> int:
        classes = self.model.n_classes
        if target is None:
            return 1 if classes == 2 else int(logits.argmax(-1))
        if not 0 <= target < classes:
            raise InputError(f"target is class {target}, but the model knows the classes 0 to {classes - 1}")
        return target

    def _split(self, structure: Stack | PlainPooling | WeightedPooling, target: int | None, top: int) -> Explanation:
        weight, bias = self.model.classifier.weight, self.model.classifier.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        pooled = structure.pooled()
        logits = weight @ pooled + bias
        target = self._target(logits, target)
        if self.model.n_classes == 2:
            sign = 1.0 if target == 1 else -1.0
            w, b, logit = sign * weight[0], sign * bias[0], sign * logits[0]
        else:
            w, b, logit = weight[target], bias[target], logits[target]
        scores: dict[str, Tensor] = {}
        distance = share = None
        pairs: tuple[Pair, ...] = ()
        if isinstance(structure, Stack):
            contributions, distance, taken, share, last = self._split_stack(structure, w, target, top)
            pairs = last.pairs
            scores = {
                "support": last.support,
                "pairs": last.strength,
                "taken": taken,
                "winner-attention": last.given,
            }
        elif isinstance(structure, WeightedPooling):
            contributions = structure.weights * (structure.x @ w)
        else:
            contributions = (pooling_weights(structure.x, w, structure.pooling) * structure.x).sum(1)
        scores = {"contribution": contributions, **scores}
        if distance is not None and share:
            scores["distance"] = distance
        return Explanation(
            bag_id=self.bag.bag_id,
            unit=self.bag.unit,
            method="exact",
            target=target,
            logit=float(logit),
            bias=float(b),
            residual=float(logit.double() - b.double() - contributions.double().sum()),
            contributions=contributions,
            distance_part=distance,
            distance_share=share,
            pairs=pairs,
            scores=scores,
        )

    def _split_stack(
        self, stack: Stack, w: Tensor, target: int, top: int
    ) -> tuple[Tensor, Tensor, Tensor, float, LayerSplit]:
        """Contributions, their distance part and what was taken [n], distance share, and the split of the last layer.

        The weights go down layer by layer: the features part of a layer belongs to the values of the layer below. What
        is left are pairs: the distance parts of all layers and the features part of the first, each with two ends.
        """
        weights = pooling_weights(stack.output(), w, stack.pooling)
        distance, taken = torch.zeros_like(self.coords[:, 0]), torch.zeros_like(self.coords[:, 0])
        absolute_distance = 0.0
        last = split = None
        for number in reversed(range(len(stack.layers))):
            attention = stack.layers[number]
            by_head = weights.unflatten(-1, (attention.heads, -1)).transpose(0, 1)
            if last is None:
                self._row_weights = (target, by_head)
            split = split_layer(attention, by_head, top=top if last is None else 0, below=number > 0)
            last = last or split
            distance, taken = distance + split.distance_both, taken + split.distance
            absolute_distance += split.absolute_distance
            if split.below is not None:
                weights = split.below.transpose(0, 1).flatten(1) @ stack.value_weights[number]
        assert split is not None
        assert last is not None
        total = split.absolute_features + absolute_distance
        share = absolute_distance / total if total else 0.0
        return split.features_both + distance, distance, taken + split.features, share, last

    def _integrate(self, target: int | None) -> Explanation:
        with torch.no_grad():
            logits = self.model(self.features, self.coords, section=self.section).logit
        target = self._target(logits, target)
        path = integrated_gradients(self.model, self.features, self.coords, self.section, target=target)
        return Explanation(
            bag_id=self.bag.bag_id,
            unit=self.bag.unit,
            method="integrated-gradients",
            target=target,
            logit=float(target_logit(logits, target, self.model.n_classes)),
            bias=path.baseline_logit,
            residual=path.residual,
            contributions=path.attributions,
            scores={"contribution": path.attributions},
        )

    def explain_attention(self, wanted: bool | None = None) -> Tensor | None:
        """The attention that each instance receives [n], where the model has one; None: unless that is too slow."""
        if wanted is False:
            return None
        structure = self.structure
        if isinstance(structure, WeightedPooling):
            return structure.weights
        if isinstance(structure, Stack):
            return structure.layers[-1].attention_received() if wanted or len(self.bag) <= MOST_FOR_ATTENTION else None
        with torch.no_grad():
            return self.model(self.features, self.coords, section=self.section).instance_scores

    def rows_computed(self) -> int:
        """How many rows of the last attention layer the account needed; 0 before it was made."""
        return 0 if self._row_weights is None else int(self._row_weights[1].ne(0).any(-1).sum())

    def attention_layer(self, layer: int = -1) -> PairAttention:
        """The layer whose rows can be asked for; only models with attention between instances have one."""
        if not isinstance(self.structure, Stack):
            raise InputError(
                f"{self.model.name} has no attention between instances, so an instance has no partners: "
                "use das-mil, sa or disc-rel-sa"
            )
        return self.structure.layers[layer]

    def partners(self, i: int, top: int = 20, layer: int = -1) -> list[Partner]:
        """What instance i attends to, strongest first: one row per head, O(n)."""
        attention = self.attention_layer(layer)
        n = attention.n
        if not 0 <= i < n:
            raise InputError(f"instance {i} does not exist: bag {self.bag.bag_id!r} has instances 0 to {n - 1}")
        found = []
        last = layer in (-1, len(self.structure.layers) - 1) if isinstance(self.structure, Stack) else False
        with torch.no_grad():
            for head in range(attention.heads):
                rows = attention.rows(head, torch.tensor([i], device=self.coords.device))
                contribution = None
                if self._row_weights is not None and last:
                    g = self._row_weights[1][head, i]
                    contribution = attention.value[head] @ g
                    if rows.mix is not None and attention.value_embed is not None:
                        contribution = contribution + rows.mix.rows((attention.value_embed[head] @ g)[None])[0]
                    contribution = contribution * rows.weights[0]
                strongest = rows.weights[0].topk(min(top, n)).indices.tolist()
                found += [
                    Partner(
                        j=j,
                        head=head,
                        weight=float(rows.weights[0, j]),
                        contribution=None if contribution is None else float(contribution[j]),
                        **place(attention, rows, 0, j),
                    )
                    for j in strongest
                ]
        return sorted(found, key=lambda p: -p.weight)[:top]


def check_fit(model: MILModel, bag: Bag) -> None:
    """One clear error when the bag is not what the model was made for."""
    wanted = tuple(model.encoder.in_shape)
    found = tuple(bag.features.shape[1:])
    if found != wanted:
        made = f", made by {bag.metadata['encoder']}" if bag.metadata.get("encoder") else ""
        raise InputError(
            f"bag {bag.bag_id!r} has features of shape {found}{made}, but this {model.name} model was trained "
            f"on {wanted}: explain a bag whose features come from the same encoder as the training bags"
        )
    if bag.unit != model.unit and model.position != "none":
        raise InputError(
            f"bag {bag.bag_id!r} has coordinates in {bag.unit}, but this {model.name} model measures in "
            f"{model.unit}: explain a bag in the unit that the model was trained with"
        )
