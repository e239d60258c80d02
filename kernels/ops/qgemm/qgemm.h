// SPDX-License-Identifier: Apache-2.0
// Integer matrix product: C[m][n] = epilogue(sum_k (A[m][k] - a_zero_point) * (B[k][n] -
// b_zero_point) + bias[n]).
//
//   A: uint8, row m at a + m * lda.  B: int8 or uint8, any strides, packed first (once at load for
//   weights, at run time for a product of two activations).  Accumulation is exact in int32;
//   docs/quantization.md (7).
//
// Use: kernel = select_qgemm(isa); allocate qgemm_packed_bytes(kernel, 1, k, n), 64-byte aligned;
// qgemm_pack; then qgemm_run over any split of rows x panels, in any order and on any thread: the
// bytes do not depend on the split. All implementations are bit-exact with the reference. None
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/epilogue/epilogue.h"

namespace wia {

// B as it lies in memory. A GEMM needs data, segment_k = K, n, stride_k, stride_n; the rest splits
// K for convolutions: K is `segments` runs of `segment_k`; segment s is at (s / segment_columns) *
// stride_segment_row + (s % segment_columns) * stride_segment_column, and its element k at (k /
// run) * stride_run + (k % run) * stride_k.
struct QGemmB {
  const void* data = nullptr;
  bool is_unsigned = false;  // uint8 when true (then any zero point), else int8
  int32_t zero_point = 0;    // of B
  size_t segments = 1, segment_k = 0, n = 0;
  ptrdiff_t stride_k = 0, stride_n = 0;  // in elements, as all strides
  size_t segment_columns = 1;
  ptrdiff_t stride_segment_row = 0, stride_segment_column = 0;
  size_t run = SIZE_MAX;
  ptrdiff_t stride_run = 0;
  int32_t a_zero_point = 0;       // of A, folded into the bias
  uint8_t a_max = 255;            // the largest level A can have: 127 lets AVX2 use faster products
  const int32_t* bias = nullptr;  // [n] or nullptr
  const float* multiplier =
      nullptr;  // [n] with multiplier_stride 1, one value with 0; nullptr: 1.0
  size_t multiplier_stride = 1;
  const float* float_bias = nullptr;  // [n] or nullptr; used by QOutput::kF32
};
// Where element k of segment s of column 0 is, in elements from data. Packed weights are int8:
// uint8 B is moved by -128; K beyond segment_k and columns beyond n are 0.
ptrdiff_t qgemm_b_offset(const QGemmB& b, size_t s, size_t k);

// The most rows of A that one kernel call takes; more are dealt evenly to several calls. Pieces of
// rows that a caller gives to threads are best of about this size.
inline constexpr size_t kQGemmRows = 128;

// One panel of columns times up to kQGemmRows rows: what an ISA implements. Row r of segment s
// starts at a[s * kQGemmRows + r]; only segment_k bytes from there are read, or up to the next
// multiple of 16 if a_padded.
struct QGemmBlock {
  size_t n_rows, segments, segment_k;
  bool a_padded;
  const uint8_t* const* a;
  const int32_t* row_add;  // [n_rows] added to each accumulator of the row, or nullptr
  const std::byte* panel;  // 64-byte aligned
  size_t n_columns;        // of this panel, <= vectors * lanes
  const QEpilogue* epilogue;
  const uint8_t* residual;  // of row 0 and the panel's first column, or nullptr
  void* out;                // likewise; rows are ld_out elements apart
  size_t ld_out;
};

// A panel in memory, V = vectors * lanes columns: int32 bias[V], float multiplier[V], float
// float_bias[V], a header of 64 bytes (60 the kernel's own, then int32: 1 if every |multiplier| <
// 1, so that no requantized value is beyond int32), then the weights: V * weight_bytes for each k,
// segment_k rounded up to k_align.
struct QGemm {
  const char* name;
  size_t lanes, max_vectors;  // columns of a vector; vectors of the widest panel
  size_t k_align, weight_bytes;
  // Writes the weights of columns [first, first + vectors * lanes) as int8 (see qgemm_b_offset),
  // and their sums over K.
  void (*pack_panel)(const QGemmB& b, size_t first, size_t vectors, std::byte* header,
                     std::byte* weights, int32_t* sums);
  void (*block)(const QGemmBlock& block);
  int32_t a_offset = 0;      // the kernel multiplies a - a_offset; the bias makes up for it
  LookUp look_up = nullptr;  // nullptr: block does the epilogue's table
};

#define WIA_KERNEL(features, name) extern const QGemm name;
#include "ops/qgemm/kernels.inc"
#undef WIA_KERNEL

// The fastest kernel that the feature mask (base/cpu.h) allows.
const QGemm& select_qgemm(uint32_t isa);

size_t qgemm_panels(const QGemm& kernel, size_t n);
// Columns [first, first + count) of a panel.
void qgemm_panel_columns(const QGemm& kernel, size_t n, size_t panel, size_t* first, size_t* count);
size_t qgemm_packed_bytes(const QGemm& kernel, size_t segments, size_t segment_k, size_t n);
// Packs panels [panel_begin, panel_end); the defaults pack all.
void qgemm_pack(const QGemm& kernel, const QGemmB& b, void* packed, size_t panel_begin = 0,
                size_t panel_end = SIZE_MAX);
// Where a panel starts in the packed buffer, in bytes.
size_t qgemm_panel_offset(const QGemm& kernel, size_t segments, size_t segment_k, size_t n,
                          size_t panel);

struct QGemmRun {
  const void* packed = nullptr;
  size_t k = 0, n = 0;         // as packed, with one segment
  int32_t b_zero_point = 0;    // as packed
  bool b_is_unsigned = false;  // as packed
  const uint8_t* a = nullptr;
  size_t lda = 0;
  void* out = nullptr;                // uint8_t, float or int32_t by epilogue.output
  size_t ld_out = 0;                  // elements
  size_t row_begin = 0, row_end = 0;  // rows of A, residual and out, counted from their pointers
  size_t panel_begin = 0, panel_end = SIZE_MAX;
};
void qgemm_run(const QGemm& kernel, const QGemmRun& run, const QEpilogue& epilogue);

}  // namespace wia
