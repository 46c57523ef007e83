// The convolution kernel for x86 CPUs with AVX2 and FMA: this file alone is compiled with -mavx2 -mfma.
#include "problem.h"
#define CONV_ISA conv_avx2
#include "conv_pool.h"
