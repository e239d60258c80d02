// SPDX-License-Identifier: Apache-2.0
// The VNNI GEMM in 256-bit registers, VEX-encoded (4 x 24, 6 x 16, 8 x 8 tiles).
#include <immintrin.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

#include "ops/simd/x86_256.inc"

inline V v_dot(V acc, V a, V b) { return _mm256_dpbusd_avx_epi32(acc, a, b); }
constexpr size_t kMaxVectors = 3;
constexpr size_t kTileRows[4] = {8, 6, 4, 1};

#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qgemm/x86_rows.inc"
//
#include "ops/qgemm/x86_vnni.inc"

}  // namespace

const QGemm qgemm_u8s8_avxvnni = {"qgemm_u8s8_avxvnni", kLanes, kMaxVectors, 4,      1,
                                  pack_panel,           block,  0,           look_up};

}  // namespace wia
