// The kernel for x86 CPUs with AVX-512, sixteen lanes: this file alone is compiled with -mavx512f and its kin.
#define DAS_ISA das_avx512
#include "entry.h"
