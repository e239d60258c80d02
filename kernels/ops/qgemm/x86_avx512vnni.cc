// SPDX-License-Identifier: Apache-2.0
// The VNNI GEMM in 512-bit registers (6 x 64, 8 x 48, 8 x 32, 8 x 16 tiles), and the 256-bit kernel
// of x86_avxvnni.cc in its EVEX encoding: never the fastest where it runs, it lets a CPU without
// AVX-VNNI test that kernel's body.
#include <immintrin.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

namespace wide {
#include "ops/simd/x86_512.inc"

inline V v_dot(V acc, V a, V b) { return _mm512_dpbusd_epi32(acc, a, b); }
constexpr size_t kMaxVectors = 4;
constexpr size_t kTileRows[4] = {8, 8, 8, 6};

#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qgemm/x86_rows.inc"
//
#include "ops/qgemm/x86_vnni.inc"
}  // namespace wide

namespace narrow {
#include "ops/simd/x86_256.inc"

inline V v_dot(V acc, V a, V b) { return _mm256_dpbusd_epi32(acc, a, b); }
constexpr size_t kMaxVectors = 3;
constexpr size_t kTileRows[4] = {8, 6, 4, 1};

#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qgemm/x86_rows.inc"
//
#include "ops/qgemm/x86_vnni.inc"
}  // namespace narrow

}  // namespace

const QGemm qgemm_u8s8_avx512vnni = {"qgemm_u8s8_avx512vnni",
                                     wide::kLanes,
                                     wide::kMaxVectors,
                                     4,
                                     1,
                                     wide::pack_panel,
                                     wide::block,
                                     0,
                                     wide::look_up};
const QGemm qgemm_u8s8_avx512vl = {"qgemm_u8s8_avx512vl",
                                   narrow::kLanes,
                                   narrow::kMaxVectors,
                                   4,
                                   1,
                                   narrow::pack_panel,
                                   narrow::block,
                                   0,
                                   narrow::look_up};

}  // namespace wia
