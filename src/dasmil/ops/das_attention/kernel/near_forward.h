// The forward pass with a radius: a leaf of rows lies along the lanes, and the columns that it may see come one after another,
// keys and values where they lie. So nothing is turned but sixteen queries, and no sum goes across lanes.
#pragma once

#include "forward.h"
#include "near.h"

namespace DAS_ISA {

// What a thread owns.
struct NearDesk {
  int32_t *list;                // the columns near a leaf
  const float **k_at, **v_at;   // [NEAR]: where their rows lie
  const float **q_at;           // [LEAF]
  float *made, *nothing;        // [NEAR][o]: values that are not as they came; zeros
  float *q, *O, *out;           // [d][LEAF], [o][LEAF], [LEAF][o]
  float *S, *G, *M;             // [NEAR][LEAF]
  float *q_made;                // [LEAF][d]

  NearDesk(const Bag &bag, Arena &arena) {
    const int64_t used = bag.local;
    list = arena.take<int32_t>(used * (bag.padded + W));
    k_at = arena.take<const float *>(used * NEAR);
    v_at = arena.take<const float *>(used * NEAR);
    q_at = arena.take<const float *>(used * LEAF);
    made = arena.take(used && bag.mode == WHOLE ? NEAR * bag.o : 0);
    nothing = arena.take(used * bag.d);
    q = arena.take(used * bag.d * LEAF);
    O = arena.take(used * bag.o * LEAF);
    out = arena.take(used * bag.o * LEAF);
    S = arena.take(used * NEAR * LEAF);
    G = arena.take(used * NEAR * LEAF);
    M = arena.take(used * NEAR * LEAF);
    q_made = arena.take(used && bag.mode == WHOLE ? LEAF * bag.d : 0);
  }
};

template <int MODE, bool DROP>
struct NearForward {
  static constexpr bool SOME = MODE == PARTIAL;
  const das_problem &p;
  const Bag &bag;
  const Leaves &leaves;
  DistancePass distances;
  BiasPass biases;
  int32_t threshold;

  // Running state of the rows of a leaf, one a lane.
  struct State {
    float shift[LEAF], weight[LEAF], g[LEAF], m[LEAF];
  };

  void leaf(int64_t item, int64_t number, NearDesk &desk) const {
    const int64_t i0 = number * LEAF, d = bag.d, o = bag.o;
    Columns rows;
    bag.place(rows, i0, LEAF, LEAF);
    rows.gc = bag.ga ? bag.ga + i0 : nullptr;
    rows.c = bag.a ? bag.a + i0 : nullptr;
    rows.seen = nullptr;
    fill(desk.nothing, desk.nothing + d, 0.0f);
    for (int64_t r = 0; r < rows.real; ++r) desk.q_at[r] = bag.row_query(i0 + r, desk.q_made + r * d);
    turn_in(desk.q_at, rows.real, desk.nothing, d, 1.0f, desk.q);
    State state;
    for (int l = 0; l < LEAF; ++l) state.shift[l] = -INF, state.weight[l] = state.g[l] = state.m[l] = 0;
    fill(desk.O, desk.O + o * LEAF, 0.0f);
    const int64_t found = leaves.near(number, bag, false, desk.list);
    for (int64_t s = 0; s < found; s += NEAR) some(rows, desk.list + s, least(NEAR, found - s), state, desk);
    finish(item, i0, rows.real, state, desk);
  }

  // The rows of a leaf against `count` columns.
  void some(const Columns &rows, const int32_t *list, int64_t count, State &state, NearDesk &desk) const {
    for (int64_t x = 0; x < count; ++x) {
      desk.k_at[x] = bag.key + bag.ids[list[x]] * bag.d;
      desk.v_at[x] = bag.row_value(list[x], desk.made + x * bag.o);
      fetch(desk.k_at[x], bag.d);
      fetch(desk.v_at[x], bag.o);
    }
    spread_rows<LEAF>(desk.k_at, count, bag.d, desk.q, desk.S, LEAF);
    biases(bag, rows, Numbers{0, list}, count, desk.S);
    if (MODE != LEAN) distances(bag, rows, Numbers{0, list}, count, desk.G, desk.G, desk.M);
    for (int64_t l = 0; l < LEAF; l += W) {
      const vf tops = logits(rows, list, count, l, desk);
      if (__builtin_expect(any_above(tops - load(state.shift + l), 64.0f), 0)) move_shift(tops, state, l, desk.O + l);
      weights(rows, list, count, state, l, desk);
    }
    spread_add_rows<LEAF>(desk.v_at, bag.o, count, desk.S, desk.O, LEAF);
  }

  // Completes the products in S to logits and returns the largest of each row.
  vf logits(const Columns &rows, const int32_t *list, int64_t count, int64_t l, NearDesk &desk) const {
    vf top = all(-INF);
    const vf gg = all(bag.gg);
    for (int64_t x = 0; x < count; ++x) {
      float *S = desk.S + x * LEAF + l;
      vf e = load(S);
      if (MODE != LEAN) {
        const int64_t j = list[x], at = x * LEAF + l;
        const vf a = SOME ? all(bag.c[j]) : vf{};
        e = logit<SOME>(e, load(desk.G + at), desk.M + at, rows.gc + l, rows.c + l, all(bag.gc[j]), a, gg);
        store(S, e);
      }
      top = larger(e, top);
    }
    return top;
  }

  // As in the other forward pass: up to 2^64 above the shift nothing overflows, so this is rare.
  void move_shift(vf tops, State &state, int64_t l, float *O) const {
    const vf before = load(state.shift + l);
    const vi above = tops > before + 64.0f;
    const vf after = bits((above & bits(tops)) | (~above & bits(before)));
    const vf shrink = bits((above & bits(exp2_or_zero(before - after))) | (~above & bits(all(1.0f))));
    store(state.shift + l, after);
    store(state.weight + l, load(state.weight + l) * shrink);
    store(state.g + l, load(state.g + l) * shrink);
    store(state.m + l, load(state.m + l) * shrink);
    for (int64_t y = 0; y < bag.o; ++y) store(O + y * LEAF, load(O + y * LEAF) * shrink);
  }

  // Replaces the logits in S by the weights and adds them up.
  void weights(const Columns &rows, const int32_t *list, int64_t count, State &state, int64_t l, NearDesk &desk) const {
    const KeepRows keep(bag.keys, rows.ids + l, threshold);
    const vf shift = load(state.shift + l), low = only_where(shift != -INF, shift);  // -inf: nothing seen so far
    vf weight[4] = {}, weight_g[4] = {}, weight_m[4] = {};  // sums in four parts lose fewer digits and wait less
    const auto one = [&](int64_t x, int part) {
      const int64_t at = x * LEAF + l;
      vf w = exp2_or_zero(load(desk.S + at) - low);
      weight[part] += w;
      if (DROP) w = only_where(keep(bag.ids[list[x]]), w);
      if (MODE != LEAN) weight_g[part] = fma(w, load(desk.G + at), weight_g[part]);
      if (SOME) weight_m[part] = fma(w, load(desk.M + at), weight_m[part]);
      store(desk.S + at, w);
    };
    int64_t x = 0;
    for (; x + 4 <= count; x += 4) one(x, 0), one(x + 1, 1), one(x + 2, 2), one(x + 3, 3);
    for (; x < count; ++x) one(x, 0);
    add_parts(state.weight + l, weight);
    if (MODE != LEAN) add_parts(state.g + l, weight_g);
    if (SOME) add_parts(state.m + l, weight_m);
  }

  static void add_parts(float *to, const vf *parts) {
    store(to, load(to) + ((parts[0] + parts[1]) + (parts[2] + parts[3])));
  }

  void finish(int64_t item, int64_t i0, int64_t real, const State &state, NearDesk &desk) const {
    const int64_t n = bag.n, o = bag.o;
    const float *ve = bag.ve;
    turn_out(desk.O, o, desk.out);
    for (int64_t r = 0; r < real; ++r) {
      const int64_t at = item * n + i0 + r;
      const float total = state.weight[r];
      const float share = static_cast<float>(1.0 / ((1.0 - p.dropout) * total));
      const float g = state.g[r] * share, m = state.m[r] * share;
      p.shift[at] = state.shift[r];
      p.share[at] = 1.0f / total;
      p.g_sum[at] = g;
      p.m_sum[at] = m;
      const float *sums = desk.out + r * o;
      float *out = p.out + (item * n + bag.ids[i0 + r]) * o;
      for (int64_t y = 0; y < o; ++y) out[y] = sums[y] * share;
      for (int64_t y = 0; y < o && ve; ++y) {
        out[y] += g * (ve[y] - ve[o + y]);
        if (SOME) out[y] += m * ve[o + y];
      }
    }
  }
};

}  // namespace DAS_ISA
