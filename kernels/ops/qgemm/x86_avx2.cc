// SPDX-License-Identifier: Apache-2.0
// The AVX2 GEMM (4 or 6 x 16 and 8 x 8 tiles). AVX2 has no exact u8 * s8 dot product: vpmaddubsw
// saturates the sum of two products to int16. So each panel takes the fastest of three ways that
// its weights allow, decided when it is packed from the same-sign sums of the weights that meet in
// one int16 (products of one sign bound every partial sum):
//
//   pair:   two vpmaddubsw added in int16, then vpmaddwd      exact if any 4 same-sign |w| * a_max
//   fit in int16 triple: vpmaddubsw, vpmaddwd                              exact if any 2 same-sign
//   |w| * a_max fit in int16 words:  vpmaddwd on weights widened to int16              always exact
#include <immintrin.h>

#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

#include "ops/simd/x86_256.inc"
//
#include "ops/simd/x86_epilogue.inc"
//
#include "ops/qgemm/x86_rows.inc"

constexpr size_t kMaxVectors = 2;

enum Way : int32_t { kPair, kTriple, kWords };

struct SameSign {
  int32_t positive = 0, negative = 0;
  void add(int8_t w) { (w > 0 ? positive : negative) += w; }
  bool fits(int32_t a_max) const { return positive * a_max <= 32767 && negative * a_max >= -32768; }
};

Way choose_way(const QGemmB& b, size_t width, const int8_t* w) {
  if (b.is_unsigned) return kWords;  // packed at run time: full-range levels, no time to look
  const size_t groups = (b.segment_k + 3) / 4;
  Way way = kPair;
  for (size_t s = 0; s < b.segments; ++s) {
    for (size_t g = 0; g < groups; g += 2) {
      const int8_t* first = w + (s * groups + g) * width * 4;
      const int8_t* second = g + 1 < groups ? first + width * 4 : nullptr;
      for (size_t i = 0; i < width * 4; i += 2) {
        SameSign both, one, other;
        one.add(first[i]);
        one.add(first[i + 1]);
        both = one;
        if (second) {
          other.add(second[i]);
          other.add(second[i + 1]);
          both.add(second[i]);
          both.add(second[i + 1]);
        }
        if (!both.fits(b.a_max)) way = kTriple;
        if (!one.fits(b.a_max) || !other.fits(b.a_max)) return kWords;
      }
    }
  }
  return way;
}

// (k0 k1 k2 k3) of 8 columns to int16: (k0 k2) of each, then (k1 k3) of each. In place, last group
// first.
void widen(size_t groups, size_t vectors, std::byte* weights) {
  for (size_t at = groups * vectors; at-- > 0;) {
    const V w = v_load(weights + at * kLanes * 4);
    v_store(weights + at * kLanes * 8, _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
    v_store(weights + at * kLanes * 8 + kLanes * 4, _mm256_srai_epi16(w, 8));
  }
}

void pack_panel(const QGemmB& b, size_t first, size_t vectors, std::byte* header,
                std::byte* weights, int32_t* sums) {
  pack_bytes(b, first, vectors, weights);
  const size_t groups = b.segments * ((b.segment_k + 3) / 4);
  for (size_t v = 0; v < vectors; ++v) {
    V sum = v_zero();
    for (size_t g = 0; g < groups; ++g) {
      const V w = v_load(weights + (g * vectors + v) * kLanes * 4);
      sum = v_add32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(v_set8(1), w), v_set16(1)));
    }
    v_store(sums + v * kLanes, sum);
  }
  const Way way = choose_way(b, vectors * kLanes, reinterpret_cast<const int8_t*>(weights));
  if (way == kWords) widen(groups, vectors, weights);
  __builtin_memcpy(header, &way, sizeof(way));
}

inline V four_bytes(const uint8_t* a) {
  uint32_t four;
  __builtin_memcpy(&four, a, 4);
  return v_set32(four);
}

// 4 bytes of K of all rows: x(r) holds those of row r in every 32 bits.
template <int MR, int NV, Way kWay, class Bytes>
inline __attribute__((always_inline)) void four_of_k(V (&acc)[MR][NV], const Bytes& x,
                                                     const std::byte* w) {
  if constexpr (kWay == kWords) {
    V even[NV], odd[NV];  // loaded once: loads, not products, would be the limit
    const V low = v_set16(255);
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      even[v] = v_load(w + v * kLanes * 8);
      odd[v] = v_load(w + v * kLanes * 8 + kLanes * 4);
    }
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const V four = x(r), x_even = v_and(four, low), x_odd = v_srl16(four, 8);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) {
        acc[r][v] = v_add32(acc[r][v], v_add32(_mm256_madd_epi16(x_even, even[v]),
                                               _mm256_madd_epi16(x_odd, odd[v])));
      }
    }
  } else {
    const V ones = v_set16(1);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const V four = x(r);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) {
        const V pairs = _mm256_maddubs_epi16(four, v_load(w + v * kLanes * 4));
        acc[r][v] = v_add32(acc[r][v], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
}

template <int MR, int NV, Way kWay>
void tile(const QGemmBlock& q, size_t row) {
  constexpr size_t kVector = kLanes * (kWay == kWords ? 8 : 4), kGroup = NV * kVector;
  const int32_t* bias = reinterpret_cast<const int32_t*>(q.panel);
  const std::byte* w = q.panel + NV * kLanes * 12 + 64;
  [[maybe_unused]] const V ones = v_set16(1);
  V acc[MR][NV];
#pragma GCC unroll 2
  for (int v = 0; v < NV; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) acc[r][v] = v_load(bias + v * kLanes);
  }
  const size_t whole = q.a_padded ? column_bytes_padded(q.segment_k) : q.segment_k / 4 * 4;
  for (size_t s = 0; s < q.segments; ++s) {
    const uint8_t* a[MR];
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) a[r] = q.a[s * kQGemmRows + row + r];
    size_t k = 0;
    if constexpr (kWay == kPair) {
      for (; k + 8 <= whole; k += 8) {
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
          const V x0 = four_bytes(a[r] + k), x1 = four_bytes(a[r] + k + 4);
#pragma GCC unroll 2
          for (int v = 0; v < NV; ++v) {
            const V sum = v_add16(_mm256_maddubs_epi16(x0, v_load(w + v * kVector)),
                                  _mm256_maddubs_epi16(x1, v_load(w + kGroup + v * kVector)));
            acc[r][v] = v_add32(acc[r][v], _mm256_madd_epi16(sum, ones));
          }
        }
        w += 2 * kGroup;
      }
    }
    for (; k < whole; k += 4) {
      four_of_k<MR, NV, kWay>(acc, [&](int r) { return four_bytes(a[r] + k); }, w);
      w += kGroup;
    }
    if (whole < q.segment_k) {
      const size_t rest = q.segment_k - whole;
      four_of_k<MR, NV, kWay>(
          acc, [&](int r) { return v_set32(last_bytes(a[r] + whole, rest)); }, w);
      w += kGroup;
    }
  }
  finish<MR, NV>(q, row, acc);
}

template <int NV, Way kWay>
void block_of(const QGemmBlock& q) {
  constexpr size_t kRows = NV == 1 ? 8 : kWay == kWords ? 4 : 6;
  for (size_t row = 0, left; row < q.n_rows;) {
    left = q.n_rows - row;
    const size_t tiles = (left + kRows - 1) / kRows, rows = (left + tiles - 1) / tiles;
    switch (rows) {
      case 1:
        tile<1, NV, kWay>(q, row);
        break;
      case 2:
        tile<2, NV, kWay>(q, row);
        break;
      case 3:
        tile<3, NV, kWay>(q, row);
        break;
      case 4:
        tile<4, NV, kWay>(q, row);
        break;
      case 5:
        if constexpr (kRows >= 5) tile<5, NV, kWay>(q, row);
        break;
      case 6:
        if constexpr (kRows >= 6) tile<6, NV, kWay>(q, row);
        break;
      case 7:
        if constexpr (kRows >= 7) tile<7, NV, kWay>(q, row);
        break;
      default:
        if constexpr (kRows >= 8) tile<8, NV, kWay>(q, row);
        break;
    }
    row += rows;
  }
}

template <int NV>
void block_by_way(const QGemmBlock& q) {
  Way way;
  __builtin_memcpy(&way, q.panel + NV * kLanes * 12, sizeof(way));
  switch (way) {
    case kPair:
      return block_of<NV, kPair>(q);
    case kTriple:
      return block_of<NV, kTriple>(q);
    default:
      return block_of<NV, kWords>(q);
  }
}

void block(const QGemmBlock& q) {
  return q.n_columns > kLanes ? block_by_way<2>(q) : block_by_way<1>(q);
}

}  // namespace

const QGemm qgemm_u8s8_avx2 = {"qgemm_u8s8_avx2", kLanes, kMaxVectors, 4,      2,
                               pack_panel,        block,  0,           look_up};

}  // namespace wia
