"""CLAM: gated attention whose strongest and weakest instances also learn to be told apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.linear import per_run
from dasmil.types import Output

InstanceLoss = Literal["svm", "ce"]
HARD_FROM = math.log(1000)


def svm_loss(scores: Tensor, target: Tensor) -> Tensor:
    """The smooth top-1 SVM of scores [..., 2], margin and temperature 1; its hard form where they are far apart."""
    right = scores.gather(-1, target.unsqueeze(-1))
    margins = scores + 1 - F.one_hot(target, 2) - right
    apart = (scores[..., 0] - scores[..., 1]).abs() >= HARD_FROM
    return torch.where(apart, margins.amax(-1), margins.logsumexp(-1))


def instance_loss(kind: str, scores: Tensor, target: int, real: Tensor) -> Tensor:
    """Sum of the losses of instances [..., k] with scores [..., k, 2] that count (real)."""
    targets = torch.full(scores.shape[:-1], target, dtype=torch.int64, device=scores.device)
    if kind == "svm":
        losses = svm_loss(scores, targets)
    else:
        losses = -scores.log_softmax(-1)[..., target]
    return (losses * real).sum(-1)


class CLAMAggregator(nn.Module):
    """h_i = ReLU(W_0 z_i + b_0); s_i = W_c (tanh(W_a h_i + b_a) * sigmoid(W_b h_i + b_b)) + b_c; m_k = sum_i A_ki h_i.

    z [..., n, f] -> [..., branches * features]; A_k = softmax_i(s_ik); scores A [..., branches, n].
    """

    def __init__(
        self, in_features: int, features: int, hidden: int, branches: int, classes: int, dropout: float,
        sampled: int, kind: str, weight: float, subtyping: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.enter = Linear(in_features, features)
        self.tanh, self.gate = Linear(features, hidden), Linear(features, hidden)
        self.weight = Linear(hidden, branches)
        self.instances = Linear(features, 2 * classes)
        self.dropout, self.sampled, self.kind = dropout, sampled, kind
        self.classes, self.instance_weight, self.subtyping = classes, weight, subtyping

    def _drop(self, x: Tensor, p: float) -> Tensor:
        return dropout(x, p, self.training)

    def attend(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """h [..., n, features], scores [..., branches, n] and attention, their softmax."""
        h = self._drop(self.enter(z).relu(), self.dropout)
        inside = 0.25 if self.dropout else 0.0
        a, g = self._drop(self.tanh(h).tanh(), inside), self._drop(self.gate(h).sigmoid(), inside)
        scores = self.weight(a * g).mT
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-2), float("-inf"))
        return h, scores, scores.softmax(-1)

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h, scores, attention = self.attend(z, mask)
        return Aggregated(
            (attention @ h).flatten(-2),
            instance_scores=attention if attention.shape[-2] > 1 else attention.squeeze(-2),
            label_losses=self.instance_weight * self._label_losses(h, scores, mask) if self.instance_weight else None,
            bag_weight=1 - self.instance_weight,
        )

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, branches * features]."""
        h, _, attention = self.attend(z, None)
        return (attention.mT.unsqueeze(-1) * h.unsqueeze(-2)).flatten(-2)

    def _label_losses(self, h: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
        """[..., classes]: the instance loss of a bag for every class that its label could be.

        Of the label's class the strongest instances are in it and the weakest are not; with subtyping the strongest of
        the other classes are not in these. Which instances these are is not differentiated.
        """
        top = min(self.sampled, h.shape[-2])
        count = scores.new_full(scores.shape[:-2], h.shape[-2]) if mask is None else mask.sum(-1)
        real = torch.arange(top, device=h.device) < count[..., None, None].clamp(max=top)  # [..., 1, top]
        weakest = scores.masked_fill(scores == float("-inf"), float("inf"))
        every = self.instances(h).unflatten(-1, (self.classes, 2)).transpose(-2, -3)  # [..., classes, n, 2]

        def chosen(of: Tensor, largest: bool) -> Tensor:
            index = of.detach().topk(top, -1, largest=largest).indices
            index = index.expand(*index.shape[:-2], self.classes, top)
            return every.gather(-2, index.unsqueeze(-1).expand(*index.shape, 2))

        strong, weak = chosen(scores, True), chosen(weakest, False)
        size = real.sum(-1)
        own = (instance_loss(self.kind, strong, 1, real) + instance_loss(self.kind, weak, 0, real)) / (2 * size)
        if not self.subtyping:
            return own
        other = instance_loss(self.kind, strong, 0, real) / size
        return (own + other.sum(-1, keepdim=True) - other) / self.classes


class BranchClassifier(nn.Module):
    """logit_c = w_c . m_c + b_c, a row for each class; for two classes in one logit, that of class 1 minus class 0."""

    def __init__(self, features: int, classes: int, logits: int) -> None:
        super().__init__()
        rows = Linear(features, classes)
        self.row_weight, self.row_bias = rows.weight, rows.bias
        self.features, self.classes, self.logits = features, classes, logits

    def _joined(self, z: Tensor) -> Tensor:
        """Logits of the classes along the first dimension of z, as the model gives them."""
        return z if self.logits == self.classes else z[1:] - z[:1]

    @property
    def weight(self) -> Tensor:
        """[logits, classes * features], as a linear layer on all branches would have it."""
        return self._joined(torch.block_diag(*self.row_weight.split(1)))

    @property
    def bias(self) -> Tensor:
        return self._joined(self.row_bias)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[:-1]
        m = x.unflatten(-1, (self.classes, self.features))
        z = (m * per_run(self.row_weight, 2, batch)).sum(-1) + per_run(self.row_bias, 1, batch)
        return self._joined(z.movedim(-1, 0)).movedim(0, -1)


class CLAMSB(MILModel):
    """CLAM with a single attention branch: logits = W m + b of m = sum_i softmax_i(s_i) h_i.

    The loss is 0.7 x bag loss + 0.3 x instance loss (instance_weight; 0 leaves it out): the ``sampled`` instances with
    the largest attention are told from those with the smallest by a classifier of the label's class; with subtyping
    also from those that other classes attend to. instance_loss: the smooth SVM of the published commands, or "ce".
    Targets that are no class (``outputs``) have no instance loss: there is no class that instances could be in.
    A bag with fewer instances than ``sampled`` gives all of them to both sides (the published program fails there).
    """

    name = "clam-sb"
    paper = "Lu et al. 2021, Data-efficient and weakly supervised computational pathology on whole-slide images"
    idle_parameters = ("aggregator.weight.bias",)
    multi_branch: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {}}

    def __init__(
        self,
        *,
        features: Size = 512,
        hidden: Size = 256,
        dropout: Probability = 0.25,
        sampled: Count = 8,
        instance_loss: InstanceLoss = "svm",
        instance_weight: Probability = 0.3,
        subtyping: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        classes = self.n_classes if self.outputs is None else self.outputs
        self.aggregator = CLAMAggregator(
            self.encoded, features, hidden, classes if self.multi_branch else 1, classes, dropout,
            sampled, instance_loss, instance_weight if self.outputs is None else 0.0, subtyping,
        )  # fmt: skip
        if self.multi_branch:
            self.classifier = BranchClassifier(features, classes, self.n_logits)
        else:
            self.classifier = self.make_classifier(features)


class CLAMMB(CLAMSB):
    """CLAM with one attention branch for each class: logit_c = w_c . m_c + b_c.

    Two classes are one logit, that of class 1 minus that of class 0, which has the same loss and probability. The
    instance scores are the attention of the predicted class.
    """

    name = "clam-mb"
    multi_branch: ClassVar[bool] = True

    def forward(
        self, features: Tensor, coords: Tensor, mask: Tensor | None = None, section: Tensor | None = None
    ) -> Output:
        output = super().forward(features, coords, mask, section)
        if self.outputs == 1:  # one branch
            return output
        assert output.instance_scores is not None
        several = output.logit.ndim > output.instance_scores.ndim - 2
        predicted = output.logit.argmax(-1) if several else (output.logit > 0).long()
        scores = output.instance_scores
        index = predicted[..., None, None].expand(*scores.shape[:-2], 1, scores.shape[-1])
        return replace(output, instance_scores=scores.gather(-2, index).squeeze(-2))
