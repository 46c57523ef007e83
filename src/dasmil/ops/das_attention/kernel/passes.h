// The elementwise work of distances, split into short passes over tiles that stay in the first-level cache. The CPU can
// hold only so many waiting operations, so a long chain per element leaves the units idle; a short one does not.
#pragma once

#include "bag.h"

namespace DAS_ISA {

// Numbers of instances: those from the first on, or those of a list.
struct Numbers {
  int64_t first;
  const int32_t *list;
  DAS_INLINE int64_t operator[](int64_t r) const { return list ? list[r] : first + r; }
  Numbers from(int64_t r) const { return list ? Numbers{0, list + r} : Numbers{first + r, nullptr}; }
};

template <int AXES>
struct Place {
  vf x, y, z;
  Place(const Bag &bag, int64_t i)
      : x(all(bag.axis[0][i])), y(all(bag.axis[1][i])), z(AXES == 3 ? all(bag.axis[2][i]) : vf{}) {}
  DAS_INLINE vf squared(const Columns &to, int64_t j) const {
    const vf dx = load(to.axis[0] + j) - x, dy = load(to.axis[1] + j) - y;
    vf sum = fma(dx, dx, dy * dy);
    if (AXES == 3) {
      const vf dz = load(to.axis[2] + j) - z;
      sum = fma(dz, dz, sum);
    }
    return sum;
  }
};

// X = delta - theta for the `count` rows.
template <int AXES>
void shifted_distances(const Bag &bag, const Columns &to, Numbers rows, int64_t count, float *X) {
  const vf theta = all(bag.theta);
  for (int64_t r = 0; r < count; ++r, X += to.stride) {
    const Place<AXES> place(bag, rows[r]);
    for (int64_t j = 0; j < to.width; j += W) store(X + j, root(place.squared(to, j)) - theta);
  }
}

// G = m phi, and M = m where some pairs have no distance.
template <int PHI, int AXES, bool SOME, bool BOUNDED>
void distance_pass(const Bag &bag, const Columns &to, Numbers rows, int64_t count, float *G, float *X, float *M) {
  shifted_distances<AXES>(bag, to, rows, count, X);
  const vf b = all(PHI == IDENTITY || PHI == GAUSSIAN ? bag.beta : static_cast<float>(-bag.beta * LOG2E));
  for (int64_t r = 0; r < count; ++r, G += to.stride, X += to.stride, M += to.stride) {
    const int64_t i = rows[r];
    const int32_t own = SOME && to.section ? bag.row_section(i) : 0, id = bag.ids[i];
    for (int64_t j = 0; j < to.width; j += W) {
      const vf t = load(X + j) * b;
      vf g;
      if (PHI == SIGMOID) g = 1.0f / (1.0f + exp2_normal(BOUNDED ? t : at_most(126.0f, at_least(-126.0f, t))));
      if (PHI == IDENTITY) g = t;
      if (PHI == EXPONENTIAL) g = exp2_or_zero(-magnitude(t));
      if (PHI == GAUSSIAN) g = exp2_or_zero(t * t * static_cast<float>(-0.5 * LOG2E));
      if (SOME) {
        vi m = to.section ? load(to.section + j) == own : vi{} == 0;
        if (!bag.self_pair) m &= load(to.ids + j) != id;
        g = only_where(m, g);
        store(M + j, only_where(m, all(1.0f)));
      }
      store(G + j, g);
    }
  }
}

typedef void (*DistancePass)(const Bag &, const Columns &, Numbers, int64_t, float *, float *, float *);

template <bool SOME>
DistancePass choose_distance_pass(int phi, const Bag &bag) {
  static const DistancePass table[5][2] = {
      {distance_pass<SIGMOID, 2, SOME, false>, distance_pass<SIGMOID, 3, SOME, false>},
      {distance_pass<IDENTITY, 2, SOME, false>, distance_pass<IDENTITY, 3, SOME, false>},
      {distance_pass<EXPONENTIAL, 2, SOME, false>, distance_pass<EXPONENTIAL, 3, SOME, false>},
      {distance_pass<GAUSSIAN, 2, SOME, false>, distance_pass<GAUSSIAN, 3, SOME, false>},
      {distance_pass<SIGMOID, 2, SOME, true>, distance_pass<SIGMOID, 3, SOME, true>},
  };
  return table[phi == SIGMOID && bag.bounded ? 4 : phi][bag.axes - 2];
}

inline DistancePass choose_distance_pass(int phi, const Bag &bag) {
  if (bag.mode == LEAN) return nullptr;
  return bag.mode == PARTIAL ? choose_distance_pass<true>(phi, bag) : choose_distance_pass<false>(phi, bag);
}

// How many edges are at most `delta`: the number of its bin.
DAS_INLINE vi bin_of(const Bag &bag, vf delta) {
  vi bin{};
  for (int64_t b = 0; b + 1 < bag.bins; ++b) bin -= delta >= all(bag.edges[b]);
  return bin;
}

// The bias of a pair with that squared distance, in units of ln 2.
template <int BIAS>
DAS_INLINE vf bias_of(const Bag &bag, vf squared) {
  if (BIAS == LINEAR) return bag.slope * root(squared);
  if (BIAS == GAUSSIAN_BIAS) return bag.slope * squared;
  if (BIAS == CAUCHY) return -log2_above_one(fma(squared, all(bag.slope), all(1.0f)));
  const vi bin = bin_of(bag, root(squared));
  vf found;
  for (int l = 0; l < W; ++l) found[l] = bag.table[bin[l]];
  return found;
}

// Adds the bias to the logits S, and with a radius makes those of pairs that are not seen -inf. A local bag always has this
// pass: it also gives the products their factor. All of it is the same with rows and columns exchanged, but for `seen`.
template <int BIAS, int AXES, bool CUT, bool SECTIONS>
void bias_pass(const Bag &bag, const Columns &to, Numbers rows, int64_t count, float *S) {
  for (int64_t r = 0; r < count; ++r, S += to.stride) {
    const int64_t i = rows[r];
    const Place<AXES> place(bag, i);
    const vf unit = all(bag.local_unit);
    const int32_t own = SECTIONS ? bag.row_section(i) : 0, id = bag.ids[i];
    const vi token = SECTIONS && own < 0 ? vi{} == 0 : vi{}, seen = CUT && bag.seen[i] ? vi{} == 0 : vi{};
    for (int64_t j = 0; j < to.width; j += W) {
      const vf squared = place.squared(to, j);
      vf e = CUT ? load(S + j) * unit : load(S + j);
      vi same = vi{} == 0;
      if (SECTIONS) same = load(to.section + j) == own;
      if (BIAS != NO_BIAS) {
        vi m = same;
        if (BIAS == BINS && !bag.self_pair) m &= load(to.ids + j) != id;
        const vf bias = bias_of<BIAS>(bag, squared);
        e += SECTIONS || BIAS == BINS ? only_where(m, bias) : bias;
      }
      if (CUT) {
        vi near = squared <= bag.reach;
        if (SECTIONS) near = (near & same) | token | (load(to.section + j) < 0);
        near &= to.seen ? load(to.seen + j) != 0 : seen;
        const vi shown = near | (load(to.ids + j) == id);
        e = bits((shown & bits(e)) | (~shown & bits(all(-INF))));
      }
      store(S + j, e);
    }
  }
}

typedef void (*BiasPass)(const Bag &, const Columns &, Numbers, int64_t, float *);

template <int BIAS, int AXES>
BiasPass choose_bias_pass(bool cut, bool sections) {
  static const BiasPass table[2][2] = {{bias_pass<BIAS, AXES, false, false>, bias_pass<BIAS, AXES, false, true>},
                                       {bias_pass<BIAS, AXES, true, false>, bias_pass<BIAS, AXES, true, true>}};
  return table[cut][sections];
}

template <int BIAS>
BiasPass choose_bias_pass(const Bag &bag) {
  const bool sections = bag.section != nullptr;
  return bag.axes == 3 ? choose_bias_pass<BIAS, 3>(bag.cut, sections) : choose_bias_pass<BIAS, 2>(bag.cut, sections);
}

// Null where there is nothing to add and nothing to cut.
inline BiasPass choose_bias_pass(const Bag &bag) {
  switch (bag.bias) {
    case LINEAR: return choose_bias_pass<LINEAR>(bag);
    case GAUSSIAN_BIAS: return choose_bias_pass<GAUSSIAN_BIAS>(bag);
    case CAUCHY: return choose_bias_pass<CAUCHY>(bag);
    case BINS: return choose_bias_pass<BINS>(bag);
    default: return bag.cut ? choose_bias_pass<NO_BIAS>(bag) : nullptr;
  }
}

// Adds the gradient of the bias's parameter: sum of w = dL/de times what `finish` completes; with bins one sum each.
template <int BIAS, int AXES>
void bias_gradient(const Bag &bag, const Columns &to, Numbers rows, int64_t count, const float *D, double *sums) {
  vf sum{};
  for (int64_t r = 0; r < count; ++r, D += to.stride) {
    const int64_t i = rows[r];
    const Place<AXES> place(bag, i);
    const int32_t own = to.section ? bag.row_section(i) : 0, id = bag.ids[i];
    for (int64_t j = 0; j < to.width; j += W) {
      const vf squared = place.squared(to, j);
      vf w = load(D + j);
      if (to.section) w = only_where(load(to.section + j) == own, w);
      if (BIAS == LINEAR) sum = fma(w, root(squared), sum);
      if (BIAS == GAUSSIAN_BIAS) sum = fma(w, squared, sum);
      if (BIAS == CAUCHY) sum = fma(w, 1.0f - 1.0f / fma(squared, all(bag.slope), all(1.0f)), sum);
      if (BIAS == BINS) {
        if (!bag.self_pair) w = only_where(load(to.ids + j) != id, w);
        const vi bin = bin_of(bag, root(squared));
        for (int l = 0; l < W; ++l) sums[bin[l]] += w[l];
      }
    }
  }
  if (BIAS != BINS) sums[0] += lane_sum(sum);
}

typedef void (*BiasGradient)(const Bag &, const Columns &, Numbers, int64_t, const float *, double *);

inline BiasGradient choose_bias_gradient(const Bag &bag) {
  static const BiasGradient table[5][2] = {
      {nullptr, nullptr},
      {bias_gradient<LINEAR, 2>, bias_gradient<LINEAR, 3>},
      {bias_gradient<GAUSSIAN_BIAS, 2>, bias_gradient<GAUSSIAN_BIAS, 3>},
      {bias_gradient<CAUCHY, 2>, bias_gradient<CAUCHY, 3>},
      {bias_gradient<BINS, 2>, bias_gradient<BINS, 3>},
  };
  return table[bag.bias][bag.axes - 2];
}

}  // namespace DAS_ISA
