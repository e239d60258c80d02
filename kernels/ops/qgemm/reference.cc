// SPDX-License-Identifier: Apache-2.0
// The definition of a panel product: one column at a time, one multiply-add at a time.
#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

void pack_panel(const QGemmB& b, size_t first, size_t vectors, std::byte*, std::byte* weights,
                int32_t* sums) {
  constexpr size_t kLanes = 8;
  const size_t width = vectors * kLanes;
  const uint8_t* data = static_cast<const uint8_t*>(b.data);
  for (size_t column = 0; column < width; ++column) {
    uint32_t sum = 0;
    for (size_t s = 0; s < b.segments; ++s) {
      for (size_t k = 0; k < b.segment_k; ++k) {
        uint8_t w = 0;
        if (first + column < b.n) {
          w = data[qgemm_b_offset(b, s, k) + static_cast<ptrdiff_t>(first + column) * b.stride_n];
          if (b.is_unsigned) w ^= 0x80;  // minus 128
        }
        weights[(s * b.segment_k + k) * width + column] = static_cast<std::byte>(w);
        sum += static_cast<uint32_t>(static_cast<int8_t>(w));
      }
    }
    sums[column] = static_cast<int32_t>(sum);
  }
}

void block(const QGemmBlock& q) {
  constexpr size_t kLanes = 8;
  const size_t width = (q.n_columns + kLanes - 1) / kLanes * kLanes;
  const int32_t* bias = reinterpret_cast<const int32_t*>(q.panel);
  const float* multiplier = reinterpret_cast<const float*>(q.panel) + width;
  const float* float_bias = multiplier + width;
  const int8_t* weights = reinterpret_cast<const int8_t*>(float_bias + width) + 64;
  const size_t element = q.epilogue->output == QOutput::kU8 ? 1 : 4;
  for (size_t row = 0; row < q.n_rows; ++row) {
    for (size_t column = 0; column < q.n_columns; ++column) {
      uint32_t acc = static_cast<uint32_t>(bias[column]);
      if (q.row_add) acc += static_cast<uint32_t>(q.row_add[row]);
      for (size_t s = 0; s < q.segments; ++s) {
        for (size_t k = 0; k < q.segment_k; ++k) {
          acc += static_cast<uint32_t>(q.a[s * kQGemmRows + row][k] *
                                       weights[(s * q.segment_k + k) * width + column]);
        }
      }
      const int32_t sum = static_cast<int32_t>(acc);
      epilogue_reference(*q.epilogue, 1, &sum, multiplier + column, float_bias + column,
                         q.residual ? q.residual + row * q.epilogue->ld_residual + column : nullptr,
                         static_cast<std::byte*>(q.out) + (row * q.ld_out + column) * element);
    }
  }
}

}  // namespace

const QGemm qgemm_u8s8_reference = {"qgemm_u8s8_reference", 8, 1, 1, 1, pack_panel, block};

}  // namespace wia
