// The backward pass: columns outside, rows inside, so that the gradients of a tile's keys and values are finished at once.
#pragma once

#include "near_forward.h"

namespace DAS_ISA {

// What a thread of the backward pass owns.
struct Sums {
  bool first;
  float *dq;              // [n][d]: sum_j w k_j by the instances' own numbers; the first thread's is the result itself
  float *alpha, *mu;      // [n]: sum_j w g, sum_j w m
  double theta = 0, beta = 0, gg = 0;
  float *dk, *dv;         // [d][TJ], [o][TJ] of the current tile, or [d][LEAF], [o][LEAF] of a leaf
  float *gamma, *nu;      // [TJ]: sum_i w g, sum_i w m
  float *S, *D, *G, *X, *M;
  double *k_gamma, *k_nu, *v_sum;  // [d], [d], [o]: sums over the columns for the embeddings
  double *bias;           // [1] or [bins]
  int32_t *list;          // the rows near a leaf
  int32_t *row_ids;       // [NEAR]: the own numbers of some of them
  const float **q_at, **dz_at;  // [NEAR]: where these rows lie
  float *q_made;          // [NEAR][d]: queries that are not as they came
  const float **k_at, **v_at;   // [LEAF]: where the columns of the leaf lie
  float *k, *v, *made, *nothing;  // [d][LEAF], [o][LEAF], [LEAF][o]: values that are not as they came; zeros
  float *turned;          // [LEAF][d or o]: a gradient of a leaf as it is written

  Sums(const Bag &bag, bool first, Arena &arena) : first(first) {
    const int64_t near = bag.local, larger = most(bag.d, bag.o), tile = near ? LEAF : TJ;
    dq = arena.take(first ? 0 : bag.n * bag.d);
    alpha = arena.take(bag.mode != LEAN ? bag.n : 0);
    mu = bag.mode == PARTIAL ? arena.take(bag.n) : nullptr;
    dk = arena.take(bag.d * tile);
    dv = arena.take(bag.o * tile);
    gamma = arena.take(TJ);
    nu = arena.take(TJ);
    S = arena.take(TI * TJ);
    D = arena.take(TI * TJ);
    G = arena.take(6 * TJ);
    X = arena.take(6 * TJ);
    M = arena.take(6 * TJ);
    k_gamma = arena.take<double>(bag.d);
    k_nu = arena.take<double>(bag.d);
    v_sum = arena.take<double>(bag.o);
    bias = arena.take<double>(bag.bins + 1);
    list = arena.take<int32_t>(near * (bag.padded + W));
    row_ids = arena.take<int32_t>(near * NEAR);
    q_at = arena.take<const float *>(near * NEAR);
    dz_at = arena.take<const float *>(near * NEAR);
    q_made = arena.take(near && bag.mode == WHOLE ? NEAR * bag.d : 0);
    k_at = arena.take<const float *>(near * LEAF);
    v_at = arena.take<const float *>(near * LEAF);
    k = arena.take(near * bag.d * LEAF);
    v = arena.take(near * bag.o * LEAF);
    made = arena.take(near && bag.mode == WHOLE ? LEAF * bag.o : 0);
    nothing = arena.take(near * larger);
    turned = arena.take(near * larger * LEAF);
  }

  void clear(const Bag &bag, float *d_query) {
    if (first) dq = d_query;
    fill(dq, dq + bag.n * bag.d, 0.0f);
    if (bag.mode != LEAN) fill(alpha, alpha + bag.n, 0.0f);
    if (mu) fill(mu, mu + bag.n, 0.0f);
    fill(nothing, nothing + (bag.local ? most(bag.d, bag.o) : 0), 0.0f);
    fill(k_gamma, k_gamma + bag.d, 0.0);
    fill(k_nu, k_nu + bag.d, 0.0);
    fill(v_sum, v_sum + bag.o, 0.0);
    fill(bias, bias + bag.bins + 1, 0.0);
    theta = beta = gg = 0;
  }
};

// The incoming gradient of one head of one bag, repacked.
struct Incoming {
  float *panel;         // [panels][o][6]: dz * ln(2); not where rows are packed when they are needed
  float *common;        // [n]: dz.z * ln(2)
  float *dg, *dg_ln2;   // [n]: dz.(u_V - v_V)
  float *dm_ln2;        // [n]: dz.v_V

  Incoming(const Bag &bag, Arena &arena, bool used) {
    panel = arena.take(used && !bag.local ? bag.panels * bag.o * 6 : 0);
    common = arena.take(used ? bag.n : 0);
    const int64_t sums = used && bag.mode != LEAN ? bag.n : 0;
    dg = arena.take(sums);
    dg_ln2 = arena.take(sums);
    dm_ln2 = arena.take(sums);
  }

  void pack(const das_problem &p, const Bag &bag, int64_t item) {
    constexpr int64_t AHEAD = 16;
    const int64_t n = bag.n, o = bag.o;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = (item * n + bag.ids[i]) * o;
      const float *dz = p.d_out + at, *z = p.out + at;
      if (bag.local && i + AHEAD < n) {
        const int64_t soon = (item * n + bag.ids[i + AHEAD]) * o;
        fetch(p.d_out + soon, o);
        fetch(p.out + soon, o);
      }
      for (int64_t y = 0; y < o && !bag.local; ++y)
        panel[(i / 6) * o * 6 + y * 6 + i % 6] = static_cast<float>(LN2) * dz[y];
      common[i] = static_cast<float>(LN2 * dot(dz, z, o));
      if (bag.mode == LEAN) continue;
      const double u = bag.ve ? dot(dz, bag.ve, o) : 0, v = bag.ve ? dot(dz, bag.ve + o, o) : 0;
      dg[i] = static_cast<float>(u - v);
      dg_ln2[i] = static_cast<float>(LN2 * (u - v));
      dm_ln2[i] = static_cast<float>(LN2 * v);
    }
  }
};

template <int PHI, int MODE, bool DROP>
struct Backward {
  static constexpr bool SOME = MODE == PARTIAL;
  const das_problem &p;
  const Bag &bag;
  const Incoming &in;
  DistancePass distances;
  BiasPass biases;
  BiasGradient bias_gradients;
  int32_t threshold;

  // S holds q.k and becomes the weights before dropout.
  void weights(const Columns &to, int64_t item, Numbers rows, int64_t count, float *S, const Sums &t) const {
    const vf gg = all(bag.gg);
    const float *shift = p.shift + item * bag.n, *shares = p.share + item * bag.n;
    const float *G = t.G, *M = t.M;
    for (int64_t r = 0; r < count; ++r, S += to.stride, G += to.stride, M += to.stride) {
      const int64_t i = rows[r];
      const vf low = all(shift[i]), share = all(shares[i]);
      const vf ga = all(bag.ga[i]), a = SOME ? all(bag.a[i]) : vf{};
      for (int64_t j = 0; j < to.width; j += W) {
        const vf e = logit<SOME>(load(S + j), load(G + j), M + j, to.gc + j, to.c + j, ga, a, gg);
        store(S + j, exp2_or_zero(e - low) * share);
      }
    }
  }

  // Without embeddings: S holds the logits and becomes the weights after dropout, D holds dz.v and becomes w = dL/de.
  void lean(const Columns &to, int64_t item, Numbers rows, int64_t count, float *S, float *D) const {
    const vf kept = all(static_cast<float>(1.0 / (1.0 - p.dropout)));
    const float *shift = p.shift + item * bag.n, *shares = p.share + item * bag.n;
    for (int64_t r = 0; r < count; ++r, S += to.stride, D += to.stride) {
      const int64_t i = rows[r];
      const Keep keep(bag.keys, bag.ids[i], threshold);
      const vf low = all(shift[i]), share = all(shares[i]), common = all(in.common[i]);
      for (int64_t j = 0; j < to.width; j += W) {
        const vf weight = exp2_or_zero(load(S + j) - low) * share;
        vf used = weight, d_weight = load(D + j);
        if (DROP) {
          const vf factor = only_where(keep(load(to.ids + j)), kept);
          used = weight * factor;
          d_weight = d_weight * factor;
        }
        store(S + j, used);
        store(D + j, weight * (d_weight - common));
      }
    }
  }

  // With embeddings: S holds the weights before dropout; the sums over rows (at most six) and columns are taken.
  void gradients(const Columns &to, Numbers rows, int64_t count, float *S, float *D, Sums &t) const {
    const vf gg = all(bag.gg), beta = all(bag.beta), kept = all(static_cast<float>(1.0 / (1.0 - p.dropout)));
    const float *G = t.G, *X = t.X, *M = t.M;
    vf alpha[8] = {}, mu[8] = {};
    vf d_theta{}, d_beta{}, d_gg{};
    const int64_t next = to.stride;
    for (int64_t r = 0; r < count; ++r, S += next, D += next, G += next, X += next, M += next) {
      const int64_t i = rows[r];
      const Keep keep(bag.keys, bag.ids[i], threshold);
      const vf ga = all(bag.ga[i]), common = all(in.common[i]);
      const vf dg = all(in.dg[i]), dg_ln2 = all(in.dg_ln2[i]), dm_ln2 = all(in.dm_ln2[i]);
      vf row_alpha{}, row_mu{};
      for (int64_t j = 0; j < to.width; j += W) {
        const vf g = load(G + j), weight = load(S + j);
        vf d_weight = fma(g, dg_ln2, load(D + j));
        if (SOME) d_weight = fma(load(M + j), dm_ln2, d_weight);
        vf used = weight;
        if (DROP) {
          const vf factor = only_where(keep(load(to.ids + j)), kept);
          used = weight * factor;
          d_weight = d_weight * factor;
          store(S + j, used);
        }
        const vf w = weight * (d_weight - common);
        store(D + j, w);
        const vf wg = w * g;
        row_alpha += wg;
        store(t.gamma + j, load(t.gamma + j) + wg);
        vf slope = ga + load(to.gc + j);
        if (SOME) {
          slope = fma(gg + gg, g, slope);
          d_gg = fma(wg, g, d_gg);
        }
        vf d_g = fma(w, slope, used * dg);
        if (SOME) {
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
    float sums[2][8] = {};
    add_lanes4(sums[0], alpha[0], alpha[1], alpha[2], alpha[3]);
    add_lanes4(sums[0] + 4, alpha[4], alpha[5], alpha[6], alpha[7]);
    for (int64_t r = 0; r < count; ++r) t.alpha[rows[r]] += sums[0][r];
    if (SOME) {
      add_lanes4(sums[1], mu[0], mu[1], mu[2], mu[3]);
      add_lanes4(sums[1] + 4, mu[4], mu[5], mu[6], mu[7]);
      for (int64_t r = 0; r < count; ++r) t.mu[rows[r]] += sums[1][r];
    }
    t.theta += lane_sum(d_theta);
    t.beta += lane_sum(d_beta);
    if (SOME) t.gg += lane_sum(d_gg);
  }

  // Some rows against some columns: S holds q.k and D dz.v, they become the weights and w. `dq` takes w k.
  void pairs(const Columns &to, int64_t item, Numbers rows, int64_t count, float *S, float *D, Sums &t) const {
    if (biases) biases(bag, to, rows, count, S);
    if (MODE == LEAN) {
      lean(to, item, rows, count, S, D);
    } else {
      for (int64_t r = 0; r < count; r += 6) {
        const int64_t six = least(6, count - r), at = r * to.stride;
        distances(bag, to, rows.from(r), six, t.G, t.X, t.M);
        weights(to, item, rows.from(r), six, S + at, t);
        gradients(to, rows.from(r), six, S + at, D + at, t);
      }
    }
    if (bias_gradients) bias_gradients(bag, to, rows, count, D, t.bias);
  }

  Rows row_sums(const Sums &t, const int32_t *ids) const { return Rows{t.dq, bag.d, ids, bag.dq_factor()}; }

  // All rows against one tile of columns: finishes the gradients of its keys and values.
  void tile(int64_t item, int64_t j0, int64_t width, Sums &t) const {
    const int64_t n = bag.n, d = bag.d, o = bag.o;
    clear_columns(width, TJ, t);
    const float *dz = p.d_out + item * n * o;
    const Columns to = bag.columns(j0, width);
    for (int64_t i0 = 0; i0 < n; i0 += TI) {
      const int64_t rows = least(TI, n - i0);
      for (int64_t r = 0; r < rows; r += 6) {
        const int64_t i = i0 + r, count = least(6, rows - r);
        float *S = t.S + r * TJ, *D = t.D + r * TJ;
        spread_panel<TJ>(bag.q_panel + i * d, count, d, to.k, to.start, S, width);
        spread_panel<TJ>(in.panel + i * o, count, o, to.v, nullptr, D, width);
        pairs(to, item, Numbers{i, nullptr}, count, S, D, t);
        if (to.k_rows) {
          collect_all<TJ>(D, count, InTurn{to.k_rows, d}, to.real, row_sums(t, bag.ids + i));
        } else {
          gather_all<TJ>(D, count, to.k, to.width, row_sums(t, bag.ids + i));
        }
      }
      spread_add<TJ>(bag.q_rows + i0 * d, d, rows, t.D, t.dk, width);
      spread_add<TJ>(dz + i0 * o, o, rows, t.S, t.dv, width);
    }
    for (int64_t j = 0; j < to.real; ++j) {
      const int64_t at = item * n + bag.ids[j0 + j];
      float *dk = p.d_key + at * d, *dv = p.d_value + at * o;
      for (int64_t x = 0; x < d; ++x) dk[x] = t.dk[x * TJ + j];
      for (int64_t y = 0; y < o; ++y) dv[y] = t.dv[y * TJ + j];
      if (MODE != LEAN) finish_column(at, j, t);
    }
  }

  // The rows that may see a leaf of columns against them.
  void leaf(int64_t item, int64_t number, const Leaves &leaves, Sums &t) const {
    const int64_t n = bag.n, d = bag.d, o = bag.o, j0 = number * LEAF;
    clear_columns(LEAF, LEAF, t);
    Columns to;
    bag.place(to, j0, LEAF, LEAF);
    to.k_rows = to.v_rows = nullptr;
    for (int64_t r = 0; r < to.real; ++r) {
      t.k_at[r] = bag.key + bag.ids[j0 + r] * d;
      t.v_at[r] = bag.row_value(j0 + r, t.made + r * o);
    }
    turn_in(t.k_at, to.real, t.nothing, d, 1.0f, t.k);
    turn_in(t.v_at, to.real, t.nothing, o, static_cast<float>(LN2), t.v);
    const int64_t found = leaves.near(number, bag, true, t.list);
    for (int64_t s = 0; s < found; s += NEAR) near_rows(to, item, t.list + s, least(NEAR, found - s), t);
    write_leaf(t.dk, d, bag.local_unit, p.d_key + item * n * d, to, t.turned);
    write_leaf(t.dv, o, 1.0f, p.d_value + item * n * o, to, t.turned);
    for (int64_t j = 0; j < to.real && MODE != LEAN; ++j) finish_column(item * n + to.ids[j], j, t);
  }

  void near_rows(const Columns &to, int64_t item, const int32_t *list, int64_t count, Sums &t) const {
    const int64_t d = bag.d, o = bag.o;
    const float *d_out = p.d_out + item * bag.n * o;
    for (int64_t x = 0; x < count; ++x) {
      t.row_ids[x] = bag.ids[list[x]];
      t.q_at[x] = bag.row_query(list[x], t.q_made + x * d);
      t.dz_at[x] = d_out + t.row_ids[x] * o;
      fetch(t.q_at[x], d);
      fetch(t.dz_at[x], o);
      fetch(t.dq + t.row_ids[x] * d, d);
    }
    spread_rows<LEAF>(t.q_at, count, d, t.k, t.S, LEAF);
    spread_rows<LEAF>(t.dz_at, count, o, t.v, t.D, LEAF);
    pairs(to, item, Numbers{0, list}, count, t.S, t.D, t);
    if (bag.wide_k) {
      collect_all<LEAF>(t.D, count, Anywhere{t.k_at}, to.real, row_sums(t, t.row_ids));
    } else {
      gather_all<LEAF>(t.D, count, t.k, LEAF, row_sums(t, t.row_ids));
    }
    spread_add_rows<LEAF>(t.q_at, d, count, t.D, t.dk, LEAF);
    spread_add_rows<LEAF>(t.dz_at, o, count, t.S, t.dv, LEAF);
  }

 private:
  void clear_columns(int64_t width, int64_t stride, Sums &t) const {
    for (int64_t x = 0; x < bag.d; ++x) fill(t.dk + x * stride, t.dk + x * stride + width, 0.0f);
    for (int64_t y = 0; y < bag.o; ++y) fill(t.dv + y * stride, t.dv + y * stride + width, 0.0f);
    fill(t.gamma, t.gamma + TJ, 0.0f);
    fill(t.nu, t.nu + TJ, 0.0f);
  }

  static void write_leaf(const float *from, int64_t size, float factor, float *to, const Columns &leaf, float *turned) {
    turn_out(from, size, turned);
    for (int64_t j = 0; j < leaf.real; ++j, turned += size) {
      float *row = to + leaf.ids[j] * size;
      for (int64_t x = 0; x < size; ++x) row[x] = factor * turned[x];
    }
  }

  // What the embeddings add to the gradients of a column, and what the column adds to theirs.
  void finish_column(int64_t at, int64_t j, Sums &t) const {
    const int64_t d = bag.d, o = bag.o;
    const float unit = static_cast<float>(bag.unit), *qe = bag.qe, *key = p.key + at * d;
    float *dk = p.d_key + at * d;
    const float *dv = p.d_value + at * o;
    for (int64_t x = 0; x < d; ++x) {
      if (qe) dk[x] += unit * t.gamma[j] * (qe[x] - qe[d + x]);
      if (qe && SOME) dk[x] += unit * t.nu[j] * qe[d + x];
      t.k_gamma[x] += static_cast<double>(t.gamma[j]) * key[x];
      if (SOME) t.k_nu[x] += static_cast<double>(t.nu[j]) * key[x];
    }
    for (int64_t y = 0; y < o; ++y) t.v_sum[y] += dv[y];
  }
};

}  // namespace DAS_ISA
