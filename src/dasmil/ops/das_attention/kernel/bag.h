// One head of one bag, repacked for the passes, and the columns that a pass works on.
#pragma once

#include "base.h"

namespace DAS_ISA {

// Some columns, at most TJ: of a tile of the bag, or of a leaf.
struct Columns {
  const float *k, *v;     // [d][stride], [o][stride]
  const float *k_rows, *v_rows;  // [real][d], [real][o] where a product takes them so, else null
  const float *axis[3];   // each array that follows: [width]
  const float *gc, *c;
  const float *start;     // -inf for padding, else 0; null where a radius decides which pairs there are
  const int32_t *section, *ids;
  const int32_t *seen;    // null where rows and columns are exchanged
  int64_t width, real;    // the former a multiple of 16, the latter without padding
  int64_t stride;         // from one row of pairs to the next
};

// Rows in panels of six, columns in tiles along the lanes. Both are numbered in the order of the problem; `ids` are the
// numbers that the instances have outside.
struct Bag {
  int64_t n, d, o, axes, tiles, panels, padded;
  Mode mode;
  bool square;                 // the product term b^Q.b^K
  bool self_pair;
  bool cut;                    // a radius
  bool local;                  // a radius that leaves most pairs out: rows and columns are packed where they are needed
  bool bounded = false;        // no pair is so far apart that 2^(beta (delta - theta)) leaves the range of a float
  const float *query, *key, *value;  // as they came: [n][d], [n][d], [n][o]
  float *q_panel, *q_rows;     // [panels][d][6] and [n][d]: scale * log2(e) * (q, + v_Q unless partial); the second
                               // only for the backward pass; neither where local
  float *k, *v;                // [tiles][d][TJ], [tiles][o][TJ]; not where local
  float *v_whole;              // [n][o] with v_V, for a forward pass whose products take the values as rows
  bool backward;
  bool wide_k, wide_v;         // the products that sum over columns take keys or values as rows
  float *axis[3];              // [padded]
  float *gc, *c, *start;       // [padded]
  int32_t *ids;                // [padded]; -1 after the last
  int32_t *section;            // [padded]; a token (-1) is in no section, so a row's own number is -2 there
  int32_t *seen;               // [padded], with a radius: 0 for padding
  float *ga, *a;               // [padded]
  float gg = 0, theta = 0, beta = 0;
  const float *ke, *qe, *ve;   // [2][d or o] or null
  double unit;                 // scale * log2(e)
  float local_unit;            // the same where the products of queries and keys do not have it yet, else 1
  Keys keys;                   // of dropout
  int bias;
  int64_t bins;
  double length = 0;           // slope or length of the bias, in the unit of the coordinates
  float slope = 0;             // the factor of the bias, times log2(e)
  float *table, *edges;        // [bins] times log2(e); [bins - 1] in the unit of the coordinates
  float reach = 0;             // the largest squared distance that is seen

  Bag(const das_problem &p, Arena &arena, bool backward)
      : n(p.n), d(p.d), o(p.o), axes(p.axes), tiles((p.n + TJ - 1) / TJ), panels((p.n + 5) / 6), padded(tiles * TJ),
        backward(backward) {
    square = p.product_term && p.key_embed && p.query_embed;
    self_pair = p.self_pair != 0;
    cut = p.reach != nullptr;
    mode = !p.theta ? LEAN : p.section || !p.self_pair || square ? PARTIAL : WHOLE;
    bias = static_cast<int>(p.bias);
    bins = bias == BINS ? p.bins : 0;
    local = p.order != nullptr;
    wide_k = backward && d % W == 0;
    wide_v = !backward && o % W == 0;
    q_panel = arena.take(local ? 0 : panels * d * 6);
    q_rows = arena.take(local || !backward ? 0 : n * d);
    k = arena.take(local ? 0 : padded * d);
    v = arena.take(local || wide_v ? 0 : padded * o);
    v_whole = arena.take(!local && wide_v && mode == WHOLE && p.value_embed ? n * o : 0);
    for (int64_t x = 0; x < 3; ++x) axis[x] = x < axes ? arena.take(padded) : nullptr;
    gc = mode != LEAN ? arena.take(padded) : nullptr;
    c = mode == PARTIAL ? arena.take(padded) : nullptr;
    start = arena.take(padded);
    ids = arena.take<int32_t>(padded);
    section = p.section ? arena.take<int32_t>(padded) : nullptr;
    seen = cut ? arena.take<int32_t>(padded) : nullptr;
    ga = mode != LEAN ? arena.take(padded) : nullptr;
    a = mode == PARTIAL ? arena.take(padded) : nullptr;
    table = arena.take(bins);
    edges = arena.take(bins);
    unit = p.scale * LOG2E;
    local_unit = local ? static_cast<float>(unit) : 1.0f;
  }

  // What is multiplied into the sums of w k; the rest of it comes at the end.
  float dq_factor() const { return mode == LEAN && wide_k ? static_cast<float>(unit) : 1.0f; }
  int64_t width(int64_t tile) const { return least(TJ, (n - tile * TJ + 15) / 16 * 16); }
  int32_t row_section(int64_t i) const { return section[i] < 0 ? -2 : section[i]; }

  // `width` columns from column j0 on, which lie in one tile.
  Columns columns(int64_t j0, int64_t width) const {
    const int64_t first = j0 / TJ * TJ, offset = j0 - first;
    Columns x;
    x.k = k + first * d + offset;
    x.v = wide_v ? nullptr : v + first * o + offset;
    x.k_rows = wide_k ? key + j0 * d : nullptr;
    x.v_rows = wide_v ? (ve && mode == WHOLE ? v_whole : value) + j0 * o : nullptr;
    place(x, j0, width, TJ);
    return x;
  }

  // What the passes need of `width` columns from column j0 on.
  void place(Columns &x, int64_t j0, int64_t width, int64_t stride) const {
    x.real = least(width, n - j0);
    for (int y = 0; y < 3; ++y) x.axis[y] = axis[y] ? axis[y] + j0 : nullptr;
    x.gc = gc ? gc + j0 : nullptr;
    x.c = (c ? c : start) + j0;  // not read where it is not c
    x.start = cut ? nullptr : start + j0;
    x.section = section ? section + j0 : nullptr;
    x.ids = ids + j0;
    x.seen = seen ? seen + j0 : nullptr;
    x.width = width;
    x.stride = stride;
  }

  int pack(const das_problem &p, int64_t bag, int64_t head) {
    const int64_t item = bag * p.heads + head;
    if (p.seeds) {
      const int64_t share = p.bags * p.heads / p.seed_count;
      keys = Keys(static_cast<uint64_t>(p.seeds[item / share]), static_cast<uint64_t>(item % share));
    }
    ke = p.key_embed ? p.key_embed + bag * p.key_embed_step + head * 2 * d : nullptr;
    qe = p.query_embed ? p.query_embed + bag * p.query_embed_step + head * 2 * d : nullptr;
    ve = p.value_embed ? p.value_embed + bag * p.value_embed_step + head * 2 * o : nullptr;
    const int64_t *order = p.order ? p.order + bag * p.order_step : nullptr;
    for (int64_t j = 0; j < padded; ++j) ids[j] = j >= n ? -1 : static_cast<int32_t>(order ? order[j] : j);
    if (p.theta) {
      theta = static_cast<float>(p.theta[bag * p.theta_step + head] * p.distance_scale);
      beta = static_cast<float>(p.beta[bag * p.beta_step + head] / p.distance_scale);
    }
    if (!pack_bias(p, bag, head)) return DAS_BAD_LENGTH;
    const int status = pack_places(p, bag);
    if (status != DAS_OK) return status;
    query = p.query + item * n * d;
    key = p.key + item * n * d;
    value = p.value + item * n * o;
    pack_rows();
    pack_columns();
    return DAS_OK;
  }

  // Row i of the queries as the products of a local bag take it, made in `to` where it is not as it came.
  const float *row_query(int64_t i, float *to) const {
    const float *row = query + ids[i] * d;
    if (!qe || mode != WHOLE) return row;
    for (int64_t x = 0; x < d; ++x) to[x] = row[x] + qe[d + x];
    return to;
  }

  // Row i of the queries as the products of other bags take it.
  void fold_query(int64_t i, float *to) const {
    const float *row = query + ids[i] * d, u = static_cast<float>(unit);
    if (qe && mode == WHOLE) {
      for (int64_t x = 0; x < d; ++x) to[x] = u * (row[x] + qe[d + x]);
    } else {
      for (int64_t x = 0; x < d; ++x) to[x] = u * row[x];
    }
  }

  // The values of column j as the products take them, made in `to` where they are not as they came.
  const float *row_value(int64_t j, float *to) const {
    const float *row = value + ids[j] * o;
    if (!ve || mode != WHOLE) return row;
    for (int64_t x = 0; x < o; ++x) to[x] = row[x] + ve[o + x];
    return to;
  }

 private:
  bool pack_bias(const das_problem &p, int64_t bag, int64_t head) {
    if (cut) reach = static_cast<float>(p.reach[head]);
    if (bias == BINS) {
      const float *own = p.bias_table + bag * p.bias_table_step + head * bins;
      for (int64_t b = 0; b < bins; ++b) table[b] = static_cast<float>(own[b] * LOG2E);
      for (int64_t b = 0; b + 1 < bins; ++b) edges[b] = static_cast<float>(p.bias_edges[b] * p.distance_scale * (1 - 5e-7));
    } else if (bias != NO_BIAS) {
      const double given = p.bias_scale[bag * p.bias_scale_step + head];
      length = bias == LINEAR ? given / p.distance_scale : given * p.distance_scale;
      if (bias != LINEAR && !(given > 0)) return false;
      slope = static_cast<float>(bias == LINEAR ? length * -LOG2E : bias == CAUCHY ? 1 / (length * length)
                                                                                   : -0.5 * LOG2E / (length * length));
    }
    return true;
  }

  int pack_places(const das_problem &p, int64_t bag) {
    const float *coords = p.coords + bag * p.coords_step;
    const uint8_t *mask = p.mask ? p.mask + bag * p.mask_step : nullptr;
    const int64_t *sections = p.section ? p.section + bag * p.section_step : nullptr;
    bool finite = true, real = false, small = true, known = true;
    double extent = fabs(static_cast<double>(theta));
    for (int64_t x = 0; x < axes; ++x) {
      float low = coords[x], high = coords[x];
      for (int64_t j = 0; j < padded; ++j) {
        const float y = coords[(j < n ? ids[j] : 0) * axes + x];
        axis[x][j] = y;
        finite &= fabsf(y) < INF;
        low = y < low ? y : low;
        high = y > high ? y : high;
      }
      extent += static_cast<double>(high) - low;
    }
    bounded = extent * fabs(beta * LOG2E) < 120.0;
    for (int64_t j = 0; j < padded; ++j) {
      const bool shown = j < n && (!mask || mask[ids[j]]);
      start[j] = shown ? 0.0f : -INF;
      real |= shown;
      if (section) {
        section[j] = j < n ? static_cast<int32_t>(sections[ids[j]]) : -1;
        small &= j >= n || section[j] == sections[ids[j]];
        known &= section[j] >= -1;
      }
      if (seen) seen[j] = shown;
    }
    if (!finite) return DAS_BAD_COORDS;
    if (!real) return DAS_BAD_MASK;
    if (!small) return DAS_BAD_SECTION;
    return known ? DAS_OK : DAS_UNKNOWN_SECTION;
  }

  void pack_rows() {
    double extra_ga = 0, extra_a = 0;  // from the product term b^Q.b^K
    if (square) {
      const double uu = dot(qe, ke, d), uv = dot(qe, ke + d, d), vu = dot(qe + d, ke, d), vv = dot(qe + d, ke + d, d);
      extra_ga = unit * (uv + vu - 2 * vv);
      extra_a = unit * vv;
      gg = static_cast<float>(unit * (uu - uv - vu + vv));
    }
    const float u = static_cast<float>(unit);
    const bool folded = qe && mode == WHOLE;
    for (int64_t i = 0; i < n && !local; ++i) {
      const float *row = query + ids[i] * d;
      float *panel = q_panel + (i / 6) * d * 6 + i % 6;
      for (int64_t x = 0; x < d; ++x) panel[x * 6] = u * (folded ? row[x] + qe[d + x] : row[x]);
      if (backward) fold_query(i, q_rows + i * d);
    }
    if (mode == LEAN) return;
    for (int64_t i = 0; i < n; ++i) {
      const float *row = query + ids[i] * d;
      const double to_u = ke ? dot(row, ke, d) : 0, to_v = ke ? dot(row, ke + d, d) : 0;
      ga[i] = static_cast<float>(unit * (to_u - to_v) + extra_ga);
      if (a) a[i] = static_cast<float>(unit * to_v + extra_a);
    }
    fill(ga + n, ga + padded, 0.0f);
    if (a) fill(a + n, a + padded, 0.0f);
  }

  void pack_columns() {
    const bool folded = ve && mode == WHOLE;
    for (int64_t t = 0; t < tiles && !local; ++t) {
      const int64_t j0 = t * TJ, w = width(t);
      for (int64_t j = 0; j < w; ++j) {
        const bool real = j0 + j < n;
        float *kt = k + j0 * d + j, *vt = v + j0 * o + j;
        const float *row = real ? key + ids[j0 + j] * d : nullptr;
        for (int64_t x = 0; x < d; ++x) kt[x * TJ] = real ? row[x] : 0;
        if (wide_v) {
          if (real && folded) row_value(j0 + j, v_whole + (j0 + j) * o);
          continue;
        }
        row = real ? value + ids[j0 + j] * o : nullptr;
        for (int64_t x = 0; x < o; ++x) vt[x * TJ] = !real ? 0 : folded ? row[x] + ve[o + x] : row[x];
      }
    }
    if (mode == LEAN) return;
    for (int64_t j = 0; j < padded; ++j) {
      const bool some = j < n && qe;
      const float *row = some ? key + ids[j] * d : nullptr;
      const double to_u = some ? dot(row, qe, d) : 0, to_v = some ? dot(row, qe + d, d) : 0;
      gc[j] = static_cast<float>(unit * (to_u - to_v));
      if (c) c[j] = static_cast<float>(unit * to_v);
    }
  }
};

}  // namespace DAS_ISA
