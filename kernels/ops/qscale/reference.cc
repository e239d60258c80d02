// SPDX-License-Identifier: Apache-2.0
// Floats times one factor to uint8, as docs/quantization.md (25) writes it.
#include "ops/epilogue/epilogue.h"
#include "ops/qscale/qscale.h"

namespace wia {
namespace {

void to_levels(size_t n, const float* e, float factor, int32_t zero_point, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) {
    const float value = e[i] * factor;
    out[i] = value != value ? static_cast<uint8_t>(zero_point)
                            : requantize_value(value, zero_point, 0, 255);
  }
}

uint8_t largest(size_t n, const uint8_t* x) {
  uint8_t most = 0;
  for (size_t i = 0; i < n; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

float largest_float(size_t n, const float* x) {
  float most = -__builtin_inff();
  for (size_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) return __builtin_nanf("");
    most = x[i] > most ? x[i] : most;
  }
  return most;
}

}  // namespace

const QScale qscale_reference = {"qscale_reference", to_levels, largest, largest_float};

}  // namespace wia
