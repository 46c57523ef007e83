"""FEATHER's model: the gated attention of MIL-Lab, for which pretrained weights exist."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Probability, Size
from dasmil.nn.gated import GatedBranches


class GatedPooling(GatedBranches):
    """sum_i softmax_i(s_i) h_i with the scores of one gated branch [..., features]."""

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        h, scores = self.attend(z, mask)
        attention = scores.softmax(-1)
        return Aggregated((attention @ h).squeeze(-2), instance_scores=attention.squeeze(-2))

    def parts(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Tensor:
        """What each instance of one bag adds to the embedding [n, features]."""
        h, scores = self.attend(z, None)
        return scores.softmax(-1).mT * h


class Feather(MILModel):
    """Gated attention on h_i = ReLU(W z_i + b) with 512 features and 384 hidden units; dropout on both factors.

    The ABMIL of MIL-Lab, whose weights pretrained on 24,000 slides are named FEATHER; ``dasmil.load_published`` reads
    them. The repository has no training settings.
    """

    name = "feather"
    paper = "Shao et al. 2025, Do multiple instance learning models transfer? (FEATHER)"
    idle_parameters = ("aggregator.weight.bias",)

    def __init__(
        self, *, features: Size = 512, hidden: Size = 384, dropout: Probability = 0.25, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(**common)
        self.aggregator = GatedPooling(self.encoded, features, hidden, inside=dropout)
        self.classifier = self.make_classifier(features)
        for part in (self.aggregator, self.classifier):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
                    nn.init.zeros_(module.bias)
