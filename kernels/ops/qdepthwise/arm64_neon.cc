// SPDX-License-Identifier: Apache-2.0
// Depthwise for every aarch64 CPU: 16 channels at a time, levels and weights as int16, smlal into
// int32.
#include <arm_neon.h>

#include "ops/qdepthwise/qdepthwise.h"

namespace wia {
namespace {

#include "ops/simd/arm64.inc"

// Packed, for each 16 channels: int32 bias, float multiplier, float float_bias, then int16 weights
// tap by tap. The last 16 of more start early enough to be full; a channel computed twice is
// written the same.
size_t n_blocks(size_t channels) { return (channels + kLanes - 1) / kLanes; }
size_t first_of(size_t channels, size_t index) {
  const size_t first = index * kLanes;
  return channels >= kLanes && first + kLanes > channels ? channels - kLanes : first;
}
size_t block_bytes(size_t kernel_h, size_t kernel_w) {
  return kLanes * (12 + 2 * kernel_h * kernel_w);
}
size_t packed_bytes(size_t channels, size_t kernel_h, size_t kernel_w) {
  return n_blocks(channels) * block_bytes(kernel_h, kernel_w);
}

void pack(size_t channels, size_t kernel_h, size_t kernel_w, const QConvWeights& weights,
          void* packed) {
  for (size_t i = 0; i < n_blocks(channels); ++i) {
    std::byte* base = static_cast<std::byte*>(packed) + i * block_bytes(kernel_h, kernel_w);
    int32_t* bias = reinterpret_cast<int32_t*>(base);
    float* multiplier = reinterpret_cast<float*>(base) + kLanes;
    float* float_bias = multiplier + kLanes;
    int16_t* w = reinterpret_cast<int16_t*>(float_bias + kLanes);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t c = first_of(channels, i) + lane;
      const bool real = c < channels;
      uint32_t sum = 0;
      for (size_t t = 0; t < kernel_h * kernel_w; ++t) {
        int8_t value = 0;
        if (real) {
          value = weights.data[static_cast<ptrdiff_t>(c) * weights.stride_o +
                               static_cast<ptrdiff_t>(t / kernel_w) * weights.stride_h +
                               static_cast<ptrdiff_t>(t % kernel_w) * weights.stride_w];
        }
        w[t * kLanes + lane] = value;
        sum += static_cast<uint32_t>(value);
      }
      const uint32_t given = real && weights.bias ? static_cast<uint32_t>(weights.bias[c]) : 0;
      bias[lane] = static_cast<int32_t>(given - static_cast<uint32_t>(weights.x_zero_point) * sum);
      multiplier[lane] =
          real && weights.multiplier ? weights.multiplier[c * weights.multiplier_stride] : 1.0f;
      float_bias[lane] = real && weights.float_bias ? weights.float_bias[c] : 0.0f;
    }
  }
}

void block(const QDepthwiseBlock& q) {
  const QEpilogue& e = *q.epilogue;
  const size_t n = q.channels < kLanes ? q.channels : kLanes,
               element = e.output == QOutput::kU8 ? 1 : 4;
  for (size_t i = 0; i < n_blocks(q.channels); ++i) {
    const std::byte* base =
        static_cast<const std::byte*>(q.packed) + i * block_bytes(q.kernel_h, q.kernel_w);
    const float* multiplier = reinterpret_cast<const float*>(base) + kLanes;
    const int16_t* w = reinterpret_cast<const int16_t*>(multiplier + 2 * kLanes);
    const size_t first = first_of(q.channels, i);
    for (size_t pixel = 0; pixel < q.n_pixels; ++pixel) {
      Words acc = load_words(reinterpret_cast<const int32_t*>(base));
      for (size_t t = 0; t < q.kernel_h * q.kernel_w; ++t) {
        const size_t at = pixel * q.step + t % q.kernel_w * q.column_step + first;
        const uint8x16_t x = load_some8(q.rows[t / q.kernel_w] + at, n);
        const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x)));
        const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(x));
        const int16x8_t w_low = vld1q_s16(w + t * kLanes), w_high = vld1q_s16(w + t * kLanes + 8);
        acc.v[0] = vmlal_s16(acc.v[0], vget_low_s16(low), vget_low_s16(w_low));
        acc.v[1] = vmlal_high_s16(acc.v[1], low, w_low);
        acc.v[2] = vmlal_s16(acc.v[2], vget_low_s16(high), vget_low_s16(w_high));
        acc.v[3] = vmlal_high_s16(acc.v[3], high, w_high);
      }
      const size_t at = pixel * q.ld_out + first;
      finish_row(e, acc, multiplier, multiplier + kLanes,
                 q.residual ? q.residual + pixel * e.ld_residual + first : nullptr,
                 static_cast<std::byte*>(q.out) + at * element, n);
    }
  }
}

}  // namespace

const QDepthwise qdepthwise_u8s8_neon = {"qdepthwise_u8s8_neon", packed_bytes, pack, block,
                                         nullptr};

}  // namespace wia
