// Distance-aware attention, forward and backward, fused: no n x n array, memory O(n). The README in the folder above derives
// the formulas; the names here are those used there. Logits are kept in units of log 2 (times log2(e)), so that each
// exponential is a power of two; the gradients that flow through them are times ln(2) accordingly.
#pragma once

#include "backward.h"

namespace DAS_ISA {

// The gradient of the bias's slope, length or table from the sums that bias_gradient took.
inline void finish_bias(const das_problem &p, const Bag &bag, int64_t item, Sums *const *sums, int64_t count) {
  if (!p.d_bias_scale && !p.d_bias_table) return;
  for (int64_t b = 0; b < (bag.bias == BINS ? bag.bins : 1); ++b) {
    double sum = 0;
    for (int64_t s = 0; s < count; ++s) sum += sums[s]->bias[b];
    sum *= LOG2E;
    const double length = bag.length;
    if (bag.bias == BINS) p.d_bias_table[item * bag.bins + b] = static_cast<float>(sum);
    if (bag.bias == LINEAR) p.d_bias_scale[item] = static_cast<float>(-sum / p.distance_scale);
    if (bag.bias == GAUSSIAN_BIAS)
      p.d_bias_scale[item] = static_cast<float>(sum * p.distance_scale / (length * length * length));
    if (bag.bias == CAUCHY) p.d_bias_scale[item] = static_cast<float>(sum * p.distance_scale * 2 / length);
  }
}

// Gradients that need the sums over all columns: those of the queries and of the parameters.
inline void finish(const das_problem &p, const Bag &bag, int64_t item, Sums *const *sums, int64_t count, double *work) {
  const int64_t n = bag.n, d = bag.d, o = bag.o;
  const float *ke = bag.ke, *qe = bag.qe;
  const double unit = bag.unit;
  double *q_alpha = work, *q_mu = work + d, *dq_sum = work + 2 * d, *z_g = work + 3 * d, *z_m = work + 3 * d + o;
  fill(work, work + 3 * d + 2 * o, 0.0);
  double alpha_sum = 0, mu_sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    float alpha = 0, mu = 0;
    for (int64_t s = 0; s < count && bag.mode != LEAN; ++s) {
      alpha += sums[s]->alpha[i];
      if (bag.mode == PARTIAL) mu += sums[s]->mu[i];
    }
    const int64_t own = item * n + bag.ids[i];
    const float *query = p.query + own * d;
    float *out = p.d_query + own * d;
    const float u = static_cast<float>(unit);
    if (bag.mode == LEAN) {
      for (int64_t s = 1; s < count; ++s)
        for (int64_t x = 0; x < d; ++x) out[x] += sums[s]->dq[bag.ids[i] * d + x];  // the first thread's is out itself
      for (int64_t x = 0; x < d && !bag.wide_k; ++x) out[x] *= u;
      continue;
    }
    for (int64_t x = 0; x < d; ++x) {
      float dq = 0;
      for (int64_t s = 0; s < count; ++s) dq += sums[s]->dq[bag.ids[i] * d + x];
      dq_sum[x] += dq;
      q_alpha[x] += static_cast<double>(alpha) * query[x];
      q_mu[x] += static_cast<double>(mu) * query[x];
      if (ke) dq += alpha * (ke[x] - ke[d + x]);
      if (ke && bag.mode == PARTIAL) dq += mu * ke[d + x];
      out[x] = u * dq;
    }
    alpha_sum += alpha;
    mu_sum += mu;
    if (p.d_value_embed) {
      const float *dz = p.d_out + own * o;
      const double g = p.g_sum[item * n + i], m = bag.mode == PARTIAL ? p.m_sum[item * n + i] : 1.0;
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
  finish_bias(p, bag, item, sums, count);
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
      double slope = k_gamma, base = bag.mode == PARTIAL ? k_nu : dq_sum[x];
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
      if (bag.mode != PARTIAL && p.dropout > 0) {
        base = 0;
        for (int64_t s = 0; s < count; ++s) base += sums[s]->v_sum[y];
      }
      p.d_value_embed[item * 2 * o + y] = static_cast<float>(z_g[y]);
      p.d_value_embed[item * 2 * o + o + y] = static_cast<float>(base - z_g[y]);
    }
}

inline int64_t this_thread(int threads) {
#ifdef _OPENMP
  return threads > 1 ? omp_get_thread_num() : 0;
#else
  (void)threads;
  return 0;
#endif
}

// Everything for one item (a head of a bag), carved out of scratch memory.
struct Worker {
  Bag bag;
  Leaves leaves;
  Desk **desks = nullptr;
  NearDesk **near_desks = nullptr;
  Incoming in;
  Sums **sums = nullptr;
  double *work = nullptr;

  Worker(const das_problem &p, Arena &arena, int threads, bool backward)
      : bag(p, arena, backward), leaves(p.n, bag.local, arena), in(bag, arena, backward) {
    if (!backward) {
      desks = arena.take<Desk *>(threads);
      near_desks = arena.take<NearDesk *>(threads);
      Desk *slots = arena.take<Desk>(threads);
      NearDesk *near_slots = arena.take<NearDesk>(threads);
      for (int t = 0; t < threads; ++t) {
        const Desk made(bag, arena);
        const NearDesk near(bag, arena);
        if (arena.base) desks[t] = new (slots + t) Desk(made), near_desks[t] = new (near_slots + t) NearDesk(near);
      }
      return;
    }
    sums = arena.take<Sums *>(threads);
    Sums *slots = arena.take<Sums>(threads);
    for (int t = 0; t < threads; ++t) {
      const Sums made(bag, t == 0, arena);
      if (arena.base) sums[t] = new (slots + t) Sums(made);
    }
    work = arena.take<double>(3 * bag.d + 2 * bag.o);
  }

  template <int MODE, bool DROP>
  void run_forward(const das_problem &p, int64_t item, int threads) {
    const DistancePass distances = choose_distance_pass(static_cast<int>(p.phi), bag);
    const BiasPass biases = choose_bias_pass(bag);
    if (bag.local) {
      const NearForward<MODE, DROP> near{p, bag, leaves, distances, biases, threshold(p)};
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) if (threads > 1)
      for (int64_t b = 0; b < leaves.count; ++b) {
        const FlushDenormals flush;
        near.leaf(item, b, *near_desks[this_thread(threads)]);
      }
      return;
    }
    const Forward<MODE, DROP> forward{p, bag, distances, biases, threshold(p)};
    const int64_t blocks = (bag.n + TF - 1) / TF;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t b = 0; b < blocks; ++b) {
      const FlushDenormals flush;
      forward.block(item, b * TF, least(TF, bag.n - b * TF), *desks[this_thread(threads)]);
    }
  }

  template <int PHI, int MODE, bool DROP>
  void run_backward(const das_problem &p, int64_t item, int threads) {
    const Backward<PHI, MODE, DROP> backward{
        p, bag, in, choose_distance_pass(static_cast<int>(p.phi), bag), choose_bias_pass(bag),
        p.d_bias_scale || p.d_bias_table ? choose_bias_gradient(bag) : nullptr, threshold(p)};
    if (bag.local) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8) if (threads > 1)
      for (int64_t b = 0; b < leaves.count; ++b) {
        const FlushDenormals flush;
        backward.leaf(item, b, leaves, *sums[this_thread(threads)]);
      }
      return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t b = 0; b < bag.tiles; ++b) {
      const FlushDenormals flush;
      backward.tile(item, b * TJ, bag.width(b), *sums[this_thread(threads)]);
    }
  }

  template <int PHI, int MODE>
  void run_backward(const das_problem &p, int64_t item, int threads) {
    p.dropout > 0 ? run_backward<PHI, MODE, true>(p, item, threads) : run_backward<PHI, MODE, false>(p, item, threads);
  }

  template <int PHI>
  void run_backward(const das_problem &p, int64_t item, int threads) {
    bag.mode == PARTIAL ? run_backward<PHI, PARTIAL>(p, item, threads) : run_backward<PHI, WHOLE>(p, item, threads);
  }

  template <int MODE>
  void run_forward(const das_problem &p, int64_t item, int threads) {
    p.dropout > 0 ? run_forward<MODE, true>(p, item, threads) : run_forward<MODE, false>(p, item, threads);
  }

  int forward(const das_problem &p, int64_t item, int threads) {
    const int status = bag.pack(p, item / p.heads, item % p.heads);
    if (status != DAS_OK) return status;
    if (bag.local) leaves.pack(bag);
    switch (bag.mode) {
      case LEAN: run_forward<LEAN>(p, item, threads); break;
      case WHOLE: run_forward<WHOLE>(p, item, threads); break;
      default: run_forward<PARTIAL>(p, item, threads); break;
    }
    return DAS_OK;
  }

  int backward(const das_problem &p, int64_t item, int threads) {
    const int status = bag.pack(p, item / p.heads, item % p.heads);
    if (status != DAS_OK) return status;
    if (bag.local) leaves.pack(bag);
    in.pack(p, bag, item);
    for (int t = 0; t < threads; ++t) sums[t]->clear(bag, p.d_query + item * bag.n * bag.d);
    if (bag.mode == LEAN) {
      run_backward<IDENTITY, LEAN>(p, item, threads);
    } else {
      switch (p.phi) {
        case SIGMOID: run_backward<SIGMOID>(p, item, threads); break;
        case EXPONENTIAL: run_backward<EXPONENTIAL>(p, item, threads); break;
        case GAUSSIAN: run_backward<GAUSSIAN>(p, item, threads); break;
        default: run_backward<IDENTITY>(p, item, threads); break;
      }
    }
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
    across = p.n < 2048 ? static_cast<int>(most(1, least(threads, items))) : 1;  // one where there are no bags
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
  prefer_large_pages(p.scratch, bytes * plan.across);
  const int64_t wide = items * p.n * p.d * static_cast<int64_t>(sizeof(float));
  const int64_t deep = items * p.n * p.o * static_cast<int64_t>(sizeof(float));
  prefer_large_pages(backward ? p.d_value : p.out, deep);
  if (backward) {
    prefer_large_pages(p.d_query, wide);
    prefer_large_pages(p.d_key, wide);
  }
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
