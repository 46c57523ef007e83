// The backward pass: columns outside, rows inside, so that the gradients of a tile's keys and values are finished at once.
#pragma once

#include "forward.h"

namespace DAS_ISA {

// What a thread of the backward pass owns.
struct Sums {
  bool first;
  float *dq;              // [n][d]: sum_j w k_j by the instances' own numbers; the first thread's is the result itself
  float *alpha, *mu;      // [panels * 8]: sum_j w g, sum_j w m; six rows of a panel, two unused
  double theta = 0, beta = 0, gg = 0;
  float *dk, *dv;         // [d][TJ], [o][TJ] of the current tile
  float *gamma, *nu;      // [TJ]: sum_i w g, sum_i w m
  float *S, *D, *G, *X, *M;
  double *k_gamma, *k_nu, *v_sum;  // [d], [d], [o]: sums over the columns for the embeddings
  double *bias;           // [1] or [bins]
  int32_t *list;          // the panels near a tile
  float *q;               // [TI][d]: rows of such panels that are not as they came
  const float **q_at, **dz_at;  // [TI]: where these rows lie
  Gathered gathered;      // the columns of such a tile

  Sums(const Bag &bag, int64_t stretches, bool first, Arena &arena) : first(first), gathered(bag, arena) {
    dq = arena.take(first ? 0 : bag.n * bag.d);
    alpha = arena.take(bag.mode != LEAN ? bag.panels * 8 : 0);
    mu = bag.mode == PARTIAL ? arena.take(bag.panels * 8) : nullptr;
    dk = arena.take(bag.d * TJ);
    dv = arena.take(bag.o * TJ);
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
    list = arena.take<int32_t>(stretches);
    q = arena.take(stretches ? TI * bag.d : 0);
    q_at = arena.take<const float *>(TI);
    dz_at = arena.take<const float *>(TI);
  }

  void clear(const Bag &bag, float *d_query) {
    if (first) dq = d_query;
    fill(dq, dq + bag.n * bag.d, 0.0f);
    if (bag.mode != LEAN) fill(alpha, alpha + bag.panels * 8, 0.0f);
    if (mu) fill(mu, mu + bag.panels * 8, 0.0f);
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
  void weights(const Columns &to, int64_t item, int64_t i0, int64_t count, float *S, const Sums &t) const {
    const vf gg = all(bag.gg);
    const float *shift = p.shift + item * bag.n, *shares = p.share + item * bag.n;
    const float *G = t.G, *M = t.M;
    for (int64_t i = i0; i < i0 + count; ++i, S += TJ, G += TJ, M += TJ) {
      const vf low = all(shift[i]), share = all(shares[i]);
      const vf ga = all(bag.ga[i]), a = SOME ? all(bag.a[i]) : vf{};
      for (int64_t j = 0; j < to.width; j += W) {
        const vf e = logit<SOME>(load(S + j), load(G + j), M + j, to.gc + j, to.c + j, ga, a, gg);
        store(S + j, exp2_or_zero(e - low) * share);
      }
    }
  }

  // Without embeddings: S holds the logits and becomes the weights after dropout, D holds dz.v and becomes w = dL/de.
  void lean(const Columns &to, int64_t item, int64_t i0, int64_t count, float *S, float *D) const {
    const vf kept = all(static_cast<float>(1.0 / (1.0 - p.dropout)));
    const float *shift = p.shift + item * bag.n, *shares = p.share + item * bag.n;
    for (int64_t i = i0; i < i0 + count; ++i, S += TJ, D += TJ) {
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

  // With embeddings: S holds the weights before dropout; the sums over rows and columns are taken.
  void gradients(const Columns &to, int64_t i0, int64_t count, float *S, float *D, Sums &t) const {
    const vf gg = all(bag.gg), beta = all(bag.beta), kept = all(static_cast<float>(1.0 / (1.0 - p.dropout)));
    const float *G = t.G, *X = t.X, *M = t.M;
    vf alpha[8] = {}, mu[8] = {};
    vf d_theta{}, d_beta{}, d_gg{};
    for (int64_t r = 0; r < count; ++r, S += TJ, D += TJ, G += TJ, X += TJ, M += TJ) {
      const int64_t i = i0 + r;
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
    float *row = t.alpha + i0 / 6 * 8;
    add_lanes4(row, alpha[0], alpha[1], alpha[2], alpha[3]);
    add_lanes4(row + 4, alpha[4], alpha[5], alpha[6], alpha[7]);
    if (SOME) {
      row = t.mu + i0 / 6 * 8;
      add_lanes4(row, mu[0], mu[1], mu[2], mu[3]);
      add_lanes4(row + 4, mu[4], mu[5], mu[6], mu[7]);
    }
    t.theta += lane_sum(d_theta);
    t.beta += lane_sum(d_beta);
    if (SOME) t.gg += lane_sum(d_gg);
  }

  // A panel of at most six rows against some columns: S holds q.k and D dz.v, they become the weights and w.
  void panel(const Columns &to, int64_t item, int64_t i, int64_t count, float *S, float *D, Sums &t) const {
    if (biases) biases(bag, to, i, count, S);
    if (MODE == LEAN) {
      lean(to, item, i, count, S, D);
    } else {
      distances(bag, to, i, count, t.G, t.X, t.M);
      weights(to, item, i, count, S, t);
      gradients(to, i, count, S, D, t);
    }
    if (bias_gradients) bias_gradients(bag, to, i, count, D, t.bias);
    const Rows dq{t.dq, bag.d, bag.ids + i};
    if (to.k_at) {
      collect_all<TJ>(D, count, Anywhere{to.k_at}, to.real, dq);
    } else if (to.k_rows) {
      collect_all<TJ>(D, count, InTurn{to.k_rows, bag.d}, to.real, dq);
    } else {
      gather_all<TJ>(D, count, to.k, to.width, dq);
    }
  }

  // All rows against one tile of columns: finishes the gradients of its keys and values.
  void tile(int64_t item, int64_t j0, int64_t width, const Stretches &stretches, Sums &t) const {
    for (int64_t x = 0; x < bag.d; ++x) fill(t.dk + x * TJ, t.dk + x * TJ + width, 0.0f);
    for (int64_t y = 0; y < bag.o; ++y) fill(t.dv + y * TJ, t.dv + y * TJ + width, 0.0f);
    fill(t.gamma, t.gamma + TJ, 0.0f);
    fill(t.nu, t.nu + TJ, 0.0f);
    bag.local ? near_rows(item, j0, width, stretches, t) : all_rows(item, j0, width, t);
    finish_columns(item, j0, width, t);
  }

  void all_rows(int64_t item, int64_t j0, int64_t width, Sums &t) const {
    const int64_t n = bag.n, d = bag.d, o = bag.o;
    const float *dz = p.d_out + item * n * o;
    const Columns to = bag.columns(j0, width);
    for (int64_t i0 = 0; i0 < n; i0 += TI) {
      const int64_t rows = least(TI, n - i0);
      for (int64_t r = 0; r < rows; r += 6) {
        const int64_t i = i0 + r, count = least(6, rows - r);
        spread_panel<TJ>(bag.q_panel + i * d, count, d, to.k, to.start, t.S + r * TJ, width);
        spread_panel<TJ>(in.panel + i * o, count, o, to.v, nullptr, t.D + r * TJ, width);
        panel(to, item, i, count, t.S + r * TJ, t.D + r * TJ, t);
      }
      spread_add<TJ>(bag.q_rows + i0 * d, d, rows, t.D, t.dk, width);
      spread_add<TJ>(dz + i0 * o, o, rows, t.S, t.dv, width);
    }
  }

  void near_rows(int64_t item, int64_t j0, int64_t width, const Stretches &stretches, Sums &t) const {
    const int64_t n = bag.n, d = bag.d, o = bag.o;
    const float *d_out = p.d_out + item * n * o;
    const Columns to = t.gathered.take(bag, nullptr, j0 / GROUP, width / GROUP, static_cast<float>(LN2));
    const int64_t found = stretches.near(box_of(bag, j0, j0 + width), bag, t.list);
    for (int64_t s = 0; s < found; s += TI / 6) {
      const int64_t panels = least(TI / 6, found - s);
      for (int64_t x = s + panels; x < least(found, s + panels + TI / 6); ++x) fetch_panel(t.list[x] * 6, d_out, t.dq);
      int64_t rows = 0;  // only the last panel of all may be short of them
      for (int64_t x = s; x < s + panels; ++x) {
        const int64_t i = t.list[x] * 6, count = least(6, n - i);
        for (int64_t r = 0; r < count; ++r, ++rows) {
          t.q_at[rows] = bag.row_query(i + r, t.q + rows * d);
          t.dz_at[rows] = d_out + bag.ids[i + r] * o;
        }
      }
      spread_rows<TJ>(t.q_at, rows, d, to.k, t.S, width);
      spread_rows<TJ>(t.dz_at, rows, o, to.v, t.D, width);
      for (int64_t x = 0; x < panels; ++x) {
        const int64_t i = t.list[s + x] * 6;
        panel(to, item, i, least(6, n - i), t.S + x * 6 * TJ, t.D + x * 6 * TJ, t);
      }
      spread_add_rows<TJ>(t.q_at, d, rows, t.D, t.dk, width);
      spread_add_rows<TJ>(t.dz_at, o, rows, t.S, t.dv, width);
    }
  }

  // Rows lie where the instances came: those of the next panels are on their way while these are worked on.
  void fetch_panel(int64_t i, const float *d_out, const float *dq) const {
    for (int64_t r = i; r < least(i + 6, bag.n); ++r) {
      fetch(bag.query + bag.ids[r] * bag.d, bag.d);
      fetch(d_out + bag.ids[r] * bag.o, bag.o);
      fetch(dq + bag.ids[r] * bag.d, bag.d);
    }
  }

  void finish_columns(int64_t item, int64_t j0, int64_t width, Sums &t) const {
    const int64_t n = bag.n, d = bag.d, o = bag.o;
    const float unit = static_cast<float>(bag.unit), own = bag.local_unit;
    const float *qe = bag.qe;
    for (int64_t j = 0; j < least(width, n - j0); ++j) {
      const int64_t at = item * n + bag.ids[j0 + j];
      if (MODE == LEAN) {
        for (int64_t x = 0; x < d; ++x) p.d_key[at * d + x] = own * t.dk[x * TJ + j];
        for (int64_t y = 0; y < o; ++y) p.d_value[at * o + y] = t.dv[y * TJ + j];
        continue;
      }
      const float *key = p.key + at * d;
      for (int64_t x = 0; x < d; ++x) {
        float dk = own * t.dk[x * TJ + j];
        if (qe) dk += unit * t.gamma[j] * (qe[x] - qe[d + x]);
        if (qe && SOME) dk += unit * t.nu[j] * qe[d + x];
        p.d_key[at * d + x] = dk;
        t.k_gamma[x] += static_cast<double>(t.gamma[j]) * key[x];
        if (SOME) t.k_nu[x] += static_cast<double>(t.nu[j]) * key[x];
      }
      for (int64_t y = 0; y < o; ++y) {
        p.d_value[at * o + y] = t.dv[y * TJ + j];
        t.v_sum[y] += t.dv[y * TJ + j];
      }
    }
  }
};

}  // namespace DAS_ISA
