// The kernel for x86 CPUs with AVX2 and FMA: this file alone is compiled with -mavx2 -mfma.
#define DAS_ISA das_avx2
#include "entry.h"
