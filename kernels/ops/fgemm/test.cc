// SPDX-License-Identifier: Apache-2.0
// fgemm: every kernel equals one std::fma chain per output, bit for bit, whatever the shape and the
// split.
#include "ops/fgemm/fgemm.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/testing.h"

namespace wia {
namespace {

struct Entry {
  uint32_t features;
  const FgemmKernel* kernel;
};

std::vector<const FgemmKernel*> runnable() {
  const Entry all[] = {
#define WIA_KERNEL(features, name) {features, &name},
#include "ops/fgemm/kernels.inc"
#undef WIA_KERNEL
  };
  std::vector<const FgemmKernel*> kernels;
  for (const Entry& entry : all)
    if (cpu::supports(cpu::mask_for(""), entry.features)) kernels.push_back(entry.kernel);
  return kernels;
}

// Values of many magnitudes and both signs, the same on every machine.
float value(size_t i) {
  const uint32_t h = static_cast<uint32_t>(i * 2654435761u + 12345u);
  const float unit =
      static_cast<float>(static_cast<int32_t>(h >> 9) - (1 << 22)) / static_cast<float>(1 << 22);
  return std::ldexp(unit, static_cast<int>(h % 13) - 6);
}

std::vector<float> values(size_t n, size_t seed) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = value(i + seed);
  return v;
}

struct Problem {
  size_t m, n, k;
  bool row_bias, column_bias;
};

std::vector<float> chains(const Problem& p, const std::vector<float>& a,
                          const std::vector<float>& b, const std::vector<float>& row_bias,
                          const std::vector<float>& column_bias) {
  std::vector<float> c(p.m * p.n);
  for (size_t i = 0; i < p.m; ++i)
    for (size_t j = 0; j < p.n; ++j) {
      float acc = 0.0f;
      for (size_t k = 0; k < p.k; ++k) acc = std::fma(a[i * p.k + k], b[k * p.n + j], acc);
      if (p.row_bias) acc += row_bias[i];
      if (p.column_bias) acc += column_bias[j];
      c[i * p.n + j] = acc;
    }
  return c;
}

void check_problem(const FgemmKernel& kernel, const Problem& p, size_t pieces) {
  const std::vector<float> a = values(p.m * p.k, 1), b = values(p.k * p.n, 7777);
  const std::vector<float> row_bias = values(p.m, 5), column_bias = values(p.n, 9);
  const std::vector<float> expected = chains(p, a, b, row_bias, column_bias);
  std::vector<float> packed_a(fgemm_packed_a_size(p.m, p.k)),
      packed_b(fgemm_packed_b_size(kernel, p.k, p.n));
  const size_t blocks = (p.m + kernel.mr - 1) / kernel.mr,
               panels = (p.n + kernel.nr - 1) / kernel.nr;
  fgemm_pack_a(kernel, p.m, p.k, a.data(), p.k, 1, 0, blocks, packed_a.data());
  fgemm_pack_b(kernel, p.k, p.n, b.data(), p.n, 1, 0, panels, packed_b.data());
  constexpr float kCanary = 12345.5f;
  const size_t ld = p.n + 3;
  std::vector<float> c(p.m * ld + 64, kCanary);
  for (size_t piece = 0; piece < pieces; ++piece) {
    FgemmParams params{};
    params.m = p.m;
    params.n = p.n;
    params.k = p.k;
    params.a = packed_a.data();
    params.b = packed_b.data();
    params.c = c.data();
    params.ld_c = ld;
    params.row_bias = p.row_bias ? row_bias.data() : nullptr;
    params.column_bias = p.column_bias ? column_bias.data() : nullptr;
    params.last_block = blocks;
    params.first_panel = panels * piece / pieces;
    params.last_panel = panels * (piece + 1) / pieces;
    fgemm_run(kernel, params);
  }
  for (size_t i = 0; i < p.m; ++i) {
    CHECK(std::memcmp(&c[i * ld], &expected[i * p.n], p.n * sizeof(float)) == 0);
    for (size_t j = p.n; j < ld; ++j) CHECK_EQ(c[i * ld + j], kCanary);
  }
  for (size_t i = p.m * ld; i < c.size(); ++i) CHECK_EQ(c[i], kCanary);
}

TEST(every_kernel_is_the_chain_for_every_edge) {
  for (const FgemmKernel* kernel : runnable())
    for (size_t m :
         {size_t{1}, size_t{2}, kernel->mr - 1, kernel->mr, kernel->mr + 1, 3 * kernel->mr + 2})
      for (size_t n : {size_t{1}, size_t{3}, kernel->nr / 2, kernel->nr - 1, kernel->nr,
                       kernel->nr + 1, 2 * kernel->nr + 5})
        check_problem(*kernel, {m, n, 19, m % 2 == 0, n % 2 == 0}, 1);
}

TEST(every_number_of_rows_has_its_tile) {
  for (const FgemmKernel* kernel : runnable())
    for (size_t m = 1; m <= kernel->mr; ++m)
      check_problem(*kernel, {m, kernel->nr + 1, 5, true, true}, 1);
}

TEST(long_chains_go_on_over_the_blocks_of_k) {
  for (const FgemmKernel* kernel : runnable())
    for (size_t k : {size_t{255}, size_t{256}, size_t{257}, size_t{1000}})
      check_problem(*kernel, {kernel->mr + 1, kernel->nr + 7, k, true, false}, 1);
}

TEST(many_row_blocks) {
  for (const FgemmKernel* kernel : runnable())
    check_problem(*kernel, {401, 33, 40, false, true}, 1);
}

TEST(a_split_over_threads_changes_nothing) {
  for (const FgemmKernel* kernel : runnable())
    for (size_t pieces : {2, 3, 5})
      check_problem(*kernel, {17, 5 * kernel->nr + 3, 300, true, true}, pieces);
}

TEST(an_empty_chain_leaves_the_bias) {
  for (const FgemmKernel* kernel : runnable()) check_problem(*kernel, {3, 5, 0, true, true}, 1);
}

TEST(packing_takes_any_strides) {
  for (const FgemmKernel* kernel : runnable()) {
    const size_t k = 37, n = 2 * kernel->nr + 3, m = kernel->mr + 2;
    const std::vector<float> b = values(k * n, 3), a = values(m * k, 4);
    std::vector<float> b_t(n * k), a_t(k * m);
    for (size_t i = 0; i < k; ++i)
      for (size_t j = 0; j < n; ++j) b_t[j * k + i] = b[i * n + j];
    for (size_t i = 0; i < m; ++i)
      for (size_t j = 0; j < k; ++j) a_t[j * m + i] = a[i * k + j];
    const size_t panels = (n + kernel->nr - 1) / kernel->nr,
                 blocks = (m + kernel->mr - 1) / kernel->mr;
    std::vector<float> one(fgemm_packed_b_size(*kernel, k, n)), other(one.size());
    fgemm_pack_b(*kernel, k, n, b.data(), n, 1, 0, panels, one.data());
    fgemm_pack_b(*kernel, k, n, b_t.data(), 1, k, 0, panels, other.data());
    CHECK(one == other);
    std::vector<float> first(fgemm_packed_a_size(m, k)), second(first.size());
    fgemm_pack_a(*kernel, m, k, a.data(), k, 1, 0, blocks, first.data());
    fgemm_pack_a(*kernel, m, k, a_t.data(), 1, m, 0, blocks, second.data());
    CHECK(first == second);
  }
}

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
