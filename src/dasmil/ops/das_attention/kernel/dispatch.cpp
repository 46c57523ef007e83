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

static bool use_avx2() {
#ifdef DAS_WITH_AVX2
  static const bool yes = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return yes;
#else
  return false;
#endif
}

static bool fast(const das_problem *p) { return p->isa == 0 && use_avx2(); }

static int run(const das_problem *p, int backward) {
#ifdef DAS_WITH_AVX2
  if (fast(p)) return das_avx2::entry_run(p, backward);
#endif
  return das_portable::entry_run(p, backward);
}

extern "C" {

int64_t das_scratch(const das_problem *p, int backward) {
#ifdef DAS_WITH_AVX2
  if (fast(p)) return das_avx2::entry_scratch(p, backward);
#endif
  return das_portable::entry_scratch(p, backward);
}

int das_forward(const das_problem *p) { return run(p, 0); }
int das_backward(const das_problem *p) { return run(p, 1); }
int64_t das_problem_bytes(void) { return static_cast<int64_t>(sizeof(das_problem)); }
int das_has_openmp(void) {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

}  // extern "C"
