// SPDX-License-Identifier: Apache-2.0
// fmath: distance from float64, special values, and the same bits from every instruction set.
#include "ops/fmath/fmath.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/testing.h"

namespace wia {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const Fmath*> runnable() {
  struct Entry {
    uint32_t features;
    const Fmath* fmath;
  };
  const Entry all[] = {
#define WIA_KERNEL(features, name) {features, &name},
#include "ops/fmath/kernels.inc"
#undef WIA_KERNEL
  };
  std::vector<const Fmath*> found;
  for (const Entry& entry : all)
    if (cpu::supports(cpu::mask_for(""), entry.features)) found.push_back(entry.fmath);
  return found;
}

// Bit patterns spread over every finite float, a prime apart.
std::vector<float> all_floats(float lo, float hi) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (v >= lo && v <= hi) x.push_back(v);
  }
  return x;
}

// The distance in units of the last place of the float nearest to `exact`.
double ulps(float got, double exact) {
  const float nearest = static_cast<float>(exact);
  if (std::isinf(nearest) || std::isinf(got)) return got == nearest ? 0.0 : 1e9;
  const float magnitude = std::fabs(nearest);
  const float next = std::nextafter(magnitude, kInfinity);
  const double unit = std::isinf(next)
                          ? static_cast<double>(magnitude) - std::nextafter(magnitude, 0.0f)
                          : static_cast<double>(next) - magnitude;
  return std::fabs(static_cast<double>(got) - exact) / unit;
}

struct Accuracy {
  const char* name;
  Fmath::Unary Fmath::* function;
  double (*exact)(double);
  float lo, hi;
  double most;  // units of the last place; as measured, rounded up
};

const Accuracy kAccuracies[] = {
    {"exp", &Fmath::unaryExp, [](double x) { return std::exp(x); }, -110.0f, 90.0f, 0.9},
    {"log", &Fmath::unaryLog, [](double x) { return std::log(x); }, 0.0f, 3.4e38f, 0.8},
    {"tanh", &Fmath::unaryTanh, [](double x) { return std::tanh(x); }, -100.0f, 100.0f, 1.2},
    {"erf", &Fmath::unaryErf, [](double x) { return std::erf(x); }, -100.0f, 100.0f, 1.0},
    {"sigmoid", &Fmath::unarySigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, -85.0f,
     100.0f, 1.3},
    {"softplus", &Fmath::unarySoftplus,
     [](double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, -85.0f,
     100.0f, 2.0},
};

TEST(transcendentals_are_within_two_units_of_float64) {
  for (const Fmath* fmath : runnable())
    for (const Accuracy& a : kAccuracies) {
      const std::vector<float> x = all_floats(a.lo, a.hi);
      std::vector<float> y(x.size());
      (fmath->*a.function)(x.size(), x.data(), y.data(), 1.0f, 1.0f);
      double worst = 0;
      float where = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double off = ulps(y[i], a.exact(static_cast<double>(x[i])));
        if (off > worst) {
          worst = off;
          where = x[i];
        }
      }
      std::printf("%s %s: %.3f units at %a over %zu values\n", fmath->name, a.name, worst,
                  static_cast<double>(where), x.size());
      CHECK(worst <= a.most);
      CHECK(x.size() > 1000);
    }
}

float once(Fmath::Unary f, float x, float a = 1.0f, float b = 1.0f) {
  float y;
  f(1, &x, &y, a, b);
  return y;
}

TEST(special_values) {
  for (const Fmath* fmath : runnable()) {
    CHECK_EQ(once(fmath->unaryExp, -kInfinity), 0.0f);
    CHECK_EQ(once(fmath->unaryExp, kInfinity), kInfinity);
    CHECK_EQ(once(fmath->unaryExp, 0.0f), 1.0f);
    CHECK_EQ(once(fmath->unaryLog, 0.0f), -kInfinity);
    CHECK_EQ(once(fmath->unaryLog, kInfinity), kInfinity);
    CHECK(std::isnan(once(fmath->unaryLog, -1.0f)));
    CHECK_EQ(once(fmath->unaryLog, 1.0f), 0.0f);
    CHECK_EQ(once(fmath->unaryTanh, kInfinity), 1.0f);
    CHECK_EQ(once(fmath->unaryErf, -kInfinity), -1.0f);
    CHECK_EQ(once(fmath->unarySigmoid, -kInfinity), 0.0f);
    CHECK_EQ(once(fmath->unarySigmoid, kInfinity), 1.0f);
    CHECK(std::signbit(once(fmath->unaryTanh, -0.0f)));
    CHECK(std::signbit(once(fmath->unaryErf, -0.0f)));
    for (Fmath::Unary f :
         {fmath->unaryExp, fmath->unaryLog, fmath->unaryTanh, fmath->unaryErf, fmath->unarySigmoid,
          fmath->unaryRelu, fmath->unaryGelu, fmath->unarySwish, fmath->unaryMish, fmath->unaryElu,
          fmath->unarySoftplus, fmath->unaryClip, fmath->unaryHardSwish})
      CHECK(std::isnan(once(f, kNan)));
  }
}

// Every size around the vector widths, and values of every kind.
std::vector<float> mixed(size_t n, size_t seed) {
  const float special[] = {0.0f,    -0.0f, 1.0f,    -1.0f, 0.5f,  -0.65f, 1e-40f,
                           -1e-40f, 88.9f, -104.2f, 3.5f,  -2.5f, 1e30f,  -1e-20f};
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t h = static_cast<uint32_t>((i + seed) * 2654435761u);
    x[i] = h % 5 == 0 ? special[h / 5 % std::size(special)]
                      : std::ldexp(static_cast<float>(static_cast<int32_t>(h)) / 2147483648.0f,
                                   static_cast<int>(h / 7 % 9) - 3);
  }
  return x;
}

constexpr size_t kSizes[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1001};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(elementwise_functions_give_the_same_bits_everywhere) {
  for (const Fmath* fmath : runnable())
    for (size_t n : kSizes) {
      const std::vector<float> x = mixed(n, 1), z = mixed(n, 99);
      std::vector<float> y(n + 4, 7.5f), expected(n + 4, 7.5f);
#define WIA_COMPARE(f)                                                \
  fmath->unary##f(n, x.data(), y.data(), 0.3f, 0.7f);                 \
  fmath_reference.unary##f(n, x.data(), expected.data(), 0.3f, 0.7f); \
  if (!same(y, expected)) testing::fail_at(__FILE__, __LINE__, fmath->name, " " #f " of ", n);
      WIA_FMATH_UNARY(WIA_COMPARE)
#undef WIA_COMPARE
      for (size_t a_step : {0, 1})
        for (size_t b_step : {0, 1}) {
          if (n == 0) continue;
#define WIA_COMPARE(f)                                                               \
  fmath->binary##f(n, x.data(), a_step, z.data(), b_step, y.data());                 \
  fmath_reference.binary##f(n, x.data(), a_step, z.data(), b_step, expected.data()); \
  if (!same(y, expected)) testing::fail_at(__FILE__, __LINE__, fmath->name, " " #f " of ", n);
          WIA_FMATH_BINARY(WIA_COMPARE)
#undef WIA_COMPARE
        }
    }
}

TEST(writing_over_the_input_changes_nothing) {
  for (const Fmath* fmath : runnable())
    for (size_t n : kSizes) {
      const std::vector<float> x = mixed(n, 4);
      std::vector<float> y(n), over = x;
#define WIA_COMPARE(f)                                      \
  over = x;                                                 \
  fmath->unary##f(n, x.data(), y.data(), 0.3f, 0.7f);       \
  fmath->unary##f(n, over.data(), over.data(), 0.3f, 0.7f); \
  if (!same(y, over)) testing::fail_at(__FILE__, __LINE__, fmath->name, " " #f " of ", n);
      WIA_FMATH_UNARY(WIA_COMPARE)
#undef WIA_COMPARE
    }
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(row_functions_give_the_same_bits_everywhere) {
  for (const Fmath* fmath : runnable())
    for (size_t n : kSizes) {
      const std::vector<float> x = mixed(n, 11), scale = mixed(n, 12), bias = mixed(n, 13);
#define WIA_COMPARE(f) \
  CHECK(same_bits(fmath->reduce##f(n, x.data()), fmath_reference.reduce##f(n, x.data())));
      WIA_FMATH_REDUCE(WIA_COMPARE)
#undef WIA_COMPARE
      CHECK(same_bits(fmath->sum_centered(n, x.data(), 0.25f),
                      fmath_reference.sum_centered(n, x.data(), 0.25f)));
      std::vector<float> y(n + 4, 7.5f), expected(n + 4, 7.5f);
      const auto compare = [&](const char* what) {
        if (!same(y, expected))
          testing::fail_at(__FILE__, __LINE__, fmath->name, " ", what, " of ", n);
      };
      for (const float* s : {scale.data(), static_cast<const float*>(nullptr)})
        for (const float* b : {bias.data(), static_cast<const float*>(nullptr)}) {
          fmath->normalize(n, x.data(), 0.1f, 1.7f, s, b, y.data());
          fmath_reference.normalize(n, x.data(), 0.1f, 1.7f, s, b, expected.data());
          compare("normalize");
        }
      fmath->affine(n, x.data(), 0.7f, -0.2f, y.data());
      fmath_reference.affine(n, x.data(), 0.7f, -0.2f, expected.data());
      compare("affine");
      fmath->accumulate(n, x.data(), 0.7f, y.data());
      fmath_reference.accumulate(n, x.data(), 0.7f, expected.data());
      compare("accumulate");
      if (n == 0) continue;
      fmath->softmax(n, x.data(), y.data());
      fmath_reference.softmax(n, x.data(), expected.data());
      compare("softmax");
      fmath->log_softmax(n, x.data(), y.data());
      fmath_reference.log_softmax(n, x.data(), expected.data());
      compare("log_softmax");
    }
}

TEST(sixteen_partial_sums_in_the_documented_order) {
  for (size_t n : kSizes) {
    const std::vector<float> x = mixed(n, 21);
    float sums[16] = {};
    for (size_t i = 0; i < n; ++i) sums[i % 16] += x[i];
    for (size_t width = 8; width > 0; width /= 2)
      for (size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
    for (const Fmath* fmath : runnable()) CHECK(same_bits(fmath->reduceSum(n, x.data()), sums[0]));
  }
}

TEST(depthwise_is_one_chain_over_the_taps) {
  for (const Fmath* fmath : runnable())
    for (size_t kernel : {1, 2, 3, 5, 7})
      for (size_t stride : {1, 2, 3})
        for (size_t dilation : {1, 2})
          for (size_t out_w : {1, 7, 16, 33}) {
            const size_t out_h = 4, span = (kernel - 1) * dilation + 1;
            const size_t h = (out_h - 1) * stride + span, w = (out_w - 1) * stride + span;
            const std::vector<float> x = mixed(h * w, 31), filter = mixed(kernel * kernel, 32);
            std::vector<float> y(out_h * out_w + 8, 7.5f);
            DepthwisePlane p{};
            p.x = x.data();
            p.ld_x = w;
            p.filter = filter.data();
            p.kernel_h = p.kernel_w = kernel;
            p.stride_h = p.stride_w = stride;
            p.dilation_h = p.dilation_w = dilation;
            p.bias = 0.3f;
            p.y = y.data();
            p.out_h = out_h;
            p.out_w = out_w;
            fmath->depthwise(p);
            for (size_t oy = 0; oy < out_h; ++oy)
              for (size_t ox = 0; ox < out_w; ++ox) {
                float acc = 0;
                for (size_t ky = 0; ky < kernel; ++ky)
                  for (size_t kx = 0; kx < kernel; ++kx)
                    acc =
                        std::fma(x[(oy * stride + ky * dilation) * w + ox * stride + kx * dilation],
                                 filter[ky * kernel + kx], acc);
                CHECK(same_bits(y[oy * out_w + ox], acc + 0.3f));
              }
            for (size_t i = out_h * out_w; i < y.size(); ++i) CHECK_EQ(y[i], 7.5f);
          }
}

TEST(quantize_is_the_documented_rounding) {
  std::vector<float> x = mixed(1001, 41);
  x.insert(x.end(), {kNan, kInfinity, -kInfinity, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 1e38f});
  for (const Fmath* fmath : runnable())
    for (float scale : {1.0f, 0.1f, 3.0e-5f, 1e-30f})
      for (int32_t zero_point : {0, 3, 127}) {
        std::vector<uint8_t> u(x.size());
        std::vector<int8_t> s(x.size());
        std::vector<float> back(x.size());
        fmath->quantize_u8(x.size(), x.data(), scale, zero_point, u.data());
        fmath->quantize_s8(x.size(), x.data(), scale, zero_point, s.data());
        fmath->dequantize_s8(x.size(), s.data(), scale, zero_point, back.data());
        for (size_t i = 0; i < x.size(); ++i) {
          const float v = x[i] / scale;
          const double level =
              v != v ? zero_point : std::nearbyint(static_cast<double>(v)) + zero_point;
          CHECK_EQ(static_cast<double>(u[i]), std::fmin(std::fmax(level, 0.0), 255.0));
          CHECK_EQ(static_cast<double>(s[i]), std::fmin(std::fmax(level, -128.0), 127.0));
          CHECK(same_bits(back[i], static_cast<float>(s[i] - zero_point) * scale));
        }
      }
}

TEST(every_float16_survives_float32_and_back) {
  std::vector<uint16_t> h(65536), back(65536);
  std::vector<float> x(65536);
  for (size_t i = 0; i < h.size(); ++i) h[i] = static_cast<uint16_t>(i);
  for (const Fmath* fmath : runnable()) {
    fmath->half_to_float(h.size(), h.data(), x.data());
    fmath->float_to_half(h.size(), x.data(), back.data());
    for (size_t i = 0; i < h.size(); ++i) {
      const bool nan = (i & 0x7fff) > 0x7c00;
      CHECK(nan ? std::isnan(x[i]) && (back[i] & 0x7fff) > 0x7c00 : back[i] == h[i]);
      CHECK(nan || same_bits(x[i], half_to_float(h[i])));
    }
  }
}

TEST(float16_rounds_half_to_even) {
  // Between each two neighbours of float16: the middle goes to the even one, all else to the
  // nearer.
  for (uint32_t i = 0; i < 0x7bffu; ++i) {
    const float a = half_to_float(static_cast<uint16_t>(i)),
                b = half_to_float(static_cast<uint16_t>(i + 1));
    const float middle = a + (b - a) / 2;
    CHECK_EQ(float_to_half(middle), i % 2 == 0 ? i : i + 1);
    CHECK_EQ(float_to_half(std::nextafter(middle, 0.0f)), i);
    CHECK_EQ(float_to_half(std::nextafter(middle, kInfinity)), i + 1);
  }
  CHECK_EQ(float_to_half(65519.996f), 0x7bff);
  CHECK_EQ(float_to_half(65520.0f), 0x7c00);
}

TEST(bfloat16_rounds_half_to_even) {
  for (uint32_t i = 0; i < 0x7f7fu; i += 7) {
    const float a = bfloat16_to_float(static_cast<uint16_t>(i));
    const float middle = std::bit_cast<float>(std::bit_cast<uint32_t>(a) + 0x8000u);
    CHECK_EQ(float_to_bfloat16(a), i);
    CHECK_EQ(float_to_bfloat16(middle), i % 2 == 0 ? i : i + 1);
  }
  CHECK(std::isnan(bfloat16_to_float(float_to_bfloat16(kNan))));
}

TEST(float8_takes_the_nearest_value_and_saturates) {
  for (uint32_t i = 0; i < 0x7eu; ++i) {
    const float a = e4m3_to_float(static_cast<uint8_t>(i)),
                b = e4m3_to_float(static_cast<uint8_t>(i + 1));
    CHECK_EQ(float_to_e4m3(a), i);
    CHECK_EQ(float_to_e4m3(-a), i | 0x80u);
    CHECK_EQ(float_to_e4m3(a + (b - a) / 2), i % 2 == 0 ? i : i + 1);
  }
  for (uint32_t i = 0; i < 0x7bu; ++i) {
    const float a = e5m2_to_float(static_cast<uint8_t>(i)),
                b = e5m2_to_float(static_cast<uint8_t>(i + 1));
    CHECK_EQ(float_to_e5m2(a), i);
    CHECK_EQ(float_to_e5m2(a + (b - a) / 2), i % 2 == 0 ? i : i + 1);
  }
  CHECK_EQ(e4m3_to_float(float_to_e4m3(1e9f)), 448.0f);
  CHECK(std::isnan(e4m3_to_float(float_to_e4m3(1e9f, false))));
  CHECK_EQ(e5m2_to_float(float_to_e5m2(-1e9f)), -57344.0f);
  CHECK_EQ(e5m2_to_float(float_to_e5m2(1e9f, false)), kInfinity);
}

TEST(float64_to_float16_rounds_once) {
  // Just above a middle of float16, and so close that float32 rounds onto the middle.
  const double x = 1.0 + 0x1p-11 + 0x1p-40;
  CHECK_EQ(float_to_half(static_cast<float>(x)), 0x3c00);
  CHECK_EQ(float_to_half(to_odd_float(x)), 0x3c01);
  CHECK_EQ(float_to_half(to_odd_float(-x)), 0xbc01);
}

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
