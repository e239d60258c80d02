// SPDX-License-Identifier: Apache-2.0
// The elementwise operators in 512-bit vectors.
#include <immintrin.h>

#include "ops/qelementwise/qelementwise.h"

namespace wia {
namespace {

#include "ops/simd/x86_512.inc"
//
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qelementwise/x86.inc"

}  // namespace

const QElementwise qelementwise_avx512vnni = {"qelementwise_avx512vnni",
                                              quantize,
                                              dequantize,
                                              table,
                                              binary<false>,
                                              binary<true>,
                                              requantize,
                                              interleave3};

}  // namespace wia
