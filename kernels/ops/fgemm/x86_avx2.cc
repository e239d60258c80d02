// SPDX-License-Identifier: Apache-2.0
// fgemm tiles of 6 rows by 16 columns in AVX2 and FMA; masks cut the last columns.
#include <immintrin.h>

#include "ops/fgemm/fgemm.h"

namespace wia {
namespace {

constexpr size_t kMr = 6, kNr = 16, kLanes = 8;

alignas(32) constexpr int32_t kMask[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                   0,  0,  0,  0,  0,  0,  0,  0};

template <size_t kM, size_t kVectors>
void tile(const FgemmTile& t) {
  __m256 acc[kM][kVectors];
  __m256i mask[kVectors];
#pragma GCC unroll 16
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t left = t.n - v * kLanes;
    mask[v] = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(kMask + (left >= kLanes ? 0 : kLanes - left)));
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i)
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v)
      acc[i][v] = t.resume ? _mm256_maskload_ps(t.c + i * t.ld_c + v * kLanes, mask[v])
                           : _mm256_setzero_ps();
  const float* a = t.a;
  const float* b = t.b;
  for (size_t k = 0; k < t.k; ++k) {
    __m256 bv[kVectors];
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) bv[v] = _mm256_loadu_ps(b + v * kLanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kM; ++i) {
      const __m256 av = _mm256_broadcast_ss(a + i);
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) acc[i][v] = _mm256_fmadd_ps(av, bv[v], acc[i][v]);
    }
    a += kM;
    b += kNr;
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      __m256 y = acc[i][v];
      if (t.finish && t.row_bias) y = _mm256_add_ps(y, _mm256_set1_ps(t.row_bias[i]));
      if (t.finish && t.column_bias)
        y = _mm256_add_ps(y, _mm256_maskload_ps(t.column_bias + v * kLanes, mask[v]));
      float* c = t.c + i * t.ld_c + v * kLanes;
      if (t.n >= (v + 1) * kLanes) {
        _mm256_storeu_ps(c, y);
      } else {
        _mm256_maskstore_ps(c, mask[v], y);
      }
    }
  }
}

using Tile = void (*)(const FgemmTile&);
constexpr Tile kTiles[kMr][2] = {
    {tile<1, 1>, tile<1, 2>}, {tile<2, 1>, tile<2, 2>}, {tile<3, 1>, tile<3, 2>},
    {tile<4, 1>, tile<4, 2>}, {tile<5, 1>, tile<5, 2>}, {tile<6, 1>, tile<6, 2>},
};

void tile_avx2(const FgemmTile& t) { kTiles[t.m - 1][t.n > kLanes](t); }

}  // namespace

extern const FgemmKernel fgemm_avx2;
const FgemmKernel fgemm_avx2 = {"fgemm_f32_avx2", kMr, kNr, tile_avx2};

}  // namespace wia
