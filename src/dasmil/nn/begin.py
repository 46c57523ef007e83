"""Attention that means something before it is trained: near pairs, how many lie near, a type's share, a mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dasmil.nn.attention import BLIND, DistanceAwareAttention

QUIET = 0.1
"""What is left of random weights beside a start that means something."""
NEAR_LOGIT = 2.0
FAR_LOGIT = 8.0
CROWD_LOGIT = 2.0  # by so much may the odds of a type in a bag be above those in all of them
CLEAR_LOGIT = 1.3
SMALLEST_GAIN = 2.0
"""Of a start from two types; stronger attention takes noise for the types where they overlap."""
KNOWN_STEEPNESS = 10.0  # beta x theta of a start from two types, whose length is known


@torch.no_grad()
def begin_near(layer: DistanceAwareAttention, first: Tensor, second: Tensor, theta: float, instances: float) -> bool:
    """Start so that instances like ``first`` attend to those like ``second`` that are nearer than theta.

    With s_a(x) = x.first / |first|^2, which is 1 for instances like first and about 0 for others, and s_b likewise,
    the first head has e_ij = G s_a(i) s_b(j) + H (s_a(i) + s_b(j)) for near pairs and - H for far ones: G + 2 H is
    a little above log(instances) for the pair that is looked for, everything else below. The first output of i is
    then s_b of what it looks at. False where embeddings or a learned sigmoid are missing.
    """
    if layer.phi != "sigmoid" or layer.key_embed is None or layer.query_embed is None:
        return False
    assert layer.theta is not None
    assert layer.beta is not None
    _quieten(layer)
    gain = math.sqrt(max(math.log(instances) + CLEAR_LOGIT - 2 * NEAR_LOGIT, SMALLEST_GAIN) / layer.scale)
    a, b = first / first.square().sum(), second / second.square().sum()
    layer.query.weight[0], layer.key.weight[0], layer.value.weight[0] = gain * a, gain * b, b
    for embed in (layer.key_embed, layer.query_embed):
        assert isinstance(embed, Tensor)
        embed[0, :, 0] = NEAR_LOGIT / (layer.scale * gain) * torch.tensor([-1.0, 1.0])
    if torch.equal(first, second):  # an instance looks at itself as well: only another that is near adds this
        if not isinstance(layer.value_embed, Tensor):
            return False
        layer.value_embed[0, 1, 0] = 1.0
    layer.theta[0], layer.beta[0] = theta, KNOWN_STEEPNESS / theta
    return True


@torch.no_grad()
def begin_within(
    layer: DistanceAwareAttention, first: Tensor | None, second: Tensor, theta: float, instances: float, share: float
) -> bool:
    """Start so that the first output of instances like ``first`` (None: of all) is about 1 where one like
    ``second`` is nearer than theta; that of others is the mean of s_b over instances unlike second, which is also the
    first output of the second head. The mean over instances of the difference is then a share, whatever the shift of a
    slide, and however many there are like second.

    With s_a, s_b as in ``begin_near`` the first head has e_ij = s_b(j) (G s_a(i) + h), where h makes those like
    second be looked at less than others, and far ones not at all, unless G s_a(i) lifts the near ones a little
    above log(instances). The second head has e_ij = s_b(j) h with the same h of near and far: of instances unlike
    first both say the same, however many others lie near them. Without first, h alone lifts, and the second head knows
    no distance. share: of all instances those like second; where they are many, not even all of them together may draw
    a look that is not for them. False without b^Q, a learned sigmoid or a second head.
    """
    if layer.phi != "sigmoid" or layer.query_embed is None or layer.heads < 2:
        return False
    assert layer.theta is not None
    assert layer.beta is not None
    assert isinstance(layer.query_embed, Tensor)
    _quieten(layer)
    lifted = max(math.log(instances), SMALLEST_GAIN) + CLEAR_LOGIT
    crowd = max(0.0, math.log(max(share, 1e-9) / max(1 - share, 1e-9)) + CROWD_LOGIT)
    away, far = NEAR_LOGIT + crowd, FAR_LOGIT + 2 * crowd
    near = lifted if first is None else -away
    gain = math.sqrt((lifted + away) / layer.scale)
    b = second / second.square().sum()
    layer.query.weight.zero_()
    if first is not None:
        layer.query.weight[0] = gain * first / first.square().sum()
    layer.key.weight[0] = gain * b
    layer.value.weight[0] = layer.value.weight[layer.outputs_per_head] = b
    layer.query_embed[:2] = 0.0
    layer.query_embed[0, :, 0] = torch.tensor([near - far, near]) / (layer.scale * gain)
    layer.key.weight[layer.hidden] = gain * b
    layer.theta[:2], layer.beta[:2] = theta, KNOWN_STEEPNESS / theta
    if first is None:
        layer.query_embed[1, :, 0] = -far / (layer.scale * gain)
        _blind(layer, 1)
    else:
        layer.query_embed[1] = layer.query_embed[0]
    return True


@torch.no_grad()
def begin_share(layer: DistanceAwareAttention, centre: Tensor, share: float) -> bool:
    """Start with every instance attending to those like ``centre``: they draw half of it where they are this share.
    Distance plays no part, and gets none in training.

    With s(x) = x.centre / |centre|^2, which is 1 for instances like centre and about 0 for others, e_ij = g s(j)
    with g = log((1 - share) / share), and the first output is s of what is looked at. False without b^Q.
    """
    if layer.query_embed is None:
        return False
    _quieten(layer)
    like = centre / centre.square().sum()
    gain = math.sqrt(max(math.log((1 - share) / share), 1.0) / layer.scale)
    layer.query.weight.zero_()
    layer.key.weight[0], layer.value.weight[0] = gain * like, like
    assert isinstance(layer.query_embed, Tensor)
    layer.query_embed[0] = 0.0
    layer.query_embed[0, :, 0] = gain
    _blind(layer)
    return True


@torch.no_grad()
def begin_mean(layer: DistanceAwareAttention, direction: Tensor) -> bool:
    """Start with every instance attending to all alike; the first output is the mean in that direction."""
    _quieten(layer)
    layer.query.weight.zero_()
    if isinstance(layer.query_embed, Tensor):
        layer.query_embed.zero_()
    layer.value.weight[0] = direction
    _blind(layer)
    return True


def _blind(layer: DistanceAwareAttention, head: int = 0) -> None:
    """Make phi of a head 1 at every distance."""
    if layer.phi == "sigmoid" and layer.theta is not None and layer.beta is not None:
        layer.theta[head], layer.beta[head] = -5.0, 2 * BLIND / 5.0


def _quieten(layer: DistanceAwareAttention) -> None:
    """Make all that is random small, and keep what distances add away from the first output of every head."""
    for parameter in (layer.query.weight, layer.key.weight, layer.value.weight):
        parameter.mul_(QUIET)
    for embed in (layer.key_embed, layer.query_embed, layer.value_embed):
        if isinstance(embed, Tensor):
            embed.mul_(QUIET)
    if isinstance(layer.value_embed, Tensor):
        layer.value_embed[..., 0] = 0.0
