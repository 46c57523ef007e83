// Distance-aware attention, forward and backward, fused: no n x n array, memory O(n). The README in the folder above derives
// the formulas; the names here are those used there. Logits are kept in units of log 2 (times log2(e)), so that each
// exponential is a power of two; the gradients that flow through them are times ln(2) accordingly.
#pragma once

#include <new>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "das_attention.h"
#include "gemm.h"

namespace DAS_ISA {

constexpr int TJ = 192;     // columns of a tile
constexpr int TI = 24;      // rows of a block in the backward pass: a multiple of 6
constexpr int TF = 96;      // and in the forward pass, where more rows share the way of a tile through the caches
constexpr double LOG2E = 1.4426950408889634, LN2 = 0.6931471805599453;
constexpr float INF = __builtin_inff();

// Not those of the standard library: the linker keeps one copy of a library template, and that of the AVX2 file must not
// end up in the portable path.
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
template <typename T>
inline void fill(T *from, T *to, T x) {
  while (from < to) *from++ = x;
}

enum Phi { SIGMOID, IDENTITY, EXPONENTIAL, GAUSSIAN, NO_PHI };

// Hands out pieces of the scratch memory; with a null base it only counts.
struct Arena {
  char *base;
  int64_t used = 0;
  explicit Arena(void *memory) : base(static_cast<char *>(memory)) {}
  template <typename T = float>
  T *take(int64_t count) {
    T *piece = base ? reinterpret_cast<T *>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
};

// Products of numbers too small to matter must not slow the loops down.
struct FlushDenormals {
#ifdef __SSE__
  unsigned before = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(before | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before); }
#endif
};

inline double dot(const float *a, const float *b, int64_t size) {
  double sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += static_cast<double>(a[c]) * b[c];
  return sum;
}

// One head of one bag, repacked: rows in panels of six, columns in tiles along the lanes.
struct Bag {
  int64_t n, d, o, axes, tiles, panels, padded;
  bool partial;                // some m_ij = 0; also set for the product term, so that the usual case stays lean
  bool square;                 // the product term b^Q.b^K
  bool bounded = false;        // no pair is so far apart that 2^(beta (delta - theta)) leaves the range of a float
  float *q_panel, *q_rows;     // [panels][d][6] and [n][d]: scale * log2(e) * (q, + v_Q unless partial)
  float *k, *v;                // [tiles][d][TJ], [tiles][o][TJ]
  float *axis[3];              // [padded]
  float *gc, *c, *bias;        // [padded]; bias is -inf for padding, else 0
  int32_t *section;            // [padded]
  float *ga, *a;               // [n]
  float gg = 0, theta = 0, beta = 0;
  const float *ke, *qe, *ve;   // [2][d or o] or null
  double unit;                 // scale * log2(e)
  Keys keys;                   // of dropout

  Bag(const das_problem &p, Arena &arena)
      : n(p.n), d(p.d), o(p.o), axes(p.axes), tiles((p.n + TJ - 1) / TJ), panels((p.n + 5) / 6), padded(tiles * TJ) {
    square = p.product_term && p.key_embed && p.query_embed;
    partial = p.section || !p.self_pair || square;
    q_panel = arena.take(panels * d * 6);
    q_rows = arena.take(n * d);
    k = arena.take(padded * d);
    v = arena.take(padded * o);
    for (int64_t x = 0; x < 3; ++x) axis[x] = x < axes ? arena.take(padded) : nullptr;
    gc = arena.take(padded);
    c = partial ? arena.take(padded) : nullptr;
    bias = arena.take(padded);
    section = p.section ? arena.take<int32_t>(padded) : nullptr;
    ga = arena.take(n);
    a = partial ? arena.take(n) : nullptr;
    unit = p.scale * LOG2E;
  }

  int64_t width(int64_t tile) const { return least(TJ, (n - tile * TJ + 15) / 16 * 16); }
  int64_t rows(int64_t panel) const { return least(6, n - panel * 6); }

  int pack(const das_problem &p, int64_t bag, int64_t head) {
    const int64_t item = bag * p.heads + head;
    if (p.seeds) {
      const int64_t share = p.bags * p.heads / p.seed_count;
      keys = Keys(static_cast<uint64_t>(p.seeds[item / share]), static_cast<uint64_t>(item % share));
    }
    const float *query = p.query + item * n * d, *key = p.key + item * n * d, *value = p.value + item * n * o;
    ke = p.key_embed ? p.key_embed + bag * p.key_embed_step + head * 2 * d : nullptr;
    qe = p.query_embed ? p.query_embed + bag * p.query_embed_step + head * 2 * d : nullptr;
    ve = p.value_embed ? p.value_embed + bag * p.value_embed_step + head * 2 * o : nullptr;
    if (p.theta) {
      theta = static_cast<float>(p.theta[bag * p.theta_step + head] * p.distance_scale);
      beta = static_cast<float>(p.beta[bag * p.beta_step + head] / p.distance_scale);
    }
    double extra_ga = 0, extra_a = 0;  // from the product term b^Q.b^K
    if (square) {
      const double uu = dot(qe, ke, d), uv = dot(qe, ke + d, d), vu = dot(qe + d, ke, d), vv = dot(qe + d, ke + d, d);
      extra_ga = unit * (uv + vu - 2 * vv);
      extra_a = unit * vv;
      gg = static_cast<float>(unit * (uu - uv - vu + vv));
    }
    const float *coords = p.coords + bag * p.coords_step;
    const uint8_t *mask = p.mask ? p.mask + bag * p.mask_step : nullptr;
    const int64_t *ids = p.section ? p.section + bag * p.section_step : nullptr;
    bool finite = true, real = false, small = true;
    double reach = fabs(static_cast<double>(theta));
    for (int64_t x = 0; x < axes; ++x) {
      float low = coords[x], high = coords[x];
      for (int64_t j = 0; j < padded; ++j) {
        const float y = coords[(j < n ? j : 0) * axes + x];
        axis[x][j] = y;
        finite &= fabsf(y) < INF;
        low = y < low ? y : low;
        high = y > high ? y : high;
      }
      reach += static_cast<double>(high) - low;
    }
    bounded = reach * fabs(beta * LOG2E) < 120.0;
    for (int64_t j = 0; j < padded; ++j) {
      const bool shown = j < n && (!mask || mask[j]);
      bias[j] = shown ? 0.0f : -INF;
      real |= shown;
      if (section) {
        section[j] = j < n ? static_cast<int32_t>(ids[j]) : 0;
        small &= j >= n || section[j] == ids[j];
      }
    }
    if (!finite) return DAS_BAD_COORDS;
    if (!real) return DAS_BAD_MASK;
    if (!small) return DAS_BAD_SECTION;

    const float u = static_cast<float>(unit);
    for (int64_t i = 0; i < n; ++i) {
      const float *row = query + i * d;
      float *panel = q_panel + (i / 6) * d * 6 + i % 6;
      double to_u = 0, to_v = 0;
      for (int64_t x = 0; x < d; ++x) {
        const float folded = u * (qe && !partial ? row[x] + qe[d + x] : row[x]);
        q_rows[i * d + x] = folded;
        panel[x * 6] = folded;
        if (ke) {
          to_u += static_cast<double>(row[x]) * ke[x];
          to_v += static_cast<double>(row[x]) * ke[d + x];
        }
      }
      ga[i] = static_cast<float>(unit * (to_u - to_v) + extra_ga);
      if (partial) a[i] = static_cast<float>(unit * to_v + extra_a);
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t j0 = t * TJ, w = width(t);
      for (int64_t j = 0; j < w; ++j) {
        float *kt = k + j0 * d + j, *vt = v + j0 * o + j;
        double to_u = 0, to_v = 0;
        if (j0 + j < n) {
          const float *row = key + (j0 + j) * d;
          for (int64_t x = 0; x < d; ++x) {
            kt[x * TJ] = row[x];
            if (qe) {
              to_u += static_cast<double>(row[x]) * qe[x];
              to_v += static_cast<double>(row[x]) * qe[d + x];
            }
          }
          row = value + (j0 + j) * o;
          for (int64_t x = 0; x < o; ++x) vt[x * TJ] = ve && !partial ? row[x] + ve[o + x] : row[x];
        } else {
          for (int64_t x = 0; x < d; ++x) kt[x * TJ] = 0;
          for (int64_t x = 0; x < o; ++x) vt[x * TJ] = 0;
        }
        gc[j0 + j] = static_cast<float>(unit * (to_u - to_v));
        if (partial) c[j0 + j] = static_cast<float>(unit * to_v);
      }
    }
    return DAS_OK;
  }
};

// The elementwise work is split into short passes over tiles that stay in the first-level cache. The CPU can hold only
// so many waiting operations, so a long chain per element leaves the units idle; a short one does not.

// X = delta - theta for `rows` rows from row i and `width` columns from column j0. Tiles have the row stride TJ.
template <int AXES>
void shifted_distances(const Bag &bag, int64_t i, int64_t rows, int64_t j0, int64_t width, float *X) {
  const float *xs = bag.axis[0] + j0, *ys = bag.axis[1] + j0, *zs = AXES == 3 ? bag.axis[2] + j0 : nullptr;
  const vf theta = all(bag.theta);
  for (int64_t r = 0; r < rows; ++r, ++i, X += TJ) {
    const vf x = all(bag.axis[0][i]), y = all(bag.axis[1][i]), z = AXES == 3 ? all(bag.axis[2][i]) : vf{};
    for (int64_t j = 0; j < width; j += W) {
      const vf dx = load(xs + j) - x, dy = load(ys + j) - y;
      vf squared = fma(dx, dx, dy * dy);
      if (AXES == 3) {
        const vf dz = load(zs + j) - z;
        squared = fma(dz, dz, squared);
      }
      store(X + j, root(squared) - theta);
    }
  }
}

// G = m phi, and M = m where some pairs have no distance.
template <int PHI, int AXES, bool PARTIAL, bool BOUNDED>
void distance_pass(const Bag &bag, int64_t i, int64_t rows, int64_t j0, int64_t width, bool self_pair, float *G, float *X,
                   float *M) {
  shifted_distances<AXES>(bag, i, rows, j0, width, X);
  const vf b = all(PHI == IDENTITY || PHI == GAUSSIAN ? bag.beta : static_cast<float>(-bag.beta * LOG2E));
  for (int64_t r = 0; r < rows; ++r, ++i, G += TJ, X += TJ, M += TJ) {
    for (int64_t j = 0; j < width; j += W) {
      const vf t = load(X + j) * b;
      vf g;
      if (PHI == SIGMOID) g = 1.0f / (1.0f + exp2_normal(BOUNDED ? t : at_most(126.0f, at_least(-126.0f, t))));
      if (PHI == IDENTITY) g = t;
      if (PHI == EXPONENTIAL) g = exp2_or_zero(-magnitude(t));
      if (PHI == GAUSSIAN) g = exp2_or_zero(t * t * static_cast<float>(-0.5 * LOG2E));
      if (PARTIAL) {
        vi m = bag.section ? load(bag.section + j0 + j) == bag.section[i] : vi{} == 0;
        if (!self_pair) m &= static_cast<int32_t>(j0 + j - i) + vi{0, 1, 2, 3, 4, 5, 6, 7} != 0;
        g = only_where(m, g);
        store(M + j, only_where(m, all(1.0f)));
      }
      store(G + j, g);
    }
  }
}

template <bool PARTIAL>
void no_distance_pass(const Bag &, int64_t, int64_t rows, int64_t, int64_t width, bool, float *G, float *X, float *M) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; ++j) {
      G[r * TJ + j] = X[r * TJ + j] = 0;
      if (PARTIAL) M[r * TJ + j] = 0;  // without embeddings it multiplies nothing
    }
}

typedef void (*DistancePass)(const Bag &, int64_t, int64_t, int64_t, int64_t, bool, float *, float *, float *);

template <bool PARTIAL>
DistancePass choose_distance_pass(int phi, const Bag &bag) {
  static const DistancePass table[5][2] = {
      {distance_pass<SIGMOID, 2, PARTIAL, false>, distance_pass<SIGMOID, 3, PARTIAL, false>},
      {distance_pass<IDENTITY, 2, PARTIAL, false>, distance_pass<IDENTITY, 3, PARTIAL, false>},
      {distance_pass<EXPONENTIAL, 2, PARTIAL, false>, distance_pass<EXPONENTIAL, 3, PARTIAL, false>},
      {distance_pass<GAUSSIAN, 2, PARTIAL, false>, distance_pass<GAUSSIAN, 3, PARTIAL, false>},
      {distance_pass<SIGMOID, 2, PARTIAL, true>, distance_pass<SIGMOID, 3, PARTIAL, true>},
  };
  if (phi == NO_PHI) return no_distance_pass<PARTIAL>;
  return table[phi == SIGMOID && bag.bounded ? 4 : phi][bag.axes - 2];
}

// A row's constants and a column's terms give the logit of a pair.
template <bool PARTIAL>
DAS_INLINE vf logit(vf s, vf g, const float *m, const float *gc, const float *c, vf ga, vf a, vf gg) {
  vf slope = ga + load(gc);
  if (PARTIAL) slope = fma(gg, g, slope);
  vf e = fma(g, slope, s);
  if (PARTIAL) e = fma(load(m), a + load(c), e);
  return e;
}

// Running state of a block of rows; sums stay spread over the lanes until the end.
struct RowState {
  float shift[TF];  // subtracted from the logits; -inf: nothing seen yet
  float weight[TF][W], g[TF][W], m[TF][W];
};

template <bool PARTIAL, bool DROP>
struct Forward {
  const das_problem &p;
  const Bag &bag;
  DistancePass distances;
  int32_t threshold;

  // Completes the products in S to logits and returns the largest of each lane.
  vf logits(int64_t i, int64_t j0, int64_t width, float *S, const float *G, const float *M) const {
    const vf ga = all(bag.ga[i]), a = PARTIAL ? all(bag.a[i]) : vf{}, gg = all(bag.gg);
    const float *gc = bag.gc + j0, *c = PARTIAL ? bag.c + j0 : nullptr;
    vf top = all(-INF);
    for (int64_t j = 0; j < width; j += W) {
      const vf e = logit<PARTIAL>(load(S + j), load(G + j), M + j, gc + j, c + j, ga, a, gg);
      top = larger(e, top);
      store(S + j, e);
    }
    return top;
  }

  // Replaces the logits in S by the weights, exp(logit - shift), and adds them up.
  void weights(int64_t i, int64_t j0, int64_t width, RowState &state, int64_t r, float *S, const float *G,
               const float *M) const {
    const Keep keep(bag.keys, i, threshold);
    const vf low = all(state.shift[r] == -INF ? 0.0f : state.shift[r]);  // -inf: all padding so far
    vf weight = load(state.weight[r]), weight_g = load(state.g[r]), weight_m = load(state.m[r]);
    for (int64_t j = 0; j < width; j += W) {
      vf w = exp2_or_zero(load(S + j) - low);
      weight += w;
      if (DROP) w = only_where(keep(static_cast<uint32_t>(j0 + j)), w);
      weight_g = fma(w, load(G + j), weight_g);
      if (PARTIAL) weight_m = fma(w, load(M + j), weight_m);
      store(S + j, w);
    }
    store(state.weight[r], weight);
    store(state.g[r], weight_g);
    store(state.m[r], weight_m);
  }

  void block(int64_t item, int64_t i0, int64_t rows, float *S, float *G, float *X, float *M, float *O) const {
    const int64_t n = bag.n, o = bag.o, d = bag.d;
    RowState state;
    for (int64_t r = 0; r < rows; ++r) {
      state.shift[r] = -INF;
      for (int l = 0; l < W; ++l) state.weight[r][l] = state.g[r][l] = state.m[r][l] = 0;
    }
    fill(O, O + rows * o, 0.0f);
    for (int64_t tile = 0; tile < bag.tiles; ++tile) {
      const int64_t j0 = tile * TJ, width = bag.width(tile);
      const float *k = bag.k + j0 * d;
      for (int64_t r0 = 0; r0 < rows; r0 += 6) {
        const int64_t count = least(6, rows - r0);
        const float *panel = bag.q_panel + (i0 + r0) * d;
        spread_panel<TJ>(panel, count, d, k, bag.bias + j0, S, width);
        distances(bag, i0 + r0, count, j0, width, p.self_pair, G, X, M);
        for (int64_t x = 0; x < count; ++x) {
          const int64_t r = r0 + x;
          const vf tops = logits(i0 + r, j0, width, S + x * TJ, G + x * TJ, M + x * TJ);
          // Up to 2^64 above the shift nothing overflows, so the sums are rescaled rarely.
          if (__builtin_expect(any_above(tops, state.shift[r] + 64.0f), 0)) {
            const float top = lane_max(tops);
            const float shrink = exp2f(state.shift[r] - top);
            state.shift[r] = top;
            for (int l = 0; l < W; ++l) {
              state.weight[r][l] *= shrink;
              state.g[r][l] *= shrink;
              state.m[r][l] *= shrink;
            }
            for (int64_t y = 0; y < o; ++y) O[r * o + y] *= shrink;
          }
        }
        for (int64_t x = 0; x < count; ++x)
          weights(i0 + r0 + x, j0, width, state, r0 + x, S + x * TJ, G + x * TJ, M + x * TJ);
        gather_all<TJ>(S, count, bag.v + j0 * o, width, o, O + r0 * o, o);
      }
    }
    const float *ve = bag.ve;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = item * n + i0 + r;
      const float total = lane_sum(load(state.weight[r]));
      const float share = static_cast<float>(1.0 / ((1.0 - p.dropout) * total));
      const float g = lane_sum(load(state.g[r])) * share, m = lane_sum(load(state.m[r])) * share;
      p.lse[at] = static_cast<float>(state.shift[r] + log2(static_cast<double>(total)));
      p.g_sum[at] = g;
      p.m_sum[at] = m;
      for (int64_t y = 0; y < o; ++y) {
        float z = O[r * o + y] * share;
        if (ve) z += g * (ve[y] - ve[o + y]);
        if (PARTIAL && ve) z += m * ve[o + y];
        p.out[at * o + y] = z;
      }
    }
  }
};

// What a thread of the backward pass owns.
struct Sums {
  float *dq;              // [n][d]: sum_j w k_j
  float *alpha, *mu;      // [panels * 8]: sum_j w g, sum_j w m; six rows of a panel, two unused
  double theta = 0, beta = 0, gg = 0;
  float *dk, *dv;         // [d][TJ], [o][TJ] of the current tile
  float *gamma, *nu;      // [TJ]: sum_i w g, sum_i w m
  float *S, *D, *G, *X, *M;
  double *k_gamma, *k_nu, *v_sum;  // [d], [d], [o]: sums over the columns for the embeddings

  Sums(const Bag &bag, Arena &arena) {
    dq = arena.take(bag.n * bag.d);
    alpha = arena.take(bag.panels * 8);
    mu = bag.partial ? arena.take(bag.panels * 8) : nullptr;
    dk = arena.take(bag.d * TJ);
    dv = arena.take(bag.o * TJ);
    gamma = arena.take(TJ);
    nu = arena.take(TJ);
    S = arena.take(TI * TJ);
    D = arena.take(TI * TJ);
    G = arena.take(6 * TJ);
    X = arena.take(6 * TJ);
    M = bag.partial ? arena.take(6 * TJ) : nullptr;
    k_gamma = arena.take<double>(bag.d);
    k_nu = arena.take<double>(bag.d);
    v_sum = arena.take<double>(bag.o);
  }

  void clear(const Bag &bag) {
    fill(dq, dq + bag.n * bag.d, 0.0f);
    fill(alpha, alpha + bag.panels * 8, 0.0f);
    if (mu) fill(mu, mu + bag.panels * 8, 0.0f);
    fill(k_gamma, k_gamma + bag.d, 0.0);
    fill(k_nu, k_nu + bag.d, 0.0);
    fill(v_sum, v_sum + bag.o, 0.0);
    theta = beta = gg = 0;
  }
};

// The incoming gradient of one head of one bag, repacked.
struct Incoming {
  float *panel;         // [panels][o][6]: dz * ln(2)
  float *common;        // [n]: dz.z * ln(2)
  float *dg, *dg_ln2;   // [n]: dz.(u_V - v_V)
  float *dm_ln2;        // [n]: dz.v_V

  Incoming(const Bag &bag, Arena &arena) {
    panel = arena.take(bag.panels * bag.o * 6);
    common = arena.take(bag.n);
    dg = arena.take(bag.n);
    dg_ln2 = arena.take(bag.n);
    dm_ln2 = arena.take(bag.n);
  }

  void pack(const das_problem &p, const Bag &bag, int64_t item) {
    const int64_t n = bag.n, o = bag.o;
    for (int64_t i = 0; i < n; ++i) {
      const float *dz = p.d_out + (item * n + i) * o, *z = p.out + (item * n + i) * o;
      for (int64_t y = 0; y < o; ++y) panel[(i / 6) * o * 6 + y * 6 + i % 6] = static_cast<float>(LN2) * dz[y];
      common[i] = static_cast<float>(LN2 * dot(dz, z, o));
      const double u = bag.ve ? dot(dz, bag.ve, o) : 0, v = bag.ve ? dot(dz, bag.ve + o, o) : 0;
      dg[i] = static_cast<float>(u - v);
      dg_ln2[i] = static_cast<float>(LN2 * (u - v));
      dm_ln2[i] = static_cast<float>(LN2 * v);
    }
  }
};

template <int PHI, bool PARTIAL, bool DROP>
struct Backward {
  const das_problem &p;
  const Bag &bag;
  const Incoming &in;
  DistancePass distances;
  int32_t threshold;

  // S holds q.k and becomes the weights before dropout.
  void weights(int64_t item, int64_t i0, int64_t count, int64_t j0, int64_t width, float *S, const Sums &t) const {
    const vf gg = all(bag.gg);
    const float *gc = bag.gc + j0, *c = PARTIAL ? bag.c + j0 : nullptr, *lse = p.lse + item * bag.n;
    const float *G = t.G, *M = t.M;
    for (int64_t i = i0; i < i0 + count; ++i, S += TJ, G += TJ, M += TJ) {
      const vf ga = all(bag.ga[i]), a = PARTIAL ? all(bag.a[i]) : vf{}, low = all(lse[i]);
      for (int64_t j = 0; j < width; j += W) {
        const vf e = logit<PARTIAL>(load(S + j), load(G + j), M + j, gc + j, c + j, ga, a, gg);
        store(S + j, exp2_or_zero(e - low));
      }
    }
  }

  // D holds dz.v and becomes w = dL/de; S becomes the weights after dropout; the sums over rows and columns are taken.
  void gradients(int64_t i0, int64_t count, int64_t j0, int64_t width, float *S, float *D, Sums &t) const {
    const vf gg = all(bag.gg), beta = all(bag.beta), kept = all(static_cast<float>(1.0 / (1.0 - p.dropout)));
    const float *gc = bag.gc + j0, *G = t.G, *X = t.X, *M = t.M;
    vf alpha[8] = {}, mu[8] = {};
    vf d_theta{}, d_beta{}, d_gg{};
    for (int64_t r = 0; r < count; ++r, S += TJ, D += TJ, G += TJ, X += TJ, M += TJ) {
      const int64_t i = i0 + r;
      const Keep keep(bag.keys, i, threshold);
      const vf ga = all(bag.ga[i]), common = all(in.common[i]);
      const vf dg = all(in.dg[i]), dg_ln2 = all(in.dg_ln2[i]), dm_ln2 = all(in.dm_ln2[i]);
      vf row_alpha{}, row_mu{};
      for (int64_t j = 0; j < width; j += W) {
        const vf g = load(G + j), weight = load(S + j);
        vf d_weight = fma(g, dg_ln2, load(D + j));
        if (PARTIAL) d_weight = fma(load(M + j), dm_ln2, d_weight);
        vf used = weight;
        if (DROP) {
          const vf factor = only_where(keep(static_cast<uint32_t>(j0 + j)), kept);
          used = weight * factor;
          d_weight = d_weight * factor;
          store(S + j, used);
        }
        const vf w = weight * (d_weight - common);
        store(D + j, w);
        const vf wg = w * g;
        row_alpha += wg;
        store(t.gamma + j, load(t.gamma + j) + wg);
        vf slope = ga + load(gc + j);
        if (PARTIAL) {
          slope = fma(gg + gg, g, slope);
          d_gg = fma(wg, g, d_gg);
        }
        vf d_g = fma(w, slope, used * dg);
        if (PARTIAL) {
          const vf m = load(M + j), wm = w * m;
          row_mu += wm;
          store(t.nu + j, load(t.nu + j) + wm);
          if (PHI == IDENTITY) d_g = d_g * m;
        }
        const vf shifted = load(X + j);
        vf d_x = d_g;
        if (PHI == SIGMOID) d_x = d_g * fnma(g, g, g);
        if (PHI == GAUSSIAN) d_x = d_g * (g * -(shifted * beta));
        if (PHI == EXPONENTIAL) {
          const vf x = shifted * beta;
          const vf sign = bits((bits(x) & INT32_MIN) | bits(all(1.0f)));
          d_x = d_g * only_where(x != 0.0f, g * -sign);
        }
        d_theta += d_x;
        d_beta = fma(d_x, shifted, d_beta);
      }
      alpha[r] = row_alpha;
      mu[r] = row_mu;
    }
    float *row = t.alpha + i0 / 6 * 8;
    add_lanes4(row, alpha[0], alpha[1], alpha[2], alpha[3]);
    add_lanes4(row + 4, alpha[4], alpha[5], alpha[6], alpha[7]);
    if (PARTIAL) {
      row = t.mu + i0 / 6 * 8;
      add_lanes4(row, mu[0], mu[1], mu[2], mu[3]);
      add_lanes4(row + 4, mu[4], mu[5], mu[6], mu[7]);
    }
    t.theta += lane_sum(d_theta);
    t.beta += lane_sum(d_beta);
    if (PARTIAL) t.gg += lane_sum(d_gg);
  }

  // All rows against one tile of columns: finishes the gradients of its keys and values.
  void tile(int64_t item, int64_t tile, Sums &t) const {
    const int64_t n = bag.n, d = bag.d, o = bag.o, j0 = tile * TJ, width = bag.width(tile);
    const float *k = bag.k + j0 * d, *v = bag.v + j0 * o, *dz = p.d_out + item * n * o;
    fill(t.dk, t.dk + d * TJ, 0.0f);
    fill(t.dv, t.dv + o * TJ, 0.0f);
    fill(t.gamma, t.gamma + TJ, 0.0f);
    fill(t.nu, t.nu + TJ, 0.0f);
    for (int64_t i0 = 0; i0 < n; i0 += TI) {
      const int64_t rows = least(TI, n - i0);
      for (int64_t r = 0; r < rows; r += 6) {
        const int64_t count = least(6, rows - r);
        float *S = t.S + r * TJ, *D = t.D + r * TJ;
        spread_panel<TJ>(bag.q_panel + (i0 + r) * d, count, d, k, bag.bias + j0, S, width);
        spread_panel<TJ>(in.panel + (i0 + r) * o, count, o, v, nullptr, D, width);
        distances(bag, i0 + r, count, j0, width, p.self_pair, t.G, t.X, t.M);
        weights(item, i0 + r, count, j0, width, S, t);
        gradients(i0 + r, count, j0, width, S, D, t);
        gather_all<TJ>(D, count, k, width, d, t.dq + (i0 + r) * d, d);
      }
      spread_add<TJ>(bag.q_rows + i0 * d, d, rows, t.D, t.dk, width);
      spread_add<TJ>(dz + i0 * o, o, rows, t.S, t.dv, width);
    }
    const float unit = static_cast<float>(bag.unit);
    const float *qe = bag.qe;
    for (int64_t j = 0; j < least(width, n - j0); ++j) {
      const int64_t at = item * n + j0 + j;
      const float *key = p.key + at * d;
      for (int64_t x = 0; x < d; ++x) {
        float dk = t.dk[x * TJ + j];
        if (qe) dk += unit * t.gamma[j] * (qe[x] - qe[d + x]);
        if (qe && PARTIAL) dk += unit * t.nu[j] * qe[d + x];
        p.d_key[at * d + x] = dk;
        t.k_gamma[x] += static_cast<double>(t.gamma[j]) * key[x];
        if (PARTIAL) t.k_nu[x] += static_cast<double>(t.nu[j]) * key[x];
      }
      for (int64_t y = 0; y < o; ++y) {
        p.d_value[at * o + y] = t.dv[y * TJ + j];
        t.v_sum[y] += t.dv[y * TJ + j];
      }
    }
  }
};

// Gradients that need the sums over all columns: those of the queries and of the parameters.
inline void finish(const das_problem &p, const Bag &bag, int64_t item, Sums *const *sums, int64_t count, double *work) {
  const int64_t n = bag.n, d = bag.d, o = bag.o;
  const float *ke = bag.ke, *qe = bag.qe;
  const double unit = bag.unit;
  double *q_alpha = work, *q_mu = work + d, *dq_sum = work + 2 * d, *z_g = work + 3 * d, *z_m = work + 3 * d + o;
  fill(work, work + 3 * d + 2 * o, 0.0);
  double alpha_sum = 0, mu_sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i / 6 * 8 + i % 6;
    float alpha = 0, mu = 0;
    for (int64_t s = 0; s < count; ++s) {
      alpha += sums[s]->alpha[at];
      if (bag.partial) mu += sums[s]->mu[at];
    }
    const float *query = p.query + (item * n + i) * d;
    float *out = p.d_query + (item * n + i) * d;
    const float u = static_cast<float>(unit);
    for (int64_t x = 0; x < d; ++x) {
      float dq = 0;
      for (int64_t s = 0; s < count; ++s) dq += sums[s]->dq[i * d + x];
      dq_sum[x] += dq;
      q_alpha[x] += static_cast<double>(alpha) * query[x];
      q_mu[x] += static_cast<double>(mu) * query[x];
      if (ke) dq += alpha * (ke[x] - ke[d + x]);
      if (ke && bag.partial) dq += mu * ke[d + x];
      out[x] = u * dq;
    }
    alpha_sum += alpha;
    mu_sum += mu;
    if (p.d_value_embed) {
      const float *dz = p.d_out + (item * n + i) * o;
      const double g = p.g_sum[item * n + i], m = bag.partial ? p.m_sum[item * n + i] : 1.0;
      for (int64_t y = 0; y < o; ++y) {
        z_g[y] += g * dz[y];
        z_m[y] += m * dz[y];
      }
    }
  }
  double theta = 0, beta = 0, gg = 0;
  for (int64_t s = 0; s < count; ++s) theta += sums[s]->theta, beta += sums[s]->beta, gg += sums[s]->gg;
  if (p.d_theta) {
    p.d_theta[item] = static_cast<float>(-theta * bag.beta * p.distance_scale);
    p.d_beta[item] = static_cast<float>(beta / p.distance_scale);
  }
  // b = m v + g (u - v): first the gradients of v (with u - v held) and of u - v, then those of u and v.
  for (int64_t x = 0; x < d; ++x) {
    double k_gamma = 0, k_nu = 0;
    for (int64_t s = 0; s < count; ++s) k_gamma += sums[s]->k_gamma[x], k_nu += sums[s]->k_nu[x];
    if (p.d_key_embed) {
      double slope = q_alpha[x], base = q_mu[x];
      if (bag.square) {
        slope += alpha_sum * qe[d + x] + gg * (qe[x] - qe[d + x]);
        base += mu_sum * qe[d + x] + alpha_sum * (qe[x] - qe[d + x]);
      }
      p.d_key_embed[item * 2 * d + x] = static_cast<float>(unit * slope);
      p.d_key_embed[item * 2 * d + d + x] = static_cast<float>(unit * (base - slope));
    }
    if (p.d_query_embed) {
      double slope = k_gamma, base = bag.partial ? k_nu : dq_sum[x];
      if (bag.square) {
        slope += alpha_sum * ke[d + x] + gg * (ke[x] - ke[d + x]);
        base += mu_sum * ke[d + x] + alpha_sum * (ke[x] - ke[d + x]);
      }
      p.d_query_embed[item * 2 * d + x] = static_cast<float>(unit * slope);
      p.d_query_embed[item * 2 * d + d + x] = static_cast<float>(unit * (base - slope));
    }
  }
  if (p.d_value_embed)
    for (int64_t y = 0; y < o; ++y) {
      double base = z_m[y];  // without dropout and with all m_ij = 1 the sums m_i are 1
      if (!bag.partial && p.dropout > 0) {
        base = 0;
        for (int64_t s = 0; s < count; ++s) base += sums[s]->v_sum[y];
      }
      p.d_value_embed[item * 2 * o + y] = static_cast<float>(z_g[y]);
      p.d_value_embed[item * 2 * o + o + y] = static_cast<float>(base - z_g[y]);
    }
}

template <bool PARTIAL, bool DROP>
void run_forward(const das_problem &p, const Bag &bag, int64_t item, DistancePass distances, int32_t threshold, int threads,
                 float *tiles) {
  const Forward<PARTIAL, DROP> forward{p, bag, distances, threshold};
  const int64_t blocks = (bag.n + TF - 1) / TF;
  (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    const FlushDenormals flush;
#ifdef _OPENMP
    const int64_t me = threads > 1 ? omp_get_thread_num() : 0;
#else
    const int64_t me = 0;
#endif
    float *own = tiles + me * (18 * TJ + (TF * bag.o + 15) / 16 * 16);
    forward.block(item, b * TF, least(TF, bag.n - b * TF), own, own + 6 * TJ, own + 6 * TJ, own + 12 * TJ,
                  own + 18 * TJ);
  }
}

template <int PHI, bool PARTIAL, bool DROP>
void run_backward(const das_problem &p, const Bag &bag, const Incoming &in, int64_t item, DistancePass distances,
                  int32_t threshold, int threads, Sums **sums) {
  const Backward<PHI, PARTIAL, DROP> backward{p, bag, in, distances, threshold};
  (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
  for (int64_t t = 0; t < bag.tiles; ++t) {
    const FlushDenormals flush;
#ifdef _OPENMP
    const int64_t me = threads > 1 ? omp_get_thread_num() : 0;
#else
    const int64_t me = 0;
#endif
    backward.tile(item, t, *sums[me]);
  }
}

typedef void (*RunForward)(const das_problem &, const Bag &, int64_t, DistancePass, int32_t, int, float *);
typedef void (*RunBackward)(const das_problem &, const Bag &, const Incoming &, int64_t, DistancePass, int32_t, int, Sums **);

inline RunForward choose_forward(bool partial, bool drop) {
  static const RunForward table[2][2] = {{run_forward<false, false>, run_forward<false, true>},
                                         {run_forward<true, false>, run_forward<true, true>}};
  return table[partial][drop];
}

template <int PHI>
RunBackward choose_backward(bool partial, bool drop) {
  static const RunBackward table[2][2] = {{run_backward<PHI, false, false>, run_backward<PHI, false, true>},
                                          {run_backward<PHI, true, false>, run_backward<PHI, true, true>}};
  return table[partial][drop];
}

// Everything for one item (a head of a bag), carved out of scratch memory.
struct Worker {
  Bag bag;
  float *tiles = nullptr;  // forward
  Incoming in;
  Sums **sums = nullptr;
  double *work = nullptr;

  Worker(const das_problem &p, Arena &arena, int threads, bool backward) : bag(p, arena), in(bag, arena) {
    if (!backward) {
      tiles = arena.take(threads * (18 * TJ + (TF * bag.o + 15) / 16 * 16));
      return;
    }
    sums = arena.take<Sums *>(threads);
    Sums *slots = arena.take<Sums>(threads);
    for (int t = 0; t < threads; ++t) {
      const Sums made(bag, arena);
      if (arena.base) sums[t] = new (slots + t) Sums(made);
    }
    work = arena.take<double>(3 * bag.d + 2 * bag.o);
  }

  int forward(const das_problem &p, int64_t item, int threads) {
    const int status = bag.pack(p, item / p.heads, item % p.heads);
    if (status != DAS_OK) return status;
    const int phi = p.theta ? static_cast<int>(p.phi) : static_cast<int>(NO_PHI);
    const DistancePass distances = bag.partial ? choose_distance_pass<true>(phi, bag) : choose_distance_pass<false>(phi, bag);
    choose_forward(bag.partial, p.dropout > 0)(p, bag, item, distances, threshold(p), threads, tiles);
    return DAS_OK;
  }

  int backward(const das_problem &p, int64_t item, int threads) {
    const int status = bag.pack(p, item / p.heads, item % p.heads);
    if (status != DAS_OK) return status;
    in.pack(p, bag, item);
    for (int t = 0; t < threads; ++t) sums[t]->clear(bag);
    const int phi = p.theta ? static_cast<int>(p.phi) : static_cast<int>(NO_PHI);
    const DistancePass distances = bag.partial ? choose_distance_pass<true>(phi, bag) : choose_distance_pass<false>(phi, bag);
    RunBackward run;
    switch (phi) {
      case SIGMOID: run = choose_backward<SIGMOID>(bag.partial, p.dropout > 0); break;
      case EXPONENTIAL: run = choose_backward<EXPONENTIAL>(bag.partial, p.dropout > 0); break;
      case GAUSSIAN: run = choose_backward<GAUSSIAN>(bag.partial, p.dropout > 0); break;
      default: run = choose_backward<IDENTITY>(bag.partial, p.dropout > 0); break;
    }
    run(p, bag, in, item, distances, threshold(p), threads, sums);
    finish(p, bag, item, sums, threads, work);
    return DAS_OK;
  }

  static int32_t threshold(const das_problem &p) { return static_cast<int32_t>(nearbyint(p.dropout * 16777216.0)); }
};

// Many small bags: a thread takes whole items. Few large ones: the threads share an item.
struct Plan {
  int across, within;
  explicit Plan(const das_problem &p) {
    const int64_t items = p.bags * p.heads;
    const double pairs = static_cast<double>(items) * p.n * p.n;
    int threads = static_cast<int>(most(1, p.threads));
    if (pairs < 40000.0) threads = 1;  // starting threads would cost more than it gives
    across = p.n < 2048 ? static_cast<int>(least(threads, items)) : 1;
    within = across > 1 ? 1 : static_cast<int>(least(threads, (p.n + TJ - 1) / TJ));
  }
};

inline int64_t scratch(const das_problem &p, bool backward) {
  const Plan plan(p);
  Arena arena(nullptr);
  const Worker worker(p, arena, plan.within, backward);
  return arena.used * plan.across;
}

inline int run(const das_problem &p, bool backward) {
  const Plan plan(p);
  Arena count(nullptr);
  const int64_t bytes = (Worker(p, count, plan.within, backward), count.used), items = p.bags * p.heads;
  int status = DAS_OK;
  if (plan.across == 1) {  // not a parallel region of one thread: OpenMP would start new threads inside it each time
    const FlushDenormals flush;
    Arena arena(p.scratch);
    Worker worker(p, arena, plan.within, backward);
    for (int64_t item = 0; item < items && status == DAS_OK; ++item)
      status = backward ? worker.backward(p, item, plan.within) : worker.forward(p, item, plan.within);
    return status;
  }
#pragma omp parallel num_threads(plan.across)
  {
#ifdef _OPENMP
    const int64_t me = omp_get_thread_num();
#else
    const int64_t me = 0;
#endif
    const FlushDenormals flush;
    Arena arena(static_cast<char *>(p.scratch) + me * bytes);
    Worker worker(p, arena, 1, backward);
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < items; ++item) {
      const int result = backward ? worker.backward(p, item, 1) : worker.forward(p, item, 1);
      if (result != DAS_OK) {
#pragma omp atomic write
        status = result;
      }
    }
  }
  return status;
}

}  // namespace DAS_ISA
