// SPDX-License-Identifier: Apache-2.0
// float16 and bfloat16 through float32 kernels.
#include "runtime/ops/op.h"

namespace wia {
namespace {

constexpr int64_t kPiece = 4096;

void to_float(const Tensor& in, float* out, const Fmath& fmath, ThreadPool& pool) {
  const uint16_t* x = in.as<uint16_t>();
  const bool half = in.dtype == DType::kFloat16;
  pool.parallel_for(in.numel(), kPiece, [&](int64_t begin, int64_t end) {
    if (half) return fmath.half_to_float(static_cast<size_t>(end - begin), x + begin, out + begin);
    for (int64_t i = begin; i < end; ++i) out[i] = bfloat16_to_float(x[i]);
  });
}

void from_float(const float* in, Tensor& out, const Fmath& fmath, ThreadPool& pool) {
  uint16_t* y = out.as<uint16_t>();
  const bool half = out.dtype == DType::kFloat16;
  pool.parallel_for(out.numel(), kPiece, [&](int64_t begin, int64_t end) {
    if (half) return fmath.float_to_half(static_cast<size_t>(end - begin), in + begin, y + begin);
    for (int64_t i = begin; i < end; ++i) y[i] = float_to_bfloat16(in[i]);
  });
}

Tensor as_float(const Tensor& t) {
  Tensor out = Tensor::allocate(DType::kFloat32, t.shape);
  const int64_t n = t.numel();
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = t.as<uint16_t>()[i];
    out.as<float>()[i] = t.dtype == DType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
  return out;
}

class Widened final : public Kernel {
 public:
  Widened(std::unique_ptr<Kernel> inner, const KernelContext& context, uint32_t float_outputs)
      : inner_(std::move(inner)),
        fmath_(select_fmath(context.isa)),
        float_outputs_(float_outputs) {}

  Inferred infer(InferContext& c) override {
    half_ = DType::kUndefined;
    for (size_t i = 0; i < c.n_inputs(); ++i)
      if (c.has(i) && is_half(c.dtype(i)) && half_ == DType::kUndefined) half_ = c.dtype(i);
    if (half_ == DType::kUndefined) return inner_->infer(c);

    inputs_.assign(c.n_inputs(), {});
    outputs_.assign(c.n_outputs(), {});
    FloatInfer view(*this, c);
    const Inferred inferred = inner_->infer(view);
    if (inferred != Inferred::kDone) return inferred;
    bytes_ = 0;
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (c.has(i) && is_half(c.dtype(i))) reserve(inputs_[i], c.shape(i));
    for (Buffer& buffer : outputs_)
      if (buffer.used) reserve(buffer, buffer.tensor.shape);
    return inferred;
  }

  size_t scratch_bytes() const override {
    return half_ == DType::kUndefined ? inner_->scratch_bytes() : bytes_ + inner_->scratch_bytes();
  }
  int alias_of() const override { return inner_->alias_of(); }
  bool may_overwrite(size_t input) const override { return inner_->may_overwrite(input); }
  bool consumed(size_t input) const override { return inner_->consumed(input); }
  bool from_shapes_only() const override { return inner_->from_shapes_only(); }
  std::string implementation() const override { return inner_->implementation(); }

  void run(RunContext& c) override {
    if (half_ == DType::kUndefined) return inner_->run(c);
    std::byte* scratch = c.scratch();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].used || inner_->consumed(i)) continue;
      inputs_[i].tensor.data = scratch + inputs_[i].offset;
      to_float(*c.input(i), inputs_[i].tensor.as<float>(), fmath_, c.pool());
    }
    for (Buffer& buffer : outputs_)
      if (buffer.used) buffer.tensor.data = scratch + buffer.offset;
    FloatRun view(*this, c);
    inner_->run(view);
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_[i].used && c.output(i))
        from_float(outputs_[i].tensor.as<float>(), *c.output(i), fmath_, c.pool());
  }

 private:
  struct Buffer {
    bool used = false;
    size_t offset = 0;
    Tensor tensor;  // float32, in scratch while running
  };

  void reserve(Buffer& buffer, const Shape& shape) {
    buffer.used = true;
    buffer.offset = bytes_;
    buffer.tensor = Tensor{DType::kFloat32, shape, nullptr, nullptr};
    bytes_ += align64(static_cast<size_t>(shape.numel()) * sizeof(float));
  }

  class FloatInfer final : public InferContext {
   public:
    FloatInfer(Widened& owner, InferContext& c) : owner_(owner), c_(c) {}
    size_t n_inputs() const override { return c_.n_inputs(); }
    bool has(size_t i) const override { return c_.has(i); }
    DType dtype(size_t i) const override {
      return is_half(c_.dtype(i)) ? DType::kFloat32 : c_.dtype(i);
    }
    const Shape& shape(size_t i) const override { return c_.shape(i); }
    const Tensor* value(size_t i) const override {
      const Tensor* v = c_.value(i);
      if (!v || !is_half(v->dtype)) return v;
      values_.push_back(std::make_unique<Tensor>(as_float(*v)));
      return values_.back().get();
    }
    size_t n_outputs() const override { return c_.n_outputs(); }
    bool wants(size_t i) const override { return c_.wants(i); }
    void set(size_t i, DType dtype, const Shape& shape) override {
      const bool narrow = dtype == DType::kFloat32 && !(owner_.float_outputs_ >> i & 1u);
      if (narrow && i < owner_.outputs_.size()) {
        owner_.outputs_[i].used = true;
        owner_.outputs_[i].tensor.shape = shape;
      }
      c_.set(i, narrow ? owner_.half_ : dtype, shape);
    }

   private:
    Widened& owner_;
    InferContext& c_;
    mutable std::vector<std::unique_ptr<Tensor>> values_;
  };

  class FloatRun final : public RunContext {
   public:
    FloatRun(Widened& owner, RunContext& c) : owner_(owner), c_(c) {}
    const Tensor* input(size_t i) const override {
      return owner_.inputs_[i].used ? &owner_.inputs_[i].tensor : c_.input(i);
    }
    Tensor* output(size_t i) override {
      return owner_.outputs_[i].used && c_.output(i) ? &owner_.outputs_[i].tensor : c_.output(i);
    }
    std::byte* scratch() override { return c_.scratch() + owner_.bytes_; }
    ThreadPool& pool() override { return c_.pool(); }

   private:
    Widened& owner_;
    RunContext& c_;
  };

  std::unique_ptr<Kernel> inner_;
  const Fmath& fmath_;
  uint32_t float_outputs_;
  DType half_ = DType::kUndefined;
  size_t bytes_ = 0;
  std::vector<Buffer> inputs_, outputs_;
};

}  // namespace

std::unique_ptr<Kernel> widen(std::unique_ptr<Kernel> inner, const KernelContext& context,
                              uint32_t float_outputs) {
  return std::make_unique<Widened>(std::move(inner), context, float_outputs);
}

std::shared_ptr<const Tensor> constant_float(const Node& node, const KernelContext& context,
                                             size_t input) {
  if (input >= node.inputs.size() || !context.graph->is_constant(node.inputs[input]))
    return nullptr;
  const std::shared_ptr<Tensor>& t = context.graph->values[node.inputs[input]].constant;
  if (t->dtype == DType::kFloat32) return t;
  if (!is_half(t->dtype)) return nullptr;
  return std::make_shared<Tensor>(as_float(*t));
}

}  // namespace wia
