// SPDX-License-Identifier: Apache-2.0
// Offsets of buffers by best fit, largest first.
#include "runtime/planner.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace wia {
namespace {

constexpr size_t kAlignment = 64;

size_t padded(size_t n_bytes) {
  return (std::max<size_t>(n_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

size_t place_buffers(std::vector<Buffer>& buffers) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return buffers[a].n_bytes > buffers[b].n_bytes; });
  std::vector<size_t> placed;  // by offset
  size_t total = 0;
  for (size_t b : order) {
    Buffer& buffer = buffers[b];
    const size_t size = padded(buffer.n_bytes);
    size_t best = SIZE_MAX, best_gap = SIZE_MAX,
           end = 0;  // end: of what is placed so far and alive with it
    for (size_t p : placed) {
      const Buffer& other = buffers[p];
      if (other.last < buffer.first || buffer.last < other.first) continue;
      if (other.offset >= end + size && other.offset - end < best_gap) {
        best = end;
        best_gap = other.offset - end;
      }
      end = std::max(end, other.offset + padded(other.n_bytes));
    }
    buffer.offset = best == SIZE_MAX ? end : best;
    total = std::max(total, buffer.offset + size);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), b,
                         [&](size_t x, size_t y) { return buffers[x].offset < buffers[y].offset; }),
        b);
  }
  return total;
}

}  // namespace wia
