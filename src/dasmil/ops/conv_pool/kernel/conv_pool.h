// 5 x 5 convolution, 2 x 2 max pool, bias, ReLU in one pass over each picture, forward and backward, for stacked runs.
//
// x [runs][images][CI][SIDE][SIDE], weight [runs][CO][CI][5][5], bias [runs][CO]
// -> out [runs][images][CO][P][P], P = (SIDE - 4) / 2, and winner: which of the four won the pool (0 to 3), or 4 where ReLU cut it off.
//
// Pixels of a row lie along the vector lanes. Backward uses that only a quarter of the convolution's outputs, the winners,
// have a gradient at all: each adds to 5 rows of 5, done as 5 vectors of 8 whose last three lanes are thrown away.
#pragma once

#include <stdint.h>
#include <string.h>

namespace CONV_ISA {

constexpr int K = 5, LANES = 8;
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef float vf_memory __attribute__((vector_size(32), aligned(4), may_alias));

inline __attribute__((always_inline)) vf load(const float *p) { return *reinterpret_cast<const vf_memory *>(p); }
inline __attribute__((always_inline)) void store(float *p, vf x) { *reinterpret_cast<vf_memory *>(p) = x; }

// Numbers 0, 2, 4 .. or 1, 3, 5 .. of 16.
#ifdef __clang__
inline vf even(const float *p) { return __builtin_shufflevector(load(p), load(p + 8), 0, 2, 4, 6, 8, 10, 12, 14); }
inline vf odd(const float *p) { return __builtin_shufflevector(load(p), load(p + 8), 1, 3, 5, 7, 9, 11, 13, 15); }
#else
inline vf even(const float *p) { return __builtin_shuffle(load(p), load(p + 8), vi{0, 2, 4, 6, 8, 10, 12, 14}); }
inline vf odd(const float *p) { return __builtin_shuffle(load(p), load(p + 8), vi{1, 3, 5, 7, 9, 11, 13, 15}); }
#endif

template <int CI, int SIDE, int CO>
struct Block {
  static constexpr int O = SIDE - K + 1, P = O / 2, V = O / LANES, STEP = SIDE + 4;  // STEP: row with room for lanes 5 to 7
  static constexpr int M = V == 1 ? 5 : 2;  // output channels at a time: 2 rows x V vectors x M sums stay in registers
  static constexpr int ROUNDS = (P + LANES - 1) / LANES, PAIR = CI % 2 ? 1 : 2;  // PAIR: input channels at a time
  static_assert(O % LANES == 0 && CO % M == 0, "sizes");

  static void forward(const float *x, const float *weight, const float *bias, float *out, uint8_t *winner) {
    for (int py = 0; py < P; ++py)
      for (int c = 0; c < CO; c += M) {
        vf sum[M][2][V] = {};
        for (int ci = 0; ci < CI; ++ci)
          for (int ky = 0; ky < K; ++ky) {
            const float *row = x + (ci * SIDE + 2 * py + ky) * SIDE, *w = weight + (c * CI + ci) * K * K + ky * K;
#pragma GCC unroll 5
            for (int kx = 0; kx < K; ++kx) {
              vf in[2][V];
#pragma GCC unroll 8
              for (int v = 0; v < V; ++v) {
                in[0][v] = load(row + kx + v * LANES);
                in[1][v] = load(row + SIDE + kx + v * LANES);
              }
#pragma GCC unroll 8
              for (int m = 0; m < M; ++m) {
                const float one = w[m * CI * K * K + kx];
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) {
                  sum[m][0][v] += one * in[0][v];
                  sum[m][1][v] += one * in[1][v];
                }
              }
            }
          }
        for (int m = 0; m < M; ++m) {
          float rows[2][16 * ROUNDS] = {};
          for (int v = 0; v < V; ++v) {
            store(rows[0] + v * LANES, sum[m][0][v]);
            store(rows[1] + v * LANES, sum[m][1][v]);
          }
          const int at = ((c + m) * P + py) * P;
          pool(rows[0], rows[1], bias[c + m], out + at, winner + at);
        }
      }
  }

  // The first of equals wins and a NaN always does, as in PyTorch. Eight outputs at a time from two rows of O numbers with
  // room for 16 * ROUNDS.
  static void pool(const float *top, const float *bottom, float bias, float *out, uint8_t *winner) {
    float best_of[ROUNDS * LANES];
    uint8_t winner_of[ROUNDS * LANES];
    for (int i = 0; i < ROUNDS; ++i) {
      const vf a = even(top + 16 * i), b = odd(top + 16 * i), c = even(bottom + 16 * i), d = odd(bottom + 16 * i);
      const vi right0 = (b > a) | (b != b), right1 = (d > c) | (d != d);
      const vf best0 = right0 ? b : a, best1 = right1 ? d : c;
      const vi below = (best1 > best0) | (best1 != best1);
      const vf best = (below ? best1 : best0) + bias;
      const vi which = below ? 2 - right1 : -right0;  // true is -1
      const vi cut = best <= 0;
      store(best_of + LANES * i, cut ? vf{} : best);
      const vi number = cut ? vi{} + 4 : which;
      for (int lane = 0; lane < LANES; ++lane) winner_of[LANES * i + lane] = static_cast<uint8_t>(number[lane]);
    }
    memcpy(out, best_of, P * sizeof(float));
    memcpy(winner, winner_of, P);
  }

  struct Hit {
    float gradient;
    int at;  // where in the picture, or which output channel
  };

  // All images of one run; d_x may be null.
  static void backward(int64_t images, const float *x, const float *weight, const uint8_t *winner, const float *d_out,
                       float *d_weight, float *d_bias, float *d_x) {
    // Eight floats for each row of five: lanes 5 to 7 of the weights are zero, those of the sums are ignored.
    float rows[CO][CI][K][LANES] = {}, sums[CO][CI][K][LANES] = {};
    for (int i = 0; i < CO * CI * K; ++i) memcpy(&rows[0][0][0][0] + i * LANES, weight + i * K, K * sizeof(float));
    double bias_sum[CO] = {};
    for (int64_t image = 0; image < images; ++image) {
      const uint8_t *won = winner + image * CO * P * P;
      const float *gradient = d_out + image * CO * P * P;
      weights_of_image(x + image * CI * SIDE * SIDE, won, gradient, sums, bias_sum);
      if (d_x) picture_of_image(rows, won, gradient, d_x + image * CI * SIDE * SIDE);
    }
    for (int i = 0; i < CO * CI * K; ++i) memcpy(d_weight + i * K, &sums[0][0][0][0] + i * LANES, K * sizeof(float));
    for (int c = 0; c < CO; ++c) d_bias[c] = static_cast<float>(bias_sum[c]);
  }

  static int place(int position, int which) {
    return (2 * (position / P) + (which >> 1)) * STEP + 2 * (position % P) + (which & 1);
  }

  // Channel by channel: the winners' gradients times the pictures around them.
  static void weights_of_image(const float *x, const uint8_t *won, const float *gradient, float (*sums)[CI][K][LANES],
                               double *bias_sum) {
    float in[CI][SIDE][STEP];
    for (int ci = 0; ci < CI; ++ci)
      for (int y = 0; y < SIDE; ++y) {
        memcpy(in[ci][y], x + (ci * SIDE + y) * SIDE, SIDE * sizeof(float));
        memset(in[ci][y] + SIDE, 0, (STEP - SIDE) * sizeof(float));
      }
    for (int c = 0; c < CO; ++c, won += P * P, gradient += P * P) {
      Hit hits[P * P + 1];
      int count = 0;
      float total = 0;
      for (int i = 0; i < P * P; ++i) {
        const bool real = won[i] != 4;
        hits[count] = {gradient[i], place(i, won[i])};
        total += real ? gradient[i] : 0;
        count += real;
      }
      bias_sum[c] += total;
      for (int ci = 0; ci < CI; ci += PAIR) {
        vf sum[PAIR][K];
        for (int j = 0; j < PAIR; ++j)
          for (int k = 0; k < K; ++k) sum[j][k] = load(sums[c][ci + j][k]);
        for (int h = 0; h < count; ++h) {
          const float g = hits[h].gradient, *p = in[ci][0] + hits[h].at;
#pragma GCC unroll 2
          for (int j = 0; j < PAIR; ++j)
#pragma GCC unroll 5
            for (int k = 0; k < K; ++k) sum[j][k] += g * load(p + (j * SIDE + k) * STEP);
        }
        for (int j = 0; j < PAIR; ++j)
          for (int k = 0; k < K; ++k) store(sums[c][ci + j][k], sum[j][k]);
      }
    }
  }

  // Place by place, so that the channels that won at the same place are added up in registers.
  static void picture_of_image(const float (*rows)[CI][K][LANES], const uint8_t *won, const float *gradient, float *d_x) {
    constexpr int PLACES = P * P * 5;  // the fifth of each: cut off by ReLU
    Hit hits[CO * P * P];
    int start[PLACES + 1] = {};
    for (int c = 0; c < CO; ++c)
      for (int i = 0; i < P * P; ++i) ++start[i * 5 + won[c * P * P + i] + 1];
    for (int i = 0; i < PLACES; ++i) start[i + 1] += start[i];
    int next[PLACES];
    memcpy(next, start, sizeof next);
    for (int c = 0; c < CO; ++c)
      for (int i = 0; i < P * P; ++i) hits[next[i * 5 + won[c * P * P + i]]++] = {gradient[c * P * P + i], c};
    float d_in[CI][SIDE][STEP] = {};
    for (int i = 0; i < PLACES; ++i) {
      if (i % 5 == 4 || start[i] == start[i + 1]) continue;
      for (int ci = 0; ci < CI; ci += PAIR) {
        float *p = d_in[ci][0] + place(i / 5, i % 5);
        vf sum[PAIR][K];
        for (int j = 0; j < PAIR; ++j)
          for (int k = 0; k < K; ++k) sum[j][k] = load(p + (j * SIDE + k) * STEP);
        for (int h = start[i]; h < start[i + 1]; ++h) {
          const float g = hits[h].gradient;
          const float *w = rows[hits[h].at][ci][0];
#pragma GCC unroll 2
          for (int j = 0; j < PAIR; ++j)
#pragma GCC unroll 5
            for (int k = 0; k < K; ++k) sum[j][k] += g * load(w + (j * K + k) * LANES);
        }
        for (int j = 0; j < PAIR; ++j)
          for (int k = 0; k < K; ++k) store(p + (j * SIDE + k) * STEP, sum[j][k]);
      }
    }
    for (int ci = 0; ci < CI; ++ci)
      for (int y = 0; y < SIDE; ++y) memcpy(d_x + (ci * SIDE + y) * SIDE, d_in[ci][y], SIDE * sizeof(float));
  }
};

template <int CI, int SIDE, int CO>
void run_block(const conv_pool_problem *p, int backward) {
  typedef Block<CI, SIDE, CO> B;
  constexpr int64_t in = int64_t{CI} * SIDE * SIDE, out = int64_t{CO} * B::P * B::P, weights = int64_t{CO} * CI * K * K;
  for (int64_t run = 0; run < p->runs; ++run) {
    const float *x = p->x + run * p->images * in, *weight = p->weight + run * weights;
    const int64_t at = run * p->images * out;
    if (!backward)
      for (int64_t image = 0; image < p->images; ++image)
        B::forward(x + image * in, weight, p->bias + run * CO, p->out + at + image * out, p->winner + at + image * out);
    else
      B::backward(p->images, x, weight, p->winner + at, p->d_out + at, p->d_weight + run * weights, p->d_bias + run * CO,
                  p->d_x ? p->d_x + run * p->images * in : nullptr);
  }
}

// The two blocks of the MNIST encoder; 1: no such block.
int entry(const conv_pool_problem *p, int backward) {
  if (p->in_channels == 1 && p->side == 28 && p->out_channels == 10) return run_block<1, 28, 10>(p, backward), 0;
  if (p->in_channels == 10 && p->side == 12 && p->out_channels == 20) return run_block<10, 12, 20>(p, backward), 0;
  return 1;
}

}  // namespace CONV_ISA
