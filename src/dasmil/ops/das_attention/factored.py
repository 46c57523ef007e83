"""The factored form of distance-aware attention: b_ij never becomes a tensor (derived in this folder's README)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dasmil.ops.das_attention.bias import distance_bias
from dasmil.ops.das_attention.dropout import Dropout, make_dropout
from dasmil.ops.das_attention.operands import Operands, Settings
from dasmil.ops.das_attention.phi import PHI


class Options(NamedTuple):
    """What is the same for all pairs."""

    phi: str
    self_pair: bool
    dropout: Dropout | None
    bias: str | None


class Factors(NamedTuple):
    """e_ij = q_i.k_j + m_ij (a_i + c_j + bias) + g_ij (ga_i + gc_j) + g_ij^2 gg, g = m phi; one batch dimension b.

    z_i = sum_j w_ij (v_j + m_ij v_V + g_ij d_V): `value` is v, its part v_V is added here when all m_ij = 1.
    None stands for zeros; a and c are None when all m_ij = 1.
    """

    q: Tensor  # [b, n, d], scale included
    k: Tensor  # [b, n, d]
    value: Tensor  # [b, n, o]
    theta: Tensor | None  # [b], in the unit of the coordinates
    beta: Tensor | None  # [b], per unit of the coordinates
    ga: Tensor | None  # [b, n]
    gc: Tensor | None  # [b, n]
    gg: Tensor | None  # [b]
    a: Tensor | None  # [b, n]
    c: Tensor | None  # [b, n]
    bias_scale: Tensor | None  # [b], in or per unit of the coordinates
    bias_table: Tensor | None  # [b, bins]


class Pairs(NamedTuple):
    """What relates two instances, without gradients; one batch dimension b."""

    coords: Tensor  # [b, n, 2 or 3]
    mask: Tensor | None  # [b, n]
    section: Tensor | None  # [b, n]
    edges: Tensor | None  # [bins - 1], in the unit of the coordinates
    reach: Tensor | None  # [b], the largest squared distance that is seen
    ids: Tensor | None  # [b, n], the numbers of the instances where they are in another order


class Corner(NamedTuple):
    """Some rows of some batch entries, and all columns or those with the given numbers."""

    batch: slice
    rows: slice
    columns: Tensor | None

    def of_columns(self, tensor: Tensor) -> Tensor:
        """[b, n, ...] -> [batch, columns, ...]."""
        part = tensor[self.batch]
        return part if self.columns is None else part[:, self.columns]

    def diagonal(self, n: int, device: torch.device) -> Tensor:
        """[rows, columns]: the pairs (i, i)."""
        each = torch.arange(n, device=device)
        return each[self.rows, None] == (each if self.columns is None else self.columns)

    def ids(self, pairs: Pairs, n: int) -> tuple[Tensor, Tensor]:
        """The numbers of the rows and of the columns in their bag."""
        each = torch.arange(n, device=pairs.coords.device)[None] if pairs.ids is None else pairs.ids[self.batch]
        return each[:, self.rows], each if self.columns is None else each[:, self.columns]


def flat(tensor: Tensor, lead: torch.Size, tail: int) -> Tensor:
    """All but the last `tail` dimensions, broadcast to `lead`, become one."""
    shape = tensor.shape[tensor.ndim - tail :]
    return tensor.expand(*lead, *shape).reshape(-1, *shape)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _project(rows: Tensor, vector: Tensor) -> Tensor:
    return (rows @ vector.unsqueeze(-1)).squeeze(-1)


def fold(x: Operands, settings: Settings) -> Factors:
    """The factors of the pair terms."""
    lead, scale, partial = x.lead, settings.scale, settings.partial(x)
    q, v = x.query * scale, x.value
    ga = gc = gg = a = c = theta = beta = None
    if x.key_embed is not None:
        v_k = x.key_embed[..., 1, :]
        d_k = x.key_embed[..., 0, :] - v_k
        extra_ga = extra_a = 0.0  # the paper's ablation: + b^Q.b^K
        if settings.product_term and x.query_embed is not None:
            v_q = x.query_embed[..., 1, :]
            d_q = x.query_embed[..., 0, :] - v_q
            extra_ga = scale * (_dot(v_q, d_k) + _dot(d_q, v_k)).unsqueeze(-1)
            extra_a = scale * _dot(v_q, v_k).unsqueeze(-1)
            gg = (scale * _dot(d_q, d_k)).expand(lead).reshape(-1)
        ga = _project(q, d_k) + extra_ga
        if partial:
            a = _project(q, v_k) + extra_a
    if x.query_embed is not None:
        v_q = x.query_embed[..., 1, :]
        gc = scale * _project(x.key, x.query_embed[..., 0, :] - v_q)
        if partial:
            c = scale * _project(x.key, v_q)
        else:
            q = q + scale * v_q.unsqueeze(-2)
    if x.value_embed is not None and not partial:
        v = x.value + x.value_embed[..., 1:, :]
    if x.theta is not None and x.beta is not None:
        theta = (x.theta * settings.distance_scale).expand(lead).reshape(-1)
        beta = (x.beta / settings.distance_scale).expand(lead).reshape(-1)
    ga, gc, a, c = (t if t is None else flat(t, lead, 1) for t in (ga, gc, a, c))
    bias_scale = bias_table = None
    if x.bias_scale is not None:
        length = settings.distance_scale
        bias_scale = (x.bias_scale / length if settings.bias == "linear" else x.bias_scale * length).expand(lead)
        bias_scale = bias_scale.reshape(-1)
    if x.bias_table is not None:
        bias_table = flat(x.bias_table, lead, 1)
    return Factors(
        flat(q, lead, 2), flat(x.key, lead, 2), flat(v, lead, 2), theta, beta, ga, gc, gg, a, c, bias_scale, bias_table
    )


def dense(x: Operands, settings: Settings) -> tuple[Tensor, Tensor]:
    """Output [..., h, n, o] and weights [..., h, n, n] from the factored form, for those who ask for the weights."""
    weights, output, g_sum, m_sum = attend(fold(x, settings), make_pairs(x, settings), make_options(x, settings))
    z = unfold(output, g_sum, m_sum, x, settings)
    return z, weights.reshape(*x.lead, *weights.shape[1:])


def attend(factors: Factors, pairs: Pairs, options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights [b, n, n], output without b^V [b, n, o], sum_j w_ij g_ij and sum_j w_ij m_ij [b, n].

    Dense, with plain autograd: for those who ask for the weights.
    """
    n = factors.q.shape[1]
    whole = Corner(slice(0, factors.q.shape[0]), slice(0, n), None)
    e = factors.q @ factors.k.transpose(1, 2)
    m = related(pairs, whole, n, options.self_pair, e)
    squared = squared_distances(pairs.coords, whole)
    delta = squared.sqrt()
    g = torch.zeros_like(e)
    if factors.theta is not None and factors.beta is not None:
        x = (delta - factors.theta[:, None, None]) * factors.beta[:, None, None]
        g = PHI[options.phi](x) if m is None else PHI[options.phi](x) * m
    for row, column, weight in ((factors.ga, factors.gc, g), (factors.a, factors.c, m)):
        if row is not None and weight is not None:
            e = e + weight * row.unsqueeze(2)
        if column is not None and weight is not None:
            e = e + weight * column.unsqueeze(1)
    if factors.gg is not None:
        e = e + factors.gg[:, None, None] * g.square()
    if options.bias is not None:
        bias = distance_bias(options.bias, delta, factors.bias_scale, factors.bias_table, pairs.edges)
        e = e + (bias if m is None else bias * m)
    unseen = hidden(pairs, whole, n, squared)
    if unseen is not None:
        e = e.masked_fill(unseen, float("-inf"))
    weights = e.softmax(-1)
    if options.dropout is not None:
        weights = weights * options.dropout.keep(whole.batch, *whole.ids(pairs, n), e)
    related_weight = weights.sum(-1) if m is None else (weights * m).sum(-1)
    return weights, weights @ factors.value, (weights * g).sum(-1), related_weight


def unfold(output: Tensor, g_sum: Tensor, m_sum: Tensor, x: Operands, settings: Settings) -> Tensor:
    """z [..., n, o] from the output without b^V."""
    z = output.reshape(*x.lead, *output.shape[1:])
    if x.value_embed is None:
        return z
    v = x.value_embed[..., 1:, :]
    if settings.partial(x):
        z = z + m_sum.reshape(*z.shape[:-1], 1) * v
    return z + g_sum.reshape(*z.shape[:-1], 1) * (x.value_embed[..., :1, :] - v)


def make_pairs(x: Operands, settings: Settings) -> Pairs:
    """Coordinates, mask, section and limits for each of the flattened batch."""
    reach = edges = None
    if settings.radius is not None:
        reach = torch.tensor(settings.reach(), dtype=x.coords.dtype, device=x.coords.device).expand(x.lead).reshape(-1)
    if x.bias_edges is not None:
        edges = x.bias_edges * settings.distance_scale
    return Pairs(
        flat(x.coords.unsqueeze(-3), x.lead, 2),
        None if x.mask is None else flat(x.mask.unsqueeze(-2), x.lead, 1),
        None if x.section is None else flat(x.section.unsqueeze(-2), x.lead, 1),
        edges,
        reach,
        None,
    )


def make_options(x: Operands, settings: Settings) -> Options:
    dropout = None
    if settings.seeds is not None:
        dropout = make_dropout(settings.dropout_p, settings.seeds, x.lead.numel(), x.query.device)
    return Options(settings.phi, settings.self_pair, dropout, settings.bias)


def squared_distances(coords: Tensor, corner: Corner, out: Tensor | None = None, spare: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances [b, rows, columns] from differences: a matrix product would lose digits."""
    rows, columns = coords[corner.batch, corner.rows], corner.of_columns(coords)
    squared = None
    for row, column in zip(rows.unbind(-1), columns.unbind(-1)):
        difference = torch.sub(row[:, :, None], column[:, None, :], out=out if squared is None else spare)
        squared = difference.square_() if squared is None else squared.addcmul_(difference, difference)
    assert squared is not None
    return squared


def together(pairs: Pairs, corner: Corner) -> Tensor:
    """[b, rows, columns]: the pairs of one section. Tokens (section -1) are in none."""
    assert pairs.section is not None
    row, column = pairs.section[corner.batch, corner.rows, None], corner.of_columns(pairs.section)[:, None, :]
    return (row == column) & (row >= 0)


def related(pairs: Pairs, corner: Corner, n: int, self_pair: bool, like: Tensor) -> Tensor | None:
    """m_ij [1 or b, rows, columns]: 1 where the pair has a distance; None when all have one."""
    if pairs.section is None and self_pair:
        return None
    diagonal = corner.diagonal(n, like.device)
    m = torch.ones(1, *diagonal.shape, dtype=like.dtype, device=like.device)
    if pairs.section is not None:
        m = together(pairs, corner).to(like.dtype)
    return m if self_pair else m.masked_fill_(diagonal, 0)


def hidden(pairs: Pairs, corner: Corner, n: int, squared: Tensor | None) -> Tensor | None:
    """[b, 1 or rows, columns]: pairs that are not seen, padding and outside the radius; None when there are none."""
    padding = None if pairs.mask is None else ~corner.of_columns(pairs.mask)[:, None, :]
    if pairs.reach is None:
        return padding
    assert squared is not None
    outside = squared > pairs.reach[corner.batch, None, None]
    if pairs.section is not None:
        token = pairs.section < 0
        outside |= ~together(pairs, corner)
        outside &= ~(token[corner.batch, corner.rows, None] | corner.of_columns(token)[:, None, :])
    if padding is not None:
        outside |= padding
    return outside.masked_fill_(corner.diagonal(n, squared.device), False)  # everyone sees itself
