// SPDX-License-Identifier: Apache-2.0
// Which pixels a window has: the part of pooling that no ISA changes.
#include "ops/qpool/qpool.h"

#include <cstring>

#include "base/cpu.h"

namespace wia {
namespace {

// The pixels of a window that are inside the picture, as pointers; `counted` those that an average
// divides by.
struct Window {
  size_t n_taps = 0, counted = 0;

  Window(const QPool& p, const uint8_t* x, size_t row, size_t column, const uint8_t** taps) {
    const size_t image = row / p.out_h;
    const ptrdiff_t top = static_cast<ptrdiff_t>((row % p.out_h) * p.stride_h) - p.pad_top;
    const ptrdiff_t left = static_cast<ptrdiff_t>(column * p.stride_w) - p.pad_left;
    const ptrdiff_t in_h = static_cast<ptrdiff_t>(p.in_h), in_w = static_cast<ptrdiff_t>(p.in_w);
    for (size_t kh = 0; kh < p.kernel_h; ++kh) {
      const ptrdiff_t iy = top + static_cast<ptrdiff_t>(kh * p.dilation_h);
      if (iy >= in_h + p.pad_bottom) break;
      const bool inside_h = iy >= 0 && iy < in_h;
      for (size_t kw = 0; kw < p.kernel_w; ++kw) {
        const ptrdiff_t ix = left + static_cast<ptrdiff_t>(kw * p.dilation_w);
        if (ix >= in_w + p.pad_right) break;
        const bool inside = inside_h && ix >= 0 && ix < in_w;
        counted += inside || p.count_include_pad;
        if (!inside) continue;
        const size_t pixel =
            (image * p.in_h + static_cast<size_t>(iy)) * p.in_w + static_cast<size_t>(ix);
        taps[n_taps++] = x + pixel * p.channels;
      }
    }
  }
};

}  // namespace

const QPoolKernel& select_qpool(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/qpool/kernels.inc"
#undef WIA_KERNEL
  return qpool_u8_reference;
}

size_t qpool_scratch_bytes(const QPool& pool) {
  return pool.kernel_h * pool.kernel_w * sizeof(const uint8_t*);
}

void qmaxpool_run(const QPoolKernel& kernel, const QPool& pool, const uint8_t* x, uint8_t* out,
                  void* scratch, size_t row_begin, size_t row_end) {
  const uint8_t** taps = static_cast<const uint8_t**>(scratch);
  for (size_t row = row_begin; row < row_end; ++row) {
    for (size_t column = 0; column < pool.out_w; ++column) {
      uint8_t* y = out + (row * pool.out_w + column) * pool.channels;
      const Window window(pool, x, row, column, taps);
      if (window.n_taps == 0) {
        std::memset(y, 0, pool.channels);
      } else {
        kernel.max(window.n_taps, taps, pool.channels, y);
      }
    }
  }
}

void qaveragepool_run(const QPoolKernel& kernel, const QPool& pool, const uint8_t* x, uint8_t* out,
                      void* scratch, size_t row_begin, size_t row_end) {
  const uint8_t** taps = static_cast<const uint8_t**>(scratch);
  for (size_t row = row_begin; row < row_end; ++row) {
    for (size_t column = 0; column < pool.out_w; ++column) {
      uint8_t* y = out + (row * pool.out_w + column) * pool.channels;
      const Window window(pool, x, row, column, taps);
      if (window.n_taps == 0) {
        std::memset(y, pool.y_zero_point, pool.channels);
        continue;
      }
      const double divisor =
          static_cast<double>(window.counted) * static_cast<double>(pool.y_scale);
      const float multiplier = static_cast<float>(static_cast<double>(pool.x_scale) / divisor);
      const int32_t offset = -static_cast<int32_t>(window.n_taps) * pool.x_zero_point;
      kernel.average(window.n_taps, taps, pool.channels, offset, multiplier, pool.y_zero_point, y);
    }
  }
}

}  // namespace wia
