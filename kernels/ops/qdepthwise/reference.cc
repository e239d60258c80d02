// SPDX-License-Identifier: Apache-2.0
// The definition of a run of depthwise pixels. Packed: int32 bias[C], float multiplier[C],
// float_bias[C], w[tap][C].
#include "ops/qdepthwise/qdepthwise.h"

namespace wia {
namespace {

size_t packed_bytes(size_t channels, size_t kernel_h, size_t kernel_w) {
  return channels * (12 + kernel_h * kernel_w);
}

void pack(size_t channels, size_t kernel_h, size_t kernel_w, const QConvWeights& weights,
          void* packed) {
  int32_t* bias = static_cast<int32_t*>(packed);
  float* multiplier = static_cast<float*>(packed) + channels;
  float* float_bias = multiplier + channels;
  int8_t* w = reinterpret_cast<int8_t*>(float_bias + channels);
  for (size_t c = 0; c < channels; ++c) {
    uint32_t sum = 0;
    for (size_t h = 0; h < kernel_h; ++h) {
      for (size_t x = 0; x < kernel_w; ++x) {
        const int8_t value = weights.data[static_cast<ptrdiff_t>(c) * weights.stride_o +
                                          static_cast<ptrdiff_t>(h) * weights.stride_h +
                                          static_cast<ptrdiff_t>(x) * weights.stride_w];
        w[(h * kernel_w + x) * channels + c] = value;
        sum += static_cast<uint32_t>(value);
      }
    }
    const uint32_t given = weights.bias ? static_cast<uint32_t>(weights.bias[c]) : 0;
    bias[c] = static_cast<int32_t>(given - static_cast<uint32_t>(weights.x_zero_point) * sum);
    multiplier[c] = weights.multiplier ? weights.multiplier[c * weights.multiplier_stride] : 1.0f;
    float_bias[c] = weights.float_bias ? weights.float_bias[c] : 0.0f;
  }
}

void block(const QDepthwiseBlock& q) {
  const size_t channels = q.channels;
  const int32_t* bias = static_cast<const int32_t*>(q.packed);
  const float* multiplier = static_cast<const float*>(q.packed) + channels;
  const float* float_bias = multiplier + channels;
  const int8_t* w = reinterpret_cast<const int8_t*>(float_bias + channels);
  const size_t element = q.epilogue->output == QOutput::kU8 ? 1 : 4;
  for (size_t i = 0; i < q.n_pixels; ++i) {
    for (size_t c = 0; c < channels; ++c) {
      uint32_t acc = static_cast<uint32_t>(bias[c]);
      for (size_t h = 0; h < q.kernel_h; ++h) {
        const uint8_t* row = q.rows[h] + i * q.step + c;
        for (size_t x = 0; x < q.kernel_w; ++x) {
          acc += static_cast<uint32_t>(row[x * q.column_step] *
                                       w[(h * q.kernel_w + x) * channels + c]);
        }
      }
      const int32_t sum = static_cast<int32_t>(acc);
      epilogue_reference(*q.epilogue, 1, &sum, multiplier + c, float_bias + c,
                         q.residual ? q.residual + i * q.epilogue->ld_residual + c : nullptr,
                         static_cast<std::byte*>(q.out) + (i * q.ld_out + c) * element);
    }
  }
}

}  // namespace

const QDepthwise qdepthwise_u8s8_reference = {"qdepthwise_u8s8_reference", packed_bytes, pack,
                                              block, nullptr};

}  // namespace wia
