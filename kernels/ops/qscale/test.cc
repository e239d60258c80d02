// SPDX-License-Identifier: Apache-2.0
// Every kernel that this CPU can run gives the bytes of the reference.
#include <cmath>
#include <limits>
#include <vector>

#include "ops/fenced.h"
#include "ops/qscale/qscale.h"

namespace wia {
namespace {

std::vector<const QScale*> kernels() {
  std::vector<const QScale*> all;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) all.push_back(&name);
#include "ops/qscale/kernels.inc"
#undef WIA_KERNEL
  return all;
}

const size_t kSizes[] = {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 1000};

TEST(floats_to_levels_special_values_and_halves) {
  std::mt19937 random(7);
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.5f, 1.5f, 2.5f, inf, -inf, std::nanf(""), 3e38f, 1e-40f, -0.0f};
  for (size_t n : kSizes) {
    Fenced<float> e(n);
    std::uniform_real_distribution<float> share(0.0f, 1.0f);
    for (size_t i = 0; i < n; ++i) e[i] = i % 3 == 0 ? special[i / 3 % 9] : share(random);
    for (float factor : {1.0f, 255.0f, 1e-30f, 3e38f, inf, 0.0f}) {
      for (int zero_point : {0, 100, 255}) {
        Fenced<uint8_t> want(n);
        qscale_reference.to_levels(n, e.data(), factor, zero_point, want.data());
        for (const QScale* kernel : kernels()) {
          Fenced<uint8_t> got(n);
          kernel->to_levels(n, e.data(), factor, zero_point, got.data());
          got.check();
          for (size_t i = 0; i < n; ++i) CHECK_EQ(+got[i], +want[i]);
        }
      }
    }
  }
}

TEST(the_reference_rounds_halves_to_even_and_nan_to_the_zero_point) {
  const float e[] = {0.5f, 1.5f, 2.5f, std::nanf(""), 1e9f, -1e9f};
  uint8_t out[6];
  qscale_reference.to_levels(6, e, 1.0f, 10, out);
  const int want[] = {10, 12, 12, 10, 255, 0};
  for (int i = 0; i < 6; ++i) CHECK_EQ(+out[i], want[i]);
}

TEST(largest_level) {
  std::mt19937 random(3);
  for (size_t n : kSizes) {
    Fenced<uint8_t> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<uint8_t>(random() % 256);
    const uint8_t want = qscale_reference.largest(n, x.data());
    for (const QScale* kernel : kernels()) CHECK_EQ(+kernel->largest(n, x.data()), +want);
  }
}

TEST(largest_float_and_nan_wherever_it_is) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(-3.0f, 1.0f);
  for (size_t n : kSizes) {
    Fenced<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = normal(random);
    const float want = qscale_reference.largest_float(n, x.data());
    for (const QScale* kernel : kernels()) CHECK(kernel->largest_float(n, x.data()) == want);
    for (size_t i = 0; i < n; i += 5) {
      const float before = x[i];
      x[i] = std::nanf("");
      for (const QScale* kernel : kernels()) CHECK(std::isnan(kernel->largest_float(n, x.data())));
      x[i] = before;
    }
  }
}

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
