// SPDX-License-Identifier: Apache-2.0
// The choice of the elementwise kernels.
#include "ops/qelementwise/qelementwise.h"

#include "base/cpu.h"

namespace wia {

const QElementwise& select_qelementwise(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/qelementwise/kernels.inc"
#undef WIA_KERNEL
  return qelementwise_reference;
}

}  // namespace wia
