// SPDX-License-Identifier: Apache-2.0
// Every elementwise kernel that this CPU can run gives the bytes of the reference, and the
// reference those of the text.
#include <cmath>
#include <limits>
#include <vector>

#include "ops/fenced.h"
#include "ops/qelementwise/qelementwise.h"

namespace wia {
namespace {

std::vector<const QElementwise*> kernels() {
  std::vector<const QElementwise*> all;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) all.push_back(&name);
#include "ops/qelementwise/kernels.inc"
#undef WIA_KERNEL
  return all;
}

const size_t kSizes[] = {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 200, 1000};

template <class T>
void same(const char* name, const char* what, size_t n, const Fenced<T>& got,
          const Fenced<T>& want) {
  got.check();
  if (std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  testing::fail_at(__FILE__, __LINE__, name, ": ", what, " of ", n, " differs from the reference");
}

TEST(three_planes_become_pixels) {
  std::mt19937 random(3);
  for (size_t n : kSizes) {
    Fenced<uint8_t> x(3 * n), want(3 * n);
    for (size_t i = 0; i < 3 * n; ++i) x[i] = static_cast<uint8_t>(random());
    qelementwise_reference.interleave3(n, x.data(), n, want.data());
    for (size_t i = 0; i < n; ++i)
      for (size_t c = 0; c < 3; ++c) CHECK_EQ(int{want[3 * i + c]}, int{x[c * n + i]});
    for (const QElementwise* kernel : kernels()) {
      Fenced<uint8_t> got(3 * n);
      kernel->interleave3(n, x.data(), n, got.data());
      same(kernel->name, "interleave3", n, got, want);
    }
  }
}

TEST(quantize_special_values_and_halves) {
  std::mt19937 random(7);
  const float inf = std::numeric_limits<float>::infinity();
  for (size_t n : kSizes) {
    Fenced<float> x(n);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (size_t i = 0; i < n; ++i) {
      const float special[] = {0.5f,          1.5f,  -0.5f,  2.5f,  inf,   -inf,
                               std::nanf(""), 3e38f, -3e38f, -0.0f, 1e-40f};
      x[i] = i % 3 == 0 ? special[i / 3 % 11] : normal(random);
    }
    for (float scale : {1.0f, 0.037f, 1e-38f, 3e38f}) {
      for (uint8_t flip : {uint8_t{0}, uint8_t{0x80}}) {
        for (int zero_point : {0, 128, 255}) {
          QQuantize q;
          q.scale = scale;
          q.zero_point = zero_point;
          q.qmin = flip ? 1 : 0;
          q.flip = flip;
          Fenced<uint8_t> want(n);
          qelementwise_reference.quantize(q, n, x.data(), want.data());
          for (const QElementwise* kernel : kernels()) {
            Fenced<uint8_t> got(n);
            kernel->quantize(q, n, x.data(), got.data());
            same(kernel->name, "quantize", n, got, want);
          }
        }
      }
    }
  }
}

TEST(quantize_rounds_halves_to_even_and_nan_to_the_zero_point) {
  const float x[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, std::nanf(""), 1e30f, -1e30f};
  const uint8_t want[] = {100, 102, 102, 100, 98, 100, 255, 0};
  QQuantize q;
  q.zero_point = 100;
  for (const QElementwise* kernel : kernels()) {
    uint8_t out[8];
    kernel->quantize(q, 8, x, out);
    for (size_t i = 0; i < 8; ++i) CHECK_EQ(out[i], want[i]);
  }
}

TEST(dequantize_and_table) {
  std::mt19937 random(8);
  for (size_t n : kSizes) {
    Fenced<uint8_t> x(n), levels(256), want(n);
    Fenced<float> real(n);
    fill(x.data(), n, Fill::kRandom, random, 0, 255);
    fill(levels.data(), 256, Fill::kRandom, random, 0, 255);
    qelementwise_reference.table(levels.data(), n, x.data(), want.data());
    for (uint8_t flip : {uint8_t{0}, uint8_t{0x80}}) {
      qelementwise_reference.dequantize(0.031f, 77, flip, n, x.data(), real.data());
      for (const QElementwise* kernel : kernels()) {
        Fenced<float> got(n);
        kernel->dequantize(0.031f, 77, flip, n, x.data(), got.data());
        same(kernel->name, "dequantize", n, got, real);
      }
    }
    for (const QElementwise* kernel : kernels()) {
      Fenced<uint8_t> got(n);
      kernel->table(levels.data(), n, x.data(), got.data());
      same(kernel->name, "table", n, got, want);
      kernel->table(levels.data(), n, got.data(), got.data());
      for (size_t i = 0; i < n; ++i) CHECK_EQ(got[i], levels[want[i]]);
    }
  }
}

TEST(a_table_of_every_level) {
  Fenced<uint8_t> x(256), levels(256);
  for (size_t i = 0; i < 256; ++i) {
    x[i] = static_cast<uint8_t>(i);
    levels[i] = static_cast<uint8_t>(i * 167 + 13);
  }
  for (const QElementwise* kernel : kernels()) {
    Fenced<uint8_t> got(256);
    kernel->table(levels.data(), 256, x.data(), got.data());
    for (size_t i = 0; i < 256; ++i) CHECK_EQ(got[i], levels[i]);
  }
}

enum class Repeat { kNone, kRow, kColumn, kScalar };

QOperand operand(const Fenced<uint8_t>& data, Repeat repeat, size_t columns, int32_t zero_point) {
  QOperand o;
  o.data = data.data();
  o.stride_row = repeat == Repeat::kNone ? columns : repeat == Repeat::kColumn ? 1 : 0;
  o.stride_column = repeat == Repeat::kNone || repeat == Repeat::kRow;
  o.zero_point = zero_point;
  return o;
}

size_t extent(Repeat repeat, size_t rows, size_t columns) {
  return repeat == Repeat::kNone     ? rows * columns
         : repeat == Repeat::kRow    ? columns
         : repeat == Repeat::kColumn ? rows
                                     : 1;
}

TEST(add_and_mul_with_repeated_operands) {
  std::mt19937 random(9);
  for (size_t columns : kSizes) {
    for (Repeat a_repeat : {Repeat::kNone, Repeat::kRow}) {
      for (Repeat b_repeat : {Repeat::kNone, Repeat::kRow, Repeat::kColumn, Repeat::kScalar}) {
        const size_t rows = 3;
        Fenced<uint8_t> a(extent(a_repeat, rows, columns)), b(extent(b_repeat, rows, columns)),
            levels(256);
        fill(a.data(), a.size(), Fill::kRandom, random, 0, 255);
        fill(b.data(), b.size(), Fill::kRandom, random, 0, 255);
        fill(levels.data(), 256, Fill::kRandom, random, 0, 255);
        QBinary q;
        q.rows = rows;
        q.columns = columns;
        q.a = operand(a, a_repeat, columns, 120);
        q.b = operand(b, b_repeat, columns, 33);
        q.zero_point = 90;
        q.ld_out = columns;
        for (bool mul : {false, true}) {
          for (const uint8_t* table :
               {static_cast<const uint8_t*>(nullptr), static_cast<const uint8_t*>(levels.data())}) {
            for (float scale : {0.5f, 40.0f, 1e20f}) {
              q.a_multiplier = mul ? scale / 70.0f : scale;
              q.b_multiplier = -0.75f * scale;
              q.table = table;
              q.qmin = table ? 10 : 0;
              q.qmax = table ? 200 : 255;
              Fenced<uint8_t> want(rows * columns);
              q.out = want.data();
              (mul ? qelementwise_reference.mul : qelementwise_reference.add)(q);
              for (const QElementwise* kernel : kernels()) {
                Fenced<uint8_t> got(rows * columns);
                q.out = got.data();
                (mul ? kernel->mul : kernel->add)(q);
                same(kernel->name, mul ? "mul" : "add", columns, got, want);
              }
            }
          }
        }
      }
    }
  }
}

TEST(requantize_accumulators) {
  std::mt19937 random(10);
  for (size_t columns : kSizes) {
    const size_t rows = 2;
    Fenced<int32_t> acc(rows * columns), bias(columns);
    Fenced<float> multiplier(columns), float_bias(columns);
    Fenced<uint8_t> other(rows * columns), levels(256);
    fill(acc.data(), acc.size(), Fill::kRandom, random, -2147483647, 2147483647);
    for (size_t i = 0; i < acc.size(); i += 2) acc[i] /= 100000;
    fill(bias.data(), columns, Fill::kRandom, random, -1000, 1000);
    fill(other.data(), other.size(), Fill::kRandom, random, 0, 255);
    fill(levels.data(), 256, Fill::kRandom, random, 0, 255);
    std::uniform_real_distribution<float> real(0.001f, 0.02f);
    for (size_t i = 0; i < columns; ++i) {
      multiplier[i] = real(random);
      float_bias[i] = real(random);
    }
    for (int kind = 0; kind < 5; ++kind) {
      QEpilogue e;
      e.zero_point = 111;
      e.output = kind == 3 ? QOutput::kF32 : kind == 4 ? QOutput::kI32 : QOutput::kU8;
      if (kind >= 1) e.table = levels.data();
      if (kind == 2) {
        e.residual = other.data();
        e.ld_residual = columns;
        e.sum_a_multiplier = 0.6f;
        e.sum_b_multiplier = 1.2f;
        e.sum_a_zero_point = 111;
        e.sum_b_zero_point = 20;
        e.sum_zero_point = 17;
        e.sum_table = levels.data();
      }
      const size_t element = e.output == QOutput::kU8 ? 1 : 4;
      QRequantize q;
      q.rows = rows;
      q.columns = columns;
      q.acc = acc.data();
      q.ld_acc = columns;
      q.bias = kind % 2 ? bias.data() : nullptr;
      q.multiplier = multiplier.data();
      q.float_bias = kind == 3 ? float_bias.data() : nullptr;
      q.ld_out = columns;
      Fenced<uint8_t> want(rows * columns * element);
      q.out = want.data();
      qelementwise_reference.requantize(q, e);
      for (const QElementwise* kernel : kernels()) {
        Fenced<uint8_t> got(rows * columns * element);
        q.out = got.data();
        kernel->requantize(q, e);
        same(kernel->name, "requantize", columns, got, want);
      }
    }
  }
}

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
