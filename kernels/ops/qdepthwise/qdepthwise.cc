// SPDX-License-Identifier: Apache-2.0
// Which pixels lie inside the picture: the part of a depthwise convolution that no ISA changes.
#include "ops/qdepthwise/qdepthwise.h"

#include <cstring>

#include "base/cpu.h"

namespace wia {
namespace {

size_t round_up(size_t n) { return (n + 63) / 64 * 64; }

}  // namespace

const QDepthwise& select_qdepthwise(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/qdepthwise/kernels.inc"
#undef WIA_KERNEL
  return qdepthwise_u8s8_reference;
}

size_t qdepthwise_packed_bytes(const QDepthwise& kernel, const QConv& conv) {
  return kernel.packed_bytes(conv.out_c, conv.kernel_h * conv.kernel_w);
}

void qdepthwise_pack(const QDepthwise& kernel, const QConv& conv, const QConvWeights& weights,
                     void* packed) {
  kernel.pack(conv.out_c, conv.kernel_h, conv.kernel_w, weights, packed);
}

// Scratch: one pixel of x_zero_point, then a pointer and a step for each tap.
size_t qdepthwise_scratch_bytes(const QConv& conv) {
  return round_up(conv.in_c) +
         conv.kernel_h * conv.kernel_w * (sizeof(const uint8_t*) + sizeof(size_t));
}

void qdepthwise_run(const QDepthwise& kernel, const QConv& conv, const QConvRun& run,
                    const QEpilogue& epilogue) {
  const size_t channels = conv.in_c, n_taps = conv.kernel_h * conv.kernel_w;
  uint8_t* outside = static_cast<uint8_t*>(run.scratch);
  std::memset(outside, run.x_zero_point, channels);
  const uint8_t** taps = reinterpret_cast<const uint8_t**>(outside + round_up(channels));
  size_t* steps = reinterpret_cast<size_t*>(taps + n_taps);
  const size_t element = epilogue.output == QOutput::kU8 ? 1 : 4;
  const ptrdiff_t stride_w = static_cast<ptrdiff_t>(conv.stride_w),
                  dilation_w = static_cast<ptrdiff_t>(conv.dilation_w);
  const ptrdiff_t in_w = static_cast<ptrdiff_t>(conv.in_w),
                  in_h = static_cast<ptrdiff_t>(conv.in_h);
  const ptrdiff_t out_w = static_cast<ptrdiff_t>(conv.out_w);
  const ptrdiff_t reach = static_cast<ptrdiff_t>(conv.kernel_w - 1) * dilation_w;
  // Columns [inner_begin, inner_end) have all taps inside the picture's width.
  ptrdiff_t inner_begin = conv.pad_left <= 0 ? 0 : (conv.pad_left + stride_w - 1) / stride_w;
  ptrdiff_t inner_end =
      in_w - 1 + conv.pad_left - reach < 0 ? 0 : (in_w - 1 + conv.pad_left - reach) / stride_w + 1;
  if (inner_end > out_w) inner_end = out_w;
  if (inner_begin > inner_end) inner_begin = inner_end;
  for (size_t row = run.pixel_begin; row < run.pixel_end; ++row) {
    const size_t image = row / conv.out_h;
    const ptrdiff_t top = static_cast<ptrdiff_t>((row % conv.out_h) * conv.stride_h) - conv.pad_top;
    for (ptrdiff_t x = 0; x < out_w;) {
      const bool inner = x >= inner_begin && x < inner_end;
      const ptrdiff_t n = inner ? inner_end - x : 1;
      for (size_t kh = 0; kh < conv.kernel_h; ++kh) {
        const ptrdiff_t iy = top + static_cast<ptrdiff_t>(kh * conv.dilation_h);
        const bool inside_h = iy >= 0 && iy < in_h;
        const size_t line =
            inside_h ? (image * conv.in_h + static_cast<size_t>(iy)) * conv.in_w : 0;
        for (size_t kw = 0; kw < conv.kernel_w; ++kw) {
          const ptrdiff_t ix =
              x * stride_w - conv.pad_left + static_cast<ptrdiff_t>(kw) * dilation_w;
          const bool inside = inside_h && ix >= 0 && ix < in_w;
          taps[kh * conv.kernel_w + kw] =
              inside ? run.x + (line + static_cast<size_t>(ix)) * channels : outside;
          steps[kh * conv.kernel_w + kw] = inside ? conv.stride_w * channels : 0;
        }
      }
      const size_t pixel = row * conv.out_w + static_cast<size_t>(x);
      const QDepthwiseBlock block = {
          .n_pixels = static_cast<size_t>(n),
          .n_taps = n_taps,
          .channels = channels,
          .taps = taps,
          .steps = steps,
          .packed = run.packed,
          .epilogue = &epilogue,
          .residual =
              epilogue.residual ? epilogue.residual + pixel * epilogue.ld_residual : nullptr,
          .out = static_cast<std::byte*>(run.out) + pixel * channels * element,
          .ld_out = channels};
      kernel.block(block);
      x += n;
    }
  }
}

}  // namespace wia
