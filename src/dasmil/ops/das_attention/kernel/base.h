// Sizes of the tiles, the scratch memory, and what every part of the kernel needs.
#pragma once

#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif
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
constexpr int LEAF = 16;    // neighbours in space that choose together whom a radius lets them see; native.py has the same number
constexpr int NEAR = 96;    // of those chosen, how many are worked on at a time
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

enum Phi { SIGMOID, IDENTITY, EXPONENTIAL, GAUSSIAN };
enum Bias { NO_BIAS, LINEAR, GAUSSIAN_BIAS, CAUCHY, BINS };
// LEAN: no embeddings. WHOLE: every pair has a distance. PARTIAL: some m_ij = 0; also for the product term, so that the
// usual case stays lean.
enum Mode { LEAN, WHOLE, PARTIAL };

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

// Large pages make the first touch of the scratch memory several times cheaper. Advice only: it may be refused.
inline void prefer_large_pages(void *memory, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t page = 1 << 21;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / page * page;
  if (to > from) madvise(reinterpret_cast<void *>(from), to - from, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

// Products of numbers too small to matter must not slow the loops down.
struct FlushDenormals {
#ifdef __SSE__
  unsigned before = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(before | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before); }
#endif
};

// Asks for the cache lines of a row that will be needed soon.
DAS_INLINE void fetch(const float *row, int64_t size) {
  for (int64_t c = 0; c < size; c += 16) __builtin_prefetch(row + c);
}

// Four sums beside each other: one alone would wait for itself.
inline double dot(const float *a, const float *b, int64_t size) {
  typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
  typedef double wide __attribute__((vector_size(32)));
  wide sums{};
  int64_t c = 0;
  for (; c + 4 <= size; c += 4)
    sums += __builtin_convertvector(*reinterpret_cast<const four *>(a + c), wide) *
            __builtin_convertvector(*reinterpret_cast<const four *>(b + c), wide);
  double sum = sums[0] + sums[1] + (sums[2] + sums[3]);
  for (; c < size; ++c) sum += static_cast<double>(a[c]) * b[c];
  return sum;
}

}  // namespace DAS_ISA
