// SPDX-License-Identifier: Apache-2.0
// fmath for plain C++ for any CPU.
#define WIA_FMATH fmath_reference
#include "ops/fmath/generic.inc"
