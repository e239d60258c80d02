// SPDX-License-Identifier: Apache-2.0
#include "base/histogram.h"

#include <algorithm>
#include <vector>

namespace wia {
namespace {

constexpr size_t kBlock = 1024;
constexpr size_t kTables = 4;
// Below this many values, clearing and adding more than one table costs more than it saves.
constexpr size_t kWorthTables = 16384;
// A table counts in 32 bits: no more values than this at a time.
constexpr size_t kMost = size_t{1} << 31;

// Slot 0 is for what is below the bins (and NaN), slots 1 to n_bins are the bins, the last is for
// what is above.
struct Bins {
  float inverse_width;
  float below, above;  // trunc of these is the index before the first bin and after the last

  void slots_of(const float* x, size_t n, uint32_t* slots) const {
    const int32_t before = static_cast<int32_t>(below);
    for (size_t i = 0; i < n; ++i) {
      float scaled = x[i] * inverse_width;
      scaled = scaled > below ? scaled : below;
      scaled = scaled < above ? scaled : above;
      slots[i] = static_cast<uint32_t>(static_cast<int32_t>(scaled) - before);
    }
  }
};

// Neighbours often fall into one bin (zeros after a Relu): with a table for each of four, an
// increment does not wait for the one before it.
template <size_t tables>
void count(const Bins& bins, const float* x, size_t n, size_t n_slots, uint32_t* table) {
  uint32_t slots[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t size = std::min(kBlock, n - begin);
    bins.slots_of(x + begin, size, slots);
    size_t i = 0;
    for (; i + tables <= size; i += tables)
      for (size_t t = 0; t < tables; ++t) ++table[t * n_slots + slots[i + t]];
    for (; i < size; ++i) ++table[slots[i]];
  }
}

}  // namespace

size_t count_bins(const float* x, size_t n, float inverse_width, int32_t first, int64_t* counts,
                  size_t n_bins) {
  const Bins bins{inverse_width, static_cast<float>(first - 1),
                  static_cast<float>(first + static_cast<int64_t>(n_bins))};
  const size_t n_slots = n_bins + 2;
  size_t lost = 0;
  for (size_t begin = 0; begin < n; begin += kMost) {
    const size_t size = std::min(kMost, n - begin);
    const size_t n_tables = size < kWorthTables ? 1 : kTables;
    std::vector<uint32_t> tables(n_tables * n_slots);
    if (n_tables == 1)
      count<1>(bins, x + begin, size, n_slots, tables.data());
    else
      count<kTables>(bins, x + begin, size, n_slots, tables.data());
    for (size_t t = 0; t < n_tables; ++t) {
      const uint32_t* table = tables.data() + t * n_slots;
      lost += size_t{table[0]} + table[n_slots - 1];
      for (size_t b = 0; b < n_bins; ++b) counts[b] += table[b + 1];
    }
  }
  return lost;
}

}  // namespace wia
