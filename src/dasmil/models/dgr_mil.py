"""DGR-MIL: a class token and learned vectors of lesions read the bag; the vectors must differ."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.errors import InputError
from dasmil.models.bag_by_bag import BagByBag
from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Count, Probability
from dasmil.models.transmil import Features, TransLayer
from dasmil.nn import Linear
from dasmil.nn.draws import dropout
from dasmil.nn.initial import torch_default
from dasmil.nn.multihead import MultiHead
from dasmil.nn.nystrom import LayerNorm

HEADS = 8
WEIGHT = 0.1
"""Of each of the two losses beside the bag's."""
KEPT = 0.4
"""What a centre keeps of itself when a bag of its class comes."""
TINY = 1e-10


class NystromBlock(nn.Module):
    """LN(t + Nystrom(LN(t)))."""

    def __init__(self, features: int, dropout: float) -> None:
        super().__init__()
        self.layer, self.norm = TransLayer(features, dropout), LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


class DGRAggregator(BagByBag):
    """X = phi(z), G = phi(vectors); token and G attend to the encoded X; LN(Lin(.)) of the token [features]."""

    def __init__(self, in_features: int, features: int, vectors: int, dropout: float, *, centres: bool) -> None:
        super().__init__()
        self.first, self.second = Linear(in_features, features), Linear(features, features)
        self.vectors = nn.Parameter(torch.randn(vectors, in_features))
        self.token = nn.Parameter(torch.randn(1, features))
        self.instances, self.lesions = NystromBlock(features, dropout), NystromBlock(features, dropout)
        self.cross = MultiHead(features, HEADS)
        self.mlp, self.norm = Linear(features, features), LayerNorm(features)
        self.centres = nn.Parameter(torch.randn(2, features)) if centres else None
        self.dropout = dropout

    def phi(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).relu()

    def diversity(self, lesions: Tensor) -> Tensor:
        """-log det of the cosines between the vectors: 0 if they are at right angles."""
        unit = F.normalize(lesions, dim=-1).double()
        gram = unit @ unit.T + TINY * torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
        return -torch.linalg.slogdet(gram).logabsdet.to(lesions.dtype)

    def triplet(self, lesions: Tensor, centres: Tensor) -> Tensor:
        """How much nearer to the centre of positive bags [1] than to that of negative ones [0] the vectors are not."""
        normal, positive = F.cosine_similarity(lesions.unsqueeze(0), centres.unsqueeze(1), dim=-1)
        return (normal - positive + 1).relu().mean()

    def bag(self, z: Tensor, coords: Tensor, section: Tensor | None) -> Aggregated:
        x, lesions = self.phi(z), self.phi(self.vectors)
        kept = self.instances(x * dropout(x.new_ones(len(x), 1), self.dropout, self.training))
        heard, weights = self.cross(self.lesions(torch.cat([self.token, lesions])), kept, kept, None)
        return Aggregated(
            self.norm(self.mlp(heard))[0],
            aux_loss=WEIGHT * self.diversity(lesions),
            instance_scores=weights[0],
            label_losses=None if self.centres is None else WEIGHT * self._triplets(x, lesions, self.centres),
        )

    def _triplets(self, x: Tensor, lesions: Tensor, centres: Tensor) -> Tensor:
        """The loss for either label: the centre of the bag's class has moved to the bag first [2]."""
        moved = KEPT * centres + (1 - KEPT) * x.mean(0)
        negative, positive = torch.stack([moved[0], centres[1]]), torch.stack([centres[0], moved[1]])
        return torch.stack([self.triplet(lesions, negative), self.triplet(lesions, positive)])


class DGRMIL(MILModel):
    """DGR-MIL: ``vectors`` learned vectors stand for kinds of lesions and read the bag beside a class token.

    Losses beside the bag's: the vectors must differ (minus the logarithm of the determinant of their cosines), and be
    more like a centre of positive bags than like one of negative bags (two classes only), each with the weight 0.1.
    Departs from the program: the two centres are learned, where the program keeps running means that it changes in the
    forward pass; both losses act from the first epoch on (there from the tenth); two classes have one logit (there a
    sigmoid each); two layers that nothing uses are left out.
    """

    name = "dgr-mil"
    paper = "Zhu et al. 2024, DGR-MIL: exploring diverse global representation in multiple instance learning"
    permutation_invariant = False
    idle_parameters = ("aggregator.cross.key.bias",)

    def __init__(
        self,
        *,
        features: Features = 512,
        vectors: Count = 5,
        dropout: Probability = 0.1,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        if features % HEADS:
            raise InputError(f"features is {features}, which {HEADS} heads cannot share evenly: use a multiple")
        centres = self.outputs is None and self.n_classes == 2
        self.aggregator = DGRAggregator(self.encoded, features, vectors, dropout, centres=centres)
        self.classifier = self.make_classifier(features)
        torch_default(self.classifier)
