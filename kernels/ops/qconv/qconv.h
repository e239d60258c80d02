// SPDX-License-Identifier: Apache-2.0
// Integer 2-D convolution, NHWC, as an implicit GEMM: rows of A are output pixels, K is (tap, input
// channel).
//
//   x: uint8 [batch][in_h][in_w][in_c]; out: [batch][out_h][out_w][out_c], uint8, float or int32 by
//   the epilogue. A pixel outside the picture has the level x_zero_point. A 1-D convolution has
//   in_h = kernel_h = 1. Weights come with strides, so any order ([O][kh][kw][I], ONNX's
//   [O][I][kh][kw] ...) packs without a copy. Depthwise convolutions belong to ops/qdepthwise.
//
// Transposed convolution (qconv_transpose_*): the same kernels, one ordinary convolution for each
// phase of the stride. Nothing is allocated, no im2col matrix is made, and results do not depend on
// how pixels and panels are split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/qgemm/qgemm.h"

namespace wia {

struct QConv {
  size_t batch = 1, in_h = 1, in_w = 1,
         in_c = 1;  // in_c and out_c count the channels of all groups
  size_t out_h = 1, out_w = 1, out_c = 1, groups = 1;
  size_t kernel_h = 1, kernel_w = 1;
  size_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  ptrdiff_t pad_top = 0,
            pad_left = 0;  // what is beyond the other two edges follows from out_h, out_w
};

struct QConvWeights {
  const int8_t* data = nullptr;  // zero point 0
  // Elements between neighbours along: the output channel (all groups, in order), kernel row,
  // kernel column, input channel within the group. For a transposed convolution, stride_o steps
  // within the group and stride_group between.
  ptrdiff_t stride_o = 0, stride_h = 0, stride_w = 0, stride_i = 0, stride_group = 0;
  const int32_t* bias = nullptr;      // [out_c] or nullptr
  const float* multiplier = nullptr;  // [out_c], or one value with multiplier_stride 0
  size_t multiplier_stride = 1;
  const float* float_bias = nullptr;  // [out_c] or nullptr; for QOutput::kF32
  int32_t x_zero_point = 0;
  uint8_t x_max = 255;  // the largest level x can have
};

// The packed form depends on the channels, groups, kernel and dilation, not on batch, picture size,
// stride or pads.
size_t qconv_packed_bytes(const QGemm& kernel, const QConv& conv);
void qconv_pack(const QGemm& kernel, const QConv& conv, const QConvWeights& weights, void* packed);

struct QConvRun {
  const void* packed = nullptr;
  const uint8_t* x = nullptr;
  int32_t x_zero_point = 0;
  void* out = nullptr;
  void* scratch = nullptr;  // qconv_scratch_bytes, 64-byte aligned, one for each thread
  // Output pixels (batch * out_h * out_w of them) and panels (qconv_panels of them) to do. Splits
  // at multiples of kQGemmRows pixels waste nothing.
  size_t pixel_begin = 0, pixel_end = 0;
  size_t panel_begin = 0, panel_end = SIZE_MAX;
};
size_t qconv_panels(const QGemm& kernel, const QConv& conv);
size_t qconv_scratch_bytes(const QGemm& kernel, const QConv& conv);
void qconv_run(const QGemm& kernel, const QConv& conv, const QConvRun& run,
               const QEpilogue& epilogue);

// The definition, straight from the sum; weights as given, nothing packed. For tests.
void qconv_reference(const QConv& conv, const QConvWeights& weights, const uint8_t* x,
                     const QEpilogue& epilogue, void* out);

// Transposed: out[iy * stride_h + kh * dilation_h - pad_top] += x[iy] * w[kh]; fields of QConv mean
// the same with in_* the input and out_* the (larger) output; output_padding shows in out_h, out_w
// only.
size_t qconv_transpose_packed_bytes(const QGemm& kernel, const QConv& conv);
void qconv_transpose_pack(const QGemm& kernel, const QConv& conv, const QConvWeights& weights,
                          void* packed);
size_t qconv_transpose_scratch_bytes(const QGemm& kernel, const QConv& conv);
// pixel_begin, pixel_end count *rows* of the output (batch * out_h of them) here; panels are not
// split.
void qconv_transpose_run(const QGemm& kernel, const QConv& conv, const QConvRun& run,
                         const QEpilogue& epilogue);
void qconv_transpose_reference(const QConv& conv, const QConvWeights& weights, const uint8_t* x,
                               const QEpilogue& epilogue, void* out);

}  // namespace wia
