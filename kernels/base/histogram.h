// SPDX-License-Identifier: Apache-2.0
// Counts of float values in bins of equal width, for calibration
// (wia_quant/calibrators/histogram.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace wia {

// counts[trunc(x[i] * inverse_width) - first] += 1 for i in [0, n), the product in float32.
// Returns how many values fell outside the bins (also NaN), and were not counted. All of first - 1
// to first + n_bins must be exact in float32: below 2^24 in magnitude.
size_t count_bins(const float* x, size_t n, float inverse_width, int32_t first, int64_t* counts,
                  size_t n_bins);

}  // namespace wia
