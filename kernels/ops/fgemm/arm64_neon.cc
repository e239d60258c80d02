// SPDX-License-Identifier: Apache-2.0
// fgemm tiles of 8 rows by 8 columns in NEON; a copy on the stack takes the last columns.
#include <arm_neon.h>

#include "ops/fgemm/fgemm.h"

namespace wia {
namespace {

constexpr size_t kMr = 8, kNr = 8, kLanes = 4, kVectors = kNr / kLanes;

template <size_t kM>
void whole(const FgemmTile& t) {
  float32x4_t acc[kM][kVectors];
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i)
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v)
      acc[i][v] = t.resume ? vld1q_f32(t.c + i * t.ld_c + v * kLanes) : vdupq_n_f32(0.0f);
  const float* a = t.a;
  const float* b = t.b;
  for (size_t k = 0; k < t.k; ++k) {
    float32x4_t bv[kVectors];
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) bv[v] = vld1q_f32(b + v * kLanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kM; ++i)
#pragma GCC unroll 16
      for (size_t v = 0; v < kVectors; ++v) acc[i][v] = vfmaq_n_f32(acc[i][v], bv[v], a[i]);
    a += kM;
    b += kNr;
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kVectors; ++v) {
      float32x4_t y = acc[i][v];
      if (t.finish && t.row_bias) y = vaddq_f32(y, vdupq_n_f32(t.row_bias[i]));
      if (t.finish && t.column_bias) y = vaddq_f32(y, vld1q_f32(t.column_bias + v * kLanes));
      vst1q_f32(t.c + i * t.ld_c + v * kLanes, y);
    }
  }
}

template <size_t kM>
void tile(const FgemmTile& t) {
  if (t.n == kNr) return whole<kM>(t);
  float c[kM * kNr] = {}, column_bias[kNr] = {};
  FgemmTile padded = t;
  padded.c = c;
  padded.ld_c = kNr;
  if (t.column_bias) {
    for (size_t j = 0; j < t.n; ++j) column_bias[j] = t.column_bias[j];
    padded.column_bias = column_bias;
  }
  if (t.resume)
#pragma GCC unroll 16
    for (size_t i = 0; i < kM; ++i)
      for (size_t j = 0; j < t.n; ++j) c[i * kNr + j] = t.c[i * t.ld_c + j];
  whole<kM>(padded);
#pragma GCC unroll 16
  for (size_t i = 0; i < kM; ++i)
    for (size_t j = 0; j < t.n; ++j) t.c[i * t.ld_c + j] = c[i * kNr + j];
}

using Tile = void (*)(const FgemmTile&);
constexpr Tile kTiles[kMr] = {tile<1>, tile<2>, tile<3>, tile<4>,
                              tile<5>, tile<6>, tile<7>, tile<8>};

void tile_neon(const FgemmTile& t) { kTiles[t.m - 1](t); }

}  // namespace

extern const FgemmKernel fgemm_neon;
const FgemmKernel fgemm_neon = {"fgemm_f32_neon", kMr, kNr, tile_neon};

}  // namespace wia
