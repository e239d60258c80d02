// SPDX-License-Identifier: Apache-2.0
// float32 functions over rows: elementwise, reductions, softmax, normalisation. The same bits on
// every CPU.
//
// One source, generic.inc, is compiled for each instruction set of kernels.inc; every operation in
// it is IEEE float32 with the roundings written out, so a wider vector changes the speed and
// nothing else (docs/quantization.md 15-17).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace wia {

// y[i] = f(x[i]; a, b). The second column says what a and b are.
#define WIA_FMATH_UNARY(X)                             \
  X(Abs)                                               \
  X(Neg)                                               \
  X(Sqrt)                                              \
  X(Reciprocal)                                        \
  X(Floor)                                             \
  X(Ceil)                                              \
  X(Round)                                             \
  X(Exp)                                               \
  X(Log)                                               \
  X(Tanh)                                              \
  X(Erf)                                               \
  X(Sigmoid)                                           \
  X(Softplus)                                          \
  X(Relu)                                              \
  X(Clip)            /* a, b: the bounds; NaN stays */ \
  X(LeakyRelu)       /* a: alpha */                    \
  X(ThresholdedRelu) /* a: alpha */                    \
  X(Elu)             /* a: alpha, b: gamma (Selu) */   \
  X(Celu)            /* a: alpha */                    \
  X(HardSigmoid)     /* a: alpha, b: beta */           \
  X(HardSwish)                                         \
  X(Softsign)                                          \
  X(Gelu)                                              \
  X(GeluTanh)                                          \
  X(Swish) /* a: alpha */                              \
  X(Mish)                                              \
  X(Shrink) /* a: lambd, b: bias */

// y[i] = f(a[i], b[i]); Max and Min give NaN when either is.
#define WIA_FMATH_BINARY(X) X(Add) X(Sub) X(Mul) X(Div) X(Max) X(Min) X(PRelu)

// Over n values in 16 partial results, (16). Max and Min of none are -inf and +inf.
#define WIA_FMATH_REDUCE(X) X(Sum) X(SumAbs) X(SumSquare) X(Max) X(Min) X(Prod)

// A plane [height, width] correlated with one filter, the zero padding already around it.
struct DepthwisePlane {
  const float* x;  // [.., ld_x]
  size_t ld_x;
  const float* filter;  // [kernel_h, kernel_w]
  size_t kernel_h, kernel_w;
  size_t stride_h, stride_w;
  size_t dilation_h, dilation_w;
  float bias;
  float* y;  // [out_h, out_w]
  size_t out_h, out_w;
};

// The functions of one instruction set.
struct Fmath {
  using Unary = void (*)(size_t n, const float* x, float* y, float a, float b);
  // step 1: the operand advances; 0: it is one value.
  using Binary = void (*)(size_t n, const float* a, size_t a_step, const float* b, size_t b_step,
                          float* y);
  using Reduce = float (*)(size_t n, const float* x);

  const char* name;
#define WIA_FMATH_MEMBER(f) Unary unary##f;
  WIA_FMATH_UNARY(WIA_FMATH_MEMBER)
#undef WIA_FMATH_MEMBER
#define WIA_FMATH_MEMBER(f) Binary binary##f;
  WIA_FMATH_BINARY(WIA_FMATH_MEMBER)
#undef WIA_FMATH_MEMBER
#define WIA_FMATH_MEMBER(f) Reduce reduce##f;
  WIA_FMATH_REDUCE(WIA_FMATH_MEMBER)
#undef WIA_FMATH_MEMBER

  // y = exp(x - max x) * (1 / sum), and x - max x - log(sum). n >= 1; y may be x.
  void (*softmax)(size_t n, const float* x, float* y);
  void (*log_softmax)(size_t n, const float* x, float* y);
  // softmax of each of `width` columns of n rows, ld floats apart.
  void (*softmax_columns)(size_t n, size_t width, size_t ld, const float* x, float* y);
  // sum of (x - mean)^2.
  float (*sum_centered)(size_t n, const float* x, float mean);
  // y = (x - mean) * factor * scale[i] + bias[i]; scale and bias may be null. y may be x.
  void (*normalize)(size_t n, const float* x, float mean, float factor, const float* scale,
                    const float* bias, float* y);
  // y = x * scale + bias with one scale and one bias.
  void (*affine)(size_t n, const float* x, float scale, float bias, float* y);
  // y[i] = fma(x[i], w, y[i]).
  void (*accumulate)(size_t n, const float* x, float w, float* y);
  // One tap of a pool: y[i] = max(y[i], x[i * step]), NaN if either is; y[i] = y[i] + x[i * step].
  void (*max_tap)(size_t n, const float* x, size_t step, float* y);
  void (*sum_tap)(size_t n, const float* x, size_t step, float* y);
  void (*depthwise)(const DepthwisePlane& plane);
  // q = saturate(rhe(x / scale) + zero_point), NaN to zero_point, (1); x = float32(q - zero_point)
  // * scale, (2).
  void (*quantize_u8)(size_t n, const float* x, float scale, int32_t zero_point, uint8_t* q);
  void (*quantize_s8)(size_t n, const float* x, float scale, int32_t zero_point, int8_t* q);
  void (*dequantize_u8)(size_t n, const uint8_t* q, float scale, int32_t zero_point, float* x);
  void (*dequantize_s8)(size_t n, const int8_t* q, float scale, int32_t zero_point, float* x);
  void (*half_to_float)(size_t n, const uint16_t* x, float* y);
  void (*float_to_half)(size_t n, const float* x, uint16_t* y);
};

#define WIA_KERNEL(features, name) extern const Fmath name;
#include "ops/fmath/kernels.inc"
#undef WIA_KERNEL

// The fastest that `isa` (a mask of base/cpu.h) can run.
const Fmath& select_fmath(uint32_t isa);

}  // namespace wia
