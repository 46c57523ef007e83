// The kernel for x86 CPUs with AVX2 and FMA: this file alone is compiled with -mavx2 -mfma.
#ifndef DAS_TJ
#define DAS_TJ 192
#endif
#ifndef DAS_TI
#define DAS_TI 24
#endif
#define DAS_ISA das_avx2
#include "entry.h"
