// SPDX-License-Identifier: Apache-2.0
// Packing and cache blocking around one tile kernel.
#include "ops/fgemm/fgemm.h"

#include <algorithm>

namespace wia {
namespace {

// A panel of kChain links stays in the first-level cache while the row blocks pass over it, and
// kRows * kChain floats of A in the second level while the panels pass.
constexpr size_t kChain = 256;
constexpr size_t kRows = 192;

}  // namespace

const FgemmKernel& select_fgemm(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/fgemm/kernels.inc"
#undef WIA_KERNEL
  return fgemm_reference;  // unreachable: the reference needs no feature
}

size_t fgemm_packed_a_size(size_t m, size_t k) { return m * k; }

size_t fgemm_packed_b_size(const FgemmKernel& kernel, size_t k, size_t n) {
  return (n + kernel.nr - 1) / kernel.nr * kernel.nr * k;
}

void fgemm_pack_a(const FgemmKernel& kernel, size_t m, size_t k, const float* a, size_t row_step,
                  size_t column_step, size_t first, size_t last, float* packed) {
  for (size_t block = first; block < last; ++block) {
    const size_t i0 = block * kernel.mr, rows = std::min(kernel.mr, m - i0);
    float* out = packed + i0 * k;
    for (size_t i = 0; i < rows; ++i) {
      const float* row = a + (i0 + i) * row_step;
      for (size_t kk = 0; kk < k; ++kk) out[kk * rows + i] = row[kk * column_step];
    }
  }
}

void fgemm_pack_b(const FgemmKernel& kernel, size_t k, size_t n, const float* b, size_t row_step,
                  size_t column_step, size_t first, size_t last, float* packed) {
  const size_t nr = kernel.nr;
  for (size_t panel = first; panel < last; ++panel) {
    const size_t j0 = panel * nr, columns = std::min(nr, n - j0);
    float* out = packed + j0 * k;
    const float* in = b + j0 * column_step;
    if (column_step == 1) {
      for (size_t kk = 0; kk < k; ++kk) {
        for (size_t j = 0; j < columns; ++j) out[kk * nr + j] = in[kk * row_step + j];
        for (size_t j = columns; j < nr; ++j) out[kk * nr + j] = 0.0f;
      }
    } else {
      constexpr size_t kStrip = 16;  // whole cache lines of both sides
      for (size_t k0 = 0; k0 < k; k0 += kStrip) {
        const size_t k1 = std::min(k, k0 + kStrip);
        for (size_t j = 0; j < columns; ++j)
          for (size_t kk = k0; kk < k1; ++kk)
            out[kk * nr + j] = in[kk * row_step + j * column_step];
        for (size_t kk = k0; kk < k1; ++kk)
          for (size_t j = columns; j < nr; ++j) out[kk * nr + j] = 0.0f;
      }
    }
  }
}

void fgemm_run(const FgemmKernel& kernel, const FgemmParams& p) {
  const size_t blocks_at_once = std::max<size_t>(1, kRows / kernel.mr);
  FgemmTile tile{};
  tile.ld_c = p.ld_c;
  for (size_t block0 = p.first_block; block0 < p.last_block; block0 += blocks_at_once) {
    const size_t block1 = std::min(p.last_block, block0 + blocks_at_once);
    size_t k0 = 0;
    do {  // once even for K = 0, which leaves the biases
      const size_t k1 = std::min(p.k, k0 + kChain);
      tile.k = k1 - k0;
      tile.resume = k0 > 0;
      tile.finish = k1 == p.k;
      for (size_t panel = p.first_panel; panel < p.last_panel; ++panel) {
        const size_t j0 = panel * kernel.nr;
        tile.n = std::min(kernel.nr, p.n - j0);
        tile.b = p.b + j0 * p.k + k0 * kernel.nr;
        tile.column_bias = p.column_bias ? p.column_bias + j0 : nullptr;
        for (size_t block = block0; block < block1; ++block) {
          const size_t i0 = block * kernel.mr;
          tile.m = std::min(kernel.mr, p.m - i0);
          tile.a = p.a + i0 * p.k + k0 * tile.m;
          tile.c = p.c + i0 * p.ld_c + j0;
          tile.row_bias = p.row_bias ? p.row_bias + i0 : nullptr;
          kernel.tile(tile);
        }
      }
      k0 = k1;
    } while (k0 < p.k);
  }
}

}  // namespace wia
