// SPDX-License-Identifier: Apache-2.0
// Floats times one factor to uint8 in 512-bit vectors.
#include <immintrin.h>

#include "ops/qscale/qscale.h"

namespace wia {
namespace {

constexpr size_t kFloats = 16, kBytes = 64;

// Beyond +-512 every level is saturated: clipping there keeps the conversion in range.
void to_levels(size_t n, const float* e, float factor, int32_t zero_point, uint8_t* out) {
  const __m512 f = _mm512_set1_ps(factor);
  const __m512i zero = _mm512_set1_epi32(zero_point);
  for (size_t i = 0; i < n; i += kFloats) {
    const size_t left = n - i;
    const __mmask16 lanes = static_cast<__mmask16>(left >= kFloats ? 0xFFFFu : (1u << left) - 1u);
    const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, e + i), f);
    const __mmask16 number = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
    const __m512 near =
        _mm512_min_ps(_mm512_max_ps(value, _mm512_set1_ps(-512.0f)), _mm512_set1_ps(512.0f));
    const __m512i level =
        _mm512_add_epi32(_mm512_maskz_cvtps_epi32(number, near), zero);  // rhe: MXCSR's default
    const __m512i positive = _mm512_max_epi32(level, _mm512_setzero_si512());
    _mm512_mask_cvtusepi32_storeu_epi8(out + i, lanes, positive);
  }
}

uint8_t largest(size_t n, const uint8_t* x) {
  __m512i most = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += kBytes) {
    const size_t left = n - i;
    const __mmask64 lanes = left >= kBytes ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    most = _mm512_max_epu8(most, _mm512_maskz_loadu_epi8(lanes, x + i));
  }
  alignas(64) uint8_t lane[kBytes];
  const __m256i half =
      _mm256_max_epu8(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  const __m128i quarter =
      _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  _mm_store_si128(reinterpret_cast<__m128i*>(lane), quarter);
  uint8_t result = 0;
  for (size_t i = 0; i < 16; ++i) result = lane[i] > result ? lane[i] : result;
  return result;
}

float largest_float(size_t n, const float* x) {
  __m512 most = _mm512_set1_ps(-__builtin_inff());
  __mmask16 nan = 0;
  for (size_t i = 0; i < n; i += kFloats) {
    const size_t left = n - i;
    const __mmask16 lanes = static_cast<__mmask16>(left >= kFloats ? 0xFFFFu : (1u << left) - 1u);
    const __m512 v = _mm512_maskz_loadu_ps(lanes, x + i);
    most = _mm512_mask_max_ps(most, lanes, most, v);
    nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  }
  return nan ? __builtin_nanf("") : _mm512_reduce_max_ps(most);
}

}  // namespace

const QScale qscale_avx512vnni = {"qscale_avx512vnni", to_levels, largest, largest_float};

}  // namespace wia
