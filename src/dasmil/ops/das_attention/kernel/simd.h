// Eight floats at a time, or sixteen with AVX-512. GCC's and Clang's vector types compile for every CPU; only a few
// operations need a name of their own, and these use instructions of the CPU where the compiler would not find them.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define DAS_INLINE inline __attribute__((always_inline))

namespace DAS_ISA {

#ifdef __AVX512F__
constexpr int W = 16;
#else
constexpr int W = 8;
#endif
typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef float vf_memory __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t vi_memory __attribute__((vector_size(4 * W), aligned(4), may_alias));

DAS_INLINE vf load(const float *p) { return *reinterpret_cast<const vf_memory *>(p); }
DAS_INLINE vi load(const int32_t *p) { return *reinterpret_cast<const vi_memory *>(p); }
DAS_INLINE void store(float *p, vf x) { *reinterpret_cast<vf_memory *>(p) = x; }
DAS_INLINE vf bits(vi x) { return reinterpret_cast<vf>(x); }
DAS_INLINE vi bits(vf x) { return reinterpret_cast<vi>(x); }
DAS_INLINE vf only_where(vi condition, vf x) { return bits(condition & bits(x)); }

#ifdef __AVX2__
// The sums of the lanes of four vectors of eight.
DAS_INLINE void add_eights(float *out, __m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  const __m128 s = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), s));
}
#endif

#if defined(__AVX512F__)
DAS_INLINE vf all(float x) { return _mm512_set1_ps(x); }
DAS_INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
DAS_INLINE vf fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
// In both, a NaN in x comes through.
DAS_INLINE vf at_least(float low, vf x) { return _mm512_max_ps(_mm512_set1_ps(low), x); }
DAS_INLINE vf at_most(float high, vf x) { return _mm512_min_ps(_mm512_set1_ps(high), x); }
DAS_INLINE vf larger(vf a, vf b) { return _mm512_max_ps(a, b); }
DAS_INLINE vf root(vf x) { return _mm512_sqrt_ps(x); }
// The nearest integer of numbers up to 2^22; of a NaN one whose low nine bits are 0.
DAS_INLINE vi nearest(vf x) { return reinterpret_cast<vi>(_mm512_cvtps_epi32(x)); }
DAS_INLINE vf magnitude(vf x) { return bits(bits(x) & 0x7FFFFFFF); }
DAS_INLINE bool any_above(vf x, float limit) {
  return _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
}
DAS_INLINE __m256 halves(vf x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}
DAS_INLINE void add_lanes4(float *out, vf a, vf b, vf c, vf d) {
  add_eights(out, halves(a), halves(b), halves(c), halves(d));
}
#elif defined(__AVX2__)
DAS_INLINE vf all(float x) { return _mm256_set1_ps(x); }
DAS_INLINE vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
DAS_INLINE vf fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
DAS_INLINE vf at_least(float low, vf x) { return _mm256_max_ps(_mm256_set1_ps(low), x); }
DAS_INLINE vf at_most(float high, vf x) { return _mm256_min_ps(_mm256_set1_ps(high), x); }
DAS_INLINE vf larger(vf a, vf b) { return _mm256_max_ps(a, b); }
DAS_INLINE vf root(vf x) { return _mm256_sqrt_ps(x); }
DAS_INLINE vi nearest(vf x) { return reinterpret_cast<vi>(_mm256_cvtps_epi32(x)); }
DAS_INLINE vf magnitude(vf x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
DAS_INLINE bool any_above(vf x, float limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ)) != 0;
}
DAS_INLINE void add_lanes4(float *out, vf a, vf b, vf c, vf d) { add_eights(out, a, b, c, d); }
#else
DAS_INLINE vf all(float x) { return vf{x, x, x, x, x, x, x, x}; }
DAS_INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
DAS_INLINE vf fnma(vf a, vf b, vf c) { return c - a * b; }
DAS_INLINE vf at_least(float low, vf x) { return x < all(low) ? all(low) : x; }
DAS_INLINE vf at_most(float high, vf x) { return x > all(high) ? all(high) : x; }
DAS_INLINE vf larger(vf a, vf b) { return a > b ? a : b; }
DAS_INLINE vf root(vf x) {
  vf y;
  for (int i = 0; i < W; ++i) y[i] = sqrtf(x[i]);
  return y;
}
// Adding 1.5 * 2^23 rounds x to an integer in the low bits.
DAS_INLINE vi nearest(vf x) { return (bits(x + all(12582912.0f)) - 0x4B400000) & (x == x); }
DAS_INLINE vf magnitude(vf x) { return bits(bits(x) & 0x7FFFFFFF); }
DAS_INLINE bool any_above(vf x, float limit) {
  bool any = false;
  for (int i = 0; i < W; ++i) any |= x[i] > limit;
  return any;
}

DAS_INLINE void add_lanes4(float *out, vf a, vf b, vf c, vf d) {
  for (int i = 0; i < W; ++i) {
    out[0] += a[i];
    out[1] += b[i];
    out[2] += c[i];
    out[3] += d[i];
  }
}
#endif

DAS_INLINE float lane_sum(vf x) {
  float sums[4] = {0, 0, 0, 0};
  add_lanes4(sums, x, vf{}, vf{}, vf{});
  return sums[0];
}
DAS_INLINE float lane_max(vf x) {
  float m = x[0];
  for (int i = 1; i < W; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

// to[x * stride + r] = factor * rows[r][x] for eight rows of `size` numbers.
inline void transpose8(const float *const *rows, int64_t size, float factor, float *to, int64_t stride) {
  int64_t x = 0;
#ifdef __AVX2__
  for (; x + 8 <= size; x += 8) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) a[r] = _mm256_mul_ps(_mm256_set1_ps(factor), _mm256_loadu_ps(rows[r] + x));
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      b[2 * r] = _mm256_unpacklo_ps(a[2 * r], a[2 * r + 1]);
      b[2 * r + 1] = _mm256_unpackhi_ps(a[2 * r], a[2 * r + 1]);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
      a[h] = _mm256_shuffle_ps(b[h], b[h + 2], 0x44);
      a[h + 1] = _mm256_shuffle_ps(b[h], b[h + 2], 0xEE);
      a[h + 2] = _mm256_shuffle_ps(b[h + 1], b[h + 3], 0x44);
      a[h + 3] = _mm256_shuffle_ps(b[h + 1], b[h + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      _mm256_storeu_ps(to + (x + r) * stride, _mm256_permute2f128_ps(a[r], a[r + 4], 0x20));
      _mm256_storeu_ps(to + (x + r + 4) * stride, _mm256_permute2f128_ps(a[r], a[r + 4], 0x31));
    }
  }
#endif
  for (; x < size; ++x)
    for (int r = 0; r < 8; ++r) to[x * stride + r] = factor * rows[r][x];
}

// Appends first + l to the list for every lane l where the condition holds; returns how many. Writes up to W numbers.
DAS_INLINE int64_t append(int32_t *list, vi condition, int32_t first) {
#ifdef __AVX512F__
  const __mmask16 some = _mm512_movepi32_mask(reinterpret_cast<__m512i>(condition));
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  _mm512_storeu_si512(list, _mm512_maskz_compress_epi32(some, _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
  return __builtin_popcount(some);
#else
  int64_t found = 0;
  for (int l = 0; l < W; ++l) {
    list[found] = first + l;
    found -= condition[l];
  }
  return found;
#endif
}

// 2^x for x up to 127, and exactly 0 from -126 down; relative error about 1.5e-7. The polynomial (own minimax fit,
// value exactly 1 at 0) covers what is left beside the nearest integer, in [-0.5, 0.5]. A NaN in x comes through,
// whatever its bits are.
DAS_INLINE vf exp2_normal(vf x) {
  const vi whole = nearest(x);
  const vf r = x - __builtin_convertvector(whole, vf), r2 = r * r;
  // In pairs (Estrin's scheme): one product more than Horner's, but a chain of three steps instead of five.
  const vf high = fma(all(0.001326472731307149f), r, all(0.009671512991189957f));
  const vf middle = fma(all(0.05550733581185341f), r, all(0.24022242426872253f));
  const vf low = fma(all(0.6931470036506653f), r, all(1.0f));
  const vf y = fma(fma(high, r2, middle), r2, low);
  return bits(bits(y) + (whole << 23));
}
DAS_INLINE vf exp2_or_zero(vf x) { return exp2_normal(at_least(-126.0f, x)) - 1.17549435e-38f; }

// The logarithm (base 2) of x >= 1: exponent, and the series of artanh for the rest, in [sqrt(0.5), sqrt(2)).
DAS_INLINE vf log2_above_one(vf x) {
  const vi half = bits(x) - 0x3F3504F3;  // sqrt(0.5)
  const vi exponent = half >> 23;
  const vf rest = bits(bits(x) - (exponent << 23));
  const vf s = (rest - 1.0f) / (rest + 1.0f), s2 = s * s;
  const vf series = fma(fma(fma(fma(all(0.32059889f), s2, all(0.41219858f)), s2, all(0.57707801f)), s2, all(0.96179669f)), s2,
                        all(2.88539008f));
  return __builtin_convertvector(exponent, vf) + s * series;
}

DAS_INLINE vu mix(vu x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}
inline uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Which weights dropout keeps: the same hash as in dropout.py. First the keys of one head of one bag,
struct Keys {
  uint32_t low = 0, high = 0;

  Keys() = default;
  Keys(uint64_t seed, uint64_t number) {
    low = mix(static_cast<uint32_t>(seed) + static_cast<uint32_t>(number) * 0x9E3779B1u);
    high = mix(static_cast<uint32_t>(seed >> 32) ^ low);
  }
};

// then those of a row.
struct Keep {
  uint32_t row, salt;
  int32_t threshold;

  Keep(Keys keys, int64_t number, int32_t threshold) : threshold(threshold) {
    row = mix(static_cast<uint32_t>(number) * 0x9E3779B1u + keys.low);
    salt = mix(row ^ keys.high);
  }
  DAS_INLINE vi operator()(vi columns) const {
    const vu j = reinterpret_cast<vu>(columns);
    return reinterpret_cast<vi>(mix((j * 0x85EBCA6Bu + row) ^ salt) >> 8) >= threshold;
  }
};

// The same for one column and the rows of the lanes.
struct KeepRows {
  vu row, salt;
  int32_t threshold;

  KeepRows(Keys keys, const int32_t *numbers, int32_t threshold) : threshold(threshold) {
    for (int l = 0; l < W; ++l) {
      const Keep one(keys, numbers[l], threshold);
      row[l] = one.row;
      salt[l] = one.salt;
    }
  }
  DAS_INLINE vi operator()(int32_t column) const {
    return reinterpret_cast<vi>(mix((static_cast<uint32_t>(column) * 0x85EBCA6Bu + row) ^ salt) >> 8) >= threshold;
  }
};

}  // namespace DAS_ISA
