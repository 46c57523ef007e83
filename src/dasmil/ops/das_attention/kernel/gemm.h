// The three products of the kernel. Columns j lie along the vector lanes in all of them, so no inner size is ever padded:
// d = 10 costs ten multiply-adds, not sixteen. A tile of pairs has the row stride TJ.
#pragma once

#include "simd.h"

namespace DAS_ISA {

// T[m][j] (=, or += for ADD) sum_c L[c * step + m] * R[c][j] for m < M, on top of start[j], for V vectors of columns; with
// ROWS it is L[m * step + c].
template <int M, bool ADD, bool ROWS, int TJ, int V>
DAS_INLINE void spread_vectors(const float *L, int64_t step, int64_t depth, const float *R, const float *start, float *T) {
  vf acc[M][V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const vf s = start ? load(start + v * W) : vf{};
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m][v] = s;
  }
  for (int64_t c = 0; c < depth; ++c, L += ROWS ? 1 : step, R += TJ) {
    vf r[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) r[v] = load(R + v * W);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const vf a = all(L[ROWS ? m * step : m]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[m][v] = fma(a, r[v], acc[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    float *t = T + m * TJ;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(t + v * W, ADD ? load(t + v * W) + acc[m][v] : acc[m][v]);
  }
}

template <int M, bool ADD, int TJ, bool ROWS = false>
DAS_INLINE void spread(const float *L, int64_t step, int64_t depth, const float *R, const float *start, float *T,
                       int64_t width) {
  int64_t j = 0;
  for (; j + 2 * W <= width; j += 2 * W)
    spread_vectors<M, ADD, ROWS, TJ, 2>(L, step, depth, R + j, start ? start + j : nullptr, T + j);
  if (W == 16 && j < width)
    spread_vectors<M, ADD, ROWS, TJ, 1>(L, step, depth, R + j, start ? start + j : nullptr, T + j);
}

// out[i][c] += sum_j T[i][j] * R[c][j] for I rows and C columns.
template <int I, int C, int TJ>
DAS_INLINE void gather(const float *T, const float *R, int64_t width, float *out, int64_t stride) {
  vf acc[I][4];
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 8
    for (int c = 0; c < 4; ++c) acc[i][c] = vf{};
  for (int64_t j = 0; j < width; j += W) {
    vf r[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) r[c] = load(R + c * TJ + j);
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) {
      const vf t = load(T + i * TJ + j);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[i][c] = fma(t, r[c], acc[i][c]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i) {
    if (C == 4) {
      add_lanes4(out + i * stride, acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    } else {
      float sums[4] = {0, 0, 0, 0};
      add_lanes4(sums, acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
      for (int c = 0; c < C; ++c) out[i * stride + c] += sums[c];
    }
  }
}

template <int I, int TJ>
DAS_INLINE void gather_rows(const float *T, const float *R, int64_t width, int64_t columns, float *out, int64_t stride) {
  int64_t c = 0;
  // As even as possible: 10 = 4 + 3 + 3 keeps more sums in flight than 4 + 4 + 2.
  for (int64_t blocks = (columns + 3) / 4; blocks > 0; --blocks) {
    const int64_t size = (columns - c + blocks - 1) / blocks;
    const float *r = R + c * TJ;
    switch (size) {
      case 4: gather<I, 4, TJ>(T, r, width, out + c, stride); break;
      case 3: gather<I, 3, TJ>(T, r, width, out + c, stride); break;
      case 2: gather<I, 2, TJ>(T, r, width, out + c, stride); break;
      default: gather<I, 1, TJ>(T, r, width, out + c, stride); break;
    }
    c += size;
  }
}

// out[rows][columns] += T R^T, rows by threes.
template <int TJ>
__attribute__((noinline)) void gather_all(const float *T, int64_t rows, const float *R, int64_t width, int64_t columns, float *out, int64_t stride) {
  int64_t i = 0;
  for (; i + 3 <= rows; i += 3) gather_rows<3, TJ>(T + i * TJ, R, width, columns, out + i * stride, stride);
  if (rows - i == 2) gather_rows<2, TJ>(T + i * TJ, R, width, columns, out + i * stride, stride);
  if (rows - i == 1) gather_rows<1, TJ>(T + i * TJ, R, width, columns, out + i * stride, stride);
}

// out[i][c] += sum_j T[i][j] * R[j][c] for I rows and V vectors of columns; R and out have the same row stride.
template <int I, int V, int TJ>
DAS_INLINE void collect(const float *T, const float *R, int64_t depth, float *out, int64_t stride) {
  vf acc[I][V];
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[i][v] = vf{};
  for (int64_t j = 0; j < depth; ++j, R += stride) {
    vf r[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) r[v] = load(R + v * W);
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) {
      const vf t = all(T[i * TJ + j]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[i][v] = fma(t, r[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(out + i * stride + v * W, load(out + i * stride + v * W) + acc[i][v]);
}

template <int I, int TJ>
DAS_INLINE void collect_rows(const float *T, const float *R, int64_t depth, int64_t columns, float *out) {
  int64_t c = 0;
  for (; c + 2 * W <= columns; c += 2 * W) collect<I, 2, TJ>(T, R + c, depth, out + c, columns);
  if (c < columns) collect<I, 1, TJ>(T, R + c, depth, out + c, columns);
}

// out[rows][columns] += T R for 1 to 6 rows, and columns in whole vectors: no sums across lanes.
template <int TJ>
__attribute__((noinline)) void collect_all(const float *T, int64_t rows, const float *R, int64_t depth, int64_t columns, float *out) {
  switch (rows) {
    case 6: collect_rows<6, TJ>(T, R, depth, columns, out); break;
    case 5: collect_rows<5, TJ>(T, R, depth, columns, out); break;
    case 4: collect_rows<4, TJ>(T, R, depth, columns, out); break;
    case 3: collect_rows<3, TJ>(T, R, depth, columns, out); break;
    case 2: collect_rows<2, TJ>(T, R, depth, columns, out); break;
    default: collect_rows<1, TJ>(T, R, depth, columns, out); break;
  }
}

// T[m][j] = start[j] + sum_c panel[c][m] R[c][j] for the `rows` (1 to 6) rows of a panel of six.
template <int TJ>
__attribute__((noinline)) void spread_panel(const float *panel, int64_t rows, int64_t depth, const float *R, const float *start, float *T,
                  int64_t width) {
  switch (rows) {
    case 6: spread<6, false, TJ>(panel, 6, depth, R, start, T, width); break;
    case 5: spread<5, false, TJ>(panel, 6, depth, R, start, T, width); break;
    case 4: spread<4, false, TJ>(panel, 6, depth, R, start, T, width); break;
    case 3: spread<3, false, TJ>(panel, 6, depth, R, start, T, width); break;
    case 2: spread<2, false, TJ>(panel, 6, depth, R, start, T, width); break;
    default: spread<1, false, TJ>(panel, 6, depth, R, start, T, width); break;
  }
}

// T[m][j] = sum_c L[m][c] R[c][j] for 1 to 6 rows of L.
template <int TJ>
__attribute__((noinline)) void spread_rows(const float *L, int64_t rows, int64_t depth, const float *R, float *T, int64_t width) {
  switch (rows) {
    case 6: spread<6, false, TJ, true>(L, depth, depth, R, nullptr, T, width); break;
    case 5: spread<5, false, TJ, true>(L, depth, depth, R, nullptr, T, width); break;
    case 4: spread<4, false, TJ, true>(L, depth, depth, R, nullptr, T, width); break;
    case 3: spread<3, false, TJ, true>(L, depth, depth, R, nullptr, T, width); break;
    case 2: spread<2, false, TJ, true>(L, depth, depth, R, nullptr, T, width); break;
    default: spread<1, false, TJ, true>(L, depth, depth, R, nullptr, T, width); break;
  }
}

// out[c][j] += sum_i L[i][c] T[i][j]: the columns of L in even blocks of at most six.
template <int TJ>
__attribute__((noinline)) void spread_add(const float *L, int64_t columns, int64_t rows, const float *T, float *out, int64_t width) {
  int64_t c = 0;
  for (int64_t blocks = (columns + 5) / 6; blocks > 0; --blocks) {
    const int64_t size = (columns - c + blocks - 1) / blocks;
    float *t = out + c * TJ;
    switch (size) {
      case 6: spread<6, true, TJ>(L + c, columns, rows, T, nullptr, t, width); break;
      case 5: spread<5, true, TJ>(L + c, columns, rows, T, nullptr, t, width); break;
      case 4: spread<4, true, TJ>(L + c, columns, rows, T, nullptr, t, width); break;
      case 3: spread<3, true, TJ>(L + c, columns, rows, T, nullptr, t, width); break;
      case 2: spread<2, true, TJ>(L + c, columns, rows, T, nullptr, t, width); break;
      default: spread<1, true, TJ>(L + c, columns, rows, T, nullptr, t, width); break;
    }
    c += size;
  }
}

}  // namespace DAS_ISA
