// SPDX-License-Identifier: Apache-2.0
// The elementwise operators as docs/quantization.md writes them.
#include "ops/qelementwise/qelementwise.h"

namespace wia {
namespace {

void quantize(const QQuantize& q, size_t n, const float* x, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) {
    const float value = x[i] / q.scale;
    // NaN is the real 0 as far as a level can say so.
    const uint8_t level = value != value ? requantize_value(0.0f, q.zero_point, q.qmin, q.qmax)
                                         : requantize_value(value, q.zero_point, q.qmin, q.qmax);
    out[i] = level ^ q.flip;
  }
}

void dequantize(float scale, int32_t zero_point, uint8_t flip, size_t n, const uint8_t* x,
                float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>((x[i] ^ flip) - zero_point) * scale;
}

void table(const uint8_t* levels, size_t n, const uint8_t* x, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = levels[x[i]];
}

int32_t level(const QOperand& operand, size_t row, size_t column) {
  return operand.data[row * operand.stride_row + column * operand.stride_column] -
         operand.zero_point;
}

void store(const QBinary& q, size_t row, size_t column, float value) {
  const uint8_t y = requantize_value(value, q.zero_point, q.qmin, q.qmax);
  q.out[row * q.ld_out + column] = q.table ? q.table[y] : y;
}

void add(const QBinary& q) {
  for (size_t row = 0; row < q.rows; ++row) {
    for (size_t column = 0; column < q.columns; ++column) {
      const float a = static_cast<float>(level(q.a, row, column)) * q.a_multiplier;
      const float b = static_cast<float>(level(q.b, row, column)) * q.b_multiplier;
      store(q, row, column, a + b);
    }
  }
}

void mul(const QBinary& q) {
  for (size_t row = 0; row < q.rows; ++row) {
    for (size_t column = 0; column < q.columns; ++column) {
      store(q, row, column,
            static_cast<float>(level(q.a, row, column) * level(q.b, row, column)) * q.a_multiplier);
    }
  }
}

void requantize(const QRequantize& q, const QEpilogue& epilogue) {
  const size_t element = epilogue.output == QOutput::kU8 ? 1 : 4;
  for (size_t row = 0; row < q.rows; ++row) {
    for (size_t i = 0; i < q.columns; ++i) {
      const uint32_t bias = q.bias ? static_cast<uint32_t>(q.bias[i]) : 0;
      const int32_t acc =
          static_cast<int32_t>(static_cast<uint32_t>(q.acc[row * q.ld_acc + i]) + bias);
      epilogue_reference(
          epilogue, 1, &acc, q.multiplier + i, q.float_bias ? q.float_bias + i : nullptr,
          epilogue.residual ? epilogue.residual + row * epilogue.ld_residual + i : nullptr,
          static_cast<std::byte*>(q.out) + (row * q.ld_out + i) * element);
    }
  }
}

void interleave3(size_t n, const uint8_t* x, size_t plane, uint8_t* out) {
  for (size_t i = 0; i < n; ++i)
    for (size_t c = 0; c < 3; ++c) out[3 * i + c] = x[c * plane + i];
}

}  // namespace

const QElementwise qelementwise_reference = {
    "qelementwise_reference", quantize, dequantize, table, add, mul, requantize, interleave3};

}  // namespace wia
