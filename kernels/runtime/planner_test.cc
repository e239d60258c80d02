// SPDX-License-Identifier: Apache-2.0
#include "runtime/planner.h"

#include <random>

#include "base/testing.h"

using wia::Buffer;

namespace {

bool overlap(const Buffer& a, const Buffer& b) {
  const bool time = a.first <= b.last && b.first <= a.last;
  const bool space = a.offset < b.offset + std::max<size_t>(b.n_bytes, 1) &&
                     b.offset < a.offset + std::max<size_t>(a.n_bytes, 1);
  return time && space;
}

}  // namespace

TEST(buffers_alive_together_never_overlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Buffer> buffers;
    const int n = static_cast<int>(random() % 40);
    size_t sum = 0;
    for (int i = 0; i < n; ++i) {
      const int first = static_cast<int>(random() % 30);
      buffers.push_back({random() % 5000, first, first + static_cast<int>(random() % 8)});
      sum += buffers.back().n_bytes + 64;
    }
    const size_t total = wia::place_buffers(buffers);
    CHECK(total <= sum);
    for (size_t i = 0; i < buffers.size(); ++i) {
      CHECK_EQ(buffers[i].offset % 64, size_t{0});
      CHECK(buffers[i].offset + buffers[i].n_bytes <= total);
      for (size_t j = 0; j < i; ++j) CHECK(!overlap(buffers[i], buffers[j]));
    }
  }
}

TEST(a_chain_needs_two_buffers) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back({1024, i, i + 1});
  CHECK_EQ(wia::place_buffers(buffers), size_t{2048});
}

TEST(the_smallest_gap_that_fits_is_taken) {
  // A at 0, B above it, C above B; B's and a hole's places are then offered to D.
  std::vector<Buffer> buffers{{640, 0, 9}, {512, 0, 2}, {448, 0, 9}, {384, 3, 9}, {64, 3, 9}};
  const size_t total = wia::place_buffers(buffers);
  CHECK_EQ(total, size_t{640 + 512 + 448});
  CHECK_EQ(buffers[3].offset, size_t{640});
  CHECK_EQ(buffers[4].offset, size_t{640 + 384});
}

TEST(very_many_buffers_are_placed_without_overlap_and_soon) {
  std::mt19937 random(8);
  std::vector<Buffer> buffers;
  constexpr int kBuffers = 100000, kLongest = 20;
  for (int i = 0; i < kBuffers; ++i) {
    const int first = i / 2;
    buffers.push_back({random() % 5000, first, first + static_cast<int>(random() % kLongest)});
  }
  const size_t total = wia::place_buffers(buffers);
  CHECK(total < size_t{2} * 2 * kLongest * 5000);
  for (size_t i = 0; i < buffers.size(); ++i) {
    CHECK(buffers[i].offset % 64 == 0 && buffers[i].offset + buffers[i].n_bytes <= total);
    for (size_t j = i + 1; j < buffers.size() && buffers[j].first <= buffers[i].last; ++j)
      CHECK(!overlap(buffers[i], buffers[j]));
  }
}

TEST(no_buffers_need_no_memory) {
  std::vector<Buffer> none;
  CHECK_EQ(wia::place_buffers(none), size_t{0});
}

WIA_TEST_MAIN
