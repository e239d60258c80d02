// SPDX-License-Identifier: Apache-2.0
// The epilogue as docs/quantization.md (8)-(12) writes it.
#include <cmath>

#include "ops/epilogue/epilogue.h"

namespace wia {

uint8_t requantize_value(float value, int32_t zero_point, uint8_t qmin, uint8_t qmax) {
  // The bounds are whole numbers, so clipping before rounding is clipping after it.
  const float lo = static_cast<float>(qmin - zero_point),
              hi = static_cast<float>(qmax - zero_point);
  const float clipped = value < lo ? lo : value > hi ? hi : value;
  return static_cast<uint8_t>(static_cast<int32_t>(std::nearbyintf(clipped)) + zero_point);
}

void epilogue_reference(const QEpilogue& e, size_t n, const int32_t* acc, const float* multiplier,
                        const float* float_bias, const uint8_t* residual, void* out) {
  for (size_t i = 0; i < n; ++i) {
    if (e.output == QOutput::kI32) {
      static_cast<int32_t*>(out)[i] = acc[i];
      continue;
    }
    const float value = static_cast<float>(acc[i]) * multiplier[i];
    if (e.output == QOutput::kF32) {
      static_cast<float*>(out)[i] = value + (float_bias ? float_bias[i] : 0.0f);
      continue;
    }
    uint8_t q = requantize_value(value, e.zero_point, e.qmin, e.qmax);
    if (e.table) q = e.table[q];
    if (residual) {
      const float a = static_cast<float>(q - e.sum_a_zero_point) * e.sum_a_multiplier;
      const float b = static_cast<float>(residual[i] - e.sum_b_zero_point) * e.sum_b_multiplier;
      q = requantize_value(a + b, e.sum_zero_point, e.sum_qmin, e.sum_qmax);
      if (e.sum_table) q = e.sum_table[q];
    }
    static_cast<uint8_t*>(out)[i] = q;
  }
}

}  // namespace wia
