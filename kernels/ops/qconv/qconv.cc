// SPDX-License-Identifier: Apache-2.0
// Which bytes of the picture each output pixel multiplies: the part of a convolution that no ISA
// changes.
#include "ops/qconv/qconv.h"

#include <cstring>

namespace wia {
namespace {

// Few input channels: a tap is too short a run, so a kernel row of taps, contiguous in NHWC, is one
// segment. Rows are copied to scratch with their padding first. Beyond kMaxRowRun bytes taps are
// long enough by themselves.
constexpr size_t kFewChannels = 16, kMaxRowRun = 512;
constexpr size_t kSlack = 64;  // kernels may read a segment up to a multiple of 16

size_t round_up(size_t n) { return (n + 63) / 64 * 64; }

struct Layout {
  bool by_row;
  size_t segments, segment_k, n;  // of one group

  explicit Layout(const QConv& c)
      : by_row(c.groups == 1 && c.dilation_w == 1 && c.kernel_w > 1 &&
               (c.in_c % 4 != 0 || c.in_c < kFewChannels) && c.kernel_w * c.in_c <= kMaxRowRun),
        segments(by_row ? c.kernel_h : c.kernel_h * c.kernel_w),
        segment_k(by_row ? c.kernel_w * c.in_c : c.in_c / c.groups),
        n(c.out_c / c.groups) {}
};

// Bytes of copied picture that a block of pixels in one output row needs for each kernel row.
size_t row_pitch(const QConv& c) {
  return round_up(((kQGemmRows - 1) * c.stride_w + c.kernel_w) * c.in_c + kSlack);
}

// One block of output pixels: the pixel's rows of A by segment, then every group and panel.
struct Block {
  const QGemm& kernel;
  const QConv& conv;
  const QConvRun& run;
  const QEpilogue& epilogue;
  size_t n, segments, segment_k, group_bytes;
  const uint8_t** rows;
  const std::byte* packed;

  // Pixel `pixel` of the output is row 0; rows are `pixel_step` pixels apart. Moves `rows` on to
  // later groups.
  void multiply(size_t n_rows, size_t pixel, size_t pixel_step, bool a_padded) const {
    const size_t panels = qgemm_panels(kernel, n),
                 element = epilogue.output == QOutput::kU8 ? 1 : 4;
    QEpilogue spaced = epilogue;
    spaced.ld_residual *= pixel_step;
    const bool later = table_comes_last(kernel.look_up, epilogue);
    if (later) spaced.table = nullptr;
    size_t begin = 0, end = 0;  // the columns that were made
    for (size_t group = 0; group < conv.groups; ++group) {
      for (size_t p = 0; p < panels; ++p) {
        const size_t index = group * panels + p;
        if (index < run.panel_begin || index >= run.panel_end) continue;
        size_t first, count;
        qgemm_panel_columns(kernel, n, p, &first, &count);
        const size_t column = group * n + first;
        if (end == 0) begin = column;
        end = column + count;
        const QGemmBlock block = {
            .n_rows = n_rows,
            .segments = segments,
            .segment_k = segment_k,
            .a_padded = a_padded,
            .a = rows,
            .row_add = nullptr,
            .panel = packed + group * group_bytes +
                     qgemm_panel_offset(kernel, segments, segment_k, n, p),
            .n_columns = count,
            .epilogue = &spaced,
            .residual = epilogue.residual
                            ? epilogue.residual + pixel * epilogue.ld_residual + column
                            : nullptr,
            .out = static_cast<std::byte*>(run.out) + (pixel * conv.out_c + column) * element,
            .ld_out = conv.out_c * pixel_step};
        kernel.block(block);
      }
      if (group + 1 == conv.groups) break;
      for (size_t s = 0; s < segments; ++s) {
        for (size_t r = 0; r < n_rows; ++r) rows[s * kQGemmRows + r] += segment_k;
      }
    }
    if (later && end > begin)
      kernel.look_up(epilogue.table, n_rows, end - begin, conv.out_c * pixel_step,
                     static_cast<uint8_t*>(run.out) + pixel * conv.out_c + begin);
  }
};

// Where the taps of a pixel lie: tap j of a pixel whose first tap is (y, x) is at (y + j_h *
// step_h, x + j_w * step_w).
struct Taps {
  size_t count_h, count_w;
  ptrdiff_t step_h, step_w;
};

// Consecutive rows of A that are pixels of one output row: the first's first tap is at (y, x), each
// next one's stride further right.
struct Run {
  size_t image, n_rows;
  ptrdiff_t y, x;
};

void fill_rows(const QConv& c, const Taps& taps, ptrdiff_t stride, const uint8_t* x,
               const uint8_t* outside, const Run* runs, size_t n_runs, const uint8_t** rows) {
  const ptrdiff_t in_h = static_cast<ptrdiff_t>(c.in_h), in_w = static_cast<ptrdiff_t>(c.in_w);
  const size_t step = static_cast<size_t>(stride) * c.in_c;
  for (size_t h = 0; h < taps.count_h; ++h) {
    for (size_t w = 0; w < taps.count_w; ++w) {
      const uint8_t** to = rows;
      for (size_t i = 0; i < n_runs; ++i) {
        const Run& run = runs[i];
        const ptrdiff_t iy = run.y + static_cast<ptrdiff_t>(h) * taps.step_h;
        const ptrdiff_t ix = run.x + static_cast<ptrdiff_t>(w) * taps.step_w;
        // Rows [begin, end) of the run are inside the picture.
        ptrdiff_t n = static_cast<ptrdiff_t>(run.n_rows);
        ptrdiff_t begin = ix >= 0 ? 0 : (stride - 1 - ix) / stride,
                  end = ix < in_w ? (in_w - ix + stride - 1) / stride : 0;
        if (iy < 0 || iy >= in_h) end = 0;
        if (end > n) end = n;
        if (begin > end) begin = end;
        ptrdiff_t r = 0;
        for (; r < begin; ++r) *to++ = outside;
        if (r < end) {
          const size_t pixel = (run.image * c.in_h + static_cast<size_t>(iy)) * c.in_w +
                               static_cast<size_t>(ix + begin * stride);
          const uint8_t* from = x + pixel * c.in_c;
          for (; r < end; ++r, from += step) *to++ = from;
        }
        for (; r < n; ++r) *to++ = outside;
      }
      rows += kQGemmRows;
    }
  }
}

// A kernel row's input for n pixels of one output row, from column `left` of picture row `iy`, pads
// filled in.
void copy_row(const QConv& c, const uint8_t* x, size_t image, ptrdiff_t iy, ptrdiff_t left,
              size_t n_columns, int32_t zero_point, uint8_t* out) {
  const ptrdiff_t in_w = static_cast<ptrdiff_t>(c.in_w),
                  end = left + static_cast<ptrdiff_t>(n_columns);
  ptrdiff_t begin = left < 0 ? 0 : left, stop = end > in_w ? in_w : end;
  if (iy < 0 || iy >= static_cast<ptrdiff_t>(c.in_h) || begin >= stop) {
    std::memset(out, zero_point, n_columns * c.in_c);
    return;
  }
  const size_t before = static_cast<size_t>(begin - left) * c.in_c;
  const size_t inside = static_cast<size_t>(stop - begin) * c.in_c;
  const size_t pixel =
      (image * c.in_h + static_cast<size_t>(iy)) * c.in_w + static_cast<size_t>(begin);
  std::memset(out, zero_point, before);
  std::memcpy(out + before, x + pixel * c.in_c, inside);
  std::memset(out + before + inside, zero_point, n_columns * c.in_c - before - inside);
}

struct Scratch {
  const uint8_t** rows;
  uint8_t* outside;  // one pixel of the zero point
  uint8_t* copied;   // by_row: kernel_h rows of row_pitch

  Scratch(void* scratch, const QConv& c, size_t segments) {
    rows = static_cast<const uint8_t**>(scratch);
    outside =
        static_cast<uint8_t*>(scratch) + round_up(segments * kQGemmRows * sizeof(const uint8_t*));
    copied = outside + round_up(c.in_c);
  }
};

size_t scratch_bytes(const QConv& c, size_t segments, bool by_row) {
  return round_up(segments * kQGemmRows * sizeof(const uint8_t*)) + round_up(c.in_c) +
         (by_row ? c.kernel_h * row_pitch(c) : 0);
}

size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// The next of the fewest, about equal pieces of at most kQGemmRows that make n.
size_t even_piece(size_t n) {
  const size_t pieces = (n + kQGemmRows - 1) / kQGemmRows;
  return (n + pieces - 1) / pieces;
}

// Weights of `n` output channels whose first is `first` of all, and whose first weight is at data +
// at.
QGemmB columns_of(const QConvWeights& w, size_t first, size_t n, ptrdiff_t at) {
  QGemmB b;
  b.data = w.data + at;
  b.n = n;
  b.stride_n = w.stride_o;
  b.stride_k = w.stride_i;
  b.a_zero_point = w.x_zero_point;
  b.a_max = w.x_max;
  b.bias = w.bias ? w.bias + first : nullptr;
  b.multiplier = w.multiplier ? w.multiplier + first * w.multiplier_stride : nullptr;
  b.multiplier_stride = w.multiplier_stride;
  b.float_bias = w.float_bias ? w.float_bias + first : nullptr;
  return b;
}

// The output positions of a transposed convolution whose index is `phase` modulo the stride, along
// one axis: the taps that reach them are first_tap + j * tap_step, and position i of the phase
// reads input i + offset - j * in_step.
struct Phase {
  size_t first_tap = 0, tap_step = 1, n_taps = 0;
  ptrdiff_t offset = 0, in_step = 1;

  Phase(size_t phase, size_t kernel, size_t stride, size_t dilation, ptrdiff_t pad) {
    const ptrdiff_t s = static_cast<ptrdiff_t>(stride), d = static_cast<ptrdiff_t>(dilation);
    const ptrdiff_t at = static_cast<ptrdiff_t>(phase) + pad;
    size_t a = stride, b = dilation;
    while (b != 0) {
      const size_t rest = a % b;
      a = b;
      b = rest;
    }
    tap_step = stride / a;
    in_step = d / static_cast<ptrdiff_t>(a);
    for (size_t tap = 0; tap < kernel && tap < tap_step; ++tap) {
      const ptrdiff_t distance = at - static_cast<ptrdiff_t>(tap) * d;
      if (distance % s != 0) continue;
      first_tap = tap;
      n_taps = (kernel - tap + tap_step - 1) / tap_step;
      offset = distance / s;
      break;
    }
  }
};

Phase phase_h(const QConv& c, size_t phase) {
  return Phase(phase, c.kernel_h, c.stride_h, c.dilation_h, c.pad_top);
}
Phase phase_w(const QConv& c, size_t phase) {
  return Phase(phase, c.kernel_w, c.stride_w, c.dilation_w, c.pad_left);
}

// Bytes of one group of one phase.
size_t phase_bytes(const QGemm& kernel, const QConv& c, const Phase& h, const Phase& w) {
  return qgemm_packed_bytes(kernel, h.n_taps * w.n_taps, c.in_c / c.groups, c.out_c / c.groups);
}

}  // namespace

size_t qconv_packed_bytes(const QGemm& kernel, const QConv& conv) {
  const Layout layout(conv);
  return conv.groups * qgemm_packed_bytes(kernel, layout.segments, layout.segment_k, layout.n);
}

void qconv_pack(const QGemm& kernel, const QConv& conv, const QConvWeights& weights, void* packed) {
  const Layout layout(conv);
  const size_t group_bytes =
      qgemm_packed_bytes(kernel, layout.segments, layout.segment_k, layout.n);
  for (size_t group = 0; group < conv.groups; ++group) {
    const size_t first = group * layout.n;
    QGemmB b =
        columns_of(weights, first, layout.n, static_cast<ptrdiff_t>(first) * weights.stride_o);
    b.segments = layout.segments;
    b.segment_k = layout.segment_k;
    b.stride_segment_row = weights.stride_h;
    if (layout.by_row) {
      b.run = conv.in_c;
      b.stride_run = weights.stride_w;
    } else {
      b.segment_columns = conv.kernel_w;
      b.stride_segment_column = weights.stride_w;
    }
    qgemm_pack(kernel, b, static_cast<std::byte*>(packed) + group * group_bytes);
  }
}

size_t qconv_panels(const QGemm& kernel, const QConv& conv) {
  return conv.groups * qgemm_panels(kernel, conv.out_c / conv.groups);
}

size_t qconv_scratch_bytes(const QGemm&, const QConv& conv) {
  const Layout layout(conv);
  return scratch_bytes(conv, layout.segments, layout.by_row);
}

void qconv_run(const QGemm& kernel, const QConv& conv, const QConvRun& run,
               const QEpilogue& epilogue) {
  const Layout layout(conv);
  const Scratch scratch(run.scratch, conv, layout.segments);
  const size_t group_bytes =
      qgemm_packed_bytes(kernel, layout.segments, layout.segment_k, layout.n);
  const Block block = {kernel,
                       conv,
                       run,
                       epilogue,
                       layout.n,
                       layout.segments,
                       layout.segment_k,
                       group_bytes,
                       scratch.rows,
                       static_cast<const std::byte*>(run.packed)};
  const Taps taps = {conv.kernel_h, conv.kernel_w, static_cast<ptrdiff_t>(conv.dilation_h),
                     static_cast<ptrdiff_t>(conv.dilation_w)};
  const bool pointwise = conv.kernel_h == 1 && conv.kernel_w == 1 && conv.stride_h == 1 &&
                         conv.stride_w == 1 && conv.pad_top == 0 && conv.pad_left == 0 &&
                         conv.in_h == conv.out_h && conv.in_w == conv.out_w;
  std::memset(scratch.outside, run.x_zero_point, conv.in_c);
  size_t pixel = run.pixel_begin;
  while (pixel < run.pixel_end) {
    size_t n = even_piece(run.pixel_end - pixel);
    const size_t column = pixel % conv.out_w, row = pixel / conv.out_w;
    if (pointwise) {
      for (size_t r = 0; r < n; ++r) scratch.rows[r] = run.x + (pixel + r) * conv.in_c;
      block.multiply(n, pixel, 1, false);
    } else if (layout.by_row) {
      n = even_piece(smaller(run.pixel_end - pixel, conv.out_w - column));
      const ptrdiff_t top = static_cast<ptrdiff_t>(row % conv.out_h * conv.stride_h) - conv.pad_top;
      const ptrdiff_t left = static_cast<ptrdiff_t>(column * conv.stride_w) - conv.pad_left;
      const size_t pitch = row_pitch(conv), width = (n - 1) * conv.stride_w + conv.kernel_w;
      for (size_t h = 0; h < conv.kernel_h; ++h) {
        uint8_t* line = scratch.copied + h * pitch;
        copy_row(conv, run.x, row / conv.out_h, top + static_cast<ptrdiff_t>(h * conv.dilation_h),
                 left, width, run.x_zero_point, line);
        std::memset(line + width * conv.in_c, 0, kSlack);
        for (size_t r = 0; r < n; ++r)
          scratch.rows[h * kQGemmRows + r] = line + r * conv.stride_w * conv.in_c;
      }
      block.multiply(n, pixel, 1, true);
    } else {
      Run runs[kQGemmRows];
      size_t n_runs = 0;
      for (size_t r = 0; r < n; ++n_runs) {
        const size_t at = pixel + r, x = at % conv.out_w, y = at / conv.out_w % conv.out_h;
        const size_t n_rows = smaller(n - r, conv.out_w - x);
        runs[n_runs] = {at / conv.out_w / conv.out_h, n_rows,
                        static_cast<ptrdiff_t>(y * conv.stride_h) - conv.pad_top,
                        static_cast<ptrdiff_t>(x * conv.stride_w) - conv.pad_left};
        r += n_rows;
      }
      fill_rows(conv, taps, static_cast<ptrdiff_t>(conv.stride_w), run.x, scratch.outside, runs,
                n_runs, scratch.rows);
      block.multiply(n, pixel, 1, false);
    }
    pixel += n;
  }
}

size_t qconv_transpose_packed_bytes(const QGemm& kernel, const QConv& conv) {
  size_t bytes = 0;
  for (size_t py = 0; py < conv.stride_h; ++py) {
    for (size_t px = 0; px < conv.stride_w; ++px) {
      bytes += conv.groups * phase_bytes(kernel, conv, phase_h(conv, py), phase_w(conv, px));
    }
  }
  return bytes;
}

void qconv_transpose_pack(const QGemm& kernel, const QConv& conv, const QConvWeights& weights,
                          void* packed) {
  const size_t n = conv.out_c / conv.groups;
  std::byte* at = static_cast<std::byte*>(packed);
  for (size_t py = 0; py < conv.stride_h; ++py) {
    for (size_t px = 0; px < conv.stride_w; ++px) {
      const Phase h = phase_h(conv, py), w = phase_w(conv, px);
      for (size_t group = 0; group < conv.groups; ++group) {
        const ptrdiff_t first_weight = static_cast<ptrdiff_t>(group) * weights.stride_group +
                                       static_cast<ptrdiff_t>(h.first_tap) * weights.stride_h +
                                       static_cast<ptrdiff_t>(w.first_tap) * weights.stride_w;
        QGemmB b = columns_of(weights, group * n, n, first_weight);
        b.segments = h.n_taps * w.n_taps;
        b.segment_k = conv.in_c / conv.groups;
        b.segment_columns = w.n_taps ? w.n_taps : 1;
        b.stride_segment_row = weights.stride_h * static_cast<ptrdiff_t>(h.tap_step);
        b.stride_segment_column = weights.stride_w * static_cast<ptrdiff_t>(w.tap_step);
        qgemm_pack(kernel, b, at);
        at += phase_bytes(kernel, conv, h, w);
      }
    }
  }
}

size_t qconv_transpose_scratch_bytes(const QGemm&, const QConv& conv) {
  return scratch_bytes(conv, conv.kernel_h * conv.kernel_w, false);
}

void qconv_transpose_run(const QGemm& kernel, const QConv& conv, const QConvRun& run,
                         const QEpilogue& epilogue) {
  const Scratch scratch(run.scratch, conv, conv.kernel_h * conv.kernel_w);
  std::memset(scratch.outside, run.x_zero_point, conv.in_c);
  const std::byte* at = static_cast<const std::byte*>(run.packed);
  for (size_t py = 0; py < conv.stride_h; ++py) {
    for (size_t px = 0; px < conv.stride_w; ++px) {
      const Phase h = phase_h(conv, py), w = phase_w(conv, px);
      const size_t group_bytes = phase_bytes(kernel, conv, h, w), segments = h.n_taps * w.n_taps;
      const Block block = {kernel,
                           conv,
                           run,
                           epilogue,
                           conv.out_c / conv.groups,
                           segments,
                           conv.in_c / conv.groups,
                           group_bytes,
                           scratch.rows,
                           at};
      const Taps taps = {h.n_taps, w.n_taps, -h.in_step, -w.in_step};
      at += conv.groups * group_bytes;
      for (size_t row = run.pixel_begin; row < run.pixel_end; ++row) {
        const size_t y = row % conv.out_h;
        if (y % conv.stride_h != py || px >= conv.out_w) continue;
        const size_t count = (conv.out_w - px + conv.stride_w - 1) / conv.stride_w;
        for (size_t i = 0; i < count; i += kQGemmRows) {
          const size_t n = smaller(count - i, kQGemmRows);
          const Run pixels = {row / conv.out_h, n,
                              static_cast<ptrdiff_t>(y / conv.stride_h) + h.offset,
                              static_cast<ptrdiff_t>(i) + w.offset};
          fill_rows(conv, taps, 1, run.x, scratch.outside, &pixels, 1, scratch.rows);
          block.multiply(n, row * conv.out_w + px + i * conv.stride_w, conv.stride_w, false);
        }
      }
    }
  }
}

}  // namespace wia
