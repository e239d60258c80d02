// SPDX-License-Identifier: Apache-2.0
// How an integer product ends, as the attributes of its node say: (8)-(12) of docs/quantization.md.
//
//   quantized 0: float32 out, (9).  quantized 1: uint8 out with zero_point, qmin, qmax, and
//   optionally table (uint8[256]), then sum_* for a residual: the node's last input.
#pragma once

#include "ops/epilogue/epilogue.h"
#include "runtime/ops/op.h"

namespace wia {

class Ending {
 public:
  explicit Ending(const Node& node);

  bool quantized() const { return quantized_; }
  bool has_residual() const { return has_residual_; }
  DType dtype() const { return quantized_ ? DType::kUint8 : DType::kFloat32; }
  // [channels] or one value.
  const float* multiplier() const { return multiplier_.as<float>(); }
  size_t multiplier_stride() const { return multiplier_.numel() == 1 ? 0 : 1; }
  const int32_t* bias() const { return bias_.data ? bias_.as<int32_t>() : nullptr; }
  // Throws Error unless multipliers and bias are one value or n.
  void check_channels(const std::string& where, int64_t n) const;
  // The elements between rows of a residual of this shape: those of the output's shape, or 0 for
  // one row that all rows share. Throws Error when it is neither.
  size_t residual_ld(const std::string& where, const Shape& residual, const Shape& out) const;
  // residual is the Add's other operand, dense with ld elements a row, or nullptr.
  QEpilogue epilogue(const uint8_t* residual, size_t ld) const;

 private:
  bool quantized_ = false, has_residual_ = false;
  Tensor multiplier_, bias_, table_, sum_table_;
  QEpilogue epilogue_;
};

}  // namespace wia
