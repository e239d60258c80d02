// SPDX-License-Identifier: Apache-2.0
// Convolution and transposed convolution straight from their sums: the oracle of ops/qconv.
#include "ops/qconv/qconv.h"

namespace wia {
namespace {

// One output element from its accumulator.
void finish(const QConv& c, const QConvWeights& w, const QEpilogue& epilogue, uint32_t acc,
            size_t pixel, size_t channel, void* out) {
  if (w.bias) acc += static_cast<uint32_t>(w.bias[channel]);
  const int32_t sum = static_cast<int32_t>(acc);
  const float one = 1.0f;
  const float* multiplier = w.multiplier ? w.multiplier + channel * w.multiplier_stride : &one;
  const size_t element = epilogue.output == QOutput::kU8 ? 1 : 4;
  epilogue_reference(
      epilogue, 1, &sum, multiplier, w.float_bias ? w.float_bias + channel : nullptr,
      epilogue.residual ? epilogue.residual + pixel * epilogue.ld_residual + channel : nullptr,
      static_cast<std::byte*>(out) + (pixel * c.out_c + channel) * element);
}

// Input position that output position `o` reads through tap `k`, or -1.
ptrdiff_t forward(size_t o, size_t k, size_t stride, size_t dilation, ptrdiff_t pad, size_t size) {
  const ptrdiff_t i = static_cast<ptrdiff_t>(o * stride + k * dilation) - pad;
  return i < 0 || i >= static_cast<ptrdiff_t>(size) ? -1 : i;
}

ptrdiff_t backward(size_t o, size_t k, size_t stride, size_t dilation, ptrdiff_t pad, size_t size) {
  const ptrdiff_t distance = static_cast<ptrdiff_t>(o) + pad - static_cast<ptrdiff_t>(k * dilation);
  if (distance < 0 || distance % static_cast<ptrdiff_t>(stride) != 0) return -1;
  const ptrdiff_t i = distance / static_cast<ptrdiff_t>(stride);
  return i >= static_cast<ptrdiff_t>(size) ? -1 : i;
}

using Position = ptrdiff_t (*)(size_t, size_t, size_t, size_t, ptrdiff_t, size_t);

void convolve(const QConv& c, const QConvWeights& w, const uint8_t* x, const QEpilogue& epilogue,
              void* out, Position position, ptrdiff_t stride_group) {
  const size_t in_per_group = c.in_c / c.groups, out_per_group = c.out_c / c.groups;
  for (size_t pixel = 0; pixel < c.batch * c.out_h * c.out_w; ++pixel) {
    const size_t image = pixel / (c.out_h * c.out_w), oy = pixel / c.out_w % c.out_h,
                 ox = pixel % c.out_w;
    for (size_t channel = 0; channel < c.out_c; ++channel) {
      const size_t group = channel / out_per_group;
      const int8_t* filter = w.data + static_cast<ptrdiff_t>(group) * stride_group +
                             static_cast<ptrdiff_t>(channel % out_per_group) * w.stride_o;
      uint32_t acc = 0;
      for (size_t kh = 0; kh < c.kernel_h; ++kh) {
        const ptrdiff_t iy = position(oy, kh, c.stride_h, c.dilation_h, c.pad_top, c.in_h);
        if (iy < 0) continue;
        for (size_t kw = 0; kw < c.kernel_w; ++kw) {
          const ptrdiff_t ix = position(ox, kw, c.stride_w, c.dilation_w, c.pad_left, c.in_w);
          if (ix < 0) continue;
          const size_t at =
              (image * c.in_h + static_cast<size_t>(iy)) * c.in_w + static_cast<size_t>(ix);
          for (size_t i = 0; i < in_per_group; ++i) {
            const int32_t level = x[at * c.in_c + group * in_per_group + i] - w.x_zero_point;
            const int8_t weight = filter[static_cast<ptrdiff_t>(kh) * w.stride_h +
                                         static_cast<ptrdiff_t>(kw) * w.stride_w +
                                         static_cast<ptrdiff_t>(i) * w.stride_i];
            acc += static_cast<uint32_t>(level * weight);
          }
        }
      }
      finish(c, w, epilogue, acc, pixel, channel, out);
    }
  }
}

}  // namespace

void qconv_reference(const QConv& conv, const QConvWeights& weights, const uint8_t* x,
                     const QEpilogue& epilogue, void* out) {
  const ptrdiff_t stride_group =
      weights.stride_o * static_cast<ptrdiff_t>(conv.out_c / conv.groups);
  convolve(conv, weights, x, epilogue, out, forward, stride_group);
}

void qconv_transpose_reference(const QConv& conv, const QConvWeights& weights, const uint8_t* x,
                               const QEpilogue& epilogue, void* out) {
  convolve(conv, weights, x, epilogue, out, backward, weights.stride_group);
}

}  // namespace wia
