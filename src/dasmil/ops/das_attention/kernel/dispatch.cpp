// The C interface: checks once what the CPU can do.
#include "das_attention.h"

#define DAS_DECLARE(isa)                                     \
  namespace isa {                                            \
  int64_t entry_scratch(const das_problem *p, int backward); \
  int entry_run(const das_problem *p, int backward);         \
  }
DAS_DECLARE(das_portable)
#ifdef DAS_WITH_AVX2
DAS_DECLARE(das_avx2)
#endif
#ifdef DAS_WITH_AVX512
DAS_DECLARE(das_avx512)
#endif

enum { BEST = 0, PORTABLE = 1, AVX2 = 2, AVX512 = 3 };

static bool has(int64_t isa) {
#ifdef DAS_WITH_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == AVX2) return avx2;
#endif
#ifdef DAS_WITH_AVX512
  static const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (isa == AVX512) return avx512;
#endif
  return isa == PORTABLE;
}

// What runs: the one that was asked for where the CPU has it, else the best.
static int64_t chosen(const das_problem *p) {
  if (p->isa != BEST && has(p->isa)) return p->isa;
  return has(AVX512) ? AVX512 : has(AVX2) ? AVX2 : PORTABLE;
}

static int run(const das_problem *p, int backward) {
  switch (chosen(p)) {
#ifdef DAS_WITH_AVX512
    case AVX512: return das_avx512::entry_run(p, backward);
#endif
#ifdef DAS_WITH_AVX2
    case AVX2: return das_avx2::entry_run(p, backward);
#endif
    default: return das_portable::entry_run(p, backward);
  }
}

extern "C" {

int64_t das_scratch(const das_problem *p, int backward) {
  switch (chosen(p)) {
#ifdef DAS_WITH_AVX512
    case AVX512: return das_avx512::entry_scratch(p, backward);
#endif
#ifdef DAS_WITH_AVX2
    case AVX2: return das_avx2::entry_scratch(p, backward);
#endif
    default: return das_portable::entry_scratch(p, backward);
  }
}

int das_forward(const das_problem *p) { return run(p, 0); }
int das_backward(const das_problem *p) { return run(p, 1); }
int64_t das_problem_bytes(void) { return static_cast<int64_t>(sizeof(das_problem)); }
int das_has(int64_t isa) { return has(isa); }
int das_has_openmp(void) {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

}  // extern "C"
