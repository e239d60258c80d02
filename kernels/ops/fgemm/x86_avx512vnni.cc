// SPDX-License-Identifier: Apache-2.0
// fgemm tiles of 12 rows by 32 columns in AVX-512; masks cut the last columns.
#include <immintrin.h>

#include "ops/fgemm/fgemm.h"

namespace wia {
namespace {

constexpr size_t kMr = 12, kNr = 32, kLanes = 16;

template <size_t kM, size_t kVectors>
void tile(const FgemmTile& t) {
  __m512 acc[kM][kVectors];
  __mmask16 mask[kVectors];
#pragma GCC unroll 16
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t left = t.n - v * kLanes;
    mask[v] =
        left >= kLanes ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << left) - 1u);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i)
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v)
      acc[i][v] = t.resume ? _mm512_maskz_loadu_ps(mask[v], t.c + i * t.ld_c + v * kLanes)
                           : _mm512_setzero_ps();
  const float* a = t.a;
  const float* b = t.b;
  for (size_t k = 0; k < t.k; ++k) {
    __m512 bv[kVectors];
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) bv[v] = _mm512_loadu_ps(b + v * kLanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kM; ++i) {
      const __m512 av = _mm512_set1_ps(a[i]);
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) acc[i][v] = _mm512_fmadd_ps(av, bv[v], acc[i][v]);
    }
    a += kM;
    b += kNr;
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      __m512 y = acc[i][v];
      if (t.finish && t.row_bias) y = _mm512_add_ps(y, _mm512_set1_ps(t.row_bias[i]));
      if (t.finish && t.column_bias)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask[v], t.column_bias + v * kLanes));
      _mm512_mask_storeu_ps(t.c + i * t.ld_c + v * kLanes, mask[v], y);
    }
  }
}

using Tile = void (*)(const FgemmTile&);
constexpr Tile kTiles[kMr][2] = {
    {tile<1, 1>, tile<1, 2>},   {tile<2, 1>, tile<2, 2>},   {tile<3, 1>, tile<3, 2>},
    {tile<4, 1>, tile<4, 2>},   {tile<5, 1>, tile<5, 2>},   {tile<6, 1>, tile<6, 2>},
    {tile<7, 1>, tile<7, 2>},   {tile<8, 1>, tile<8, 2>},   {tile<9, 1>, tile<9, 2>},
    {tile<10, 1>, tile<10, 2>}, {tile<11, 1>, tile<11, 2>}, {tile<12, 1>, tile<12, 2>},
};

void tile_avx512(const FgemmTile& t) { kTiles[t.m - 1][t.n > kLanes](t); }

}  // namespace

extern const FgemmKernel fgemm_avx512vnni;
const FgemmKernel fgemm_avx512vnni = {"fgemm_f32_avx512vnni", kMr, kNr, tile_avx512};

}  // namespace wia
