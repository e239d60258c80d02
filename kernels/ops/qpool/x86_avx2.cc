// SPDX-License-Identifier: Apache-2.0
// Pooling in 256-bit vectors.
#include <immintrin.h>

#include "ops/epilogue/epilogue.h"
#include "ops/qpool/qpool.h"

namespace wia {
namespace {

#include "ops/simd/x86_256.inc"
//
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qpool/x86.inc"

}  // namespace

const QPoolKernel qpool_u8_avx2 = {"qpool_u8_avx2", max, average};

}  // namespace wia
