// SPDX-License-Identifier: Apache-2.0
// Depthwise by AVX512-VNNI: blocks of 64 channels, and one of 32 for a short rest.
#include <immintrin.h>

#include "ops/qdepthwise/qdepthwise.h"

namespace wia {
namespace {

namespace wide {
#include "ops/simd/x86_512.inc"
inline V v_dot(V acc, V a, V b) { return _mm512_dpbusd_epi32(acc, a, b); }
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qdepthwise/x86_dot_vnni.inc"
//
#include "ops/qdepthwise/x86_taps.inc"
}  // namespace wide

namespace narrow {
#define WIA_HAVE_AVX512VL
#include "ops/simd/x86_256.inc"
inline V v_dot(V acc, V a, V b) { return _mm256_dpbusd_epi32(acc, a, b); }
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qdepthwise/x86_dot_vnni.inc"
//
#include "ops/qdepthwise/x86_taps.inc"
}  // namespace narrow
#undef WIA_HAVE_AVX512VL

// The kernel of x86_avxvnni.cc in its EVEX encoding: it lets a CPU without AVX-VNNI test that
// kernel's body.
namespace twin {
#include "ops/simd/x86_256.inc"
inline V v_dot(V acc, V a, V b) { return _mm256_dpbusd_epi32(acc, a, b); }
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qdepthwise/x86_dot_vnni.inc"
//
#include "ops/qdepthwise/x86_taps.inc"
//
#include "ops/qdepthwise/x86_blocks.inc"
}  // namespace twin

size_t packed_bytes(size_t channels, size_t kernel_h, size_t kernel_w) {
  const size_t rest = channels % wide::kBlock;
  return channels / wide::kBlock * wide::block_bytes(kernel_h, kernel_w) +
         (rest > narrow::kBlock ? wide::block_bytes(kernel_h, kernel_w)
          : rest                ? narrow::block_bytes(kernel_h, kernel_w)
                                : 0);
}

void pack(size_t channels, size_t kernel_h, size_t kernel_w, const QConvWeights& weights,
          void* packed) {
  std::byte* at = static_cast<std::byte*>(packed);
  size_t first = 0;
  for (; channels - first > narrow::kBlock; first += wide::kBlock) {
    wide::pack_block(first, channels, kernel_h, kernel_w, weights, at);
    at += wide::block_bytes(kernel_h, kernel_w);
    if (channels - first <= wide::kBlock) return;
  }
  if (first < channels) narrow::pack_block(first, channels, kernel_h, kernel_w, weights, at);
}

void block(const QDepthwiseBlock& q) {
  const std::byte* at = static_cast<const std::byte*>(q.packed);
  size_t first = 0;
  for (; q.channels - first > narrow::kBlock; first += wide::kBlock) {
    const size_t left = q.channels - first;
    wide::block_any(q, at, first, left < wide::kBlock ? left : wide::kBlock);
    at += wide::block_bytes(q.kernel_h, q.kernel_w);
    if (left <= wide::kBlock) return;
  }
  if (first < q.channels) narrow::block_any(q, at, first, q.channels - first);
}

}  // namespace

const QDepthwise qdepthwise_u8s8_avx512vnni = {"qdepthwise_u8s8_avx512vnni", packed_bytes, pack,
                                               block, wide::look_up};
const QDepthwise qdepthwise_u8s8_avx512vl = {"qdepthwise_u8s8_avx512vl", twin::packed_bytes,
                                             twin::pack, twin::block, twin::look_up};

}  // namespace wia
