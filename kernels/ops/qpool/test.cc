// SPDX-License-Identifier: Apache-2.0
// Every pooling kernel that this CPU can run against windows counted one pixel at a time.
#include <cmath>
#include <vector>

#include "ops/epilogue/epilogue.h"
#include "ops/fenced.h"
#include "ops/qpool/qpool.h"

namespace wia {
namespace {

std::vector<const QPoolKernel*> kernels() {
  std::vector<const QPoolKernel*> all;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) all.push_back(&name);
#include "ops/qpool/kernels.inc"
#undef WIA_KERNEL
  return all;
}

// The window of one output and channel: its maximum, the sum of its real levels, and how many
// pixels count.
void check(const QPool& p, Fill how = Fill::kRandom) {
  std::mt19937 random(static_cast<uint32_t>(p.channels * 31 + p.kernel_h + p.out_w));
  Fenced<uint8_t> x(p.batch * p.in_h * p.in_w * p.channels);
  fill(x.data(), x.size(), how, random, 0, 255);
  const size_t n = p.batch * p.out_h * p.out_w * p.channels;
  std::vector<uint8_t> largest(n), mean(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t c = i % p.channels, ox = i / p.channels % p.out_w,
                 oy = i / p.channels / p.out_w % p.out_h;
    const size_t image = i / p.channels / p.out_w / p.out_h;
    int best = -1, sum = 0, inside = 0, counted = 0;
    for (size_t kh = 0; kh < p.kernel_h; ++kh) {
      for (size_t kw = 0; kw < p.kernel_w; ++kw) {
        const ptrdiff_t iy =
            static_cast<ptrdiff_t>(oy * p.stride_h + kh * p.dilation_h) - p.pad_top;
        const ptrdiff_t ix =
            static_cast<ptrdiff_t>(ox * p.stride_w + kw * p.dilation_w) - p.pad_left;
        const ptrdiff_t in_h = static_cast<ptrdiff_t>(p.in_h),
                        in_w = static_cast<ptrdiff_t>(p.in_w);
        if (iy >= in_h + p.pad_bottom || ix >= in_w + p.pad_right) continue;
        if (p.count_include_pad) ++counted;
        if (iy < 0 || iy >= in_h || ix < 0 || ix >= in_w) continue;
        const size_t at =
            (image * p.in_h + static_cast<size_t>(iy)) * p.in_w + static_cast<size_t>(ix);
        const int level = x[at * p.channels + c];
        best = level > best ? level : best;
        sum += level - p.x_zero_point;
        ++inside;
        if (!p.count_include_pad) ++counted;
      }
    }
    largest[i] = static_cast<uint8_t>(best < 0 ? 0 : best);
    const float m = static_cast<float>(static_cast<double>(p.x_scale) /
                                       (counted * static_cast<double>(p.y_scale)));
    mean[i] = inside == 0 ? static_cast<uint8_t>(p.y_zero_point)
                          : requantize_value(static_cast<float>(sum) * m, p.y_zero_point, 0, 255);
  }
  Aligned scratch(qpool_scratch_bytes(p));
  for (const QPoolKernel* kernel : kernels()) {
    for (bool average : {false, true}) {
      Fenced<uint8_t> out(n);
      const size_t rows = p.batch * p.out_h;
      for (size_t row = 0; row < rows; row += 2) {
        (average ? qaveragepool_run : qmaxpool_run)(
            *kernel, p, x.data(), out.data(), scratch.data(), row, row + 2 < rows ? row + 2 : rows);
      }
      out.check();
      const std::vector<uint8_t>& want = average ? mean : largest;
      for (size_t i = 0; i < n; ++i) {
        if (out[i] == want[i]) continue;
        testing::fail_at(__FILE__, __LINE__, kernel->name, average ? " average" : " max",
                         ": element ", i, " is ", +out[i], ", not ", +want[i], "; channels ",
                         p.channels, " kernel ", p.kernel_h);
      }
    }
  }
}

QPool shape(size_t in, size_t channels, size_t kernel, size_t stride, ptrdiff_t pad, size_t out) {
  QPool p;
  p.batch = 2;
  p.in_h = p.in_w = in;
  p.channels = channels;
  p.out_h = p.out_w = out;
  p.kernel_h = p.kernel_w = kernel;
  p.stride_h = p.stride_w = stride;
  p.pad_top = p.pad_left = p.pad_bottom = p.pad_right = pad;
  p.x_scale = 0.02f;
  p.y_scale = 0.015f;
  p.x_zero_point = 50;
  p.y_zero_point = 40;
  return p;
}

TEST(channels_around_vector_widths) {
  for (size_t channels : {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 130})
    check(shape(7, channels, 3, 2, 1, 4));
}

TEST(pads_that_count_and_pads_of_ceil_mode_that_do_not) {
  QPool p = shape(6, 20, 3, 2, 1, 4);  // the last window reaches one pixel beyond the padding
  check(p);
  p.count_include_pad = true;
  check(p);
  p.dilation_h = p.dilation_w = 2;
  check(p);
}

TEST(global_pools_of_many_pixels) {
  for (size_t in : {7, 17, 40}) {
    QPool p = shape(in, 70, in, 1, 0, 1);
    check(p);
    check(p, Fill::kMax);
  }
}

TEST(a_window_outside_the_picture) { check(shape(2, 5, 1, 1, 2, 6)); }

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
