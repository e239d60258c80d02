// SPDX-License-Identifier: Apache-2.0
#include "base/histogram.h"

#include <algorithm>
#include <vector>

namespace wia {
namespace {

constexpr size_t kBlock = 1024;
constexpr size_t kLanes = 64;
constexpr size_t kTables = 4;
// Below this many values, clearing and adding more than one table costs more than it saves.
constexpr size_t kWorthTables = 16384;

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

struct Extremes {
  float lo, hi;

  void add(const float* x, size_t n) {
    // As many as a vector has lanes, in variables of their own, so that the compiler keeps them in
    // vectors.
    float los[kLanes], his[kLanes];
    std::fill(los, los + kLanes, lo);
    std::fill(his, his + kLanes, hi);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) {
        los[lane] = x[i + lane] < los[lane] ? x[i + lane] : los[lane];
        his[lane] = x[i + lane] > his[lane] ? x[i + lane] : his[lane];
      }
    for (; i < n; ++i) {
      los[0] = std::min(los[0], x[i]);
      his[0] = std::max(his[0], x[i]);
    }
    lo = *std::min_element(los, los + kLanes);
    hi = *std::max_element(his, his + kLanes);
  }
};

// Neighbours often fall into one bin (zeros after a Relu): with a table for each of four, an
// increment does not wait for the one before it.
template <size_t tables, typename Count>
void count(const Bins& bins, const float* x, size_t n, size_t n_slots, Count* table,
           Extremes& extremes) {
  uint32_t slots[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t size = std::min(kBlock, n - begin);
    const float* block = x + begin;
    bins.slots_of(block, size, slots);
    extremes.add(block, size);
    size_t i = 0;
    for (; i + tables <= size; i += tables)
      for (size_t t = 0; t < tables; ++t) ++table[t * n_slots + slots[i + t]];
    for (; i < size; ++i) ++table[slots[i]];
  }
}

template <size_t tables, typename Count>
Counted count_in(const Bins& bins, const float* x, size_t n, int64_t* counts, size_t n_bins) {
  const size_t n_slots = n_bins + 2;
  std::vector<Count> table(tables * n_slots);
  Extremes extremes{n > 0 ? x[0] : 0.0f, n > 0 ? x[0] : 0.0f};
  count<tables>(bins, x, n, n_slots, table.data(), extremes);

  Counted counted{0, extremes.lo, extremes.hi};
  for (size_t t = 0; t < tables; ++t)
    counted.lost += size_t{table[t * n_slots]} + size_t{table[(t + 1) * n_slots - 1]};
  if (counted.lost > 0) return counted;
  for (size_t t = 0; t < tables; ++t)
    for (size_t b = 0; b < n_bins; ++b)
      counts[b] += static_cast<int64_t>(table[t * n_slots + b + 1]);
  return counted;
}

}  // namespace

Counted count_bins(const float* x, size_t n, float inverse_width, int32_t first, int64_t* counts,
                   size_t n_bins) {
  const Bins bins{inverse_width, static_cast<float>(first - 1),
                  static_cast<float>(first + static_cast<int64_t>(n_bins))};
  if (n < kWorthTables) return count_in<1, uint32_t>(bins, x, n, counts, n_bins);
  if (n <= UINT32_MAX) return count_in<kTables, uint32_t>(bins, x, n, counts, n_bins);
  return count_in<kTables, uint64_t>(bins, x, n, counts, n_bins);
}

}  // namespace wia
