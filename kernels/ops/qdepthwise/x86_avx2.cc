// SPDX-License-Identifier: Apache-2.0
// Depthwise by AVX2: blocks of 32 channels, weights widened to int16 so that vpmaddwd is exact for
// any of them.
#include <immintrin.h>

#include "ops/qdepthwise/qdepthwise.h"

namespace wia {
namespace {

#include "ops/simd/x86_256.inc"

constexpr size_t kWeightBytes = 2;
// Each vector's weights are int16: (tap 0, tap 2) of each element, then (tap 1, tap 3).
inline V v_dot4(V acc, V x, const std::byte* w) {
  const V even = _mm256_madd_epi16(v_and(x, v_set16(255)), v_load(w));
  const V odd = _mm256_madd_epi16(v_srl16(x, 8), v_load(w + kLanes * 4));
  return v_add32(acc, v_add32(even, odd));
}
inline void place_weight(std::byte* w, size_t vector, size_t element, size_t tap, int8_t value) {
  const int16_t wide = value;
  __builtin_memcpy(w + vector * kLanes * 8 + tap % 2 * kLanes * 4 + element * 4 + tap / 2 * 2,
                   &wide, 2);
}

#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qdepthwise/x86_taps.inc"
//
#include "ops/qdepthwise/x86_blocks.inc"

}  // namespace

const QDepthwise qdepthwise_u8s8_avx2 = {"qdepthwise_u8s8_avx2", packed_bytes, pack, block,
                                         look_up};

}  // namespace wia
