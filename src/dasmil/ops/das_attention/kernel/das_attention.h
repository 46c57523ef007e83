/* The plain C interface of the kernel: pointers and sizes only, no coupling to torch. All arrays are contiguous. */
#ifndef DASMIL_DAS_ATTENTION_H
#define DASMIL_DAS_ATTENTION_H

#include <stdint.h>

#define DAS_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* native.py holds the same list of fields in the same order. Every field has 8 bytes, so there is no padding. */
typedef struct {
  int64_t bags, heads, n, d, o, axes; /* query [bags, heads, n, d], value [bags, heads, n, o], coords [bags, n, axes] */
  int64_t phi;                        /* 0 sigmoid, 1 identity, 2 exponential, 3 gaussian */
  int64_t bias, bins;                 /* 0 none, 1 linear, 2 gaussian, 3 cauchy, 4 bins: how many */
  int64_t self_pair, product_term, threads;
  int64_t isa; /* 0 the best of this CPU, 1 portable, 2 AVX2, 3 AVX-512; one that it does not have: the best */
  /* Elements from one bag to the next; 0 where all bags share the array. */
  int64_t coords_step, mask_step, section_step, theta_step, beta_step;
  int64_t key_embed_step, query_embed_step, value_embed_step, bias_scale_step, bias_table_step, order_step;
  int64_t seed_count; /* each seed serves an equal share of the bags * heads items */
  double scale, distance_scale, dropout;
  const float *query, *key, *value, *coords;
  const float *theta, *beta, *key_embed, *query_embed, *value_embed; /* null: absent */
  const float *bias_scale, *bias_table; /* [bags, heads], [bags, heads, bins]; null: absent */
  const float *bias_edges;              /* [bins - 1], ascending, where a bin begins */
  const uint8_t *mask;                  /* null: no padding */
  const int64_t *section;               /* null: one section; -1: a token without a place */
  const int64_t *seeds;                 /* [seed_count], null: no dropout */
  const double *reach;                  /* [heads], the largest squared distance that is seen; null: no radius */
  const int64_t *order;                 /* [bags, n], neighbours near each other, tokens first; null: as they come */
  float *out;                           /* [bags, heads, n, o] */
  /* [bags, heads, n] in the kernel's order, kept from forward to backward: a weight is exp2(logit - shift) * share. Not
     one logarithm of the softmax's denominator: beside a large shift float32 would have no digits left for it. */
  float *shift, *share, *g_sum, *m_sum;
  const float *d_out;
  float *d_query, *d_key, *d_value;
  /* [bags, heads, ...] even where the bags share the parameter: the caller adds them up. The last two may be null: not
     wanted. */
  float *d_theta, *d_beta, *d_key_embed, *d_query_embed, *d_value_embed, *d_bias_scale, *d_bias_table;
  void *scratch; /* das_scratch() bytes, 64-byte aligned, content arbitrary */
} das_problem;

enum { DAS_OK = 0, DAS_BAD_COORDS = 1, DAS_BAD_MASK = 2, DAS_BAD_SECTION = 3, DAS_UNKNOWN_SECTION = 4, DAS_BAD_LENGTH = 5 };

DAS_API int64_t das_scratch(const das_problem *problem, int backward);
DAS_API int das_forward(const das_problem *problem);
DAS_API int das_backward(const das_problem *problem);
DAS_API int64_t das_problem_bytes(void);
DAS_API int das_has(int64_t isa);
DAS_API int das_has_openmp(void);

#ifdef __cplusplus
}
#endif
#endif
