// SPDX-License-Identifier: Apache-2.0
// Pooling in 512-bit vectors.
#include <immintrin.h>

#include "ops/epilogue/epilogue.h"
#include "ops/qpool/qpool.h"

namespace wia {
namespace {

#include "ops/simd/x86_512.inc"
//
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qpool/x86.inc"

}  // namespace

const QPoolKernel qpool_u8_avx512vnni = {"qpool_u8_avx512vnni", max, average};

}  // namespace wia
