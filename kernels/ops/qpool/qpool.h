// SPDX-License-Identifier: Apache-2.0
// Pooling of uint8 levels, NHWC: the maximum, and the average that also requantizes.
//
//   max: the largest level of the window; pixels outside the picture do not count.
//   average: (14): saturate(rhe(float32(sum (x - x_zero_point)) * m) + zero_point), m =
//   float32(scale_x / (n * scale_y)) in float64; n is kernel_h * kernel_w when pads count (the
//   pixels outside are real zeros), else how many of the window's pixels are inside. A global pool
//   is one window of the whole picture.
// A window with no pixel inside gives 0 (max) or zero_point (average).
// The sum is exact in int32: a window has less than 2^23 pixels. Split by output rows; results do
// not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wia {

struct QPool {
  size_t batch = 1, in_h = 1, in_w = 1, channels = 1, out_h = 1, out_w = 1;
  size_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  ptrdiff_t pad_top = 0, pad_left = 0;
  // For the average only.
  bool count_include_pad = false;
  // Pixels beyond this many of padding at bottom and right (ceil_mode's) are never counted.
  ptrdiff_t pad_bottom = 0, pad_right = 0;
  float x_scale = 1.0f, y_scale = 1.0f;
  int32_t x_zero_point = 0, y_zero_point = 0;
};

struct QPoolKernel {
  const char* name;
  // out[c] = max over taps of taps[t][c]; n_taps >= 1
  void (*max)(size_t n_taps, const uint8_t* const* taps, size_t channels, uint8_t* out);
  // out[c] = saturate(rhe(float32(sum over taps of taps[t][c] + offset) * multiplier) + zero_point)
  // to [0, 255]
  void (*average)(size_t n_taps, const uint8_t* const* taps, size_t channels, int32_t offset,
                  float multiplier, int32_t zero_point, uint8_t* out);
};

#define WIA_KERNEL(features, name) extern const QPoolKernel name;
#include "ops/qpool/kernels.inc"
#undef WIA_KERNEL

const QPoolKernel& select_qpool(uint32_t isa);

// One for each thread.
size_t qpool_scratch_bytes(const QPool& pool);
// Output rows [row_begin, row_end) of the batch * out_h there are.
void qmaxpool_run(const QPoolKernel& kernel, const QPool& pool, const uint8_t* x, uint8_t* out,
                  void* scratch, size_t row_begin, size_t row_end);
void qaveragepool_run(const QPoolKernel& kernel, const QPool& pool, const uint8_t* x, uint8_t* out,
                      void* scratch, size_t row_begin, size_t row_end);

}  // namespace wia
