// SPDX-License-Identifier: Apache-2.0
// Depthwise by AVX-VNNI: blocks of 32 channels.
#include <immintrin.h>

#include "ops/qdepthwise/qdepthwise.h"

namespace wia {
namespace {

#include "ops/simd/x86_256.inc"
inline V v_dot(V acc, V a, V b) { return _mm256_dpbusd_avx_epi32(acc, a, b); }
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qdepthwise/x86_dot_vnni.inc"
//
#include "ops/qdepthwise/x86_taps.inc"
//
#include "ops/qdepthwise/x86_blocks.inc"

}  // namespace

const QDepthwise qdepthwise_u8s8_avxvnni = {"qdepthwise_u8s8_avxvnni", packed_bytes, pack, block,
                                            look_up};

}  // namespace wia
