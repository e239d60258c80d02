// SPDX-License-Identifier: Apache-2.0
// wia.QSoftmax and wia.QLayerNorm: the float operator on the last axes, one row at a time, between
// levels. The bytes are those of DequantizeLinear, the operator, QuantizeLinear one after another;
// only the rows stay in the cache.
//
//   inputs: x uint8 (attributes x_scale, x_zero_point) or float32 (neither); QLayerNorm: scale,
//   bias, constants output: uint8 (attributes y_scale, y_zero_point) or float32 (neither) QSoftmax
//   normalizes the last axis; QLayerNorm those from `axis` on, with `epsilon`
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

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
    require(scale > 0.0f && std::isfinite(scale) && level >= 0 && level <= 255,
            node.where() + ": the scale or zero point of " + which + " is out of range");
    zero_point = static_cast<int32_t>(level);
  }
  DType dtype() const { return quantized ? DType::kUint8 : DType::kFloat32; }
};

class RowOp : public Op {
 public:
  RowOp(const Node& node, const KernelContext& context)
      : Op(node, context), from_(node, "x"), to_(node, "y") {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check_type(c.dtype(0), from_.dtype(), "x");
    const Shape& x = c.shape(0);
    const int first = first_axis(x);
    rows_ = product(x, 0, first);
    n_ = product(x, first, x.rank());
    check(n_ > 0 || rows_ == 0, "nothing to normalise over");
    c.set(0, to_.dtype(), x);
    return Inferred::kDone;
  }

  bool may_overwrite(size_t input) const override {
    return input == 0 && from_.quantized == to_.quantized;
  }
  size_t scratch_bytes() const override { return row_bytes() * n_threads_; }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    if (rows_ == 0 || n_ == 0) return;
    const size_t n = static_cast<size_t>(n_);
    ScratchSlots slots(c.scratch(), row_bytes(), n_threads_);
    const Tensor &in = *c.input(0), &out = *c.output(0);
    c.pool().parallel_for(
        rows_, std::max<int64_t>(1, kGrain / 4 / n_), [&](int64_t begin, int64_t end) {
          const ScratchSlots::Lease lease(slots);
          float* buffer = lease.as<float>();
          for (int64_t r = begin; r < end; ++r) {
            const float* x = buffer;
            if (from_.quantized) {
              fmath_.dequantize_u8(n, in.as<uint8_t>() + r * n_, from_.scale, from_.zero_point,
                                   buffer);
            } else {
              x = in.as<float>() + r * n_;
            }
            float* y = to_.quantized ? buffer : static_cast<float*>(out.data) + r * n_;
            row(c, x, y);
            if (to_.quantized)
              fmath_.quantize_u8(n, y, to_.scale, to_.zero_point,
                                 static_cast<uint8_t*>(out.data) + r * n_);
          }
        });
  }

 protected:
  virtual int first_axis(const Shape& x) const = 0;
  virtual void row(RunContext& c, const float* x, float* y) const = 0;

  int64_t rows_ = 0, n_ = 0;

 private:
  size_t row_bytes() const { return align64(static_cast<size_t>(n_) * sizeof(float)); }
  RowEnd from_, to_;
};

class SoftmaxRows final : public RowOp {
 public:
  using RowOp::RowOp;

 private:
  int first_axis(const Shape& x) const override {
    check(x.rank() >= 1, "x is a scalar");
    return x.rank() - 1;
  }
  void row(RunContext&, const float* x, float* y) const override {
    fmath_.softmax(static_cast<size_t>(n_), x, y);
  }
};

class LayerNormRows final : public RowOp {
 public:
  LayerNormRows(const Node& node, const KernelContext& context)
      : RowOp(node, context), axis_(node.i("axis", -1)), epsilon_(node.f("epsilon", 1e-5f)) {}

  Inferred infer(InferContext& c) override {
    const Inferred inferred = RowOp::infer(c);
    check_inputs(c, 2);
    has_bias_ = given(c, 2);
    for (size_t i = 1; i < (has_bias_ ? 3u : 2u); ++i) {
      check_type(c.dtype(i), DType::kFloat32, "scale or bias");
      check(c.shape(i).numel() == n_, "scale or bias is not of the normalized shape");
    }
    return inferred;
  }

 private:
  int first_axis(const Shape& x) const override { return axis_of(axis_, x.rank()); }
  void row(RunContext& c, const float* x, float* y) const override {
    const size_t n = static_cast<size_t>(n_);
    const float mean = fmath_.reduceSum(n, x) / static_cast<float>(n);
    const float variance = fmath_.sum_centered(n, x, mean) / static_cast<float>(n_);
    const float factor = 1.0f / std::sqrt(variance + epsilon_);
    fmath_.normalize(n, x, mean, factor, c.input(1)->as<float>(),
                     has_bias_ ? c.input(2)->as<float>() : nullptr, y);
  }

  int64_t axis_;
  float epsilon_;
  bool has_bias_ = false;
};

}  // namespace

std::unique_ptr<Kernel> make_qsoftmax(const Node& node, const KernelContext& context) {
  return std::make_unique<SoftmaxRows>(node, context);
}
std::unique_ptr<Kernel> make_qlayer_norm(const Node& node, const KernelContext& context) {
  return std::make_unique<LayerNormRows>(node, context);
}

}  // namespace wia
