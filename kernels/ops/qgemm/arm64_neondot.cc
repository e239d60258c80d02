// SPDX-License-Identifier: Apache-2.0
// The GEMM by sdot: activations are moved by -128 on the way in (their column sums are in the
// bias), and sdot adds four int8 products to int32 without saturation.
#include <arm_neon.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

#include "ops/simd/arm64.inc"
//
#include "ops/qgemm/arm64_tile.inc"

void pack_panel(const QGemmB& b, size_t first, size_t, std::byte*, std::byte* weights,
                int32_t* sums) {
  pack_bytes(b, first, weights, sums, 4);
}

inline int8x16_t moved(uint8x16_t x) { return vreinterpretq_s8_u8(veorq_u8(x, vdupq_n_u8(0x80))); }

template <int MR>
void tile(const QGemmBlock& q, size_t row) {
  const int8_t* w = reinterpret_cast<const int8_t*>(weights_of(q));
  Words acc[MR];
  for (int r = 0; r < MR; ++r) {
    for (int i = 0; i < 4; ++i) acc[r].v[i] = vdupq_n_s32(0);
  }
  for (size_t s = 0; s < q.segments; ++s) {
    const uint8_t* a[MR];
    for (int r = 0; r < MR; ++r) a[r] = q.a[s * kQGemmRows + row + static_cast<size_t>(r)];
    size_t k = 0;
    for (; k + 16 <= q.segment_k; k += 16) {
      int8x16_t x[MR];
      for (int r = 0; r < MR; ++r) x[r] = moved(vld1q_u8(a[r] + k));
#define WIA_STEP(lane)                                                                      \
  for (int i = 0; i < 4; ++i) {                                                             \
    const int8x16_t b = vld1q_s8(w + (lane) * 64 + i * 16);                                 \
    for (int r = 0; r < MR; ++r) acc[r].v[i] = vdotq_laneq_s32(acc[r].v[i], b, x[r], lane); \
  }
      WIA_STEP(0)
      WIA_STEP(1)
      WIA_STEP(2)
      WIA_STEP(3)
#undef WIA_STEP
      w += 16 * kLanes;
    }
    for (; k < q.segment_k; k += 4) {
      const size_t n = q.segment_k - k < 4 ? q.segment_k - k : 4;
      int8x16_t x[MR];
      for (int r = 0; r < MR; ++r) {
        const uint32_t four = static_cast<uint32_t>(last_bytes(a[r] + k, n));
        x[r] = moved(vreinterpretq_u8_u32(vdupq_n_u32(four)));
      }
      for (int i = 0; i < 4; ++i) {
        const int8x16_t b = vld1q_s8(w + i * 16);
        for (int r = 0; r < MR; ++r) acc[r].v[i] = vdotq_s32(acc[r].v[i], b, x[r]);
      }
      w += 4 * kLanes;
    }
  }
  for (int r = 0; r < MR; ++r) finish_tile(q, row + static_cast<size_t>(r), acc[r]);
}

#include "ops/qgemm/arm64_block.inc"

}  // namespace

const QGemm qgemm_u8s8_neondot = {"qgemm_u8s8_neondot", kLanes, kMaxVectors, 4, 1,
                                  pack_panel,           block,  128};

}  // namespace wia
