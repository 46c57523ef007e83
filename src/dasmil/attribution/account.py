"""One model and one bag: the account of its logit, and of what any single instance looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dasmil.attribution.combined import added
from dasmil.attribution.contributions import LayerSplit, place, pooling_weights, split_layer
from dasmil.attribution.deciding import DecidingRows, Partner, Sides
from dasmil.attribution.gradients import integrated_gradients, target_logit
from dasmil.attribution.groups import Grouping, groupings
from dasmil.attribution.layers import PlainPooling, Stack, WeightedPooling, read_structure
from dasmil.attribution.rows import PairAttention
from dasmil.errors import InputError, unknown_name
from dasmil.models.base import MILModel
from dasmil.models.combined import ModelSum
from dasmil.nn.evidence import NonNegativeLinear, PairEvidence
from dasmil.types import Bag, Explanation, Pair, PairSum

METHODS = ("auto", "exact", "integrated-gradients")
MOST_FOR_ATTENTION = 20_000  # above this, the attention of *all* rows (n^2 pairs) is computed only when asked for


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
        self.members: list[tuple[float, Account]] = []
        if isinstance(model, ModelSum):
            self.members = [(weight, Account(member, bag)) for weight, member in model.members]
            stacks = [own.structure for _, own in self.members if isinstance(own.structure, Stack)]
            self.structure = stacks[0] if stacks else None  # what an instance attends to: of the first that has pairs
        else:
            with torch.no_grad():
                self.structure = read_structure(model, self.features, self.coords, self.section)
        self.deciding: DecidingRows | None = None

    def explain(
        self, *, method: str = "auto", target: int | None = None, top: int = 100, attention: bool | None = None
    ) -> Explanation:
        """The account; see `dasmil.attribution.explain`."""
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        if top < 0:
            raise InputError(f"top is {top}, expected how many pairs to list: 0 or more")
        if isinstance(self.model, ModelSum):
            return self._combined(self.model, method, target, top, attention)
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

    def _combined(
        self, model: ModelSum, method: str, target: int | None, top: int, attention: bool | None
    ) -> Explanation:
        """The weighted sum of the members' accounts of the same target."""
        logits = self.logits()
        target = self._target(logits, target)
        parts = [
            (weight, own.explain(method=method, target=target, top=top, attention=attention))
            for weight, own in self.members
        ]
        single = model.n_logits == 1
        sign = 1.0 if not single or target == 1 else -1.0
        like = Explanation(
            bag_id=self.bag.bag_id, unit=self.bag.unit, method="exact", target=target,
            logit=float(target_logit(logits, target, model.n_logits)), bias=0.0, residual=0.0,
            contributions=torch.zeros_like(self.coords[:, 0]),
        )  # fmt: skip
        return added(parts, like, sign * float(model.bias[0 if single else target].detach()), top)

    def logits(self) -> Tensor:
        """What the model says about the bag: one logit for each class, a single one for two."""
        with torch.no_grad():
            if self.structure is None or self.members:
                return self.model(self.features, self.coords, section=self.section).logit
            return self.model.classifier(self.structure.pooled())

    def _target(self, logits: Tensor, target: int | None) -> int:
        outputs = self.model.n_logits
        if target is None:
            return 1 if outputs == 1 else int(logits.argmax(-1))
        classes = max(2, outputs)
        if not 0 <= target < classes:
            raise InputError(f"target is class {target}, but the model knows the classes 0 to {classes - 1}")
        return target

    def _split(self, structure: Stack | PlainPooling | WeightedPooling, target: int | None, top: int) -> Explanation:
        logits = self.model.classifier(structure.pooled())
        target = self._target(logits, target)
        w, b = self._classifier(target)
        logit = target_logit(logits, target, self.model.n_logits).squeeze()
        scores: dict[str, Tensor] = {}
        distance = share = None
        sums: dict[str, tuple[PairSum, ...]] = {}
        pairs: tuple[Pair, ...] = ()
        if isinstance(structure, Stack):
            groups = groupings(self.bag, self.coords, self.section)
            if not any(layer.uses_distance for layer in structure.layers):
                groups.pop("distance", None)
            contributions, distance, taken, share, last = self._split_stack(structure, w, top, list(groups.values()))
            pairs = last.pairs
            sums = {name: g.sums(total) for (name, g), total in zip(groups.items(), last.grouped, strict=True)}
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
            sums=sums,
        )

    def _split_stack(
        self, stack: Stack, w: Tensor, top: int, groups: Sequence[Grouping]
    ) -> tuple[Tensor, Tensor, Tensor, float, LayerSplit]:
        """Contributions, their distance part and what was taken [n], distance share, and the split of the last layer.

        The weights go down layer by layer: the features part of a layer belongs to the values of the layer below. What
        is left are pairs: the embedding parts of all layers and the features part of the first, each with two ends.
        """
        winners = stack.output().argmax(0) if stack.pooling == "max" else None
        weights = stack.row_weights(w)
        distance, constant, taken = (torch.zeros_like(self.coords[:, 0]) for _ in range(3))
        absolute_distance = absolute_constant = 0.0
        last = split = None
        for number in reversed(range(len(stack.layers))):
            attention = stack.layers[number]
            by_head = weights.unflatten(-1, (attention.heads, -1)).transpose(0, 1)
            upper = last is None
            split = split_layer(
                attention, by_head, top=top if upper else 0, below=number > 0, groupings=groups if upper else ()
            )
            if last is None:
                last = split
                self.deciding = DecidingRows(winners, split.rows, by_head)
            distance, constant = distance + split.distance_both, constant + split.constant_both
            taken = taken + split.distance + split.constant
            absolute_distance += split.absolute_distance
            absolute_constant += split.absolute_constant
            if split.below is not None:
                weights = split.below.transpose(0, 1).flatten(1) @ stack.value_weights[number]
        assert split is not None
        assert last is not None
        total = split.absolute_features + absolute_distance + absolute_constant
        share = absolute_distance / total if total else 0.0
        return split.features_both + distance + constant, distance, taken + split.features, share, last

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
            logit=float(target_logit(logits, target, self.model.n_logits)),
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
        return 0 if self.deciding is None else sum(len(index) for index, _ in self.deciding.rows)

    def attention_layer(self, layer: int = -1) -> PairAttention:
        """The layer whose rows can be asked for; only models with attention between instances have one."""
        if not isinstance(self.structure, Stack):
            raise InputError(
                f"{self.model.name} has no attention between instances, so an instance has no partners: "
                "use das-mil, sa or disc-rel-sa"
            )
        return self.structure.layers[layer]

    def partners(self, i: int, top: int = 20, layer: int = -1) -> list[Partner]:
        """What instance i attends to: one row per head, O(n).

        First the largest weights; of a row that decided, once the account has been made, the largest parts of the
        logit, which even weights do not tell.
        """
        attention = self.attention_layer(layer)
        n, i = attention.n, self._existing(i)
        found = []
        last = layer in (-1, len(self.structure.layers) - 1) if isinstance(self.structure, Stack) else False
        with torch.no_grad():
            for head in range(attention.heads):
                rows = attention.rows(head, torch.tensor([i], device=self.coords.device))
                contribution = None
                if self.deciding is not None and last:
                    contribution = self.deciding.row_parts(attention, rows, i)
                given = rows.weights[0] if contribution is None or not contribution.any() else contribution.abs()
                found += [
                    Partner(
                        j=j,
                        head=head,
                        weight=float(rows.weights[0, j]),
                        contribution=None if contribution is None else float(contribution[j]),
                        **place(attention, rows, 0, j),
                    )
                    for j in given.topk(min(top, n)).indices.tolist()
                ]
        decided = any(p.contribution for p in found)
        return sorted(found, key=lambda p: -abs(p.contribution or 0) if decided else -p.weight)[:top]

    def watchers(self, j: int, top: int = 20) -> list[Partner]:
        """The deciding rows that look at instance j, by what that gave: O(rows) after the account has been made."""
        with torch.no_grad():
            return self._decided().watchers(self.attention_layer(), self._existing(j), top)

    def sides(self, i: int) -> Sides:
        """What instance i took as a row and what was taken from it: its contribution from both sides."""
        with torch.no_grad():
            return self._decided().sides(self.attention_layer(), self._existing(i))

    def _existing(self, i: int) -> int:
        if not 0 <= i < len(self.bag):
            raise InputError(
                f"instance {i} does not exist: bag {self.bag.bag_id!r} has instances 0 to {len(self.bag) - 1}"
            )
        return i

    def _decided(self) -> DecidingRows:
        if self.deciding is None:
            raise InputError("which rows decided is not known yet: call explain() first")
        return self.deciding

    def restore(self, winners: Tensor | None, rows: Sequence[tuple[Tensor, Tensor]], target: int) -> None:
        """Know the deciding rows of an earlier account of the same model and bag, without computing them again."""
        stack = self.structure
        assert isinstance(stack, Stack)
        w, _ = self._classifier(target)
        f = len(w)
        if stack.pooling == "max":
            assert winners is not None
            weights = w.new_zeros(len(self.bag), f)
            weights[winners, torch.arange(f, device=w.device)] = w
        else:
            weights = (w if stack.pooling == "sum" else w / len(self.bag)).expand(len(self.bag), f)
        by_head = weights.detach().unflatten(-1, (stack.layers[-1].heads, -1)).transpose(0, 1)
        layer = stack.modules[-1]
        if isinstance(layer, PairEvidence):
            by_head = by_head.clone()
            for head, (index, norm) in enumerate(rows):
                by_head[head, index, 0] *= (norm - layer.threshold[head].detach()).sigmoid()
        self.deciding = DecidingRows(winners, tuple(rows), by_head)

    def _classifier(self, target: int) -> tuple[Tensor, Tensor]:
        """Weights [f] and bias of the logit of one class; of two classes, class 0 has the negative of the logit."""
        classifier = self.model.classifier
        weight = classifier.used_weight if isinstance(classifier, NonNegativeLinear) else classifier.weight
        bias = classifier.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        if self.model.n_logits == 1:
            sign = 1.0 if target == 1 else -1.0
            return sign * weight[0], sign * bias[0]
        return weight[target], bias[target]


def check_fit(model: MILModel, bag: Bag) -> None:
    """One clear error when the bag is not what the model was made for."""
    if not isinstance(model, MILModel) or not isinstance(bag, Bag):
        found = f"{type(model).__name__} and {type(bag).__name__}"
        raise InputError(f"{found} were given, expected a model (dasmil.load_model reads one) and a dasmil.Bag")
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
    bag.need_finite_features()
