// SPDX-License-Identifier: Apache-2.0
// Tensors from shapes, scalars and attributes: Constant, ConstantOfShape, Range, EyeLike, OneHot,
// Trilu.
#include <cmath>
#include <cstring>

#include "runtime/ops/op.h"

namespace wia {
namespace {

class Constant final : public Op {
 public:
  Constant(const Node& node, const KernelContext& context) : Op(node, context) {
    if (const Tensor* t = node.tensor("value")) {
      value_ = *t;
    } else if (node.has("value_float")) {
      value_ = Tensor::allocate(DType::kFloat32, {});
      *value_.as<float>() = node.f("value_float", 0);
    } else if (node.has("value_int")) {
      value_ = Tensor::allocate(DType::kInt64, {});
      *value_.as<int64_t>() = node.i("value_int", 0);
    } else if (node.has("value_floats")) {
      const std::vector<float> v = node.floats("value_floats");
      value_ = Tensor::allocate(DType::kFloat32, {static_cast<int64_t>(v.size())});
      std::copy(v.begin(), v.end(), value_.as<float>());
    } else if (node.has("value_ints")) {
      const std::vector<int64_t> v = node.ints("value_ints");
      value_ = Tensor::allocate(DType::kInt64, {static_cast<int64_t>(v.size())});
      std::copy(v.begin(), v.end(), value_.as<int64_t>());
    } else {
      unsupported("the value is no tensor of numbers");
    }
    dispatch_width(value_.dtype, [](auto) {});
  }
  Inferred infer(InferContext& c) override {
    c.set(0, value_.dtype, value_.shape);
    return Inferred::kDone;
  }
  bool from_shapes_only() const override { return true; }
  void run(RunContext& c) override {
    if (value_.n_bytes()) std::memcpy(c.output(0)->data, value_.data, value_.n_bytes());
  }

 private:
  Tensor value_;
};

class ConstantOfShape final : public Op {
 public:
  ConstantOfShape(const Node& node, const KernelContext& context) : Op(node, context) {
    if (const Tensor* t = node.tensor("value")) {
      check(t->numel() == 1, "value is not one element");
      value_ = *t;
    } else {
      value_ = Tensor::allocate(DType::kFloat32, {1});
      *value_.as<float>() = 0.0f;
    }
    dispatch_width(value_.dtype, [](auto) {});
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (!c.value(0)) return Inferred::kNeedsValues;
    const std::vector<int64_t> dims = ints_of(*c.value(0));
    for (int64_t d : dims) check(d >= 0, "the shape has a negative dimension");
    c.set(0, value_.dtype, Shape(dims));
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    Tensor& y = *c.output(0);
    dispatch_width(value_.dtype,
                   [&]<class W>(W) { std::fill_n(y.as<W>(), y.numel(), *value_.as<W>()); });
  }

 private:
  Tensor value_;
};

class Range final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    dtype_ = c.dtype(0);
    for (size_t i = 0; i < 3; ++i) {
      check_type(c.dtype(i), dtype_, "an input");
      check(c.shape(i).numel() == 1, "an input is not a scalar");
      if (!c.value(i)) return Inferred::kNeedsValues;
    }
    const bool known = dispatch<float, double, int16_t, int32_t, int64_t>(dtype_, [&]<class T>() {
      const T start = *c.value(0)->as<T>(), limit = *c.value(1)->as<T>(),
              delta = *c.value(2)->as<T>();
      check(delta != T{0}, "delta is 0");
      const double n = std::ceil((static_cast<double>(limit) - static_cast<double>(start)) /
                                 static_cast<double>(delta));
      check(n == n && n < 0x1p31, "the range has too many values");
      n_ = n < 0 ? 0 : static_cast<int64_t>(n);
    });
    if (!known) bad_type(dtype_);
    c.set(0, dtype_, {n_});
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    dispatch<float, double, int16_t, int32_t, int64_t>(dtype_, [&]<class T>() {
      const T start = *c.input(0)->as<T>(), delta = *c.input(2)->as<T>();
      T* y = c.output(0)->as<T>();
      for (int64_t i = 0; i < n_; ++i) {
        if constexpr (std::is_integral_v<T>)
          y[i] = static_cast<T>(static_cast<uint64_t>(start) +
                                static_cast<uint64_t>(i) * static_cast<uint64_t>(delta));
        else
          y[i] = start + static_cast<T>(i) * delta;
      }
    });
  }

 private:
  DType dtype_ = DType::kUndefined;
  int64_t n_ = 0;
};

class EyeLike final : public Op {
 public:
  EyeLike(const Node& node, const KernelContext& context)
      : Op(node, context), dtype_(static_cast<DType>(node.i("dtype", 0))), k_(node.i("k", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check(c.shape(0).rank() == 2, "the input is not a matrix");
    out_ = dtype_ == DType::kUndefined ? c.dtype(0) : dtype_;
    if (!types(out_, []<class T>() {})) bad_type(out_);
    c.set(0, out_, c.shape(0));
    return Inferred::kDone;
  }
  bool from_shapes_only() const override { return true; }
  void run(RunContext& c) override {
    Tensor& y = *c.output(0);
    const int64_t rows = y.shape[0], columns = y.shape[1];
    types(out_, [&]<class T>() {
      std::fill_n(y.as<T>(), y.numel(), T(0));
      for (int64_t r = 0; r < rows; ++r)
        if (k_ >= -r && k_ < columns - r) y.as<T>()[r * columns + r + k_] = T(1);
    });
  }

 private:
  template <class Body>
  static bool types(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body) || dispatch<Half, BFloat16, bool>(dtype, body);
  }
  DType dtype_, out_ = DType::kUndefined;
  int64_t k_;
};

class OneHot final : public Op {
 public:
  OneHot(const Node& node, const KernelContext& context)
      : Op(node, context), axis_(node.i("axis", -1)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    check(c.shape(1).numel() == 1, "depth is not a scalar");
    check(c.shape(2).numel() == 2, "values is not [off, on]");
    if (!c.value(1)) return Inferred::kNeedsValues;
    if (!dispatch_numbers(c.dtype(0), []<class T>() {})) bad_type(c.dtype(0));
    const bool known = dispatch_numbers(c.value(1)->dtype, [&]<class T>() {
      const double depth = static_cast<double>(*c.value(1)->as<T>());
      check(depth >= 0 && depth < 0x1p31, "depth is negative or too large");
      depth_ = static_cast<int64_t>(depth);
    });
    if (!known) bad_type(c.value(1)->dtype);
    const Shape& x = c.shape(0);
    const int axis = axis_of(axis_, x.rank() + 1);
    Shape out;
    for (int d = 0; d <= x.rank(); ++d) out.push_back(d == axis ? depth_ : x[d < axis ? d : d - 1]);
    inner_ = product(x, axis, x.rank());
    dispatch_width(c.dtype(2), [](auto) {});
    c.set(0, c.dtype(2), out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor &x = *c.input(0), &values = *c.input(2);
    Tensor& y = *c.output(0);
    dispatch_width(values.dtype, [&]<class W>(W) {
      const W off = values.as<W>()[0], on = values.as<W>()[1];
      std::fill_n(y.as<W>(), y.numel(), off);
      dispatch_numbers(x.dtype, [&]<class T>() {
        const int64_t n = x.numel();
        for (int64_t i = 0; i < n; ++i) {
          const double raw = static_cast<double>(x.as<T>()[i]);
          const double at = raw < 0 ? raw + static_cast<double>(depth_) : raw;
          if (!(at >= 0 && at < static_cast<double>(depth_))) continue;
          y.as<W>()[(i / inner_ * depth_ + static_cast<int64_t>(at)) * inner_ + i % inner_] = on;
        }
      });
    });
  }

 private:
  int64_t axis_, depth_ = 0, inner_ = 1;
};

class Trilu final : public Op {
 public:
  Trilu(const Node& node, const KernelContext& context)
      : Op(node, context), upper_(node.i("upper", 1) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check(c.shape(0).rank() >= 2, "the input is no matrix");
    k_given_ = given(c, 1);
    if (k_given_) {
      check_type(c.dtype(1), DType::kInt64, "k");
      check(c.shape(1).numel() == 1, "k is not a scalar");
    }
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    const int rank = x.shape.rank();
    const int64_t rows = x.shape[rank - 2], columns = x.shape[rank - 1];
    const int64_t k =
        std::clamp<int64_t>(k_given_ ? *c.input(1)->as<int64_t>() : 0, -rows - 1, columns + 1);
    if (x.numel() == 0) return;
    dispatch_width(x.dtype, [&]<class W>(W) {
      const int64_t n = x.numel() / columns;
      for (int64_t r = 0; r < n; ++r) {
        const int64_t diagonal = r % rows + k;
        const W* in = x.as<W>() + r * columns;
        W* out = y.as<W>() + r * columns;
        for (int64_t j = 0; j < columns; ++j)
          out[j] = (upper_ ? j >= diagonal : j <= diagonal) ? in[j] : W{0};
      }
    });
  }

 private:
  bool upper_, k_given_ = false;
};

}  // namespace

std::unique_ptr<Kernel> make_constant(const Node& n, const KernelContext& c) {
  return std::make_unique<Constant>(n, c);
}
std::unique_ptr<Kernel> make_constant_of_shape(const Node& n, const KernelContext& c) {
  return std::make_unique<ConstantOfShape>(n, c);
}
std::unique_ptr<Kernel> make_range(const Node& n, const KernelContext& c) {
  return widened<Range>(n, c);
}
std::unique_ptr<Kernel> make_eye_like(const Node& n, const KernelContext& c) {
  return std::make_unique<EyeLike>(n, c);
}
std::unique_ptr<Kernel> make_one_hot(const Node& n, const KernelContext& c) {
  return std::make_unique<OneHot>(n, c);
}
std::unique_ptr<Kernel> make_trilu(const Node& n, const KernelContext& c) {
  return std::make_unique<Trilu>(n, c);
}

}  // namespace wia
