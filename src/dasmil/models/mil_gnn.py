"""MIL-GNN: GraphSAGE, differentiable pooling into one cluster, and losses that keep the graph in the embedding."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.nn import Linear, pool
from dasmil.nn.graph import complete_graph, flat_batch


def link_loss(adjacency: Tensor, assignment: Tensor, n: Tensor) -> Tensor:
    """|A - S S^T|_F / n^2 for each bag: A [B, n, n], S [B, n, k] with zero rows for padding, n [B] real instances."""
    return (adjacency - assignment @ assignment.mT).flatten(1).norm(dim=1) / n.square()


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
        from torch_geometric.nn.dense import DenseSAGEConv  # slow to import, so only for the models that need it

        self.embed1 = DenseSAGEConv(features, hidden)
        self.embed2 = DenseSAGEConv(hidden, hidden)
        self.assign = DenseSAGEConv(hidden, 1)
        self.assign_linear = Linear(1, 1)
        self.side1 = MLP(hidden, logits)
        self.embed3 = DenseSAGEConv(hidden, hidden)
        self.side2 = MLP(hidden, logits)
        self.deep_supervision = deep_supervision

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        x, real = flat_batch(z, mask)
        edges, count, rows = complete_graph(real, x.dtype), real.sum(-1), real.unsqueeze(-1)
        h = F.leaky_relu(self.embed1(x, edges, real))
        loss = link_loss(edges, h.softmax(-1) * rows, count)

        # Differentiable pooling: S = softmax over clusters, X' = S^T X, A' = S^T A S.
        assignment = F.leaky_relu(self.assign_linear(F.leaky_relu(self.assign(h, edges, real)))).softmax(-1) * rows
        loss = loss + link_loss(edges, assignment, count)
        pooled, pooled_edges = assignment.mT @ h, assignment.mT @ edges @ assignment

        embedding = F.leaky_relu(self.embed2(pooled, pooled_edges))
        loss = loss + link_loss(pooled_edges, embedding.softmax(-1), torch.ones_like(count))
        lead = z.shape[:-2]
        side_logits = None
        if self.deep_supervision:
            first = self.side1(pool(h, real, "max"))
            second = self.side2(F.leaky_relu(self.embed3(pooled, pooled_edges)).squeeze(1))
            # [*batch, 2] for one logit, else [*batch, 2, classes]
            side_logits = torch.stack([first, second], dim=1).view(*lead, 2, -1)
            if side_logits.shape[-1] == 1:
                side_logits = side_logits.squeeze(-1)
        return Aggregated(embedding.view(*lead, -1), loss.view(lead), side_logits=side_logits)


class MILGNN(MILModel):
    """MIL-GNN: H = LeakyReLU(SAGE(Z)), S = softmax(..) pools into one cluster, LeakyReLU(SAGE(S^T H)), MLP classifier.

    Implements section 3 of Tu et al. (2019) on the fully connected graph: no distance enters, although the paper's
    table calls it relative. The auxiliary loss is the sum of three link losses |A - S S^T|_F / n^2: for the embedding
    H, the assignment S and the pooled embedding, each as a softmax over its features. Memory grows with n^2.
    With one cluster S is 1 everywhere, so the two layers that compute it learn nothing; without deep supervision
    neither do the side paths. They are kept because the published parameter count includes them.
    """

    name = "mil-gnn"
    paper = "Tu et al. 2019, Multiple instance learning with graph neural networks"
    stackable = False
    deep_supervision: ClassVar[bool] = False
    idle_parameters = ("aggregator.assign*", "aggregator.side*", "aggregator.embed3*")
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 20}}

    def __init__(self, *, hidden: int = 20, **common: Unpack[CommonOptions]) -> None:
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
