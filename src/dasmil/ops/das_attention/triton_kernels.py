# pyright: reportGeneralTypeIssues=false
"""The factored form as three Triton kernels: forward, gradients of the columns, gradients of the rows.

Derived in this folder's README. Logits are in units of ln 2 (the host folds log2 e into the scale); every tensor is
padded by the host to `length`, a multiple of every block, so no load or store needs a mask; no atomics, so the result
does not depend on the order of programs. Only `triton_backend.py` imports this file.

floats [b, 7, length]: x, y, z, ga, gc, a, c        stats [b, 4, length]: shift, denominator, sum of g, sum of m
ints [b, 5, length]: section, mask, keys of dropout (row, salt, column)
items [b, 8]: theta, beta, gg, scale of the bias, squared radius        edges [bins + 1]: from -inf to inf
turned [b, 4, length]: shift, R, gradients of the sums of g and of m; these and d_out times ln 2 / denominator
"""

from __future__ import annotations

import triton
import triton.language as tl

from dasmil.ops.das_attention.triton_pairs import (
    LOG2E,
    all_pairs,
    bias_slope,
    item_numbers,
    keep_factors,
    phi_slope,
    plane,
    stretch_bounds,
)

RUNTIME = ["n", "bins", "threshold"]


@triton.jit(do_not_specialize=RUNTIME)
def forward(
    q, k, v, floats, ints, items, table, edges, starts, near, out, stats, n, length, bins, threshold, inverse,
    D: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRETCH: tl.constexpr,
    PHI: tl.constexpr, BIAS: tl.constexpr, AXES: tl.constexpr, SLOPES: tl.constexpr, PARTIAL: tl.constexpr,
    PRODUCT: tl.constexpr, SECTION: tl.constexpr, SELF: tl.constexpr, RADIUS: tl.constexpr, MASK: tl.constexpr,
    LISTS: tl.constexpr, DROPOUT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    blocks = length // ROWS
    item = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * ROWS
    rows = first + tl.arange(0, ROWS)
    row = rows[:, None]
    theta, beta, gg, scale, reach = item_numbers(items, item)
    own = tl.load(q + (item * length + row) * D + tl.arange(0, D)[None, :])
    rx, ry, rz = plane(floats, item, 0, 7, length, row), plane(floats, item, 1, 7, length, row), row
    if AXES == 3:
        rz = plane(floats, item, 2, 7, length, row)
    ga, a, section_r, key, salt = row, row, row, row, row
    if SLOPES:
        ga = plane(floats, item, 3, 7, length, row)
    if PARTIAL:
        a = plane(floats, item, 5, 7, length, row)
    if SECTION:
        section_r = plane(ints, item, 0, 5, length, row)
    if DROPOUT:
        key, salt = plane(ints, item, 2, 5, length, row), plane(ints, item, 3, 5, length, row)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    g_sum = tl.zeros([ROWS], tl.float32)
    m_sum = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, W], tl.float32)
    begin = 0
    steps = tl.cdiv(n, COLUMNS)
    if LISTS:
        begin, end = stretch_bounds(starts, item, first, length, STRETCH)
        steps = (end - begin) * (STRETCH // COLUMNS)
    for step in range(steps):
        start = step * COLUMNS
        if LISTS:
            each: tl.constexpr = STRETCH // COLUMNS
            start = tl.load(near + begin + step // each) * STRETCH + step % each * COLUMNS
        columns = start + tl.arange(0, COLUMNS)
        column = columns[None, :]
        keys = tl.load(k + (item * length + column) * D + tl.arange(0, D)[:, None])
        values = tl.load(v + (item * length + columns[:, None]) * W + tl.arange(0, W)[None, :])
        cx, cy, cz = plane(floats, item, 0, 7, length, column), plane(floats, item, 1, 7, length, column), column
        if AXES == 3:
            cz = plane(floats, item, 2, 7, length, column)
        gc, c, section_c, mask_c = column, column, column, column
        if SLOPES:
            gc = plane(floats, item, 4, 7, length, column)
        if PARTIAL:
            c = plane(floats, item, 6, 7, length, column)
        if SECTION:
            section_c = plane(ints, item, 0, 5, length, column)
        if MASK:
            mask_c = plane(ints, item, 1, 5, length, column)
        e, g, _, _, _, m, _ = all_pairs(
            tl.dot(own, keys, input_precision=DOT), row, column, rx, ry, rz, cx, cy, cz, section_r, section_c, mask_c,
            ga, gc, a, c, theta, beta, gg, scale, reach, table + item * bins, edges, n, bins,
            PHI, BIAS, AXES, SLOPES, PARTIAL, PRODUCT, SECTION, SELF, RADIUS, MASK,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(e, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # the first tiles may hold nothing that is seen
        shrink = tl.exp2(top - shift)
        top = higher
        p = tl.exp2(e - shift[:, None])
        total = total * shrink + tl.sum(p, 1)
        if DROPOUT:
            p *= keep_factors(key, salt, plane(ints, item, 4, 5, length, column), threshold, inverse)
        if PHI != "none":
            g_sum = g_sum * shrink + tl.sum(p * g, 1)
        if PARTIAL:
            m_sum = m_sum * shrink + tl.sum(tl.where(m, p, 0.0), 1)
        sums = tl.dot(p.to(values.dtype), values, sums * shrink[:, None], input_precision=DOT)
    total = tl.where(total == 0.0, 1.0, total)  # rows past the end may see nothing
    share = 1.0 / total
    tl.store(out + (item * length + row) * W + tl.arange(0, W)[None, :], sums * share[:, None])
    place = stats + item * 4 * length + rows
    tl.store(place, tl.where(top == float("-inf"), 0.0, top))
    tl.store(place + length, total)
    tl.store(place + 2 * length, g_sum * share)
    tl.store(place + 3 * length, m_sum * share)


@triton.jit(do_not_specialize=RUNTIME)
def columns(
    q, k, v, floats, ints, items, table, edges, starts, near, d_out, turned, d_k, d_v, d_columns,
    n, length, bins, threshold, inverse,
    D: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRETCH: tl.constexpr,
    PHI: tl.constexpr, BIAS: tl.constexpr, AXES: tl.constexpr, SLOPES: tl.constexpr, PARTIAL: tl.constexpr,
    PRODUCT: tl.constexpr, SECTION: tl.constexpr, SELF: tl.constexpr, RADIUS: tl.constexpr, MASK: tl.constexpr,
    LISTS: tl.constexpr, DROPOUT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Gradients of k, v, gc and c: one program a block of columns, which lie along the first dimension here."""
    blocks = length // COLUMNS
    item = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * COLUMNS
    places = first + tl.arange(0, COLUMNS)
    column = places[:, None]
    theta, beta, gg, scale, reach = item_numbers(items, item)
    keys = tl.load(k + (item * length + column) * D + tl.arange(0, D)[None, :])
    values = tl.load(v + (item * length + column) * W + tl.arange(0, W)[None, :])
    cx, cy, cz = plane(floats, item, 0, 7, length, column), plane(floats, item, 1, 7, length, column), column
    if AXES == 3:
        cz = plane(floats, item, 2, 7, length, column)
    gc, c, section_c, mask_c, key = column, column, column, column, column
    if SLOPES:
        gc = plane(floats, item, 4, 7, length, column)
    if PARTIAL:
        c = plane(floats, item, 6, 7, length, column)
    if SECTION:
        section_c = plane(ints, item, 0, 5, length, column)
    if MASK:
        mask_c = plane(ints, item, 1, 5, length, column)
    if DROPOUT:
        key = plane(ints, item, 4, 5, length, column)
    dk = tl.zeros([COLUMNS, D], tl.float32)
    dv = tl.zeros([COLUMNS, W], tl.float32)
    dgc = tl.zeros([COLUMNS], tl.float32)
    dc = tl.zeros([COLUMNS], tl.float32)
    begin = 0
    steps = tl.cdiv(n, ROWS)
    if LISTS:
        begin, end = stretch_bounds(starts, item, first, length, STRETCH)
        steps = (end - begin) * (STRETCH // ROWS)
    for step in range(steps):
        start = step * ROWS
        if LISTS:
            each: tl.constexpr = STRETCH // ROWS
            start = tl.load(near + begin + step // each) * STRETCH + step % each * ROWS
        rows = start + tl.arange(0, ROWS)
        row = rows[None, :]
        queries = tl.load(q + (item * length + rows[:, None]) * D + tl.arange(0, D)[None, :])
        gradient = tl.load(d_out + (item * length + rows[:, None]) * W + tl.arange(0, W)[None, :])
        rx, ry, rz = plane(floats, item, 0, 7, length, row), plane(floats, item, 1, 7, length, row), row
        if AXES == 3:
            rz = plane(floats, item, 2, 7, length, row)
        ga, a, section_r = row, row, row
        if SLOPES:
            ga = plane(floats, item, 3, 7, length, row)
        if PARTIAL:
            a = plane(floats, item, 5, 7, length, row)
        if SECTION:
            section_r = plane(ints, item, 0, 5, length, row)
        e, g, _, _, _, m, _ = all_pairs(
            tl.dot(keys, tl.trans(queries), input_precision=DOT), row, column, rx, ry, rz, cx, cy, cz,
            section_r, section_c, mask_c, ga, gc, a, c, theta, beta, gg, scale, reach, table + item * bins, edges,
            n, bins, PHI, BIAS, AXES, SLOPES, PARTIAL, PRODUCT, SECTION, SELF, RADIUS, MASK,
        )  # fmt: skip
        p = tl.exp2(e - plane(turned, item, 0, 4, length, row))
        d_used = tl.dot(values, tl.trans(gradient), input_precision=DOT)
        if PHI != "none":
            d_used += g * plane(turned, item, 2, 4, length, row)
        if PARTIAL:
            d_used += tl.where(m, plane(turned, item, 3, 4, length, row), 0.0)
        used = p
        if DROPOUT:
            keep = keep_factors(
                plane(ints, item, 2, 5, length, row), plane(ints, item, 3, 5, length, row), key, threshold, inverse
            )
            used = p * keep
        w = used * d_used - p * plane(turned, item, 1, 4, length, row)
        dv = tl.dot(used.to(gradient.dtype), gradient, dv, input_precision=DOT)
        dk = tl.dot(w.to(queries.dtype), queries, dk, input_precision=DOT)
        if SLOPES:
            dgc += tl.sum(w * g, 1)
        if PARTIAL:
            dc += tl.sum(tl.where(m, w, 0.0), 1)
    tl.store(d_k + (item * length + column) * D + tl.arange(0, D)[None, :], dk)
    tl.store(d_v + (item * length + column) * W + tl.arange(0, W)[None, :], dv * LOG2E)
    tl.store(d_columns + item * 2 * length + places, dgc)
    tl.store(d_columns + (item * 2 + 1) * length + places, dc)


@triton.jit(do_not_specialize=RUNTIME)
def rows(
    q, k, v, floats, ints, items, table, edges, starts, near, d_out, turned, d_q, d_rows, d_table,
    n, length, bins, threshold, inverse,
    D: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRETCH: tl.constexpr,
    PHI: tl.constexpr, BIAS: tl.constexpr, AXES: tl.constexpr, SLOPES: tl.constexpr, PARTIAL: tl.constexpr,
    PRODUCT: tl.constexpr, SECTION: tl.constexpr, SELF: tl.constexpr, RADIUS: tl.constexpr, MASK: tl.constexpr,
    LISTS: tl.constexpr, DROPOUT: tl.constexpr, DOT: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Gradients of q, ga and a, and for each row the parts of theta, beta, gg, the bias's scale or table."""
    blocks = length // ROWS
    item = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * ROWS
    places = first + tl.arange(0, ROWS)
    row = places[:, None]
    theta, beta, gg, scale, reach = item_numbers(items, item)
    own = tl.load(q + (item * length + row) * D + tl.arange(0, D)[None, :])
    gradient = tl.load(d_out + (item * length + row) * W + tl.arange(0, W)[None, :])
    rx, ry, rz = plane(floats, item, 0, 7, length, row), plane(floats, item, 1, 7, length, row), row
    if AXES == 3:
        rz = plane(floats, item, 2, 7, length, row)
    ga, a, section_r, key, salt = row, row, row, row, row
    if SLOPES:
        ga = plane(floats, item, 3, 7, length, row)
    if PARTIAL:
        a = plane(floats, item, 5, 7, length, row)
    if SECTION:
        section_r = plane(ints, item, 0, 5, length, row)
    if DROPOUT:
        key, salt = plane(ints, item, 2, 5, length, row), plane(ints, item, 3, 5, length, row)
    shift, common = plane(turned, item, 0, 4, length, row), plane(turned, item, 1, 4, length, row)
    d_g_sum, d_m_sum = plane(turned, item, 2, 4, length, row), plane(turned, item, 3, 4, length, row)
    dq = tl.zeros([ROWS, D], tl.float32)
    dga = tl.zeros([ROWS], tl.float32)
    da = tl.zeros([ROWS], tl.float32)
    dtheta = tl.zeros([ROWS], tl.float32)
    dbeta = tl.zeros([ROWS], tl.float32)
    dgg = tl.zeros([ROWS], tl.float32)
    dscale = tl.zeros([ROWS], tl.float32)
    dtable = tl.zeros([ROWS, BINS], tl.float32)
    begin = 0
    steps = tl.cdiv(n, COLUMNS)
    if LISTS:
        begin, end = stretch_bounds(starts, item, first, length, STRETCH)
        steps = (end - begin) * (STRETCH // COLUMNS)
    for step in range(steps):
        start = step * COLUMNS
        if LISTS:
            each: tl.constexpr = STRETCH // COLUMNS
            start = tl.load(near + begin + step // each) * STRETCH + step % each * COLUMNS
        others = start + tl.arange(0, COLUMNS)
        column = others[None, :]
        keys = tl.load(k + (item * length + others[:, None]) * D + tl.arange(0, D)[None, :])
        values = tl.load(v + (item * length + others[:, None]) * W + tl.arange(0, W)[None, :])
        cx, cy, cz = plane(floats, item, 0, 7, length, column), plane(floats, item, 1, 7, length, column), column
        if AXES == 3:
            cz = plane(floats, item, 2, 7, length, column)
        gc, c, section_c, mask_c = column, column, column, column
        if SLOPES:
            gc = plane(floats, item, 4, 7, length, column)
        if PARTIAL:
            c = plane(floats, item, 6, 7, length, column)
        if SECTION:
            section_c = plane(ints, item, 0, 5, length, column)
        if MASK:
            mask_c = plane(ints, item, 1, 5, length, column)
        e, g, f, shifted, delta, m, slope = all_pairs(
            tl.dot(own, tl.trans(keys), input_precision=DOT), row, column, rx, ry, rz, cx, cy, cz,
            section_r, section_c, mask_c, ga, gc, a, c, theta, beta, gg, scale, reach, table + item * bins, edges,
            n, bins, PHI, BIAS, AXES, SLOPES, PARTIAL, PRODUCT, SECTION, SELF, RADIUS, MASK,
        )  # fmt: skip
        p = tl.exp2(e - shift)
        d_used = tl.dot(gradient, tl.trans(values), input_precision=DOT)
        if PHI != "none":
            d_used += g * d_g_sum
        if PARTIAL:
            d_used += tl.where(m, d_m_sum, 0.0)
        used = p
        if DROPOUT:
            used = p * keep_factors(key, salt, plane(ints, item, 4, 5, length, column), threshold, inverse)
        w = used * d_used - p * common
        dq = tl.dot(w.to(keys.dtype), keys, dq, input_precision=DOT)
        if PARTIAL:
            da += tl.sum(tl.where(m, w, 0.0), 1)
        if BIAS != "none":
            d_bias = tl.where(m, w, 0.0) if PARTIAL else w
            if BIAS == "bins":
                for edge in range(bins):
                    here = (delta >= tl.load(edges + edge)) & (delta < tl.load(edges + edge + 1))
                    part = tl.sum(tl.where(here, d_bias, 0.0), 1)
                    dtable += tl.where(tl.arange(0, BINS)[None, :] == edge, part[:, None], 0.0)
            else:
                dscale += tl.sum(d_bias * bias_slope(delta, scale, BIAS), 1)
        if PHI != "none":
            d_g = used * (d_g_sum * LOG2E)
            if SLOPES:
                w_g = w * g
                dga += tl.sum(w_g, 1)
                d_g += w * slope
                if PRODUCT:
                    dgg += tl.sum(w_g * g, 1)
                    d_g += w_g * (2.0 * gg)
            if PARTIAL:
                d_g = tl.where(m, d_g, 0.0)
            d_x = d_g * phi_slope(shifted, beta, f, PHI)
            dtheta += tl.sum(d_x, 1)
            dbeta += tl.sum(d_x * shifted, 1)
    tl.store(d_q + (item * length + row) * D + tl.arange(0, D)[None, :], dq)
    place = d_rows + item * 6 * length + places
    tl.store(place, dga)
    tl.store(place + length, da)
    tl.store(place + 2 * length, dtheta)
    tl.store(place + 3 * length, dbeta)
    tl.store(place + 4 * length, dgg)
    tl.store(place + 5 * length, dscale * LOG2E)
    if BIAS == "bins":
        tl.store(d_table + (item * length + row) * BINS + tl.arange(0, BINS)[None, :], dtable * LOG2E)
