// SPDX-License-Identifier: Apache-2.0
// Integer depthwise convolution, NHWC: every channel has its own kernel (groups = in_c = out_c).
//
//   acc[c] = bias[c] + sum over taps (x[tap][c] - x_zero_point) * w[tap][c], then the epilogue.
// Geometry is QConv's (ops/qconv/qconv.h) with groups == in_c == out_c; a channel multiplier is not
// supported here (it is a grouped convolution: qconv). Bit-exact with the reference on every ISA;
// nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/epilogue/epilogue.h"
#include "ops/qconv/qconv.h"

namespace wia {

// A run of output pixels in one row. Kernel row h of pixel 0 starts at rows[h]; kernel columns are
// column_step apart there and pixels `step`; pixel i writes out + i * ld_out. No byte beyond a
// pixel's channels is read.
struct QDepthwiseBlock {
  size_t n_pixels, kernel_h, kernel_w, channels;
  const uint8_t* const* rows;
  size_t column_step, step;
  const void* packed;
  const QEpilogue* epilogue;
  const uint8_t* residual;  // of pixel 0, or nullptr; pixels are epilogue->ld_residual apart; must
                            // not overlap out
  void* out;
  size_t ld_out;  // elements
};

struct QDepthwise {
  const char* name;
  size_t (*packed_bytes)(size_t channels, size_t kernel_h, size_t kernel_w);
  // weights.stride_o steps between channels; bias is folded with the zero point of x.
  void (*pack)(size_t channels, size_t kernel_h, size_t kernel_w, const QConvWeights& weights,
               void* packed);
  void (*block)(const QDepthwiseBlock& block);
  LookUp look_up;  // nullptr: block does the epilogue's table
};

#define WIA_KERNEL(features, name) extern const QDepthwise name;
#include "ops/qdepthwise/kernels.inc"
#undef WIA_KERNEL

const QDepthwise& select_qdepthwise(uint32_t isa);

size_t qdepthwise_packed_bytes(const QDepthwise& kernel, const QConv& conv);
void qdepthwise_pack(const QDepthwise& kernel, const QConv& conv, const QConvWeights& weights,
                     void* packed);
// One for each thread.
size_t qdepthwise_scratch_bytes(const QConv& conv);
// Output rows [row_begin, row_end) of the batch * out_h there are; QConvRun's panels are not used,
// its pixel_begin and pixel_end count rows.
void qdepthwise_run(const QDepthwise& kernel, const QConv& conv, const QConvRun& run,
                    const QEpilogue& epilogue);

}  // namespace wia
