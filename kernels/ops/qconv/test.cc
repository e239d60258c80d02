// SPDX-License-Identifier: Apache-2.0
// Convolution through every GEMM kernel against the direct sum: shapes, pads, strides, groups,
// splits, transposed.
#include <vector>

#include "ops/fenced.h"
#include "ops/qconv/qconv.h"

namespace wia {
namespace {

std::vector<const QGemm*> kernels() {
  std::vector<const QGemm*> all;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) all.push_back(&name);
#include "ops/qgemm/kernels.inc"
#undef WIA_KERNEL
  return all;
}

void check(const QConv& c, bool transposed, bool residual = false) {
  std::mt19937 random(static_cast<uint32_t>(c.in_c * 31 + c.out_c * 7 + c.kernel_h + c.out_w));
  const size_t in_group = c.in_c / c.groups, out_group = c.out_c / c.groups,
               taps = c.kernel_h * c.kernel_w;
  Fenced<uint8_t> x(c.batch * c.in_h * c.in_w * c.in_c);
  std::vector<int8_t> w(taps * c.in_c * out_group);
  std::vector<int32_t> bias(c.out_c);
  std::vector<float> multiplier(c.out_c);
  fill(x.data(), x.size(), Fill::kRandom, random, 0, 255);
  fill(w.data(), w.size(), Fill::kRandom, random, -127, 127);
  fill(bias.data(), bias.size(), Fill::kRandom, random, -9000, 9000);
  std::uniform_real_distribution<float> real(0.2f, 1.8f);
  for (float& m : multiplier) m = real(random) / (30.0f * static_cast<float>(taps * in_group + 1));
  QConvWeights weights;
  weights.data = w.data();
  const auto s = [](size_t n) { return static_cast<ptrdiff_t>(n); };
  if (transposed) {  // ONNX: [I][O / group][kh][kw]
    weights.stride_i = s(out_group * taps);
    weights.stride_group = s(in_group * out_group * taps);
    weights.stride_o = s(taps);
    weights.stride_h = s(c.kernel_w);
    weights.stride_w = 1;
  } else if (c.in_c % 2) {  // ONNX: [O][I / group][kh][kw]
    weights.stride_o = s(in_group * taps);
    weights.stride_i = s(taps);
    weights.stride_h = s(c.kernel_w);
    weights.stride_w = 1;
  } else {  // [O][kh][kw][I / group]
    weights.stride_o = s(in_group * taps);
    weights.stride_h = s(c.kernel_w * in_group);
    weights.stride_w = s(in_group);
    weights.stride_i = 1;
  }
  weights.bias = bias.data();
  weights.multiplier = multiplier.data();
  weights.x_zero_point = 121;
  const size_t pixels = c.batch * c.out_h * c.out_w;
  std::vector<uint8_t> other(pixels * c.out_c), want(pixels * c.out_c);
  fill(other.data(), other.size(), Fill::kRandom, random, 0, 255);
  QEpilogue e;
  e.zero_point = 100;
  if (residual) {
    e.residual = other.data();
    e.ld_residual = c.out_c;
    e.sum_a_zero_point = 100;
    e.sum_b_zero_point = 80;
    e.sum_zero_point = 60;
    e.sum_a_multiplier = 0.8f;
    e.sum_b_multiplier = 0.6f;
    e.sum_qmin = 60;
  }
  (transposed ? qconv_transpose_reference : qconv_reference)(c, weights, x.data(), e, want.data());
  for (const QGemm* kernel : kernels()) {
    Aligned packed(transposed ? qconv_transpose_packed_bytes(*kernel, c)
                              : qconv_packed_bytes(*kernel, c));
    Aligned scratch(transposed ? qconv_transpose_scratch_bytes(*kernel, c)
                               : qconv_scratch_bytes(*kernel, c));
    (transposed ? qconv_transpose_pack : qconv_pack)(*kernel, c, weights, packed.data());
    for (size_t piece : {size_t{1000000}, size_t{13}}) {
      Fenced<uint8_t> out(pixels * c.out_c);
      QConvRun run;
      run.packed = packed.data();
      run.x = x.data();
      run.x_zero_point = 121;
      run.out = out.data();
      run.scratch = scratch.data();
      const size_t end = transposed ? c.batch * c.out_h : pixels;
      for (size_t at = 0; at < end; at += piece) {
        run.pixel_begin = at;
        run.pixel_end = at + piece < end ? at + piece : end;
        if (transposed) {
          qconv_transpose_run(*kernel, c, run, e);
          continue;
        }
        for (size_t panel = 0; panel < qconv_panels(*kernel, c); panel += 2) {
          run.panel_begin = panel;
          run.panel_end = panel + 2;
          qconv_run(*kernel, c, run, e);
        }
      }
      out.check();
      for (size_t i = 0; i < want.size(); ++i) {
        if (out[i] == want[i]) continue;
        testing::fail_at(__FILE__, __LINE__, kernel->name, ": pixel ", i / c.out_c, " channel ",
                         i % c.out_c, " is ", +out[i], ", not ", +want[i], "; in_c ", c.in_c,
                         " out_c ", c.out_c, " kernel ", c.kernel_h, "x", c.kernel_w, " stride ",
                         c.stride_h, " dilation ", c.dilation_h, " groups ", c.groups,
                         transposed ? " transposed" : "");
      }
    }
  }
}

QConv shape(size_t in_h, size_t in_w, size_t in_c, size_t out_c, size_t kernel, size_t stride,
            ptrdiff_t pad, size_t dilation = 1, size_t groups = 1, size_t batch = 1) {
  QConv c;
  c.batch = batch;
  c.in_h = in_h;
  c.in_w = in_w;
  c.in_c = in_c;
  c.out_c = out_c;
  c.groups = groups;
  c.kernel_h = c.kernel_w = kernel;
  c.stride_h = c.stride_w = stride;
  c.dilation_h = c.dilation_w = dilation;
  c.pad_top = c.pad_left = pad;
  const size_t reach = (kernel - 1) * dilation + 1;
  c.out_h = (in_h + 2 * static_cast<size_t>(pad) - reach) / stride + 1;
  c.out_w = (in_w + 2 * static_cast<size_t>(pad) - reach) / stride + 1;
  return c;
}

TEST(pointwise) {
  check(shape(9, 13, 16, 24, 1, 1, 0), false);
  check(shape(9, 13, 19, 70, 1, 1, 0), false, true);
  check(shape(8, 8, 16, 24, 1, 2, 0, 1, 1, 2), false);
}

TEST(three_by_three) {
  check(shape(10, 11, 16, 24, 3, 1, 1), false);
  check(shape(10, 11, 20, 40, 3, 2, 1, 1, 1, 3), false, true);
  check(shape(12, 11, 16, 8, 3, 1, 2, 2), false);
  check(shape(5, 5, 18, 33, 3, 1, 1), false);
}

TEST(stems_of_few_channels) {
  check(shape(30, 30, 3, 64, 7, 2, 3), false);
  check(shape(21, 23, 3, 32, 3, 2, 1, 1, 1, 2), false);
  check(shape(15, 230, 1, 20, 5, 1, 2), false);
  check(shape(9, 9, 4, 16, 3, 1, 1), false);
  check(shape(9, 9, 3, 16, 3, 1, 2, 2), false);
}

TEST(a_kernel_larger_than_the_picture) {
  check(shape(3, 3, 3, 16, 7, 1, 3), false);
  check(shape(2, 2, 16, 16, 5, 1, 2), false);
}

TEST(groups) {
  check(shape(7, 7, 32, 32, 3, 1, 1, 1, 4), false);
  check(shape(7, 7, 12, 24, 3, 1, 1, 1, 4), false, true);
  check(shape(7, 7, 6, 12, 1, 1, 0, 1, 6), false);
  check(shape(7, 7, 128, 128, 1, 1, 0, 1, 1), false, true);
}

TEST(unequal_axes_and_negative_pads) {
  QConv c = shape(12, 14, 8, 24, 3, 1, 0);
  c.kernel_h = 1;
  c.kernel_w = 5;
  c.stride_w = 2;
  c.pad_left = -1;
  c.pad_top = 1;
  c.out_h = 15;
  c.out_w = 6;
  check(c, false);
}

TEST(transposed) {
  for (size_t stride : {1, 2, 3}) {
    for (size_t kernel : {1, 2, 3, 4}) {
      for (size_t dilation : {1, 2, 3}) {
        QConv c;
        c.in_h = 4;
        c.in_w = 5;
        c.in_c = 12;
        c.out_c = 20;
        c.kernel_h = kernel;
        c.kernel_w = kernel;
        c.stride_h = stride;
        c.stride_w = stride;
        c.dilation_h = c.dilation_w = dilation;
        c.pad_top = c.pad_left = kernel > 1 ? 1 : 0;
        const ptrdiff_t full = static_cast<ptrdiff_t>((kernel - 1) * dilation + 1) - 2 * c.pad_top;
        c.out_h = static_cast<size_t>(static_cast<ptrdiff_t>((c.in_h - 1) * stride) + full);
        c.out_w = static_cast<size_t>(static_cast<ptrdiff_t>((c.in_w - 1) * stride) + full) +
                  (stride > 1);
        check(c, true, stride == 2);
        c.groups = 4;
        c.batch = 2;
        check(c, true);
      }
    }
  }
}

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
