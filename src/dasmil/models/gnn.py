"""Two graph layers on the fully connected graph of a bag: GAT and GCN."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from dasmil.models.base import Aggregated, CommonOptions, MILModel
from dasmil.models.options import Pooling, Size
from dasmil.nn import check_pooling, pool
from dasmil.nn.graph import DistanceEdges, GATLayer, GCNLayer, real_instances


class GraphAggregator(nn.Module):
    """layer, ReLU, layer, ReLU, pooling: z [..., n, f] -> [..., hidden].

    distance_scale: None for edges that all weigh 1; a length for edges that weigh distance / distance_scale. Self-loops
    weigh 1 in either case.
    """

    def __init__(self, layers: list[nn.Module], pooling: str, distance_scale: float | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.pooling, self.distance_scale = check_pooling(pooling), distance_scale

    def forward(self, z: Tensor, coords: Tensor, mask: Tensor | None, section: Tensor | None) -> Aggregated:
        real = real_instances(z, mask)
        scale = self.distance_scale
        edges = None if scale is None else DistanceEdges(coords.to(z.dtype), real, section, scale)
        for layer in self.layers:
            z = layer(z, real, edges).relu()
        return Aggregated(pool(z, mask, self.pooling))


class GAT(MILModel):
    """MIL with GNN (GAT): z'_i = sum_j a_ij z_j W + b, a_ij = softmax_j(LeakyReLU(s.z_j W + t.z_i W)), over all j.

    Implements eqs. (1) to (4) of Velickovic et al. (2018) with one head, twice, each followed by ReLU, then pooling.
    Every pair is an edge, so no distance enters, although the paper's table calls it relative.
    """

    name = "gat"
    paper = "Velickovic et al. 2018, Graph attention networks"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 20}}

    def __init__(self, *, hidden: Size = 20, pooling: Pooling = "max", **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        layers: list[nn.Module] = [GATLayer(size, hidden) for size in (self.encoded, hidden)]
        self.aggregator = GraphAggregator(layers, pooling, None)
        self.classifier = self.make_classifier(hidden)


class GCN(MILModel):
    """MIL with GNN (GCN): z' = D^-1/2 A D^-1/2 z W + b, D_ii = sum_j A_ij, twice, each followed by ReLU; max pooling.

    Implements eq. (2) of Kipf and Welling (2017). A_ij is the *distance* / distance_scale and A_ii = 1, as in the
    program behind the paper's table, so that far instances weigh more. Across sections A_ij = 0.
    """

    name = "gcn"
    paper = "Kipf and Welling 2017, Semi-supervised classification with graph convolutional networks"
    position = "relative"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"mnist-collage": {"hidden": 15}}

    def __init__(self, *, hidden: Size = 15, pooling: Pooling = "max", **common: Unpack[CommonOptions]) -> None:
        super().__init__(**common)
        layers: list[nn.Module] = [GCNLayer(size, hidden) for size in (self.encoded, hidden)]
        self.aggregator = GraphAggregator(layers, pooling, self.distance_scale)
        self.classifier = self.make_classifier(hidden)
