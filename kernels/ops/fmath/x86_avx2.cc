// SPDX-License-Identifier: Apache-2.0
// fmath for AVX2 and FMA.
#define WIA_FMATH fmath_avx2
#include "ops/fmath/generic.inc"
