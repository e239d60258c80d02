// SPDX-License-Identifier: Apache-2.0
// Elementwise operators on 8-bit levels, and the two conversions to and from float32.
//
// Levels are uint8 here; int8 ones are their uint8 ones moved by -128 together with the zero point:
// `flip` 0x80 where a function meets the outside of the graph does that move on the way (level ^
// flip is what lies in memory). docs/quantization.md (1), (2), (8), (11)-(13). Every ISA gives the
// bytes of the reference. Work is split by the caller; in and out may be the same buffer.
// Preconditions: scales finite and > 0; multipliers finite, < 1e30.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/epilogue/epilogue.h"

namespace wia {

// out[i] = saturate(rhe(x[i] / scale) + zero_point) to [qmin, qmax], the division in float32, NaN
// -> zero_point; (1)
struct QQuantize {
  float scale = 1.0f;
  int32_t zero_point = 0;  // on the uint8 grid
  uint8_t qmin = 0, qmax = 255;
  uint8_t flip = 0;  // 0x80: store int8
};

// One operand of Add or Mul, and how it repeats: element (row, column) is data[row * stride_row +
// column * stride_column], stride_column 1 or 0. A per-channel operand of [N, 1, 1, C] is, for each
// n, stride_row 0, stride_column 1.
struct QOperand {
  const uint8_t* data = nullptr;
  size_t stride_row = 0, stride_column = 1;
  int32_t zero_point = 0;
};

struct QBinary {
  size_t rows = 1, columns = 0;
  QOperand a, b;
  // Add: a_multiplier = scale_a / scale_y, b_multiplier = scale_b / scale_y (negated for Sub);
  // (12). Mul: a_multiplier = scale_a * scale_b / scale_y; (13).
  float a_multiplier = 1.0f, b_multiplier = 1.0f;
  int32_t zero_point = 0;
  uint8_t qmin = 0, qmax = 255;
  const uint8_t* table = nullptr;  // 256 levels applied last, or nullptr
  uint8_t* out = nullptr;
  size_t ld_out = 0;
};

// int32 accumulators [rows][columns] to the epilogue's output, for products that are summed
// elsewhere.
struct QRequantize {
  size_t rows = 1, columns = 0;
  const int32_t* acc = nullptr;
  size_t ld_acc = 0;
  const int32_t* bias = nullptr;      // [columns] or nullptr
  const float* multiplier = nullptr;  // [columns]
  const float* float_bias = nullptr;  // [columns] or nullptr
  void* out = nullptr;
  size_t ld_out = 0;  // elements
};

struct QElementwise {
  const char* name;
  void (*quantize)(const QQuantize& q, size_t n, const float* x, uint8_t* out);
  // out[i] = float32((x[i] ^ flip) - zero_point) * scale; (2)
  void (*dequantize)(float scale, int32_t zero_point, uint8_t flip, size_t n, const uint8_t* x,
                     float* out);
  // out[i] = table[x[i]]; (11)
  void (*table)(const uint8_t* table, size_t n, const uint8_t* x, uint8_t* out);
  void (*add)(const QBinary& q);
  void (*mul)(const QBinary& q);
  void (*requantize)(const QRequantize& q, const QEpilogue& epilogue);
  // out[3 * i + c] = x[c * plane + i] for n pixels of three channels: a picture channels last.
  void (*interleave3)(size_t n, const uint8_t* x, size_t plane, uint8_t* out);
};

#define WIA_KERNEL(features, name) extern const QElementwise name;
#include "ops/qelementwise/kernels.inc"
#undef WIA_KERNEL

const QElementwise& select_qelementwise(uint32_t isa);

}  // namespace wia
