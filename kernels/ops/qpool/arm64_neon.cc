// SPDX-License-Identifier: Apache-2.0
// Pooling in NEON, 16 channels at a time.
#include <arm_neon.h>

#include "ops/epilogue/epilogue.h"
#include "ops/qpool/qpool.h"

namespace wia {
namespace {

#include "ops/simd/arm64.inc"

void max(size_t n_taps, const uint8_t* const* taps, size_t channels, uint8_t* out) {
  for (size_t i = 0; i < channels; i += kLanes) {
    const size_t some = channels - i < kLanes ? channels - i : kLanes;
    uint8x16_t best = load_some8(taps[0] + i, some);
    for (size_t t = 1; t < n_taps; ++t) best = vmaxq_u8(best, load_some8(taps[t] + i, some));
    store_some8(out + i, best, some);
  }
}

constexpr size_t kTapsIn16 = 256;  // sums of up to 256 levels fit in 16 bits

void average(size_t n_taps, const uint8_t* const* taps, size_t channels, int32_t offset,
             float multiplier, int32_t zero_point, uint8_t* out) {
  for (size_t i = 0; i < channels; i += kLanes) {
    const size_t some = channels - i < kLanes ? channels - i : kLanes;
    Words sum;
    for (int v = 0; v < 4; ++v) sum.v[v] = vdupq_n_s32(offset);
    for (size_t t = 0; t < n_taps;) {
      const size_t end = n_taps - t < kTapsIn16 ? n_taps : t + kTapsIn16;
      uint16x8_t low = vdupq_n_u16(0), high = vdupq_n_u16(0);
      for (; t < end; ++t) {
        const uint8x16_t x = load_some8(taps[t] + i, some);
        low = vaddw_u8(low, vget_low_u8(x));
        high = vaddw_high_u8(high, x);
      }
      sum.v[0] = vaddq_s32(sum.v[0], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))));
      sum.v[1] = vaddq_s32(sum.v[1], vreinterpretq_s32_u32(vmovl_high_u16(low)));
      sum.v[2] = vaddq_s32(sum.v[2], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))));
      sum.v[3] = vaddq_s32(sum.v[3], vreinterpretq_s32_u32(vmovl_high_u16(high)));
    }
    Floats value;
    for (int v = 0; v < 4; ++v)
      value.v[v] = vmulq_f32(vcvtq_f32_s32(sum.v[v]), vdupq_n_f32(multiplier));
    store_some8(out + i, levels(value, zero_point, 0, 255), some);
  }
}

}  // namespace

const QPoolKernel qpool_u8_neon = {"qpool_u8_neon", max, average};

}  // namespace wia
