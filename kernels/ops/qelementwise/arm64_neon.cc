// SPDX-License-Identifier: Apache-2.0
// The elementwise operators in NEON, 16 levels at a time.
#include <arm_neon.h>

#include "ops/qelementwise/qelementwise.h"

namespace wia {
namespace {

#include "ops/simd/arm64.inc"

size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

void quantize(const QQuantize& q, size_t n, const float* x, uint8_t* out) {
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t some = at_most(n - i, kLanes);
    Floats value = load_some_floats(x + i, some);
    // vcvtnq gives 0 for NaN: the zero point.
    for (int v = 0; v < 4; ++v) value.v[v] = vdivq_f32(value.v[v], vdupq_n_f32(q.scale));
    store_some8(out + i, veorq_u8(levels(value, q.zero_point, q.qmin, q.qmax), vdupq_n_u8(q.flip)),
                some);
  }
}

void dequantize(float scale, int32_t zero_point, uint8_t flip, size_t n, const uint8_t* x,
                float* out) {
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t some = at_most(n - i, kLanes);
    const uint8x16_t q = veorq_u8(load_some8(x + i, some), vdupq_n_u8(flip));
    store_some_floats(out + i, real_of(q, zero_point, scale), some);
  }
}

void table(const uint8_t* levels_of, size_t n, const uint8_t* x, uint8_t* out) {
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t some = at_most(n - i, kLanes);
    store_some8(out + i, look_up(levels_of, load_some8(x + i, some)), some);
  }
}

template <bool kMul>
void binary(const QBinary& q) {
  for (size_t row = 0; row < q.rows; ++row) {
    const uint8_t* a = q.a.data + row * q.a.stride_row;
    const uint8_t* b = q.b.data + row * q.b.stride_row;
    for (size_t i = 0; i < q.columns; i += kLanes) {
      const size_t some = at_most(q.columns - i, kLanes);
      const uint8x16_t qa = q.a.stride_column ? load_some8(a + i, some) : vdupq_n_u8(*a);
      const uint8x16_t qb = q.b.stride_column ? load_some8(b + i, some) : vdupq_n_u8(*b);
      // Mul: the product of two levels is below 2^17, exact in float.
      const Floats fa = real_of(qa, q.a.zero_point, kMul ? 1.0f : q.a_multiplier);
      const Floats fb = real_of(qb, q.b.zero_point, kMul ? 1.0f : q.b_multiplier);
      Floats value;
      for (int v = 0; v < 4; ++v) {
        value.v[v] = kMul ? vmulq_f32(vmulq_f32(fa.v[v], fb.v[v]), vdupq_n_f32(q.a_multiplier))
                          : vaddq_f32(fa.v[v], fb.v[v]);
      }
      uint8x16_t y = levels(value, q.zero_point, q.qmin, q.qmax);
      if (q.table) y = look_up(q.table, y);
      store_some8(q.out + row * q.ld_out + i, y, some);
    }
  }
}

void requantize(const QRequantize& q, const QEpilogue& e) {
  const size_t element = e.output == QOutput::kU8 ? 1 : 4;
  for (size_t row = 0; row < q.rows; ++row) {
    for (size_t i = 0; i < q.columns; i += kLanes) {
      const size_t some = at_most(q.columns - i, kLanes);
      Words acc = load_some_words(q.acc + row * q.ld_acc + i, some);
      if (q.bias) {
        const Words bias = load_some_words(q.bias + i, some);
        for (int v = 0; v < 4; ++v) acc.v[v] = vaddq_s32(acc.v[v], bias.v[v]);
      }
      float multiplier[kLanes] = {}, float_bias[kLanes] = {};
      if (e.output != QOutput::kI32) __builtin_memcpy(multiplier, q.multiplier + i, some * 4);
      if (q.float_bias) __builtin_memcpy(float_bias, q.float_bias + i, some * 4);
      finish_row(e, acc, multiplier, float_bias,
                 e.residual ? e.residual + row * e.ld_residual + i : nullptr,
                 static_cast<std::byte*>(q.out) + (row * q.ld_out + i) * element, some);
    }
  }
}

void interleave3(size_t n, const uint8_t* x, size_t plane, uint8_t* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint8x16x3_t pixels;
    for (size_t c = 0; c < 3; ++c) pixels.val[c] = vld1q_u8(x + c * plane + i);
    vst3q_u8(out + 3 * i, pixels);
  }
  for (; i < n; ++i)
    for (size_t c = 0; c < 3; ++c) out[3 * i + c] = x[c * plane + i];
}

}  // namespace

const QElementwise qelementwise_neon = {"qelementwise_neon", quantize,     dequantize, table,
                                        binary<false>,       binary<true>, requantize, interleave3};

}  // namespace wia
