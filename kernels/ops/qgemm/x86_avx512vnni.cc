// SPDX-License-Identifier: Apache-2.0
// The VNNI GEMM in 512-bit registers (6 x 64, 8 x 48, 8 x 32, 8 x 16 tiles).
#include <immintrin.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

#include "ops/simd/x86_512.inc"

constexpr size_t kMaxVectors = 4;
constexpr size_t kTileRows[4] = {8, 8, 8, 6};

#include "ops/simd/x86_epilogue.inc"

#include "ops/qgemm/x86_vnni.inc"

}  // namespace

const QGemm qgemm_u8s8_avx512vnni = {
    "qgemm_u8s8_avx512vnni", kLanes, kMaxVectors, 4, 1, pack_panel, block};

}  // namespace wia
