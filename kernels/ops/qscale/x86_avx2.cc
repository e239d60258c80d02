// SPDX-License-Identifier: Apache-2.0
// Floats times one factor to uint8 in 256-bit vectors.
#include <immintrin.h>

#include "ops/qscale/qscale.h"

namespace wia {
namespace {

constexpr size_t kFloats = 8, kBytes = 32;

// Eight levels, not yet saturated. Beyond +-512 every level is: clipping there keeps the conversion
// in range.
__m256i levels_of(const float* e, __m256 factor, __m256i zero_point) {
  const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(e), factor);
  const __m256 number = _mm256_cmp_ps(value, value, _CMP_ORD_Q);
  const __m256 near =
      _mm256_min_ps(_mm256_max_ps(value, _mm256_set1_ps(-512.0f)), _mm256_set1_ps(512.0f));
  const __m256i level = _mm256_cvtps_epi32(near);  // rhe: MXCSR's default
  return _mm256_add_epi32(_mm256_and_si256(level, _mm256_castps_si256(number)), zero_point);
}

void to_levels(size_t n, const float* e, float factor, int32_t zero_point, uint8_t* out) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256i zero = _mm256_set1_epi32(zero_point);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  size_t i = 0;
  for (; i + 4 * kFloats <= n; i += 4 * kFloats) {
    const __m256i a = _mm256_packs_epi32(levels_of(e + i, f, zero), levels_of(e + i + 8, f, zero));
    const __m256i b =
        _mm256_packs_epi32(levels_of(e + i + 16, f, zero), levels_of(e + i + 24, f, zero));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bytes);
  }
  if (i < n) qscale_reference.to_levels(n - i, e + i, factor, zero_point, out + i);
}

uint8_t largest(size_t n, const uint8_t* x) {
  __m256i most = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + kBytes <= n; i += kBytes)
    most = _mm256_max_epu8(most, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
  alignas(32) uint8_t lane[kBytes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane), most);
  uint8_t result = qscale_reference.largest(n - i, x + i);
  for (uint8_t v : lane) result = v > result ? v : result;
  return result;
}

float largest_float(size_t n, const float* x) {
  __m256 most = _mm256_set1_ps(-__builtin_inff());
  __m256 nan = _mm256_setzero_ps();
  size_t i = 0;
  for (; i + kFloats <= n; i += kFloats) {
    const __m256 v = _mm256_loadu_ps(x + i);
    most = _mm256_max_ps(most, v);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }
  if (_mm256_movemask_ps(nan)) return __builtin_nanf("");
  float result = qscale_reference.largest_float(n - i, x + i);
  alignas(32) float lane[kFloats];
  _mm256_store_ps(lane, most);
  for (float v : lane) result = v > result ? v : result;  // a NaN result stays
  return result;
}

}  // namespace

const QScale qscale_avx2 = {"qscale_avx2", to_levels, largest, largest_float};

}  // namespace wia
