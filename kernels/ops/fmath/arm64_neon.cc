// SPDX-License-Identifier: Apache-2.0
// fmath for NEON.
#define WIA_FMATH fmath_neon
#include "ops/fmath/generic.inc"
