// SPDX-License-Identifier: Apache-2.0
// The GEMM by usmmla: 2 rows x 8 of uint8 times 8 x 2 columns of int8 into 2 x 2 int32, without
// saturation.
#include <arm_neon.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

#include "ops/simd/arm64.inc"
//
#include "ops/qgemm/arm64_tile.inc"

void pack_panel(const QGemmB& b, size_t first, size_t, std::byte*, std::byte* weights,
                int32_t* sums) {
  pack_bytes(b, first, weights, sums, 8);
}

template <int MR>
void tile(const QGemmBlock& q, size_t row) {
  constexpr int kPairs = (MR + 1) / 2;  // an odd last row stands in twice
  const int8_t* w = reinterpret_cast<const int8_t*>(weights_of(q));
  int32x4_t acc[kPairs][8];
  for (int p = 0; p < kPairs; ++p) {
    for (int i = 0; i < 8; ++i) acc[p][i] = vdupq_n_s32(0);
  }
  for (size_t s = 0; s < q.segments; ++s) {
    const uint8_t* a[2 * kPairs];
    for (int r = 0; r < 2 * kPairs; ++r) {
      a[r] = q.a[s * kQGemmRows + row + static_cast<size_t>(r < MR ? r : MR - 1)];
    }
    for (size_t k = 0; k < q.segment_k; k += 8) {
      const size_t left = q.segment_k - k;
      uint8x16_t x[kPairs];
      for (int p = 0; p < kPairs; ++p) {
        const uint8_t *top = a[2 * p] + k, *bottom = a[2 * p + 1] + k;
        x[p] = left >= 8 || q.a_padded ? vcombine_u8(vld1_u8(top), vld1_u8(bottom))
                                       : vcombine_u8(vcreate_u8(last_bytes(top, left)),
                                                     vcreate_u8(last_bytes(bottom, left)));
      }
      for (int i = 0; i < 8; ++i) {
        const int8x16_t b = vld1q_s8(w + i * 16);
        for (int p = 0; p < kPairs; ++p) acc[p][i] = vusmmlaq_s32(acc[p][i], x[p], b);
      }
      w += 8 * kLanes;
    }
  }
  for (int r = 0; r < MR; ++r) {
    Words words;
    for (int i = 0; i < 4; ++i) {
      const int64x2_t left = vreinterpretq_s64_s32(acc[r / 2][2 * i]),
                      right = vreinterpretq_s64_s32(acc[r / 2][2 * i + 1]);
      words.v[i] = vreinterpretq_s32_s64(r % 2 ? vuzp2q_s64(left, right) : vuzp1q_s64(left, right));
    }
    finish_tile(q, row + static_cast<size_t>(r), words);
  }
}

#include "ops/qgemm/arm64_block.inc"

}  // namespace

const QGemm qgemm_u8s8_neoni8mm = {
    "qgemm_u8s8_neoni8mm", kLanes, kMaxVectors, 8, 1, pack_panel, block};

}  // namespace wia
