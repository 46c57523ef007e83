"""DAS-MIL: the model of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from dasmil.errors import InputError
from dasmil.models.base import CommonOptions
from dasmil.models.monotone import monotone_classifier
from dasmil.models.options import Bias, Count, Length, Number, Phi, Pooling, Probability, Size
from dasmil.models.sa import AttentionModel, SAAggregator
from dasmil.nn import DistanceAwareAttention, Linear
from dasmil.nn.attention import STEEPNESS
from dasmil.nn.begin import QUIET, begin_mean, begin_near, begin_share, begin_within
from dasmil.nn.evidence import PairEvidence


class DASMIL(AttentionModel):
    """DAS-MIL: distance-aware self-attention, pooling, linear classifier.

    Implements eqs. (method:das_att), (method:z_prime), (method:score without the sigmoid); the attention is that of
    eqs. (das:output), (das:compatibility:impl), (bijK), (bijQV):
    z_i = sum_j a_ij (x_j W^V + b^V_ij), e_ij = (q_i.k_j + q_i.b^K_ij + k_j.b^Q_ij) / sqrt(d),
    b_ij = phi(delta_ij) u + (1 - phi(delta_ij)) v, phi(delta) = sigmoid((delta - theta) beta),
    delta_ij = distance of i and j / distance_scale.

    Shapes: x [*batch, n, d], coords [*batch, n, 2]; W^Q, W^K d -> heads * hidden, W^V d -> out_features.
    embeddings: which of b^K, b^Q, b^V are used; product_term: adds b^Q.b^K to e_ij; train_embeddings, train_phi: False
    keeps them as drawn or set; phi: "sigmoid", "identity" (the ablation: with theta_init 0, beta_init 1, train_phi
    False), "exponential", "gaussian"; theta_init, beta_init: in units of distance_scale, one number or one for each
    head; self_pair: False gives the pair (i, i) no embedding, as the published program did. bias, bias_init,
    train_bias, radius: as in sa, beside the embeddings.
    monotone: the logit can only rise when an instance is added. Each head is one kind of evidence that pairs give,
    P_ih = sigmoid(log sum_j exp(e_ijh) - t_h), pooled by ``pooling`` ("max" or "sum"), and the classifier's weights are
    above 0; values and their embedding are not used, nor is out_features.
    Heads are joined; layers follow one another, each with its own theta and beta.
    Departs from the paper: the preset "mnist-collage" has self_pair False, because its table was made so.
    """

    name = "das-mil"
    paper = "Wölflein et al. 2023, Deep multiple instance learning with distance-aware self-attention"
    position = "relative"
    learns_lengths = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mnist-collage": {"hidden": 10, "self_pair": False},
        "camelyon16": {"encoder": "linear-relu", "encoder_features": 512, "hidden": 10, "out_features": 16},
    }

    def __init__(
        self,
        *,
        hidden: Size = 10,
        out_features: Size | None = None,
        heads: Count = 1,
        layers: Count = 1,
        pooling: Pooling = "max",
        embeddings: str = "kqv",
        product_term: bool = False,
        train_embeddings: bool = True,
        train_phi: bool = True,
        phi: Phi = "sigmoid",
        theta_init: Number | Sequence[Number] = 0.5,
        beta_init: Number | Sequence[Number] = 10.0,
        self_pair: bool = True,
        dropout: Probability = 0.1,
        bias: Bias | None = None,
        bias_init: Number | Sequence[Number] = 1.0,
        train_bias: bool = True,
        radius: Length | None = None,
        monotone: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(**common)
        attention: dict[str, Any] = {
            "hidden": hidden, "heads": heads, "embeddings": embeddings, "product_term": product_term,
            "train_embeddings": train_embeddings, "train_phi": train_phi, "phi": phi, "theta_init": theta_init,
            "beta_init": beta_init, "self_pair": self_pair, "dropout": dropout, "distance_scale": self.distance_scale,
            "bias": bias, "bias_init": bias_init, "train_bias": train_bias, "radius": radius,
        }  # fmt: skip
        if monotone:
            if layers > 1 or pooling == "mean":
                raise InputError(
                    f"monotone=True with layers={layers} and pooling={pooling!r}: a further instance could lower the "
                    "logit; use one layer and pooling 'max' or 'sum'"
                )
            self.aggregator = SAAggregator([PairEvidence(self.encoded, **attention)], pooling)
            self.classifier = monotone_classifier(self, heads)
            return
        out = self.encoded if out_features is None else out_features
        sizes = [self.encoded] + [out] * layers
        stack = [DistanceAwareAttention(*ends, **attention) for ends in itertools.pairwise(sizes)]
        self.aggregator = SAAggregator([*stack], pooling)
        self.classifier = self.make_classifier(out)

    @classmethod
    def for_feature_vectors(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """No embedding of the pair (i, i), as in the published program: distances are then found more often."""
        return {**super().for_feature_vectors(given), "self_pair": False}

    @classmethod
    def seeks_length(cls, options: Mapping[str, Any]) -> bool:
        return "theta_init" not in options and options.get("phi") != "identity"

    without_distances_it = "is plain self-attention: it trains without distance embeddings"

    @classmethod
    def without_distances(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Plain self-attention: without distances the embeddings would all be one constant."""
        return {**options, "embeddings": "", "product_term": False}

    @classmethod
    def starting_at(
        cls, options: Mapping[str, Any], length_at: Callable[[float], float], share: float
    ) -> dict[str, Any]:
        """theta at that length, and phi as steep as with the paper's theta 0.5 and beta 10.

        Several heads start at different lengths, evenly between nearest neighbours and the whole bag.
        """
        found, usual = dict(options), cls.options()
        if "theta_init" in found or found.get("phi", usual["phi"]) == "identity":
            return found
        heads, scale = int(found.get("heads", usual["heads"])), float(found["distance_scale"])
        theta = [length_at((head + share) / heads) / scale for head in range(heads)]
        found["theta_init"] = theta if heads > 1 else theta[0]
        if "beta_init" not in found:
            beta = [STEEPNESS / t for t in theta]
            found["beta_init"] = beta if heads > 1 else beta[0]
        return found

    def begin_near(self, first: Tensor, second: Tensor, length: float, instances: float) -> bool:
        evidence = next((module for module in self.modules() if isinstance(module, PairEvidence)), None)
        if evidence is not None:
            return evidence.begin_near(first, second, length / self.distance_scale, instances)
        layer = self._only_layer()
        can = layer is not None and begin_near(layer, first, second, length / self.distance_scale, instances)
        return can and self._begin_with_first_output()

    @torch.no_grad()
    def begin_within(self, first: Tensor | None, second: Tensor, length: float, instances: float, share: float) -> bool:
        layer = self._only_layer()
        if layer is None or not begin_within(layer, first, second, length / self.distance_scale, instances, share):
            return False
        self._begin_with_first_output()
        assert isinstance(self.classifier, Linear)
        self.classifier.weight[:, layer.outputs_per_head] = -1.0
        return True

    def begin_share(self, centre: Tensor, share: float) -> bool:
        layer = self._only_layer()
        return layer is not None and begin_share(layer, centre, share) and self._begin_with_first_output()

    def begin_mean(self, direction: Tensor, *, only: bool = False) -> bool:
        layer = self._only_layer()
        others = 0.0 if only else QUIET
        return layer is not None and begin_mean(layer, direction) and self._begin_with_first_output(others)

    def _only_layer(self) -> DistanceAwareAttention | None:
        layers = [module for module in self.modules() if isinstance(module, DistanceAwareAttention)]
        return layers[0] if len(layers) == 1 and not isinstance(layers[0], PairEvidence) else None

    @torch.no_grad()
    def _begin_with_first_output(self, others: float = QUIET) -> bool:
        assert isinstance(self.classifier, Linear)
        self.classifier.weight.mul_(others)
        self.classifier.weight[:, 0] = 1.0
        return True
