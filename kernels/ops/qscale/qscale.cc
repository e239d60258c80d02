// SPDX-License-Identifier: Apache-2.0
// The choice of the kernel that ends a softmax.
#include "ops/qscale/qscale.h"

#include "base/cpu.h"

namespace wia {

const QScale& select_qscale(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/qscale/kernels.inc"
#undef WIA_KERNEL
  return qscale_reference;
}

}  // namespace wia
