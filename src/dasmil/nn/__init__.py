"""Layers that the models share.

Each works unchanged when all its parameters carry one extra leading dimension R ("stacked runs") and the data
carries R as its first batch dimension: run r of the result is what the parameters of run r alone would give.
"""

from dasmil.nn.attention import DistanceAwareAttention
from dasmil.nn.encoder import ENCODERS, make_encoder
from dasmil.nn.linear import Linear
from dasmil.nn.pooling import POOLINGS, check_pooling, pool

__all__ = ["ENCODERS", "POOLINGS", "DistanceAwareAttention", "Linear", "check_pooling", "make_encoder", "pool"]
