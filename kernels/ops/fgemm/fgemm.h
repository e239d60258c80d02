// SPDX-License-Identifier: Apache-2.0
// fgemm: float32 matrix products, the core of MatMul, Gemm and Conv.
//
//   C[i, j] = fma(A[i, K-1], B[K-1, j], ... fma(A[i, 0], B[0, j], 0)) + row_bias[i] +
//   column_bias[j]
//
// One chain over k in order per output (docs/quantization.md 15): the same bits for every blocking,
// instruction set and number of threads. A and B are packed: A in blocks of `mr` rows
// [block][K][rows of the block], B in panels of `nr` columns [panel][K][nr], the last panel padded
// with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace wia {

// One block of rows times one panel.
struct FgemmTile {
  size_t m;        // rows, 1..mr
  size_t n;        // columns wanted, 1..nr
  size_t k;        // links of the chain in this call
  const float* a;  // [k][m]
  const float* b;  // [k][nr]
  float* c;        // [m][ld_c], n of each row written
  size_t ld_c;
  bool resume;               // the chains start from C instead of 0
  bool finish;               // add the biases
  const float* row_bias;     // [m] or null
  const float* column_bias;  // [n] or null
};

struct FgemmKernel {
  const char* name;
  size_t mr, nr;
  void (*tile)(const FgemmTile& tile);
};

#define WIA_KERNEL(features, name) extern const FgemmKernel name;
#include "ops/fgemm/kernels.inc"
#undef WIA_KERNEL

const FgemmKernel& select_fgemm(uint32_t isa);

// Floats of a packed A [m, k] and of a packed B [k, n].
size_t fgemm_packed_a_size(size_t m, size_t k);
size_t fgemm_packed_b_size(const FgemmKernel& kernel, size_t k, size_t n);

// Element (i, k) is a[i * row_step + k * column_step]; blocks [first, last) of ceil(m / mr).
void fgemm_pack_a(const FgemmKernel& kernel, size_t m, size_t k, const float* a, size_t row_step,
                  size_t column_step, size_t first, size_t last, float* packed);
// Element (k, j) is b[k * row_step + j * column_step]; panels [first, last) of ceil(n / nr).
void fgemm_pack_b(const FgemmKernel& kernel, size_t k, size_t n, const float* b, size_t row_step,
                  size_t column_step, size_t first, size_t last, float* packed);

struct FgemmParams {
  size_t m, n, k;
  const float* a;  // all of the packed A
  const float* b;  // all of the packed B
  float* c;        // [m, ld_c], c[0] is row 0, column 0
  size_t ld_c;
  const float* row_bias;           // [m] or null
  const float* column_bias;        // [n] or null
  size_t first_block, last_block;  // of rows
  size_t first_panel, last_panel;  // of columns
};
// The part of C given by the blocks and panels; called from any thread.
void fgemm_run(const FgemmKernel& kernel, const FgemmParams& params);

}  // namespace wia
