// SPDX-License-Identifier: Apache-2.0
// Every GEMM kernel that this CPU can run gives the bytes of the definition, for any size, split, B
// and epilogue.
#include <vector>

#include "ops/fenced.h"
#include "ops/qgemm/qgemm.h"

namespace wia {
namespace {

struct Line {
  const char* name;
  const QGemm* kernel;
};

std::vector<Line> lines() {
  std::vector<Line> all;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) all.push_back({#name, &name});
#include "ops/qgemm/kernels.inc"
#undef WIA_KERNEL
  return all;
}

struct Problem {
  size_t m, k, n;
  Fill fill = Fill::kRandom;
  bool b_unsigned = false, b_by_column = false;
  int32_t a_zero_point = 3, b_zero_point = 0;
  int a_max = 255;
  int w_max = 127;
  float multiplier = 0.0f;  // 0: small ones, chosen at random
};

// The same sum written once more, from the definition of (7), on B as it was given.
struct Case {
  Problem p;
  size_t lda, ld_out;
  Fenced<uint8_t> a;
  Fenced<int8_t> b;
  std::vector<int32_t> bias, acc;
  std::vector<float> multiplier, float_bias;
  std::vector<uint8_t> residual, table;
  QGemmB described;

  explicit Case(const Problem& problem)
      : p(problem), lda(p.k + 5), ld_out(p.n + 3), a((p.m - 1) * lda + p.k), b(p.k * p.n) {
    std::mt19937 random(static_cast<uint32_t>(p.m * 1000003 + p.k * 1009 + p.n));
    fill(a.data(), a.size(), p.fill, random, 0, p.a_max);
    if (p.b_unsigned) {
      fill(reinterpret_cast<uint8_t*>(b.data()), b.size(), p.fill, random, 0, 255);
    } else {
      fill(b.data(), b.size(), p.fill, random, -p.w_max - (p.w_max == 127), p.w_max);
    }
    bias.resize(p.n);
    multiplier.resize(p.n);
    float_bias.resize(p.n);
    fill(bias.data(), p.n, Fill::kRandom, random, -100000, 100000);
    std::uniform_real_distribution<float> real(0.2f, 1.8f);
    const float unit = 1.0f / (40.0f * static_cast<float>(p.k + 1));
    for (size_t i = 0; i < p.n; ++i) {
      multiplier[i] = p.multiplier != 0.0f ? p.multiplier : unit * real(random);
      float_bias[i] = real(random);
    }
    residual.resize(p.m * ld_out);
    fill(residual.data(), residual.size(), Fill::kRandom, random, 0, 255);
    table.resize(256);
    fill(table.data(), 256, Fill::kRandom, random, 0, 255);
    described.data = b.data();
    described.is_unsigned = p.b_unsigned;
    described.zero_point = p.b_zero_point;
    described.segment_k = p.k;
    described.n = p.n;
    described.stride_k = p.b_by_column ? 1 : static_cast<ptrdiff_t>(p.n);
    described.stride_n = p.b_by_column ? static_cast<ptrdiff_t>(p.k) : 1;
    described.a_zero_point = p.a_zero_point;
    described.a_max = static_cast<uint8_t>(p.a_max);
    described.bias = bias.data();
    described.multiplier = multiplier.data();
    described.float_bias = float_bias.data();
    acc.resize(p.m * p.n);
    for (size_t m = 0; m < p.m; ++m) {
      for (size_t n = 0; n < p.n; ++n) {
        int64_t sum = bias[n];
        for (size_t k = 0; k < p.k; ++k) {
          const size_t at = p.b_by_column ? n * p.k + k : k * p.n + n;
          const int32_t w = p.b_unsigned ? static_cast<uint8_t>(b[at]) : b[at];
          sum += static_cast<int64_t>(a[m * lda + k] - p.a_zero_point) * (w - p.b_zero_point);
        }
        acc[m * p.n + n] = static_cast<int32_t>(sum);
      }
    }
  }
};

size_t element_of(const QEpilogue& e) { return e.output == QOutput::kU8 ? 1 : 4; }

std::vector<std::pair<const char*, QEpilogue>> epilogues(const Case& c) {
  QEpilogue plain;
  plain.zero_point = 117;
  QEpilogue relu = plain;
  relu.qmin = 117;
  relu.qmax = 230;
  QEpilogue table = relu;
  table.table = c.table.data();
  QEpilogue residual = plain;
  residual.residual = c.residual.data();
  residual.ld_residual = c.ld_out;
  residual.sum_a_zero_point = 121;
  residual.sum_b_zero_point = 90;
  residual.sum_zero_point = 40;
  residual.sum_a_multiplier = 0.7f;
  residual.sum_b_multiplier = 0.9f;
  residual.sum_qmin = 40;
  residual.sum_qmax = 250;
  QEpilogue both = residual;
  both.table = c.table.data();
  both.sum_table = c.table.data();
  QEpilogue f32;
  f32.output = QOutput::kF32;
  QEpilogue i32;
  i32.output = QOutput::kI32;
  return {{"plain", plain}, {"relu", relu}, {"table", table}, {"residual", residual},
          {"both", both},   {"f32", f32},   {"i32", i32}};
}

void check_kernel(const Line& line, const Case& c, const char* name, const QEpilogue& e,
                  bool split) {
  const Problem& p = c.p;
  const QGemm& kernel = *line.kernel;
  const size_t element = element_of(e), panels = qgemm_panels(kernel, p.n);
  Aligned packed(qgemm_packed_bytes(kernel, 1, p.k, p.n));
  qgemm_pack(kernel, c.described, packed.data());
  Fenced<std::byte> out(((p.m - 1) * c.ld_out + p.n) * element);
  std::memset(out.data(), 0x5A, out.size());
  QGemmRun run;
  run.packed = packed.data();
  run.k = p.k;
  run.n = p.n;
  run.b_zero_point = p.b_zero_point;
  run.b_is_unsigned = p.b_unsigned;
  run.a = c.a.data();
  run.lda = c.lda;
  run.out = out.data();
  run.ld_out = c.ld_out;
  run.row_end = p.m;
  if (split) {
    for (size_t panel = panels; panel-- > 0;) {
      for (size_t row = 0; row < p.m; row += 5) {
        run.row_begin = row;
        run.row_end = row + 5 < p.m ? row + 5 : p.m;
        run.panel_begin = panel;
        run.panel_end = panel + 1;
        qgemm_run(kernel, run, e);
      }
    }
  } else {
    qgemm_run(kernel, run, e);
  }
  out.check();
  std::vector<std::byte> want((p.n + 1) * element);
  for (size_t m = 0; m < p.m; ++m) {
    epilogue_reference(e, p.n, &c.acc[m * p.n], c.multiplier.data(), c.float_bias.data(),
                       e.residual ? e.residual + m * e.ld_residual : nullptr, want.data());
    const std::byte* got = out.data() + m * c.ld_out * element;
    for (size_t i = 0; i < p.n * element; ++i) {
      if (got[i] == want[i]) continue;
      testing::fail_at(__FILE__, __LINE__, line.name, " ", name, " m ", p.m, " k ", p.k, " n ", p.n,
                       ": row ", m, " column ", i / element, " byte is ", static_cast<int>(got[i]),
                       ", not ", static_cast<int>(want[i]));
    }
    for (size_t i = p.n * element; m + 1 < p.m && i < c.ld_out * element; ++i) {
      if (got[i] != std::byte{0x5A})
        testing::fail_at(__FILE__, __LINE__, line.name, " wrote between rows");
    }
  }
}

void check(const Problem& problem) {
  const Case c(problem);
  for (const Line& line : lines()) {
    for (const auto& [name, e] : epilogues(c)) {
      check_kernel(line, c, name, e, false);
      check_kernel(line, c, name, e, true);
    }
  }
}

TEST(sizes_around_vector_widths) {
  for (size_t n : {1, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 80, 97, 130}) {
    for (size_t k : {1, 3, 4, 5, 8, 17, 32}) check({.m = 7, .k = k, .n = n});
  }
}

TEST(rows_around_tile_heights) {
  for (size_t m = 1; m <= 26; ++m) {
    check({.m = m, .k = 20, .n = 16});
    check({.m = m, .k = 20, .n = 32});
    check({.m = m, .k = 21, .n = 48});
    check({.m = m, .k = 22, .n = 72});
  }
  for (size_t m : {95, 96, 97, 200}) check({.m = m, .k = 36, .n = 40});
}

TEST(long_sums) {
  check({.m = 5, .k = 2048, .n = 24});
  check({.m = 2, .k = 4099, .n = 70});
}

TEST(extremes_do_not_saturate) {
  for (Fill how : {Fill::kExtremes, Fill::kMax}) {
    for (size_t k : {2, 4, 8, 33, 260}) {
      check({.m = 9, .k = k, .n = 50, .fill = how, .a_zero_point = 0});
      check({.m = 9, .k = k, .n = 50, .fill = how, .a_zero_point = 255, .w_max = 63});
      check({.m = 9, .k = k, .n = 50, .fill = how, .a_zero_point = 128, .w_max = 64});
      check({.m = 9, .k = k, .n = 50, .fill = how, .a_max = 127});
    }
  }
}

TEST(small_weights_take_the_fast_paths_and_stay_exact) {
  for (int w_max : {1, 7, 31, 32, 63}) {
    for (size_t k : {4, 12, 64, 100, 257}) check({.m = 6, .k = k, .n = 33, .w_max = w_max});
    for (size_t k : {4, 12, 64, 100})
      check({.m = 6, .k = k, .n = 33, .a_max = 127, .w_max = w_max});
  }
}

TEST(products_of_two_activations) {
  for (bool by_column : {false, true}) {
    for (size_t n : {1, 16, 33, 64, 128}) {
      for (size_t k : {1, 7, 32, 64, 65, 128}) {
        check({.m = 5,
               .k = k,
               .n = n,
               .b_unsigned = true,
               .b_by_column = by_column,
               .b_zero_point = 131});
        check({.m = 5,
               .k = k,
               .n = n,
               .fill = Fill::kExtremes,
               .b_unsigned = true,
               .b_by_column = by_column,
               .b_zero_point = 0});
        check({.m = 3, .k = k, .n = n, .b_by_column = by_column, .b_zero_point = -7});
      }
    }
  }
}

TEST(products_beyond_int32_saturate) {
  for (float multiplier : {0.99999f, 1.0f, -1.0f, 3.0f, 1e6f, 1e29f, -1e29f}) {
    check({.m = 9, .k = 64, .n = 70, .multiplier = multiplier});
    check({.m = 1, .k = 5, .n = 7, .multiplier = multiplier});
  }
}

TEST(an_empty_product_is_the_bias) { check({.m = 4, .k = 0, .n = 20}); }

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
