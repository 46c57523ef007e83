// The forward pass: rows outside, columns inside, a running softmax.
#pragma once

#include "passes.h"

namespace DAS_ISA {

// A row's constants and a column's terms give the logit of a pair.
template <bool SOME>
DAS_INLINE vf logit(vf s, vf g, const float *m, const float *gc, const float *c, vf ga, vf a, vf gg) {
  vf slope = ga + load(gc);
  if (SOME) slope = fma(gg, g, slope);
  vf e = fma(g, slope, s);
  if (SOME) e = fma(load(m), a + load(c), e);
  return e;
}

// Running state of a block of rows; sums stay spread over the lanes until the end.
struct RowState {
  float shift[TF];  // subtracted from the logits; -inf: nothing seen yet
  float weight[TF][W], g[TF][W], m[TF][W];

  void clear(int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      shift[r] = -INF;
      for (int l = 0; l < W; ++l) weight[r][l] = g[r][l] = m[r][l] = 0;
    }
  }
};

// What a thread of the forward pass owns.
struct Desk {
  float *S, *G, *M, *O;  // [6][TJ] each, [TF][o]; the distances share the place of G

  Desk(const Bag &bag, Arena &arena)
      : S(arena.take(6 * TJ)), G(arena.take(6 * TJ)), M(arena.take(6 * TJ)), O(arena.take(TF * bag.o)) {}
};

template <int MODE, bool DROP>
struct Forward {
  static constexpr bool SOME = MODE == PARTIAL;
  const das_problem &p;
  const Bag &bag;
  DistancePass distances;
  BiasPass biases;
  int32_t threshold;

  // Completes the products in S to logits and returns the largest of each lane.
  vf logits(const Columns &to, int64_t i, float *S, const float *G, const float *M) const {
    vf top = all(-INF);
    if (MODE == LEAN) {
      for (int64_t j = 0; j < to.width; j += W) top = larger(load(S + j), top);
      return top;
    }
    const vf ga = all(bag.ga[i]), a = SOME ? all(bag.a[i]) : vf{}, gg = all(bag.gg);
    for (int64_t j = 0; j < to.width; j += W) {
      const vf e = logit<SOME>(load(S + j), load(G + j), M + j, to.gc + j, to.c + j, ga, a, gg);
      top = larger(e, top);
      store(S + j, e);
    }
    return top;
  }

  // Replaces the logits in S by the weights, exp(logit - shift), and adds them up.
  void weights(const Columns &to, int64_t i, RowState &state, int64_t r, float *S, const float *G, const float *M) const {
    const Keep keep(bag.keys, bag.ids[i], threshold);
    const vf low = all(state.shift[r] == -INF ? 0.0f : state.shift[r]);  // -inf: all padding so far
    vf weight = load(state.weight[r]), weight_g = load(state.g[r]), weight_m = load(state.m[r]);
    for (int64_t j = 0; j < to.width; j += W) {
      vf w = exp2_or_zero(load(S + j) - low);
      weight += w;
      if (DROP) w = only_where(keep(load(to.ids + j)), w);
      if (MODE != LEAN) weight_g = fma(w, load(G + j), weight_g);
      if (SOME) weight_m = fma(w, load(M + j), weight_m);
      store(S + j, w);
    }
    store(state.weight[r], weight);
    store(state.g[r], weight_g);
    store(state.m[r], weight_m);
  }

  // Some rows against some columns.
  void tile(const Columns &to, int64_t i0, int64_t rows, RowState &state, const Desk &desk) const {
    const int64_t o = bag.o, d = bag.d;
    float *S = desk.S, *G = desk.G, *M = desk.M, *O = desk.O;
    for (int64_t r0 = 0; r0 < rows; r0 += 6) {
      const int64_t count = least(6, rows - r0);
      const Numbers numbers{i0 + r0, nullptr};
      spread_panel<TJ>(bag.q_panel + (i0 + r0) * d, count, d, to.k, to.start, S, to.width);
      if (biases) biases(bag, to, numbers, count, S);
      if (MODE != LEAN) distances(bag, to, numbers, count, G, G, M);
      for (int64_t x = 0; x < count; ++x) {
        const int64_t r = r0 + x;
        const vf tops = logits(to, i0 + r, S + x * TJ, G + x * TJ, M + x * TJ);
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
      for (int64_t x = 0; x < count; ++x) weights(to, i0 + r0 + x, state, r0 + x, S + x * TJ, G + x * TJ, M + x * TJ);
      const Rows sums{O + r0 * o, o, nullptr, 1.0f};
      if (to.v_rows) {
        collect_all<TJ>(S, count, InTurn{to.v_rows, o}, to.real, sums);
      } else {
        gather_all<TJ>(S, count, to.v, to.width, sums);
      }
    }
  }

  void block(int64_t item, int64_t i0, int64_t rows, Desk &desk) const {
    const int64_t n = bag.n, o = bag.o;
    RowState state;
    state.clear(rows);
    fill(desk.O, desk.O + rows * o, 0.0f);
    for (int64_t t = 0; t < bag.tiles; ++t) tile(bag.columns(t * TJ, bag.width(t)), i0, rows, state, desk);
    const float *ve = bag.ve;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = item * n + i0 + r;
      const float total = lane_sum(load(state.weight[r]));
      const float share = static_cast<float>(1.0 / ((1.0 - p.dropout) * total));
      const float g = lane_sum(load(state.g[r])) * share, m = lane_sum(load(state.m[r])) * share;
      p.shift[at] = state.shift[r];
      p.share[at] = 1.0f / total;
      p.g_sum[at] = g;
      p.m_sum[at] = m;
      float *out = p.out + (item * n + bag.ids[i0 + r]) * o;
      for (int64_t y = 0; y < o; ++y) {
        float z = desk.O[r * o + y] * share;
        if (ve) z += g * (ve[y] - ve[o + y]);
        if (SOME && ve) z += m * ve[o + y];
        out[y] = z;
      }
    }
  }
};

}  // namespace DAS_ISA
