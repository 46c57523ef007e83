// The convolution kernel for every CPU.
#include "problem.h"
#define CONV_ISA conv_portable
#include "conv_pool.h"
