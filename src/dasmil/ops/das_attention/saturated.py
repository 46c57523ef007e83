"""Gradients where the softmax saturates: the kernel's are then differences of rounded numbers, those of chunked not."""

from __future__ import annotations

import torch
from torch import Tensor

from dasmil.ops.das_attention.chunked import chunked
from dasmil.ops.das_attention.operands import Operands, Settings, clear_padding

SHARP = 500.0
"""Logits that may be this large have rows that give all their weight to one instance; trained models stay far below."""


def saturates(x: Operands, settings: Settings) -> bool:
    """Whether logits may be sharper than that, by the lengths of queries, keys and embeddings; or only one is seen."""
    if not x.query.shape[:-1].numel():
        return False  # no bags or no heads: nothing to compute
    if x.n == 1 or (x.mask is not None and bool((x.mask.sum(-1) == 1).any())):
        return True
    phi = 1.0
    if settings.phi == "identity" and x.theta is not None and x.beta is not None:
        farthest = torch.linalg.vector_norm(x.coords.amax(-2) - x.coords.amin(-2), dim=-1).amax()
        phi = max(1.0, float(x.beta.abs().amax() * (farthest / settings.distance_scale + x.theta.abs().amax())))
    query, key, key_embed, query_embed = (
        0.0 if t is None or not t.numel() else float(torch.linalg.vector_norm(t, dim=-1).amax())
        for t in (x.query, x.key, x.key_embed, x.query_embed)
    )
    largest = query * key + phi * (query * key_embed + key * query_embed)
    if settings.product_term:
        largest += phi**2 * key_embed * query_embed
    return not abs(settings.scale) * largest < SHARP  # so NaN, too


def exact_gradients(x: Operands, settings: Settings, d_out: Tensor, wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """dL/d of every operand that is wanted, computed block by block in memory O(n)."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() if asked and t is not None else t for t, asked in zip(x, wanted)]
        out = chunked(clear_padding(Operands(*leaves)), settings)  # pyright: ignore[reportArgumentType]
        asked = [t for t, need in zip(leaves, wanted) if need and t is not None]
        found = iter(torch.autograd.grad(out, asked, d_out, allow_unused=True))
    return [next(found) if need and t is not None else None for t, need in zip(leaves, wanted)]
