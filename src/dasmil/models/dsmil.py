"""DSMIL: the most suspicious instance asks all others how alike they are."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Probability, Size
from dasmil.nn import Linear
from dasmil.nn.draws import dropout


class DSMILAggregator(nn.Module):
    """c_i = W z_i + b; k_c = argmax_i c_ic; A_ic = softmax_i(q(z_i) . q(z_{k_c}) / sqrt(d)); B_c = sum_i A_ic v(z_i).

    z [..., n, f] -> B [..., logits * f]; the side logit is max_i c_ic.
    """

    def __init__(
        self, features: int, hidden: int, logits: int, nonlinear: bool, value_layer: bool, dropout: float
    ) -> None:
        super().__init__()
        self.instances = Linear(features, logits)
        self.query = Linear(features, hidden)
        self.query2 = Linear(hidden, hidden) if nonlinear else None
        self.value = Linear(features, features) if value_layer else None
        self.dropout = dropout

    def attend(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Instance logits [..., n, c], attention [..., c, n] and values [..., n, f]."""
        logits = self.instances(z)
        if mask is not None:
            logits = logits.masked_fill(~mask.unsqueeze(-1), float("-inf"))
        q = self.query(z)
        if self.query2 is not None:
            q = self.query2(q.relu()).tanh()
        critical = logits.detach().argmax(-2).unsqueeze(-1)  # the gradient passes through q of it, not through which
        asked = q.gather(-2, critical.expand(*critical.shape[:-1], q.shape[-1]))
        scores = asked @ q.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-2), float("-inf"))
        v = z
        if self.value is not None:
            v = self.value(dropout(z, self.dropout, self.training)).relu()
        return logits, scores.softmax(-1), v

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        logits, attention, v = self.attend(z, mask)
        most = logits.max(-2).values.unsqueeze(-2)
        return Aggregated(
            (attention @ v).flatten(-2),
            instance_scores=attention.mean(-2),
            side_logits=most.squeeze(-1) if most.shape[-1] == 1 else most,
            bag_weight=0.5,
            side_weight=0.5,
        )

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, logits * f]."""
        _, attention, v = self.attend(z, None)
        return (attention.mT.unsqueeze(-1) * v.unsqueeze(-2)).flatten(-2)


class DSMIL(MILModel):
    """DSMIL: half of the loss on the largest instance logit, half on the bag that its instance sees.

    Implements eqs. (3) to (8) of Li et al. (2021) with the two-layer queries of their program (nonlinear); the last
    layer sees the bag vectors of all classes. value_layer: v(z) = ReLU(W z + b) in place of z ("passing_v").
    Departs from the program: more than two classes have one logit each and cross entropy, where it has a sigmoid each.
    """

    name = "dsmil"
    paper = "Li et al. 2021, Dual-stream multiple instance learning network for whole slide image classification"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {}}

    def __init__(
        self,
        *,
        hidden: Size = 128,
        nonlinear: bool = True,
        value_layer: bool = False,
        dropout: Probability = 0.0,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        self.aggregator = DSMILAggregator(self.encoded, hidden, self.n_logits, nonlinear, value_layer, dropout)
        self.classifier = self.make_classifier(self.n_logits * self.encoded)
        for module in self.modules():
            if isinstance(module, Linear) and module is not getattr(self.encoder, "linear", None):
                nn.init.orthogonal_(module.weight)
                nn.init.zeros_(module.bias)
