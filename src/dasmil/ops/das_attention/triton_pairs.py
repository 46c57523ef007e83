"""What the Triton kernels compute for a tile of pairs: distances, phi, bias, logits, dropout.

Plain `tl` operations only, which Triton's interpreter runs. Imported by `triton_kernels.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def plane(base, item, plane: tl.constexpr, planes: tl.constexpr, length, places):
    return tl.load(base + (item * planes + plane) * length + places)


@triton.jit
def phi_of(shifted, beta, PHI: tl.constexpr):
    if PHI == "sigmoid":
        root = tl.rsqrt(1.0 + tl.exp2(shifted * (beta * -LOG2E)))
        f = root * root
    elif PHI == "identity":
        f = shifted * beta
    elif PHI == "exponential":
        f = tl.exp2(-tl.abs(shifted * (beta * LOG2E)))
    else:
        x = shifted * beta
        f = tl.exp2(x * x * (-0.5 * LOG2E))
    return f


@triton.jit
def phi_slope(shifted, beta, f, PHI: tl.constexpr):
    if PHI == "sigmoid":
        slope = f - f * f
    elif PHI == "identity":
        slope = tl.full(f.shape, 1.0, tl.float32)
    elif PHI == "exponential":
        x = shifted * beta
        slope = tl.where(x > 0, -f, tl.where(x < 0, f, 0.0))
    else:
        slope = -shifted * beta * f
    return slope


@triton.jit
def bias_of(delta, scale, table, edges, bins, BIAS: tl.constexpr):
    """In units of ln 2; the table comes so."""
    if BIAS == "linear":
        bias = delta * (scale * -LOG2E)
    elif BIAS == "gaussian":
        ratio = delta * (1.0 / scale)
        bias = ratio * ratio * (-0.5 * LOG2E)
    elif BIAS == "cauchy":
        ratio = delta * (1.0 / scale)
        bias = -tl.log2(1.0 + ratio * ratio)
    else:
        bias = tl.zeros_like(delta)
        for edge in range(bins):
            bias = tl.where(delta >= tl.load(edges + edge), tl.load(table + edge), bias)
    return bias


@triton.jit
def bias_slope(delta, scale, BIAS: tl.constexpr):
    """The derivative by the scale."""
    if BIAS == "linear":
        slope = -delta
    else:
        ratio = delta * (1.0 / scale)
        ratio = ratio * ratio
        slope = ratio * (1.0 / scale) if BIAS == "gaussian" else 2.0 / scale * (ratio / (1.0 + ratio))
    return slope


@triton.jit
def mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def keep_factors(row, salt, column, threshold, inverse):
    """The dropout factors; the host has the keys from dropout.py."""
    pair = column.to(tl.uint32, bitcast=True) + row.to(tl.uint32, bitcast=True)
    high = (mix(pair ^ salt.to(tl.uint32, bitcast=True)) >> 8).to(tl.int32)
    return tl.where(high >= threshold, inverse, 0.0)


@triton.jit
def all_pairs(
    e, row, column, rx, ry, rz, cx, cy, cz, section_r, section_c, mask_c, ga, gc, a, c,
    theta, beta, gg, scale, reach, table, edges, n, bins,
    PHI: tl.constexpr, BIAS: tl.constexpr, AXES: tl.constexpr, SLOPES: tl.constexpr, PARTIAL: tl.constexpr,
    PRODUCT: tl.constexpr, SECTION: tl.constexpr, SELF: tl.constexpr, RADIUS: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Logits of all pairs from e = q.k, -inf where not seen; also g, phi, delta - theta, delta, m and the factor of g.

    Whatever belongs to rows or columns comes with its dimension of 1: either may be the first.
    """
    inside = column < n
    seen = inside & (mask_c != 0) if MASK else inside
    m, g, f, shifted, delta, slope = e, e, e, e, e, e  # those that are not computed below are not used
    together = inside
    if SECTION:
        together = (section_r == section_c) & (section_r >= 0)
        m = together if SELF else together & (row != column)
    elif PARTIAL:
        m = row != column
    if PHI != "none" or BIAS != "none" or RADIUS:
        x, y = rx - cx, ry - cy
        squared = x * x + y * y
        if AXES == 3:
            z = rz - cz
            squared += z * z
        delta = tl.sqrt(squared)
        if RADIUS:
            near = squared <= reach
            if SECTION:
                near = (near & together) | ((section_r < 0) | (section_c < 0))
            seen = (seen & near) | ((row == column) & inside)
    if BIAS != "none":
        bias = bias_of(delta, scale, table, edges, bins, BIAS)
        e += tl.where(m, bias, 0.0) if PARTIAL else bias
    if PHI != "none":
        shifted = delta - theta
        f = phi_of(shifted, beta, PHI)
        g = tl.where(m, f, 0.0) if PARTIAL else f
        if SLOPES:
            slope = ga + gc
            e += g * slope
        if PRODUCT:
            e += g * g * gg
    if PARTIAL:
        e += tl.where(m, a + c, 0.0)
    return tl.where(seen, e, float("-inf")), g, f, shifted, delta, m, slope


@triton.jit
def stretch_bounds(starts, item, first, length, STRETCH: tl.constexpr):
    """Where the list of the neighbours of this stretch begins and ends."""
    place = starts + item * (length // STRETCH) + first // STRETCH
    return tl.load(place), tl.load(place + 1)


@triton.jit
def item_numbers(items, item):
    place = items + item * 8
    return tl.load(place), tl.load(place + 1), tl.load(place + 2), tl.load(place + 3), tl.load(place + 4)
