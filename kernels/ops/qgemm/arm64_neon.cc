// SPDX-License-Identifier: Apache-2.0
// The GEMM for every aarch64 CPU: weights and activations widened to int16, smlal into int32, exact
// for any weights.
#include <arm_neon.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

#include "ops/simd/arm64.inc"
//
#include "ops/qgemm/arm64_tile.inc"

// For each k: 16 columns of int16.
void pack_panel(const QGemmB& b, size_t first, size_t, std::byte*, std::byte* weights,
                int32_t* sums) {
  const size_t k_total = b.segments * b.segment_k;
  pack_bytes(b, first, weights, sums, 1);
  // In place, from the end.
  for (size_t at = k_total; at-- > 0;) {
    const int8x16_t w = vld1q_s8(reinterpret_cast<const int8_t*>(weights) + at * kLanes);
    int16_t* out = reinterpret_cast<int16_t*>(weights) + at * kLanes;
    vst1q_s16(out, vmovl_s8(vget_low_s8(w)));
    vst1q_s16(out + 8, vmovl_high_s8(w));
  }
}

template <int MR>
inline void step(Words (&acc)[MR], const int16_t* w, const int16_t (&x)[MR]) {
  const int16x8_t low = vld1q_s16(w), high = vld1q_s16(w + 8);
  for (int r = 0; r < MR; ++r) {
    acc[r].v[0] = vmlal_n_s16(acc[r].v[0], vget_low_s16(low), x[r]);
    acc[r].v[1] = vmlal_high_n_s16(acc[r].v[1], low, x[r]);
    acc[r].v[2] = vmlal_n_s16(acc[r].v[2], vget_low_s16(high), x[r]);
    acc[r].v[3] = vmlal_high_n_s16(acc[r].v[3], high, x[r]);
  }
}

template <int MR>
void tile(const QGemmBlock& q, size_t row) {
  const int16_t* w = reinterpret_cast<const int16_t*>(weights_of(q));
  Words acc[MR];
  for (int r = 0; r < MR; ++r) {
    for (int i = 0; i < 4; ++i) acc[r].v[i] = vdupq_n_s32(0);
  }
  for (size_t s = 0; s < q.segments; ++s) {
    const uint8_t* a[MR];
    for (int r = 0; r < MR; ++r) a[r] = q.a[s * kQGemmRows + row + static_cast<size_t>(r)];
    size_t k = 0;
    for (; k + 8 <= q.segment_k; k += 8) {
      int16x8_t x[MR];
      for (int r = 0; r < MR; ++r) x[r] = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(a[r] + k)));
#define WIA_STEP(lane)                                                                       \
  {                                                                                          \
    const int16x8_t low = vld1q_s16(w + (lane) * 16), high = vld1q_s16(w + (lane) * 16 + 8); \
    for (int r = 0; r < MR; ++r) {                                                           \
      acc[r].v[0] = vmlal_laneq_s16(acc[r].v[0], vget_low_s16(low), x[r], lane);             \
      acc[r].v[1] = vmlal_high_laneq_s16(acc[r].v[1], low, x[r], lane);                      \
      acc[r].v[2] = vmlal_laneq_s16(acc[r].v[2], vget_low_s16(high), x[r], lane);            \
      acc[r].v[3] = vmlal_high_laneq_s16(acc[r].v[3], high, x[r], lane);                     \
    }                                                                                        \
  }
      WIA_STEP(0)
      WIA_STEP(1)
      WIA_STEP(2)
      WIA_STEP(3)
      WIA_STEP(4)
      WIA_STEP(5)
      WIA_STEP(6)
      WIA_STEP(7)
#undef WIA_STEP
      w += 8 * kLanes;
    }
    for (; k < q.segment_k; ++k) {
      int16_t x[MR];
      for (int r = 0; r < MR; ++r) x[r] = a[r][k];
      step<MR>(acc, w, x);
      w += kLanes;
    }
  }
  for (int r = 0; r < MR; ++r) finish_tile(q, row + static_cast<size_t>(r), acc[r]);
}

#include "ops/qgemm/arm64_block.inc"

}  // namespace

const QGemm qgemm_u8s8_neon = {"qgemm_u8s8_neon", kLanes, kMaxVectors, 1, 2, pack_panel, block};

}  // namespace wia
