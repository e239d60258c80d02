// SPDX-License-Identifier: Apache-2.0
// float16, bfloat16, float8 and 4-bit conversions: round half to even, bit patterns in, float32 out
// and back.
#pragma once

#include <bit>
#include <cstdint>

namespace wia {

inline float half_to_float(uint16_t h) {
  // The exponent moves up by 112 through an exact multiply, which also normalises subnormals.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  uint32_t bits = std::bit_cast<uint32_t>(scaled);
  bits |= scaled >= 65536.0f ? 0x7f800000u : 0u;  // infinities and NaN
  return std::bit_cast<float>(bits | static_cast<uint32_t>(h & 0x8000u) << 16);
}

inline uint16_t float_to_half(float x) {
  const uint32_t all = std::bit_cast<uint32_t>(x);
  const uint32_t sign = all & 0x80000000u, a = all ^ sign;
  // Below 2^-14 an addition of 0.5 leaves the subnormal's bits at the bottom, rounded by the adder.
  const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const uint32_t special = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t bits = a >= 0x47800000u ? special : a < 0x38800000u ? tiny : normal;
  return static_cast<uint16_t>(bits | sign >> 16);
}

inline float bfloat16_to_float(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

inline uint16_t float_to_bfloat16(float x) {
  const uint32_t a = std::bit_cast<uint32_t>(x);
  const uint32_t nan = (a >> 16) | 0x40u;
  const uint32_t rounded = (a + 0x7fffu + ((a >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((a & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// A float32 that rounds to any narrower type as `x` itself would: inexact results get an odd last
// bit.
inline float to_odd_float(double x) {
  const float f = static_cast<float>(x);
  if (static_cast<double>(f) == x || x != x) return f;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (bits & 1u) return f;
  const double magnitude = x < 0 ? -x : x,
               rounded = f < 0 ? -static_cast<double>(f) : static_cast<double>(f);
  bits += rounded < magnitude ? 1u : ~0u;
  return std::bit_cast<float>(bits);
}

namespace detail {

// |x| to exponent and mantissa fields; the result may exceed the format's largest finite value.
template <int kMantissa, int kBias>
inline uint32_t round_magnitude(uint32_t a) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 - kBias + 1) << 23;
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 - kBias + 1 + kDrop) << 23;
  if (a < kMinNormal) {
    return std::bit_cast<uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(kMagic)) - kMagic;
  }
  return (a - kRebias + (1u << (kDrop - 1)) - 1u + ((a >> kDrop) & 1u)) >> kDrop;
}

template <int kMantissa, int kBias>
inline float expand(uint32_t magnitude) {
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(127 + 127 - kBias) << 23);
  return std::bit_cast<float>(magnitude << (23 - kMantissa)) * scale;
}

}  // namespace detail

// E4M3FN: no infinities, NaN is 0x7f, largest 448. Overflow saturates, or is NaN.
inline uint8_t float_to_e4m3(float x, bool saturate = true) {
  const uint32_t all = std::bit_cast<uint32_t>(x);
  const uint32_t a = all & 0x7fffffffu, sign = (all >> 24) & 0x80u;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  const uint32_t bits = a >= 0x7f800000u ? 0x7fu : detail::round_magnitude<3, 7>(a);
  return static_cast<uint8_t>(sign | (bits > 0x7eu ? (saturate ? 0x7eu : 0x7fu) : bits));
}

inline float e4m3_to_float(uint8_t v) {
  const uint32_t a = v & 0x7fu;
  const float magnitude = a == 0x7fu ? std::bit_cast<float>(0x7fc00000u) : detail::expand<3, 7>(a);
  return v & 0x80u ? -magnitude : magnitude;
}

// E5M2: infinities and NaN as in float16, largest 57344. Overflow saturates, or is infinite.
inline uint8_t float_to_e5m2(float x, bool saturate = true) {
  const uint32_t all = std::bit_cast<uint32_t>(x);
  const uint32_t a = all & 0x7fffffffu, sign = (all >> 24) & 0x80u;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  const uint32_t bits = a >= 0x7f800000u ? 0x7cu : detail::round_magnitude<2, 15>(a);
  return static_cast<uint8_t>(sign | (bits > 0x7bu ? (saturate ? 0x7bu : 0x7cu) : bits));
}

inline float e5m2_to_float(uint8_t v) { return half_to_float(static_cast<uint16_t>(v << 8)); }

// Element types of Tensors that hold these bits: they convert to and from float32 as numbers do.
struct Half {
  uint16_t bits;
  Half() = default;
  Half(float x) : bits(float_to_half(x)) {}
  operator float() const { return half_to_float(bits); }
};
struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BFloat16(float x) : bits(float_to_bfloat16(x)) {}
  operator float() const { return bfloat16_to_float(bits); }
};
struct Float8E4M3 {
  uint8_t bits;
  Float8E4M3() = default;
  Float8E4M3(float x) : bits(float_to_e4m3(x)) {}
  operator float() const { return e4m3_to_float(bits); }
};
struct Float8E5M2 {
  uint8_t bits;
  Float8E5M2() = default;
  Float8E5M2(float x) : bits(float_to_e5m2(x)) {}
  operator float() const { return e5m2_to_float(bits); }
};

}  // namespace wia
