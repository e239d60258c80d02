// SPDX-License-Identifier: Apache-2.0
// Offsets of buffers by best fit.
#include "runtime/planner.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

namespace wia {
namespace {

constexpr size_t kAlignment = 64;

size_t padded(size_t n_bytes) {
  return (std::max<size_t>(n_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

// Best fit, largest first: the tightest, in time quadratic in the number of buffers.
size_t place_by_size(std::vector<Buffer>& buffers) {
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

// Best fit in the order of steps, with a list of free gaps: for graphs of very many nodes.
size_t place_by_time(std::vector<Buffer>& buffers) {
  std::vector<size_t> begin(buffers.size()), end(buffers.size());
  std::iota(begin.begin(), begin.end(), 0);
  std::iota(end.begin(), end.end(), 0);
  std::stable_sort(begin.begin(), begin.end(),
                   [&](size_t a, size_t b) { return buffers[a].first < buffers[b].first; });
  std::stable_sort(end.begin(), end.end(),
                   [&](size_t a, size_t b) { return buffers[a].last < buffers[b].last; });
  std::map<size_t, size_t> gaps;                // offset -> size
  std::set<std::pair<size_t, size_t>> by_size;  // size, offset
  size_t total = 0;
  auto add_gap = [&](size_t offset, size_t size) {
    auto next = gaps.lower_bound(offset);
    if (next != gaps.end() && next->first == offset + size) {
      size += next->second;
      by_size.erase({next->second, next->first});
      next = gaps.erase(next);
    }
    if (next != gaps.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        by_size.erase({before->second, before->first});
        gaps.erase(before);
      }
    }
    gaps[offset] = size;
    by_size.insert({size, offset});
  };
  auto take_gap = [&](size_t offset, size_t gap, size_t size) {
    gaps.erase(offset);
    by_size.erase({gap, offset});
    if (gap > size) add_gap(offset + size, gap - size);
  };
  size_t ended = 0;
  for (size_t b : begin) {
    for (; ended < end.size() && buffers[end[ended]].last < buffers[b].first; ++ended)
      add_gap(buffers[end[ended]].offset, padded(buffers[end[ended]].n_bytes));
    const size_t size = padded(buffers[b].n_bytes);
    const auto fit = by_size.lower_bound({size, 0});
    if (fit != by_size.end()) {
      buffers[b].offset = fit->second;
      take_gap(fit->second, fit->first, size);
      continue;
    }
    // The block grows; a gap at its end is part of what is needed.
    const auto top = gaps.empty() ? gaps.end() : std::prev(gaps.end());
    const bool at_end = top != gaps.end() && top->first + top->second == total;
    buffers[b].offset = at_end ? top->first : total;
    if (at_end) take_gap(top->first, top->second, top->second);
    total = buffers[b].offset + size;
  }
  return total;
}

}  // namespace

size_t place_buffers(std::vector<Buffer>& buffers) {
  constexpr size_t kMany = 4096;
  return buffers.size() <= kMany ? place_by_size(buffers) : place_by_time(buffers);
}

}  // namespace wia
