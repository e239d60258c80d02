// SPDX-License-Identifier: Apache-2.0
// Panels, packing and the loop over blocks: the part of a GEMM that no ISA changes.
#include "ops/qgemm/qgemm.h"

#include <cstring>

#include "base/cpu.h"

namespace wia {
namespace {

constexpr size_t kHeaderBytes = 64;

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

// Vectors are dealt evenly to the panels, so that 96 columns are 3 + 3 vectors and not 4 + 2.
struct Panels {
  size_t count, vectors, wide, narrow;  // the first `wide` panels have narrow + 1 vectors

  Panels(const QGemm& kernel, size_t n) {
    vectors = ceil_div(n, kernel.lanes);
    count = ceil_div(vectors, kernel.max_vectors);
    narrow = count ? vectors / count : 0;
    wide = count ? vectors % count : 0;
  }
  size_t first_vector(size_t panel) const { return panel * narrow + (panel < wide ? panel : wide); }
  size_t n_vectors(size_t panel) const { return narrow + (panel < wide ? 1 : 0); }
};

size_t weights_per_column(const QGemm& kernel, size_t segments, size_t segment_k) {
  return segments * ceil_div(segment_k, kernel.k_align) * kernel.k_align * kernel.weight_bytes;
}

// Bytes of a vector's columns; every panel also has its header, and starts at a multiple of 64.
size_t offset_of(const QGemm& kernel, const Panels& panels, size_t per_column, size_t panel) {
  const size_t vector_bytes = kernel.lanes * (3 * 4 + per_column);
  const size_t narrow = ceil_div(panels.narrow * vector_bytes + kHeaderBytes, 64) * 64;
  const size_t wide = ceil_div((panels.narrow + 1) * vector_bytes + kHeaderBytes, 64) * 64;
  return panel < panels.wide ? panel * wide : panels.wide * wide + (panel - panels.wide) * narrow;
}

}  // namespace

const QGemm& select_qgemm(uint32_t isa) {
#define WIA_KERNEL(features, name) \
  if (cpu::supports(isa, features)) return name;
#include "ops/qgemm/kernels.inc"
#undef WIA_KERNEL
  return qgemm_u8s8_reference;
}

ptrdiff_t qgemm_b_offset(const QGemmB& b, size_t s, size_t k) {
  return static_cast<ptrdiff_t>(s / b.segment_columns) * b.stride_segment_row +
         static_cast<ptrdiff_t>(s % b.segment_columns) * b.stride_segment_column +
         static_cast<ptrdiff_t>(k / b.run) * b.stride_run +
         static_cast<ptrdiff_t>(k % b.run) * b.stride_k;
}

size_t qgemm_panels(const QGemm& kernel, size_t n) { return Panels(kernel, n).count; }

void qgemm_panel_columns(const QGemm& kernel, size_t n, size_t panel, size_t* first,
                         size_t* count) {
  const Panels panels(kernel, n);
  *first = panels.first_vector(panel) * kernel.lanes;
  const size_t end = *first + panels.n_vectors(panel) * kernel.lanes;
  *count = (end < n ? end : n) - *first;
}

size_t qgemm_panel_offset(const QGemm& kernel, size_t segments, size_t segment_k, size_t n,
                          size_t panel) {
  return offset_of(kernel, Panels(kernel, n), weights_per_column(kernel, segments, segment_k),
                   panel);
}

size_t qgemm_packed_bytes(const QGemm& kernel, size_t segments, size_t segment_k, size_t n) {
  return qgemm_panel_offset(kernel, segments, segment_k, n, qgemm_panels(kernel, n));
}

void qgemm_pack(const QGemm& kernel, const QGemmB& b, void* packed, size_t panel_begin,
                size_t panel_end) {
  const Panels panels(kernel, b.n);
  const size_t per_column = weights_per_column(kernel, b.segments, b.segment_k);
  const int32_t zero_point = b.zero_point - (b.is_unsigned ? 128 : 0);
  const uint32_t k = static_cast<uint32_t>(b.segments * b.segment_k);
  if (panel_end > panels.count) panel_end = panels.count;
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    std::byte* base =
        static_cast<std::byte*>(packed) + offset_of(kernel, panels, per_column, panel);
    const size_t first = panels.first_vector(panel) * kernel.lanes;
    const size_t width = panels.n_vectors(panel) * kernel.lanes;
    int32_t* bias = reinterpret_cast<int32_t*>(base);
    float* multiplier = reinterpret_cast<float*>(base) + width;
    float* float_bias = multiplier + width;
    std::byte* header = reinterpret_cast<std::byte*>(float_bias + width);
    kernel.pack_panel(b, first, width / kernel.lanes, header, header + kHeaderBytes, bias);
    int32_t below_one = 1;
    for (size_t i = 0; i < width; ++i) {
      // bias - za * sum(b - zb), in arithmetic modulo 2^32
      const uint32_t sum = static_cast<uint32_t>(bias[i]) - k * static_cast<uint32_t>(zero_point);
      uint32_t folded = static_cast<uint32_t>(kernel.a_offset) * static_cast<uint32_t>(bias[i]) -
                        static_cast<uint32_t>(b.a_zero_point) * sum;
      const bool real = first + i < b.n;
      if (real && b.bias) folded += static_cast<uint32_t>(b.bias[first + i]);
      bias[i] = static_cast<int32_t>(folded);
      multiplier[i] = real && b.multiplier ? b.multiplier[(first + i) * b.multiplier_stride] : 1.0f;
      float_bias[i] = real && b.float_bias ? b.float_bias[first + i] : 0.0f;
      if (real && !(multiplier[i] < 1.0f && multiplier[i] > -1.0f)) below_one = 0;
    }
    std::memcpy(header + kHeaderBytes - sizeof(below_one), &below_one, sizeof(below_one));
  }
}

void qgemm_run(const QGemm& kernel, const QGemmRun& run, const QEpilogue& epilogue) {
  const Panels panels(kernel, run.n);
  const size_t per_column = weights_per_column(kernel, 1, run.k);
  const size_t panel_end = run.panel_end < panels.count ? run.panel_end : panels.count;
  const size_t element = epilogue.output == QOutput::kU8 ? 1 : 4;
  const int32_t zero_point = run.b_zero_point - (run.b_is_unsigned ? 128 : 0);
  const bool later = table_comes_last(kernel.look_up, epilogue) && run.panel_begin < panel_end;
  QEpilogue products = epilogue;
  if (later) products.table = nullptr;
  const uint8_t* rows[kQGemmRows];
  int32_t row_add[kQGemmRows];
  for (size_t row = run.row_begin, n_rows; row < run.row_end; row += n_rows) {
    n_rows = ceil_div(run.row_end - row, ceil_div(run.row_end - row, kQGemmRows));
    for (size_t r = 0; r < n_rows; ++r) rows[r] = run.a + (row + r) * run.lda;
    if (zero_point != 0) {
      for (size_t r = 0; r < n_rows; ++r) {
        uint32_t sum = 0;
        for (size_t k = 0; k < run.k; ++k) sum += rows[r][k];
        row_add[r] = static_cast<int32_t>(0u - sum * static_cast<uint32_t>(zero_point));
      }
    }
    for (size_t panel = run.panel_begin; panel < panel_end; ++panel) {
      const size_t first = panels.first_vector(panel) * kernel.lanes;
      const size_t width = panels.n_vectors(panel) * kernel.lanes;
      const size_t at = row * run.ld_out + first;
      const QGemmBlock block = {
          .n_rows = n_rows,
          .segments = 1,
          .segment_k = run.k,
          .a_padded = false,
          .a = rows,
          .row_add = zero_point != 0 ? row_add : nullptr,
          .panel = static_cast<const std::byte*>(run.packed) +
                   offset_of(kernel, panels, per_column, panel),
          .n_columns = run.n - first < width ? run.n - first : width,
          .epilogue = &products,
          .residual =
              epilogue.residual ? epilogue.residual + row * epilogue.ld_residual + first : nullptr,
          .out = static_cast<std::byte*>(run.out) + at * element,
          .ld_out = run.ld_out};
      kernel.block(block);
    }
    if (later) {
      const size_t begin = panels.first_vector(run.panel_begin) * kernel.lanes;
      const size_t last = panels.first_vector(panel_end - 1) + panels.n_vectors(panel_end - 1);
      const size_t end = last * kernel.lanes < run.n ? last * kernel.lanes : run.n;
      kernel.look_up(epilogue.table, n_rows, end - begin, run.ld_out,
                     static_cast<uint8_t*>(run.out) + row * run.ld_out + begin);
    }
  }
}

}  // namespace wia
