// SPDX-License-Identifier: Apache-2.0
// Rows of the picture with their padding: the part of a depthwise convolution that no ISA changes.
#include "ops/qdepthwise/qdepthwise.h"

#include <cstring>

#include "base/cpu.h"

namespace wia {
namespace {

size_t round_up(size_t n) { return (n + 63) / 64 * 64; }
size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

}  // namespace

const QDepthwise& select_qdepthwise(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/qdepthwise/kernels.inc"
#undef WIA_KERNEL
  return qdepthwise_u8s8_reference;
}

size_t qdepthwise_packed_bytes(const QDepthwise& kernel, const QConv& conv) {
  return kernel.packed_bytes(conv.out_c, conv.kernel_h, conv.kernel_w);
}

void qdepthwise_pack(const QDepthwise& kernel, const QConv& conv, const QConvWeights& weights,
                     void* packed) {
  kernel.pack(conv.out_c, conv.kernel_h, conv.kernel_w, weights, packed);
}

namespace {

// Picture rows are copied with their padding, so that every pixel of an output row is like any
// other; the last `span` rows are kept for the output rows below. One more row holds the zero
// point, for what is above and below the picture.
struct Rows {
  const QConv& conv;
  size_t span, width, pitch;
  bool padded;            // false: the picture's own rows will do
  const uint8_t** lines;  // of the kernel rows of one output row
  ptrdiff_t* held;        // the picture row in each place, counted over the whole batch; -1: none
  uint8_t* outside;

  Rows(const QConv& c, void* scratch) : conv(c) {
    span = (c.kernel_h - 1) * c.dilation_h + 1;
    const size_t reach = (c.kernel_w - 1) * c.dilation_w + 1;
    width = (c.out_w ? c.out_w - 1 : 0) * c.stride_w + reach;
    padded = c.pad_left != 0 || width > c.in_w;
    pitch = round_up(width * c.in_c);
    lines = static_cast<const uint8_t**>(scratch);
    held = reinterpret_cast<ptrdiff_t*>(lines + c.kernel_h);
    outside = static_cast<uint8_t*>(scratch) + table_bytes();
  }
  size_t table_bytes() const { return round_up((conv.kernel_h + span) * sizeof(void*)); }
  size_t bytes() const { return table_bytes() + (1 + (padded ? span : 0)) * pitch; }

  // Where column -pad_left of a picture row is.
  const uint8_t* row(const uint8_t* x, size_t image, ptrdiff_t iy, int32_t zero_point) {
    if (iy < 0 || iy >= static_cast<ptrdiff_t>(conv.in_h)) return outside;
    const size_t index = image * conv.in_h + static_cast<size_t>(iy);
    const uint8_t* line = x + index * conv.in_w * conv.in_c;
    if (!padded) return line;
    const size_t place = static_cast<size_t>(iy) % span;
    uint8_t* copy = outside + (1 + place) * pitch;
    if (held[place] == static_cast<ptrdiff_t>(index)) return copy;
    held[place] = static_cast<ptrdiff_t>(index);
    const ptrdiff_t in_w = static_cast<ptrdiff_t>(conv.in_w), left = -conv.pad_left;
    const ptrdiff_t end = left + static_cast<ptrdiff_t>(width);
    const ptrdiff_t from = left < 0      ? 0
                           : left < in_w ? left
                                         : in_w,
                    to = end < from   ? from
                         : end < in_w ? end
                                      : in_w;
    const size_t before = smaller(static_cast<size_t>(from - left), width) * conv.in_c;
    const size_t inside = static_cast<size_t>(to - from) * conv.in_c;
    std::memset(copy, zero_point, before);
    std::memcpy(copy + before, line + static_cast<size_t>(from) * conv.in_c, inside);
    std::memset(copy + before + inside, zero_point, width * conv.in_c - before - inside);
    return copy;
  }
};

}  // namespace

size_t qdepthwise_scratch_bytes(const QConv& conv) { return Rows(conv, nullptr).bytes(); }

void qdepthwise_run(const QDepthwise& kernel, const QConv& conv, const QConvRun& run,
                    const QEpilogue& epilogue) {
  Rows rows(conv, run.scratch);
  for (size_t place = 0; place < rows.span; ++place) rows.held[place] = -1;
  std::memset(rows.outside, run.x_zero_point, rows.width * conv.in_c);
  const size_t element = epilogue.output == QOutput::kU8 ? 1 : 4;
  // A table is looked up for a whole row of pixels, not for the few channels that a block finishes.
  const bool later = table_comes_last(kernel.look_up, epilogue);
  QEpilogue first = epilogue;
  if (later) first.table = nullptr;
  for (size_t row = run.pixel_begin; row < run.pixel_end; ++row) {
    const ptrdiff_t top = static_cast<ptrdiff_t>((row % conv.out_h) * conv.stride_h) - conv.pad_top;
    for (size_t kh = 0; kh < conv.kernel_h; ++kh) {
      const ptrdiff_t iy = top + static_cast<ptrdiff_t>(kh * conv.dilation_h);
      rows.lines[kh] = rows.row(run.x, row / conv.out_h, iy, run.x_zero_point);
    }
    const size_t pixel = row * conv.out_w;
    const QDepthwiseBlock block = {
        .n_pixels = conv.out_w,
        .kernel_h = conv.kernel_h,
        .kernel_w = conv.kernel_w,
        .channels = conv.in_c,
        .rows = rows.lines,
        .column_step = conv.dilation_w * conv.in_c,
        .step = conv.stride_w * conv.in_c,
        .packed = run.packed,
        .epilogue = &first,
        .residual = epilogue.residual ? epilogue.residual + pixel * epilogue.ld_residual : nullptr,
        .out = static_cast<std::byte*>(run.out) + pixel * conv.in_c * element,
        .ld_out = conv.in_c};
    kernel.block(block);
    if (later)
      kernel.look_up(epilogue.table, conv.out_w, conv.in_c, conv.in_c,
                     static_cast<uint8_t*>(block.out));
  }
}

}  // namespace wia
