"""MIL-GNN: GraphSAGE, differentiable pooling into one cluster, and losses that keep the graph in the embedding."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Size
from dasmil.nn import Linear, pool
from dasmil.nn.graph import SAGELayer, link_loss, real_instances


class MLP(nn.Module):
    """f -> f / 2 -> logits, with LeakyReLU between."""

    def __init__(self, features: int, logits: int) -> None:
        super().__init__()
        self.lin1 = Linear(features, features // 2)
        self.lin2 = Linear(features // 2, logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin2(F.leaky_relu(self.lin1(x)))


class MILGNNAggregator(nn.Module):
    """z [..., n, f] -> [..., hidden], three auxiliary losses, and the logits of two side paths when asked for."""

    def __init__(self, features: int, hidden: int, logits: int, *, deep_supervision: bool) -> None:
        super().__init__()
        self.embed1 = SAGELayer(features, hidden)
        self.embed2 = SAGELayer(hidden, hidden)
        self.assign = SAGELayer(hidden, 1)
        self.assign_linear = Linear(1, 1)
        self.side1 = MLP(hidden, logits)
        self.embed3 = SAGELayer(hidden, hidden)
        self.side2 = MLP(hidden, logits)
        self.deep_supervision = deep_supervision

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        real = real_instances(z, mask)
        h = F.leaky_relu(self.embed1(z, real))
        loss = link_loss(h.softmax(-1), real)

        # Differentiable pooling: S = softmax over clusters, X' = S^T X, A' = S^T A S. With one cluster S is 1 for every
        # real instance, so X' is their sum, and the only neighbour of the cluster is itself, by n (n - 1) edges.
        assignment = F.leaky_relu(self.assign_linear(F.leaky_relu(self.assign(h, real)))).softmax(-1)
        assignment = assignment * real.unsqueeze(-1)
        loss = loss + link_loss(assignment, real)
        pooled = (assignment.mT @ h).squeeze(-2)
        n = real.sum(-1, keepdim=True).to(z.dtype)
        neighbour = pooled * (n > 1)

        embedding = F.leaky_relu(self.embed2.join(neighbour, pooled))
        loss = loss + ((n * (n - 1)).squeeze(-1) - embedding.softmax(-1).square().sum(-1)).abs()
        side_logits = None
        if self.deep_supervision:
            first = self.side1(pool(h, mask, "max"))
            second = self.side2(F.leaky_relu(self.embed3.join(neighbour, pooled)))
            # [*batch, 2] for one logit, else [*batch, 2, classes]
            side_logits = torch.stack([first, second], dim=-2)
            if side_logits.shape[-1] == 1:
                side_logits = side_logits.squeeze(-1)
        return Aggregated(embedding, loss, side_logits=side_logits)


class MILGNN(MILModel):
    """MIL-GNN: H = LeakyReLU(SAGE(Z)), S = softmax(..) pools into one cluster, LeakyReLU(SAGE(S^T H)), MLP classifier.

    Implements section 3 of Tu et al. (2019) on the fully connected graph: no distance enters, although the paper's
    table calls it relative. The auxiliary loss is the sum of three link losses |A - S S^T|_F / n^2: for the embedding
    H, the assignment S and the pooled embedding, each as a softmax over its features. Memory grows with n, not n^2.
    With one cluster S is 1 everywhere, so the two layers that compute it learn nothing; without deep supervision
    neither do the side paths. They are kept because the published parameter count includes them.
    """

    name = "mil-gnn"
    paper = "Tu et al. 2019, Multiple instance learning with graph neural networks"
    deep_supervision: ClassVar[bool] = False
    idle_parameters = ("aggregator.assign*", "aggregator.side*", "aggregator.embed3*")
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 20}}

    def __init__(self, *, hidden: Size = 20, **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        self.aggregator = MILGNNAggregator(self.encoded, hidden, self.n_logits, deep_supervision=self.deep_supervision)
        self.classifier = MLP(hidden, self.n_logits)


class MILGNNDS(MILGNN):
    """MIL-GNN-DS: mil-gnn with deep supervision: two side classifiers give further logits, each with its bag loss.

    The first sees the maximum over H, the second another GraphSAGE layer on the pooled graph (Output.side_logits).
    """

    name = "mil-gnn-ds"
    deep_supervision: ClassVar[bool] = True
    idle_parameters = ("aggregator.assign*",)
