// The C interface of the convolution kernel.
#pragma once

#include <stdint.h>

struct conv_pool_problem {
  int64_t runs, images, in_channels, side, out_channels, portable;
  const float *x, *weight, *bias;
  float *out;
  uint8_t *winner;
  const float *d_out;
  float *d_weight, *d_bias, *d_x;
};
