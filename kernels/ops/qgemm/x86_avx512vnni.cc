// SPDX-License-Identifier: Apache-2.0
// The VNNI GEMM in 512-bit registers (6 x 64, 8 x 48, 8 x 32, 8 x 16 tiles).
#include <immintrin.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

using V = __m512i;
using F = __m512;
constexpr size_t kLanes = 16, kMaxVectors = 4;
constexpr size_t kTileRows[4] = {8, 8, 8, 6};

inline V v_zero() { return _mm512_setzero_si512(); }
inline V v_load(const void* p) { return _mm512_loadu_si512(p); }
inline void v_store(void* p, V v) { _mm512_storeu_si512(p, v); }
inline F v_loadf(const float* p) { return _mm512_loadu_ps(p); }
inline V v_set32(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
inline V v_set16(int32_t x) { return _mm512_set1_epi16(static_cast<short>(x)); }
inline V v_set8(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline F v_setf(float x) { return _mm512_set1_ps(x); }
inline V v_dot(V acc, V a, V b) { return _mm512_dpbusd_epi32(acc, a, b); }
inline V v_add32(V a, V b) { return _mm512_add_epi32(a, b); }
inline V v_sub32(V a, V b) { return _mm512_sub_epi32(a, b); }
inline F v_float(V a) { return _mm512_cvtepi32_ps(a); }
inline V v_round(F a) { return _mm512_cvtps_epi32(a); }
inline F v_mulf(F a, F b) { return _mm512_mul_ps(a, b); }
inline F v_addf(F a, F b) { return _mm512_add_ps(a, b); }
inline F v_minf(F a, F b) { return _mm512_min_ps(a, b); }
inline V v_bits(F a) { return _mm512_castps_si512(a); }
inline V v_packs32(V a, V b) { return _mm512_packs_epi32(a, b); }
inline V v_packus16(V a, V b) { return _mm512_packus_epi16(a, b); }
inline V v_adds16(V a, V b) { return _mm512_adds_epi16(a, b); }
inline V v_max8(V a, V b) { return _mm512_max_epu8(a, b); }
// The packs work within 128-bit lanes: column order back from (lane, vector) to (vector, lane).
inline V v_gather_lanes(V a) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), a);
}
inline V v_widen8(V a, int v) {
  switch (v) {
    case 0: return _mm512_cvtepu8_epi32(_mm512_castsi512_si128(a));
    case 1: return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(a, 1));
    case 2: return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(a, 2));
    default: return _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(a, 3));
  }
}
inline void v_store_some32(void* p, V v, size_t n) {
  if (n >= kLanes) return _mm512_storeu_si512(p, v);
  _mm512_mask_storeu_epi32(p, static_cast<__mmask16>((1u << n) - 1), v);
}
template <size_t kBytes>
inline V v_load_some8(const uint8_t* p, size_t n) {
  return _mm512_maskz_loadu_epi8(~0ull >> (64 - (n < kBytes ? n : kBytes)), p);
}
template <size_t kBytes>
inline void v_store_some8(uint8_t* p, V v, size_t n) {
  if (n < kBytes) return _mm512_mask_storeu_epi8(p, ~0ull >> (64 - n), v);
  if constexpr (kBytes == 64) _mm512_storeu_si512(p, v);
  if constexpr (kBytes == 32 || kBytes == 48) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(v));
  }
  if constexpr (kBytes == 48) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 32), _mm512_extracti32x4_epi32(v, 2));
  }
  if constexpr (kBytes == 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_castsi512_si128(v));
}
// 256 levels as 128 words: vpermi2w looks a word up by the upper 7 bits, the lowest bit chooses its byte.
inline V v_table_words(const uint8_t* table, V index, V low_bit) {
  const V low = _mm512_permutex2var_epi16(v_load(table), index, v_load(table + 64));
  const V high = _mm512_permutex2var_epi16(v_load(table + 128), index, v_load(table + 192));
  const V word = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(index, _mm512_set1_epi16(64)), low, high);
  return _mm512_srlv_epi16(word, _mm512_slli_epi16(low_bit, 3));
}
inline V v_table(const uint8_t* table, V q) {
  const V one = _mm512_set1_epi16(1), byte = _mm512_set1_epi16(255);
  const V even = _mm512_and_si512(q, byte), odd = _mm512_srli_epi16(q, 8);
  const V a = v_table_words(table, _mm512_srli_epi16(even, 1), _mm512_and_si512(even, one));
  const V b = v_table_words(table, _mm512_srli_epi16(odd, 1), _mm512_and_si512(odd, one));
  return _mm512_or_si512(_mm512_and_si512(a, byte), _mm512_slli_epi16(b, 8));
}

#include "ops/qgemm/x86_vnni.inc"

}  // namespace

const QGemm qgemm_u8s8_avx512vnni = {"qgemm_u8s8_avx512vnni", kLanes, kMaxVectors, 4, 1, pack_panel, block};

}  // namespace wia
