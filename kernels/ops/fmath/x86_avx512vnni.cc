// SPDX-License-Identifier: Apache-2.0
// fmath for AVX-512.
#define WIA_FMATH fmath_avx512vnni
#include "ops/fmath/generic.inc"
