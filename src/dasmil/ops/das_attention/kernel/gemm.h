// The products of the kernel. Columns j lie along the vector lanes in all of them, so no inner size is ever padded:
// d = 10 costs ten multiply-adds, not sixteen. A tile of pairs has the row stride TJ.
#pragma once

#include "simd.h"

namespace DAS_ISA {

// Factors of a product that are the same for all columns, m < M of them for each of `depth` steps c: numbers in panels,
struct Panel {
  const float *L;
  int64_t step;
  DAS_INLINE float operator()(int64_t c, int m) const { return L[c * step + m]; }
};
// rows that lie anywhere, with c along them,
struct Along {
  const float *const *rows;
  DAS_INLINE float operator()(int64_t c, int m) const { return rows[m][c]; }
};
// or such rows with c from one to the next.
struct Across {
  const float *const *rows;
  int64_t first;
  DAS_INLINE float operator()(int64_t c, int m) const { return rows[c][first + m]; }
};

// T[m][j] (=, or += for ADD) sum_c L(c, m) * R[c][j] for m < M, on top of start[j], for V vectors of columns.
template <int M, bool ADD, int TJ, int V, typename L>
DAS_INLINE void spread_vectors(const L factor, int64_t depth, const float *R, const float *start, float *T) {
  vf acc[M][V];
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    const vf s = start ? load(start + v * W) : vf{};
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m][v] = s;
  }
  for (int64_t c = 0; c < depth; ++c, R += TJ) {
    vf r[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) r[v] = load(R + v * W);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vf a = all(factor(c, m));
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) acc[m][v] = fma(a, r[v], acc[m][v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    float *t = T + m * TJ;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(t + v * W, ADD ? load(t + v * W) + acc[m][v] : acc[m][v]);
  }
}

template <int M, bool ADD, int TJ, typename L>
DAS_INLINE void spread(const L factor, int64_t depth, const float *R, const float *start, float *T, int64_t width) {
  int64_t j = 0;
  for (; j + 2 * W <= width; j += 2 * W)
    spread_vectors<M, ADD, TJ, 2>(factor, depth, R + j, start ? start + j : nullptr, T + j);
  if (W == 16 && j < width)
    spread_vectors<M, ADD, TJ, 1>(factor, depth, R + j, start ? start + j : nullptr, T + j);
}

template <bool ADD, int TJ, typename L>
DAS_INLINE void spread_some(int64_t rows, const L factor, int64_t depth, const float *R, const float *start, float *T,
                            int64_t width) {
  switch (rows) {
    case 6: spread<6, ADD, TJ>(factor, depth, R, start, T, width); break;
    case 5: spread<5, ADD, TJ>(factor, depth, R, start, T, width); break;
    case 4: spread<4, ADD, TJ>(factor, depth, R, start, T, width); break;
    case 3: spread<3, ADD, TJ>(factor, depth, R, start, T, width); break;
    case 2: spread<2, ADD, TJ>(factor, depth, R, start, T, width); break;
    default: spread<1, ADD, TJ>(factor, depth, R, start, T, width); break;
  }
}

// Where the sums of a row go: the rows of `at` one after another, or those with the numbers `ids`.
struct Rows {
  float *at;
  int64_t size;
  const int32_t *ids;
  float factor;  // of the sums, in `collect` only

  DAS_INLINE float *operator()(int64_t i) const { return at + (ids ? ids[i] : i) * size; }
  Rows from(int64_t i) const {
    return ids ? Rows{at, size, ids + i, factor} : Rows{at + i * size, size, nullptr, factor};
  }
};

// out[i][c] += sum_j T[i][j] * R[c][j] for I rows and C columns from c0 on.
template <int I, int C, int TJ>
DAS_INLINE void gather(const float *T, const float *R, int64_t width, const Rows &out, int64_t c0) {
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
    float *to = out(i) + c0;
    if (C == 4) {
      add_lanes4(to, acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    } else {
      float sums[4] = {0, 0, 0, 0};
      add_lanes4(sums, acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
      for (int c = 0; c < C; ++c) to[c] += sums[c];
    }
  }
}

template <int I, int TJ>
DAS_INLINE void gather_rows(const float *T, const float *R, int64_t width, const Rows &out) {
  const int64_t columns = out.size;
  int64_t c = 0;
  // As even as possible: 10 = 4 + 3 + 3 keeps more sums in flight than 4 + 4 + 2.
  for (int64_t blocks = (columns + 3) / 4; blocks > 0; --blocks) {
    const int64_t size = (columns - c + blocks - 1) / blocks;
    const float *r = R + c * TJ;
    switch (size) {
      case 4: gather<I, 4, TJ>(T, r, width, out, c); break;
      case 3: gather<I, 3, TJ>(T, r, width, out, c); break;
      case 2: gather<I, 2, TJ>(T, r, width, out, c); break;
      default: gather<I, 1, TJ>(T, r, width, out, c); break;
    }
    c += size;
  }
}

// out[rows] += T R^T, rows by threes.
template <int TJ>
__attribute__((noinline)) void gather_all(const float *T, int64_t rows, const float *R, int64_t width, const Rows &out) {
  int64_t i = 0;
  for (; i + 3 <= rows; i += 3) gather_rows<3, TJ>(T + i * TJ, R, width, out.from(i));
  if (rows - i == 2) gather_rows<2, TJ>(T + i * TJ, R, width, out.from(i));
  if (rows - i == 1) gather_rows<1, TJ>(T + i * TJ, R, width, out.from(i));
}

// The rows of the right factor of `collect`, one after another or anywhere.
struct InTurn {
  const float *at;
  int64_t size;
  DAS_INLINE const float *operator()(int64_t j) const { return at + j * size; }
};
struct Anywhere {
  const float *const *rows;
  DAS_INLINE const float *operator()(int64_t j) const { return rows[j]; }
};

// out[i][c] += factor * sum_j T[i][j] * R(j)[c] for I rows and V vectors of columns from c0 on.
template <int I, int V, int TJ, typename R>
DAS_INLINE void collect(const float *T, const R right, int64_t depth, const Rows &out, int64_t c0) {
  vf acc[I][V];
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[i][v] = vf{};
  for (int64_t j = 0; j < depth; ++j) {
    const float *row = right(j) + c0;
    vf r[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) r[v] = load(row + v * W);
#pragma GCC unroll 8
    for (int i = 0; i < I; ++i) {
      const vf t = all(T[i * TJ + j]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[i][v] = fma(t, r[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < I; ++i) {
    float *to = out(i) + c0;
    const vf factor = all(out.factor);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(to + v * W, fma(factor, acc[i][v], load(to + v * W)));
  }
}

template <int I, int TJ, typename R>
DAS_INLINE void collect_rows(const float *T, const R right, int64_t depth, const Rows &out) {
  int64_t c = 0;
  for (; c + 2 * W <= out.size; c += 2 * W) collect<I, 2, TJ>(T, right, depth, out, c);
  if (c < out.size) collect<I, 1, TJ>(T, right, depth, out, c);
}

// out[rows] += factor * T R for rows whose size is a whole number of vectors: no sums across lanes.
template <int TJ, typename R>
__attribute__((noinline)) void collect_all(const float *T, int64_t rows, const R right, int64_t depth, const Rows &out) {
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) collect_rows<6, TJ>(T + i * TJ, right, depth, out.from(i));
  T += i * TJ;
  switch (rows - i) {
    case 5: collect_rows<5, TJ>(T, right, depth, out.from(i)); break;
    case 4: collect_rows<4, TJ>(T, right, depth, out.from(i)); break;
    case 3: collect_rows<3, TJ>(T, right, depth, out.from(i)); break;
    case 2: collect_rows<2, TJ>(T, right, depth, out.from(i)); break;
    case 1: collect_rows<1, TJ>(T, right, depth, out.from(i)); break;
    default: break;
  }
}

// T[m][j] = start[j] + sum_c panel[c][m] R[c][j] for the `rows` (1 to 6) rows of a panel of six.
template <int TJ>
__attribute__((noinline)) void spread_panel(const float *panel, int64_t rows, int64_t depth, const float *R, const float *start, float *T,
                  int64_t width) {
  spread_some<false, TJ>(rows, Panel{panel, 6}, depth, R, start, T, width);
}

// T[m][j] = sum_c L[m][c] R[c][j] for any number of rows. Where the columns are one vector, twelve rows at a time: six sums
// would wait for each other.
template <int TJ>
__attribute__((noinline)) void spread_rows(const float *const *L, int64_t rows, int64_t depth, const float *R, float *T, int64_t width) {
  for (; rows >= 12 && width == W; rows -= 12, L += 12, T += 12 * TJ)
    spread_vectors<12, false, TJ, 1>(Along{L}, depth, R, nullptr, T);
  for (; rows > 0; rows -= 6, L += 6, T += 6 * TJ)
    spread_some<false, TJ>(rows < 6 ? rows : 6, Along{L}, depth, R, nullptr, T, width);
}

// out[c][j] += sum_i L[i][c] T[i][j]: the columns of L in even blocks of at most six.
template <int TJ>
__attribute__((noinline)) void spread_add(const float *L, int64_t columns, int64_t rows, const float *T, float *out, int64_t width) {
  int64_t c = 0;
  for (int64_t blocks = (columns + 5) / 6; blocks > 0; --blocks) {
    const int64_t size = (columns - c + blocks - 1) / blocks;
    spread_some<true, TJ>(size, Panel{L + c, columns}, rows, T, nullptr, out + c * TJ, width);
    c += size;
  }
}

// The same for rows that lie anywhere, up to sixteen columns of L at a time where T has one vector. Rows by PIECE: long sums
// in one number lose digits.
template <int TJ>
__attribute__((noinline)) void spread_add_rows(const float *const *L, int64_t columns, int64_t rows, const float *T, float *out, int64_t width) {
  constexpr int64_t PIECE = 24;
  for (; rows > 0; rows -= PIECE, L += PIECE, T += PIECE * TJ) {
    const int64_t depth = rows < PIECE ? rows : PIECE;
    int64_t c = 0;
    for (; c + 16 <= columns && width == W; c += 16)
      spread_vectors<16, true, TJ, 1>(Across{L, c}, depth, T, nullptr, out + c * TJ);
    for (; c + 8 <= columns && width == W; c += 8)
      spread_vectors<8, true, TJ, 1>(Across{L, c}, depth, T, nullptr, out + c * TJ);
    for (int64_t blocks = (columns - c + 5) / 6; blocks > 0; --blocks) {
      const int64_t size = (columns - c + blocks - 1) / blocks;
      spread_some<true, TJ>(size, Across{L, c}, depth, T, nullptr, out + c * TJ, width);
      c += size;
    }
  }
}

}  // namespace DAS_ISA
