// SPDX-License-Identifier: Apache-2.0
// The end of a softmax between levels: floats times one factor to uint8, and the largest level of a
// row.
//
//   to_levels: out[i] = saturate(rhe(e[i] * factor) + zero_point) to [0, 255]; NaN -> zero_point
//   largest:   max over x[i]; 0 for none
//   largest_float: max over x[i], NaN when one is NaN; -infinity for none
//
// docs/quantization.md (25). Every ISA gives the bytes of the reference. zero_point in [0, 255].
#pragma once

#include <cstddef>
#include <cstdint>

namespace wia {

struct QScale {
  const char* name;
  void (*to_levels)(size_t n, const float* e, float factor, int32_t zero_point, uint8_t* out);
  uint8_t (*largest)(size_t n, const uint8_t* x);
  float (*largest_float)(size_t n, const float* x);
};

#define WIA_KERNEL(features, name) extern const QScale name;
#include "ops/qscale/kernels.inc"
#undef WIA_KERNEL

const QScale& select_qscale(uint32_t isa);

}  // namespace wia
