// SPDX-License-Identifier: Apache-2.0
// Every depthwise kernel that this CPU can run against the direct sum: channels, taps, strides,
// pads, epilogues, splits.
#include <vector>

#include "ops/fenced.h"
#include "ops/qdepthwise/qdepthwise.h"

namespace wia {
namespace {

std::vector<const QDepthwise*> kernels() {
  std::vector<const QDepthwise*> all;
  const uint32_t isa = cpu::detect();
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) all.push_back(&name);
#include "ops/qdepthwise/kernels.inc"
#undef WIA_KERNEL
  return all;
}

enum class Kind { kPlain, kResidual, kTables, kTable, kF32, kI32, kBeyondInt32 };

void check(const QConv& c, Kind kind = Kind::kPlain, Fill how = Fill::kRandom) {
  std::mt19937 random(static_cast<uint32_t>(c.in_c * 31 + c.kernel_h + c.out_w));
  const size_t taps = c.kernel_h * c.kernel_w, pixels = c.batch * c.out_h * c.out_w;
  Fenced<uint8_t> x(c.batch * c.in_h * c.in_w * c.in_c);
  std::vector<int8_t> w(taps * c.in_c);
  std::vector<int32_t> bias(c.out_c);
  std::vector<float> multiplier(c.out_c), float_bias(c.out_c);
  fill(x.data(), x.size(), how, random, 0, 255);
  fill(w.data(), w.size(), how, random, -128, 127);
  fill(bias.data(), bias.size(), Fill::kRandom, random, -3000, 3000);
  std::uniform_real_distribution<float> real(0.2f, 1.8f);
  for (float& m : multiplier) m = real(random) / (60.0f * static_cast<float>(taps));
  if (kind == Kind::kBeyondInt32) multiplier[c.out_c / 2] = 1e20f;
  for (float& b : float_bias) b = real(random);
  QConvWeights weights;
  weights.data = w.data();
  weights.stride_o = static_cast<ptrdiff_t>(taps);
  weights.stride_h = static_cast<ptrdiff_t>(c.kernel_w);
  weights.stride_w = 1;
  weights.stride_i = 1;
  weights.bias = bias.data();
  weights.multiplier = multiplier.data();
  weights.float_bias = float_bias.data();
  weights.x_zero_point = 131;
  Fenced<uint8_t> other(pixels * c.out_c);
  fill(other.data(), other.size(), Fill::kRandom, random, 0, 255);
  std::vector<uint8_t> table(256);
  fill(table.data(), 256, Fill::kRandom, random, 0, 255);
  QEpilogue e;
  e.zero_point = 100;
  e.qmin = 70;
  e.qmax = 240;
  if (kind == Kind::kResidual || kind == Kind::kTables) {
    e.residual = other.data();
    e.ld_residual = c.out_c;
    e.sum_a_zero_point = 100;
    e.sum_b_zero_point = 80;
    e.sum_zero_point = 60;
    e.sum_a_multiplier = 0.8f;
    e.sum_b_multiplier = 0.6f;
    e.sum_qmin = 60;
  }
  if (kind == Kind::kTables) e.table = e.sum_table = table.data();
  if (kind == Kind::kTable) e.table = table.data();
  if (kind == Kind::kF32) e.output = QOutput::kF32;
  if (kind == Kind::kI32) e.output = QOutput::kI32;
  const size_t element = e.output == QOutput::kU8 ? 1 : 4;
  std::vector<std::byte> want(pixels * c.out_c * element);
  qconv_reference(c, weights, x.data(), e, want.data());
  for (const QDepthwise* kernel : kernels()) {
    Aligned packed(qdepthwise_packed_bytes(*kernel, c)), scratch(qdepthwise_scratch_bytes(c));
    qdepthwise_pack(*kernel, c, weights, packed.data());
    for (size_t piece : {size_t{1000000}, size_t{2}}) {
      Fenced<std::byte> out(want.size());
      QConvRun run;
      run.packed = packed.data();
      run.x = x.data();
      run.x_zero_point = 131;
      run.out = out.data();
      run.scratch = scratch.data();
      for (size_t row = 0; row < c.batch * c.out_h; row += piece) {
        run.pixel_begin = row;
        run.pixel_end = row + piece < c.batch * c.out_h ? row + piece : c.batch * c.out_h;
        qdepthwise_run(*kernel, c, run, e);
      }
      out.check();
      for (size_t i = 0; i < want.size(); ++i) {
        if (out[i] == want[i]) continue;
        testing::fail_at(__FILE__, __LINE__, kernel->name, ": pixel ", i / element / c.out_c,
                         " channel ", i / element % c.out_c, " byte is ", static_cast<int>(out[i]),
                         ", not ", static_cast<int>(want[i]), "; channels ", c.in_c, " kernel ",
                         c.kernel_h, "x", c.kernel_w, " stride ", c.stride_h, " dilation ",
                         c.dilation_h, " kind ", static_cast<int>(kind));
      }
    }
  }
}

QConv shape(size_t in_h, size_t in_w, size_t channels, size_t kernel, size_t stride, ptrdiff_t pad,
            size_t dilation = 1, size_t batch = 1) {
  QConv c;
  c.batch = batch;
  c.in_h = in_h;
  c.in_w = in_w;
  c.in_c = c.out_c = c.groups = channels;
  c.kernel_h = c.kernel_w = kernel;
  c.stride_h = c.stride_w = stride;
  c.dilation_h = c.dilation_w = dilation;
  c.pad_top = c.pad_left = pad;
  const size_t reach = (kernel - 1) * dilation + 1;
  c.out_h = (in_h + 2 * static_cast<size_t>(pad) - reach) / stride + 1;
  c.out_w = (in_w + 2 * static_cast<size_t>(pad) - reach) / stride + 1;
  return c;
}

TEST(channels_around_vector_widths) {
  for (size_t channels :
       {1, 3, 8, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 100, 128, 144, 200}) {
    check(shape(6, 7, channels, 3, 1, 1));
    check(shape(7, 6, channels, 3, 2, 1), Kind::kResidual);
    check(shape(5, 5, channels, 3, 1, 1), Kind::kTables);
    check(shape(5, 7, channels, 3, 1, 1), Kind::kTable);
    check(shape(5, 5, channels, 3, 1, 1), Kind::kF32);
    check(shape(5, 5, channels, 3, 1, 1), Kind::kI32);
    check(shape(5, 5, channels, 5, 2, 2), Kind::kBeyondInt32);
  }
}

TEST(kernels_strides_and_dilations) {
  for (size_t kernel : {1, 2, 3, 4, 5, 7}) {
    for (size_t stride : {1, 2, 3}) {
      check(shape(11, 13, 40, kernel, stride, static_cast<ptrdiff_t>(kernel / 2), 1, 2));
      check(shape(15, 14, 72, kernel, stride, static_cast<ptrdiff_t>(kernel - 1), 2));
    }
  }
}

TEST(extremes_do_not_saturate) {
  for (Fill how : {Fill::kExtremes, Fill::kMax}) {
    check(shape(6, 6, 96, 3, 1, 1), Kind::kI32, how);
    check(shape(6, 6, 96, 5, 1, 2), Kind::kI32, how);
    check(shape(6, 6, 20, 5, 2, 2), Kind::kPlain, how);
  }
}

TEST(no_padding_reads_the_picture_itself) {
  check(shape(9, 9, 32, 3, 1, 0));
  check(shape(9, 9, 33, 3, 2, 0));
}

TEST(a_kernel_beyond_the_picture_and_a_negative_pad) {
  check(shape(2, 2, 32, 5, 1, 2));
  check(shape(1, 1, 32, 7, 1, 3));
  QConv c = shape(8, 9, 24, 3, 1, 0);
  c.pad_left = -2;
  c.pad_top = -1;
  c.out_h = 9;
  c.out_w = 9;
  check(c);
  c.pad_left = -20;
  check(c);
}

TEST(one_dimension) {
  QConv c = shape(5, 20, 48, 3, 1, 1);
  c.in_h = c.out_h = c.kernel_h = 1;
  c.pad_top = 0;
  c.kernel_w = 5;
  c.pad_left = 2;
  c.out_w = 20;
  check(c);
}

}  // namespace
}  // namespace wia

WIA_TEST_MAIN
