// SPDX-License-Identifier: Apache-2.0
// Which fmath functions a CPU gets.
#include "ops/fmath/fmath.h"

namespace wia {

const Fmath& select_fmath(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/fmath/kernels.inc"
#undef WIA_KERNEL
  return fmath_reference;  // unreachable: the reference needs no feature
}

}  // namespace wia
