// SPDX-License-Identifier: Apache-2.0
#include "base/histogram.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/testing.h"

namespace {

// The definition, one value after the other, in float64 (exact: the width is a power of two).
size_t count_one_by_one(const std::vector<float>& x, double inverse_width, int64_t first,
                        std::vector<int64_t>& counts) {
  size_t lost = 0;
  for (float v : x) {
    const double bin = std::trunc(v * inverse_width) - static_cast<double>(first);
    if (bin >= 0 && bin < static_cast<double>(counts.size()))
      ++counts[static_cast<size_t>(bin)];
    else
      ++lost;
  }
  return lost;
}

TEST(counts_are_those_of_the_definition) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (size_t n : {0, 1, 3, 4, 5, 1023, 1024, 1025, 16383, 16384, 16387, 100003}) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(generator);
    for (size_t i = 0; i < n; i += 7) x[i] = 0.0f;
    for (int32_t first : {-8191, -300, -1, 0}) {
      std::vector<int64_t> expected(first == 0 ? 1 : 700, 5), counts = expected;
      const size_t lost = count_one_by_one(x, 64.0, first, expected);
      CHECK_EQ(wia::count_bins(x.data(), n, 64.0f, first, counts.data(), counts.size()), lost);
      CHECK(counts == expected);
    }
  }
}

TEST(what_no_bin_holds_is_lost_and_nothing_else_is_touched) {
  const float inf = std::numeric_limits<float>::infinity();
  const float max = std::numeric_limits<float>::max();
  const std::vector<float> x = {std::nanf(""), inf,   -inf,       max,         -max,
                                3.0f,          -3.0f, 2.9999998f, -2.9999998f, 1e-45f};
  std::vector<int64_t> counts(7, 0);
  CHECK_EQ(wia::count_bins(x.data(), x.size(), 1.0f, -2, counts.data() + 1, 5), size_t{7});
  CHECK(counts == (std::vector<int64_t>{0, 1, 0, 1, 0, 1, 0}));
}

TEST(an_edge_belongs_to_the_bin_farther_from_zero) {
  const std::vector<float> x = {-1.0f, -0.99999994f, -0.0f, 0.99999994f, 1.0f};
  std::vector<int64_t> counts(3, 0);
  CHECK_EQ(wia::count_bins(x.data(), x.size(), 1.0f, -1, counts.data(), 3), size_t{0});
  CHECK(counts == (std::vector<int64_t>{1, 3, 1}));
}

}  // namespace

WIA_TEST_MAIN
