// SPDX-License-Identifier: Apache-2.0
// The maximum and the average of one window, channel by channel.
#include "ops/epilogue/epilogue.h"
#include "ops/qpool/qpool.h"

namespace wia {
namespace {

void max(size_t n_taps, const uint8_t* const* taps, size_t channels, uint8_t* out) {
  for (size_t c = 0; c < channels; ++c) {
    uint8_t best = taps[0][c];
    for (size_t t = 1; t < n_taps; ++t) best = taps[t][c] > best ? taps[t][c] : best;
    out[c] = best;
  }
}

void average(size_t n_taps, const uint8_t* const* taps, size_t channels, int32_t offset,
             float multiplier, int32_t zero_point, uint8_t* out) {
  for (size_t c = 0; c < channels; ++c) {
    uint32_t sum = static_cast<uint32_t>(offset);
    for (size_t t = 0; t < n_taps; ++t) sum += taps[t][c];
    out[c] = requantize_value(static_cast<float>(static_cast<int32_t>(sum)) * multiplier,
                              zero_point, 0, 255);
  }
}

}  // namespace

const QPoolKernel qpool_u8_reference = {"qpool_u8_reference", max, average};

}  // namespace wia
