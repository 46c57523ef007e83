// One head of one bag, repacked for the passes, and the columns that a pass works on.
#pragma once

#include "base.h"

namespace DAS_ISA {

// Some columns, at most TJ: a tile of the bag, or columns that were gathered from all over it.
struct Columns {
  const float *k, *v;     // [d][TJ], [o][TJ]
  const float *axis[3];   // each array that follows: [width]
  const float *gc, *c;
  const float *start;     // -inf for padding, else 0; null where a radius decides which pairs there are
  const int32_t *section, *ids, *seen;
  int64_t width;          // a multiple of 16
};

// Rows in panels of six, columns in tiles along the lanes. Both are numbered in the order of the problem; `ids` are the
// numbers that the instances have outside.
struct Bag {
  int64_t n, d, o, axes, tiles, panels, padded;
  Mode mode;
  bool square;                 // the product term b^Q.b^K
  bool self_pair;
  bool cut;                    // a radius
  bool bounded = false;        // no pair is so far apart that 2^(beta (delta - theta)) leaves the range of a float
  float *q_panel, *q_rows;     // [panels][d][6] and [n][d]: scale * log2(e) * (q, + v_Q unless partial); the second
                               // only for a backward pass over all rows
  float *k, *v;                // [tiles][d][TJ], [tiles][o][TJ]
  float *axis[3];              // [padded]
  float *gc, *c, *start;       // [padded]
  int32_t *ids;                // [padded]; -1 after the last
  int32_t *section;            // [padded]; a token (-1) is in no section, so a row's own number is -2 there
  int32_t *seen;               // [padded], with a radius: 0 padding, 1 an instance, 2 a token
  float *ga, *a;               // [n]
  float gg = 0, theta = 0, beta = 0;
  const float *ke, *qe, *ve;   // [2][d or o] or null
  double unit;                 // scale * log2(e)
  Keys keys;                   // of dropout
  int bias;
  int64_t bins;
  double length = 0;           // slope or length of the bias, in the unit of the coordinates
  float slope = 0;             // the factor of the bias, times log2(e)
  float *table, *edges;        // [bins] times log2(e); [bins - 1] in the unit of the coordinates
  float reach = 0;             // the largest squared distance that is seen

  Bag(const das_problem &p, Arena &arena, bool backward)
      : n(p.n), d(p.d), o(p.o), axes(p.axes), tiles((p.n + TJ - 1) / TJ), panels((p.n + 5) / 6), padded(tiles * TJ) {
    square = p.product_term && p.key_embed && p.query_embed;
    self_pair = p.self_pair != 0;
    cut = p.reach != nullptr;
    mode = !p.theta ? LEAN : p.section || !p.self_pair || square ? PARTIAL : WHOLE;
    bias = static_cast<int>(p.bias);
    bins = bias == BINS ? p.bins : 0;
    q_panel = arena.take(panels * d * 6);
    q_rows = backward && !p.order ? arena.take(n * d) : nullptr;
    k = arena.take(padded * d);
    v = arena.take(padded * o);
    for (int64_t x = 0; x < 3; ++x) axis[x] = x < axes ? arena.take(padded) : nullptr;
    gc = mode != LEAN ? arena.take(padded) : nullptr;
    c = mode == PARTIAL ? arena.take(padded) : nullptr;
    start = arena.take(padded);
    ids = arena.take<int32_t>(padded);
    section = p.section ? arena.take<int32_t>(padded) : nullptr;
    seen = cut ? arena.take<int32_t>(padded) : nullptr;
    ga = mode != LEAN ? arena.take(n) : nullptr;
    a = mode == PARTIAL ? arena.take(n) : nullptr;
    table = arena.take(bins);
    edges = arena.take(bins);
    unit = p.scale * LOG2E;
  }

  int64_t width(int64_t tile) const { return least(TJ, (n - tile * TJ + 15) / 16 * 16); }
  int32_t row_section(int64_t i) const { return section[i] < 0 ? -2 : section[i]; }

  // `width` columns from column j0 on, which lie in one tile.
  Columns columns(int64_t j0, int64_t width) const {
    const int64_t first = j0 / TJ * TJ, offset = j0 - first;
    Columns x;
    x.k = k + first * d + offset;
    x.v = v + first * o + offset;
    for (int y = 0; y < 3; ++y) x.axis[y] = axis[y] ? axis[y] + j0 : nullptr;
    x.gc = gc ? gc + j0 : nullptr;
    x.c = (c ? c : start) + j0;  // not read where it is not c
    x.start = cut ? nullptr : start + j0;
    x.section = section ? section + j0 : nullptr;
    x.ids = ids + j0;
    x.seen = seen ? seen + j0 : nullptr;
    x.width = width;
    return x;
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
    pack_rows(p.query + item * n * d);
    pack_columns(p.key + item * n * d, p.value + item * n * o);
    return DAS_OK;
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
      bool token = false;
      if (section) {
        section[j] = j < n ? static_cast<int32_t>(sections[ids[j]]) : -1;
        small &= j >= n || section[j] == sections[ids[j]];
        known &= section[j] >= -1;
        token = section[j] < 0;
      }
      if (seen) seen[j] = !shown ? 0 : token ? 2 : 1;
    }
    if (!finite) return DAS_BAD_COORDS;
    if (!real) return DAS_BAD_MASK;
    if (!small) return DAS_BAD_SECTION;
    return known ? DAS_OK : DAS_UNKNOWN_SECTION;
  }

  void pack_rows(const float *query) {
    double extra_ga = 0, extra_a = 0;  // from the product term b^Q.b^K
    if (square) {
      const double uu = dot(qe, ke, d), uv = dot(qe, ke + d, d), vu = dot(qe + d, ke, d), vv = dot(qe + d, ke + d, d);
      extra_ga = unit * (uv + vu - 2 * vv);
      extra_a = unit * vv;
      gg = static_cast<float>(unit * (uu - uv - vu + vv));
    }
    const float u = static_cast<float>(unit);
    for (int64_t i = 0; i < n; ++i) {
      const float *row = query + ids[i] * d;
      float *panel = q_panel + (i / 6) * d * 6 + i % 6;
      double to_u = 0, to_v = 0;
      for (int64_t x = 0; x < d; ++x) {
        const float folded = u * (qe && mode == WHOLE ? row[x] + qe[d + x] : row[x]);
        if (q_rows) q_rows[i * d + x] = folded;
        panel[x * 6] = folded;
        if (ke) {
          to_u += static_cast<double>(row[x]) * ke[x];
          to_v += static_cast<double>(row[x]) * ke[d + x];
        }
      }
      if (ga) ga[i] = static_cast<float>(unit * (to_u - to_v) + extra_ga);
      if (a) a[i] = static_cast<float>(unit * to_v + extra_a);
    }
  }

  void pack_columns(const float *key, const float *value) {
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t j0 = t * TJ, w = width(t);
      for (int64_t j = 0; j < w; ++j) {
        float *kt = k + j0 * d + j, *vt = v + j0 * o + j;
        double to_u = 0, to_v = 0;
        if (j0 + j < n) {
          const float *row = key + ids[j0 + j] * d;
          for (int64_t x = 0; x < d; ++x) {
            kt[x * TJ] = row[x];
            if (qe) {
              to_u += static_cast<double>(row[x]) * qe[x];
              to_v += static_cast<double>(row[x]) * qe[d + x];
            }
          }
          row = value + ids[j0 + j] * o;
          for (int64_t x = 0; x < o; ++x) vt[x * TJ] = ve && mode == WHOLE ? row[x] + ve[o + x] : row[x];
        } else {
          for (int64_t x = 0; x < d; ++x) kt[x * TJ] = 0;
          for (int64_t x = 0; x < o; ++x) vt[x * TJ] = 0;
        }
        if (gc) gc[j0 + j] = static_cast<float>(unit * (to_u - to_v));
        if (c) c[j0 + j] = static_cast<float>(unit * to_v);
      }
    }
  }
};

}  // namespace DAS_ISA
