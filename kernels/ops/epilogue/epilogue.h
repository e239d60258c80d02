// SPDX-License-Identifier: Apache-2.0
// What happens to an int32 accumulator before it is stored: the one epilogue of every integer
// product.
//
// Activations inside libwia are uint8: a model's int8 levels and their zero point are moved by +128
// together. All levels and zero points here are on that uint8 grid. Arithmetic:
// docs/quantization.md (8)-(12).
//
//   kU8:  q = saturate(rhe(float32(acc) * multiplier[n]) + zero_point) to [qmin, qmax] (8), (10)
//         if table:     q = table[q] (11) if residual:  q = saturate(rhe(float32(q -
//         sum_a_zero_point) * sum_a_multiplier
//                                        + float32(r - sum_b_zero_point) * sum_b_multiplier)
//                                    + sum_zero_point) to [sum_qmin, sum_qmax] (12)
//         if sum_table: q = sum_table[q]  (read only when there is a residual)
//   kF32: y = float32(acc) * multiplier[n] + float_bias[n]  (two roundings) (9) kI32: acc
//
// acc already holds the int32 bias and the zero points. Multipliers, float bias and int32 bias are
// per column and live with the packed weights. Preconditions: every multiplier is finite and below
// 1e30 in magnitude; qmin <= qmax, sum_qmin <= sum_qmax; zero points in [0, 255].
#pragma once

#include <cstddef>
#include <cstdint>

namespace wia {

enum class QOutput : uint8_t { kU8, kF32, kI32 };

struct QEpilogue {
  QOutput output = QOutput::kU8;
  int32_t zero_point = 0;
  uint8_t qmin = 0, qmax = 255;
  const uint8_t* table = nullptr;  // 256 levels
  // The other operand of the Add: element (row, column) at residual[row * ld_residual + column],
  // with the rows and columns of the output.
  const uint8_t* residual = nullptr;
  size_t ld_residual = 0;
  int32_t sum_a_zero_point = 0, sum_b_zero_point = 0, sum_zero_point = 0;
  float sum_a_multiplier = 0.0f,
        sum_b_multiplier = 0.0f;  // scale_a / scale_y, scale_b / scale_y; (12)
  uint8_t sum_qmin = 0, sum_qmax = 255;
  const uint8_t* sum_table = nullptr;
};

// rhe(value) + zero_point saturated to [qmin, qmax]; value may be infinite, not NaN.
uint8_t requantize_value(float value, int32_t zero_point, uint8_t qmin, uint8_t qmax);

// levels = table[levels] of n columns in each row, ld apart.
using LookUp = void (*)(const uint8_t* table, size_t rows, size_t n, size_t ld, uint8_t* levels);

// A table that nothing follows may be looked up when many rows are there: in whole vectors, where a
// row of few channels would fill a part of one.
inline bool table_comes_last(LookUp look_up, const QEpilogue& e) {
  return look_up && e.table && !e.residual && e.output == QOutput::kU8;
}

// The definition: one row of n accumulators to `out` (uint8_t, float or int32_t by
// epilogue.output). `residual` is this row's, already offset, or nullptr. float_bias may be nullptr
// (zero).
void epilogue_reference(const QEpilogue& epilogue, size_t n, const int32_t* acc,
                        const float* multiplier, const float* float_bias, const uint8_t* residual,
                        void* out);

}  // namespace wia
