// SPDX-License-Identifier: Apache-2.0
// Operators whose output is the input's bytes under another shape, and those that only look at
// shapes.
#include <cstring>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// Copies nothing when the executor gives output 0 the memory of input 0.
class SameBytes : public Op {
 public:
  using Op::Op;
  int alias_of() const override { return 0; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    if (x.data != y.data && x.n_bytes()) std::memcpy(y.data, x.data, x.n_bytes());
  }
  std::string implementation() const override { return "alias"; }

 protected:
  // Sets the output to the input's elements in `shape`.
  Inferred done(InferContext& c, const Shape& shape) const {
    check(shape.numel() == c.shape(0).numel(), "cannot reshape " + c.shape(0).str() + " to " +
                                                   shape.str() +
                                                   ": the numbers of elements differ");
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), shape);
    return Inferred::kDone;
  }
};

class Identity final : public SameBytes {
 public:
  using SameBytes::SameBytes;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    return done(c, c.shape(0));
  }
};

class Reshape final : public SameBytes {
 public:
  Reshape(const Node& node, const KernelContext& context)
      : SameBytes(node, context),
        legacy_(node.ints("shape")),
        allow_zero_(node.i("allowzero", 0) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    std::vector<int64_t> wanted = legacy_;
    if (opset_ >= 5) {
      check_inputs(c, 2);
      if (!c.value(1)) return Inferred::kNeedsValues;
      wanted = ints_of(*c.value(1));
    }
    const Shape& x = c.shape(0);
    check(wanted.size() <= Shape::kMaxRank, "the new shape has more than 8 dimensions");
    Shape out;
    int unknown = -1;
    for (size_t d = 0; d < wanted.size(); ++d) {
      int64_t n = wanted[d];
      if (n == 0 && !allow_zero_) {
        check(static_cast<int>(d) < x.rank(),
              "the new shape copies a dimension that the input lacks");
        n = x[static_cast<int>(d)];
      }
      check(n >= -1, "the new shape has a negative dimension");
      if (n == -1) {
        check(unknown < 0, "the new shape has two dimensions of -1");
        unknown = static_cast<int>(d);
      }
      out.push_back(n);
    }
    if (unknown >= 0) {
      out[unknown] = 1;
      const int64_t rest = out.numel(), all = x.numel();
      check(rest > 0 && all % rest == 0,
            "cannot reshape " + x.str() + " to " + Shape(wanted).str());
      out[unknown] = all / rest;
    }
    return done(c, out);
  }

 private:
  std::vector<int64_t> legacy_;
  bool allow_zero_;
};

class Flatten final : public SameBytes {
 public:
  Flatten(const Node& node, const KernelContext& context)
      : SameBytes(node, context), axis_(node.i("axis", 1)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    check(axis_ >= -x.rank() && axis_ <= x.rank(), "axis is outside the input's dimensions");
    const int axis = static_cast<int>(axis_ < 0 ? axis_ + x.rank() : axis_);
    return done(c, {product(x, 0, axis), product(x, axis, x.rank())});
  }

 private:
  int64_t axis_;
};

// Squeeze and Unsqueeze: axes as an attribute before opset 13, as an input since.
class Squeeze final : public SameBytes {
 public:
  Squeeze(const Node& node, const KernelContext& context, bool add)
      : SameBytes(node, context),
        add_(add),
        axes_(node.ints("axes")),
        axes_given_(node.has("axes")) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    std::vector<int64_t> axes = axes_;
    bool axes_given = axes_given_;
    if (opset_ >= 13) {
      axes_given = given(c, 1);
      if (axes_given) {
        if (!c.value(1)) return Inferred::kNeedsValues;
        axes = ints_of(*c.value(1));
      }
    }
    check(axes_given || !add_, "axes are missing");
    const Shape& x = c.shape(0);
    const int rank = add_ ? x.rank() + static_cast<int>(axes.size()) : x.rank();
    check(rank <= Shape::kMaxRank, "the output has more than 8 dimensions");
    bool named[Shape::kMaxRank] = {};
    for (int64_t a : axes) {
      const int axis = axis_of(a, rank);
      check(!named[axis] || !add_, "an axis is named twice");
      named[axis] = true;
    }
    Shape out;
    int next = 0;
    for (int d = 0; d < rank; ++d) {
      if (add_) {
        out.push_back(named[d] ? 1 : x[next++]);
      } else if (axes_given ? !named[d] : x[d] != 1) {
        out.push_back(x[d]);
      } else {
        check(x[d] == 1, "dimension " + std::to_string(d) + " of " + x.str() + " is not 1");
      }
    }
    return done(c, out);
  }

 private:
  bool add_;
  std::vector<int64_t> axes_;
  bool axes_given_;
};

class ShapeOf final : public Op {
 public:
  ShapeOf(const Node& node, const KernelContext& context)
      : Op(node, context), start_(node.i("start", 0)), end_(node.i("end", INT64_MAX)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    const auto bound = [&](int64_t v) {
      return std::clamp<int64_t>(v < 0 ? v + x.rank() : v, 0, x.rank());
    };
    const int64_t first = bound(start_), last = end_ == INT64_MAX ? x.rank() : bound(end_);
    dims_.clear();
    for (int64_t d = first; d < last; ++d) dims_.push_back(x[static_cast<int>(d)]);
    c.set(0, DType::kInt64, {static_cast<int64_t>(dims_.size())});
    return Inferred::kDone;
  }
  bool from_shapes_only() const override { return true; }
  void run(RunContext& c) override {
    std::copy(dims_.begin(), dims_.end(), c.output(0)->as<int64_t>());
  }

 private:
  int64_t start_, end_;
  std::vector<int64_t> dims_;
};

class Size final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    n_ = c.shape(0).numel();
    c.set(0, DType::kInt64, {});
    return Inferred::kDone;
  }
  bool from_shapes_only() const override { return true; }
  void run(RunContext& c) override { *c.output(0)->as<int64_t>() = n_; }

 private:
  int64_t n_ = 0;
};

// Dropout at inference: the input, and a mask of true.
class Dropout final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (opset_ >= 12 && given(c, 2)) {
      if (!c.value(2)) return Inferred::kNeedsValues;
      check_type(c.value(2)->dtype, DType::kBool, "training_mode");
      check(c.value(2)->numel() == 1, "training_mode is not a scalar");
      if (*c.value(2)->as<bool>()) {
        bool keeps_all = false;
        if (given(c, 1)) {
          if (!c.value(1)) return Inferred::kNeedsValues;
          keeps_all = c.value(1)->numel() == 1 &&
                      dispatch<float, double, Half, BFloat16>(c.value(1)->dtype, []<class T>() {});
          if (keeps_all)
            dispatch<float, double, Half, BFloat16>(c.value(1)->dtype, [&]<class T>() {
              keeps_all = static_cast<double>(*c.value(1)->as<T>()) == 0.0;
            });
        }
        if (!keeps_all)
          unsupported("training mode draws random numbers; export the model for inference");
      }
    }
    c.set(0, c.dtype(0), c.shape(0));
    // Before opset 10 the mask has the input's type.
    if (wanted(c, 1)) c.set(1, opset_ >= 10 ? DType::kBool : c.dtype(0), c.shape(0));
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor* y = c.output(0);
    if (y && y->data != x.data && x.n_bytes()) std::memcpy(y->data, x.data, x.n_bytes());
    if (Tensor* mask = has_mask(c)) {
      const bool known = dispatch<bool, float, double, Half, BFloat16>(
          mask->dtype, [&]<class T>() { std::fill_n(mask->as<T>(), mask->numel(), T(1)); });
      check(known, "the mask's type is not supported");
    }
  }
  int alias_of() const override { return 0; }

 private:
  Tensor* has_mask(RunContext& c) { return n_outputs_ > 1 ? c.output(1) : nullptr; }
  size_t n_outputs_ = 0;

 public:
  Dropout(const Node& node, const KernelContext& context)
      : Op(node, context), n_outputs_(node.outputs.size()) {}
};

}  // namespace

std::unique_ptr<Kernel> make_identity(const Node& n, const KernelContext& c) {
  return std::make_unique<Identity>(n, c);
}
std::unique_ptr<Kernel> make_reshape(const Node& n, const KernelContext& c) {
  return std::make_unique<Reshape>(n, c);
}
std::unique_ptr<Kernel> make_flatten(const Node& n, const KernelContext& c) {
  return std::make_unique<Flatten>(n, c);
}
std::unique_ptr<Kernel> make_squeeze(const Node& n, const KernelContext& c) {
  return std::make_unique<Squeeze>(n, c, false);
}
std::unique_ptr<Kernel> make_unsqueeze(const Node& n, const KernelContext& c) {
  return std::make_unique<Squeeze>(n, c, true);
}
std::unique_ptr<Kernel> make_shape(const Node& n, const KernelContext& c) {
  return std::make_unique<ShapeOf>(n, c);
}
std::unique_ptr<Kernel> make_size(const Node& n, const KernelContext& c) {
  return std::make_unique<Size>(n, c);
}
std::unique_ptr<Kernel> make_dropout(const Node& n, const KernelContext& c) {
  return std::make_unique<Dropout>(n, c);
}

}  // namespace wia
