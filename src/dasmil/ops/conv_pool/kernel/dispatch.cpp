// Checks once what the CPU can do.
#include "problem.h"

namespace conv_portable {
int entry(const conv_pool_problem *p, int backward);
}
#ifdef DAS_WITH_AVX2
namespace conv_avx2 {
int entry(const conv_pool_problem *p, int backward);
}
#endif

static int run(const conv_pool_problem *p, int backward) {
#ifdef DAS_WITH_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && !p->portable) return conv_avx2::entry(p, backward);
#endif
  return conv_portable::entry(p, backward);
}

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

EXPORT int conv_pool_forward(const conv_pool_problem *p) { return run(p, 0); }
EXPORT int conv_pool_backward(const conv_pool_problem *p) { return run(p, 1); }
EXPORT int64_t conv_pool_problem_bytes() { return sizeof(conv_pool_problem); }
