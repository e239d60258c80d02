// SPDX-License-Identifier: Apache-2.0
// The definition of a tile: one fma chain per output.
#include <cmath>

#include "ops/fgemm/fgemm.h"

namespace wia {
namespace {

constexpr size_t kMr = 4, kNr = 16;

void tile_reference(const FgemmTile& t) {
  for (size_t i = 0; i < t.m; ++i) {
    for (size_t j = 0; j < t.n; ++j) {
      float acc = t.resume ? t.c[i * t.ld_c + j] : 0.0f;
      for (size_t k = 0; k < t.k; ++k) acc = std::fma(t.a[k * t.m + i], t.b[k * kNr + j], acc);
      if (t.finish && t.row_bias) acc += t.row_bias[i];
      if (t.finish && t.column_bias) acc += t.column_bias[j];
      t.c[i * t.ld_c + j] = acc;
    }
  }
}

}  // namespace

extern const FgemmKernel fgemm_reference;
const FgemmKernel fgemm_reference = {"fgemm_f32_reference", kMr, kNr, tile_reference};

}  // namespace wia
