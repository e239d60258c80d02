// SPDX-License-Identifier: Apache-2.0
// wia.QSoftmax and wia.QLayerNorm: rows normalized between levels or floats, one row at a time,
// with what surrounds them; docs/quantization.md (23), (25).
//
//   QSoftmax: the last axis of (x [/ divide] [* multiply] [+ mask])
//     inputs: x uint8 (attributes x_scale, x_zero_point) or float32; mask float32, broadcast,
//     optional
//   QLayerNorm: the axes from `axis` on of (x [+ addend]), with `epsilon`
//     inputs: x uint8 or float32 as above; scale; bias (optional); addend float32 of x's shape,
//     optional
//   output 0: uint8 (attributes y_scale, y_zero_point) or float32; output 1 of QLayerNorm: the same
//   floats before they became levels, optional
#include <cmath>

#include "ops/qscale/qscale.h"
#include "runtime/ops/op.h"

namespace wia {
namespace {

constexpr float kSmallestScale = 1e-30f;

// Levels or floats at one end of a row operator.
struct RowEnd {
  bool quantized = false;
  float scale = 1.0f;
  int32_t zero_point = 0;

  RowEnd(const Node& node, const std::string& which) {
    quantized = node.has(which + "_scale");
    if (!quantized) return;
    scale = node.f(which + "_scale", 1.0f);
    const int64_t level = node.i(which + "_zero_point", 0);
    require(scale >= kSmallestScale && std::isfinite(scale) && level >= 0 && level <= 255,
            node.where() + ": the scale or zero point of " + which + " is out of range");
    zero_point = static_cast<int32_t>(level);
  }
  DType dtype() const { return quantized ? DType::kUint8 : DType::kFloat32; }
};

class RowOp : public Op {
 public:
  RowOp(const Node& node, const KernelContext& context)
      : Op(node, context), from_(node, "x"), to_(node, "y") {}

  size_t scratch_bytes() const override { return row_bytes() * n_threads_; }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    if (rows_ == 0 || n_ == 0) return;
    ScratchSlots slots(c.scratch(), row_bytes(), n_threads_);
    c.pool().parallel_for(rows_, std::max<int64_t>(1, kGrain / 4 / n_),
                          [&](int64_t begin, int64_t end) {
                            const ScratchSlots::Lease lease(slots);
                            for (int64_t r = begin; r < end; ++r) row(c, r, lease.as<float>());
                          });
  }

 protected:
  // Row r, with a buffer of n_ floats.
  virtual void row(RunContext& c, int64_t r, float* buffer) const = 0;

  RowEnd from_, to_;
  int64_t rows_ = 0, n_ = 0;

 private:
  size_t row_bytes() const { return align64(static_cast<size_t>(n_) * sizeof(float)); }
};

class SoftmaxRows final : public RowOp {
 public:
  SoftmaxRows(const Node& node, const KernelContext& context)
      : RowOp(node, context),
        scale_(select_qscale(context.isa)),
        divides_(node.has("divide")),
        multiplies_(node.has("multiply")),
        divisor_(node.f("divide", 1.0f)),
        factor_(node.f("multiply", 1.0f)) {
    check(!from_.quantized || (!divides_ && !multiplies_), "levels with a factor");
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check_type(c.dtype(0), from_.dtype(), "x");
    has_mask_ = given(c, 1);
    check(!(has_mask_ && from_.quantized), "levels with a mask");
    Shape y = c.shape(0);
    if (has_mask_) {
      check_type(c.dtype(1), DType::kFloat32, "the mask");
      y = broadcast_shape(c.shape(0), c.shape(1), where_);
    }
    check(y.rank() >= 1, "x is a scalar");
    n_ = y[y.rank() - 1];
    rows_ = product(y, 0, y.rank() - 1);
    same_ = c.shape(0) == y;
    rank_ = y.rank();
    for (int d = 0; d < rank_; ++d) dims_[d] = y[d];
    plan(0, c.shape(0));
    if (has_mask_) plan(1, c.shape(1));
    c.set(0, to_.dtype(), y);
    return Inferred::kDone;
  }

  bool may_overwrite(size_t input) const override {
    return input == 0 && same_ && from_.quantized == to_.quantized;
  }

 private:
  void plan(int operand, const Shape& s) {
    const auto steps = steps_of(s);
    for (int d = 0; d < rank_; ++d) {
      const int own = d - (rank_ - s.rank());
      steps_[operand][d] = own < 0 || s[own] == 1 ? 0 : steps[static_cast<size_t>(own)];
    }
  }

  // Where row r of an operand begins.
  int64_t offset(int operand, int64_t r) const {
    if (operand == 0 && same_) return r * n_;
    int64_t at = 0;
    for (int d = rank_ - 2; d >= 0; --d) {
      at += r % dims_[d] * steps_[operand][d];
      r /= dims_[d];
    }
    return at;
  }

  void row(RunContext& c, int64_t r, float* buffer) const override {
    const size_t n = static_cast<size_t>(n_);
    if (from_.quantized) {
      const uint8_t* x = c.input(0)->as<uint8_t>() + r * n_;
      if (to_.quantized) {  // (25): the exponents from the largest level down
        fmath_.dequantize_u8(n, x, from_.scale, scale_.largest(n, x), buffer);
        fmath_.unaryExp(n, buffer, buffer, 0.0f, 0.0f);
        return finish(c, r, buffer);
      }
      fmath_.dequantize_u8(n, x, from_.scale, from_.zero_point, buffer);
      return fmath_.softmax(n, buffer, c.output(0)->as<float>() + r * n_);
    }
    const float* x = c.input(0)->as<float>() + offset(0, r);
    size_t step = same_ || steps_[0][rank_ - 1] ? 1 : 0;
    auto apply = [&](Fmath::Binary function, const float* operand, size_t operand_step) {
      function(n, x, step, operand, operand_step, buffer);
      x = buffer;
      step = 1;
    };
    if (divides_) apply(fmath_.binaryDiv, &divisor_, 0);
    if (multiplies_) apply(fmath_.binaryMul, &factor_, 0);
    if (has_mask_)
      apply(fmath_.binaryAdd, c.input(1)->as<float>() + offset(1, r), steps_[1][rank_ - 1] ? 1 : 0);
    if (!to_.quantized) return fmath_.softmax(n, x, c.output(0)->as<float>() + r * n_);
    const float peak = scale_.largest_float(n, x);
    fmath_.binarySub(n, x, 1, &peak, 0, buffer);
    fmath_.unaryExp(n, buffer, buffer, 0.0f, 0.0f);
    finish(c, r, buffer);
  }

  // exp of the row to levels.
  void finish(RunContext& c, int64_t r, const float* e) const {
    const size_t n = static_cast<size_t>(n_);
    const float factor = 1.0f / (fmath_.reduceSum(n, e) * to_.scale);
    scale_.to_levels(n, e, factor, to_.zero_point, c.output(0)->as<uint8_t>() + r * n_);
  }

  const QScale& scale_;
  bool divides_, multiplies_, has_mask_ = false, same_ = true;
  float divisor_, factor_;
  int rank_ = 0;
  int64_t dims_[Shape::kMaxRank] = {};
  int64_t steps_[2][Shape::kMaxRank] = {};
};

class LayerNormRows final : public RowOp {
 public:
  LayerNormRows(const Node& node, const KernelContext& context)
      : RowOp(node, context), axis_(node.i("axis", -1)), epsilon_(node.f("epsilon", 1e-5f)) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    check_type(c.dtype(0), from_.dtype(), "x");
    const Shape& x = c.shape(0);
    const int first = axis_of(axis_, x.rank());
    rows_ = product(x, 0, first);
    n_ = product(x, first, x.rank());
    check(n_ > 0 || rows_ == 0, "nothing to normalise over");
    has_bias_ = given(c, 2);
    for (size_t i = 1; i < (has_bias_ ? 3u : 2u); ++i) {
      check_type(c.dtype(i), DType::kFloat32, "scale or bias");
      check(c.shape(i).numel() == n_, "scale or bias is not of the normalized shape");
    }
    has_addend_ = given(c, kAddend);
    if (has_addend_) {
      check_type(c.dtype(kAddend), DType::kFloat32, "the addend");
      check(c.shape(kAddend) == x, "the addend is " + c.shape(kAddend).str() + " but x " + x.str());
    }
    wants_floats_ = wanted(c, 1);
    check(!wants_floats_ || to_.quantized, "a second output of floats beside floats");
    c.set(0, to_.dtype(), x);
    if (wants_floats_) c.set(1, DType::kFloat32, x);
    return Inferred::kDone;
  }

  bool may_overwrite(size_t input) const override {
    return input == 0 && from_.quantized == to_.quantized && !wants_floats_;
  }

 private:
  static constexpr size_t kAddend = 3;

  void row(RunContext& c, int64_t r, float* buffer) const override {
    const size_t n = static_cast<size_t>(n_);
    const float* x = buffer;
    if (from_.quantized) {
      fmath_.dequantize_u8(n, c.input(0)->as<uint8_t>() + r * n_, from_.scale, from_.zero_point,
                           buffer);
    } else {
      x = c.input(0)->as<float>() + r * n_;
    }
    if (has_addend_) {
      fmath_.binaryAdd(n, x, 1, c.input(kAddend)->as<float>() + r * n_, 1, buffer);
      x = buffer;
    }
    float* y = buffer;
    if (!to_.quantized) y = c.output(0)->as<float>() + r * n_;
    if (wants_floats_) y = c.output(1)->as<float>() + r * n_;
    const float mean = fmath_.reduceSum(n, x) / static_cast<float>(n);
    const float variance = fmath_.sum_centered(n, x, mean) / static_cast<float>(n_);
    fmath_.normalize(n, x, mean, 1.0f / std::sqrt(variance + epsilon_), c.input(1)->as<float>(),
                     has_bias_ ? c.input(2)->as<float>() : nullptr, y);
    if (to_.quantized)
      fmath_.quantize_u8(n, y, to_.scale, to_.zero_point, c.output(0)->as<uint8_t>() + r * n_);
  }

  int64_t axis_;
  float epsilon_;
  bool has_bias_ = false, has_addend_ = false, wants_floats_ = false;
};

}  // namespace

std::unique_ptr<Kernel> make_qsoftmax(const Node& node, const KernelContext& context) {
  return std::make_unique<SoftmaxRows>(node, context);
}
std::unique_ptr<Kernel> make_qlayer_norm(const Node& node, const KernelContext& context) {
  return std::make_unique<LayerNormRows>(node, context);
}

}  // namespace wia
