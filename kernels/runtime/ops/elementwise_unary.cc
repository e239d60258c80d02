// SPDX-License-Identifier: Apache-2.0
// Functions of one tensor, element by element.
#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/ops/op.h"

namespace wia {
namespace {

using Exact = double (*)(double x, double a, double b);

// A float function: by fmath in float32 where it has one, else in float64 and rounded once.
class FloatUnary final : public Op {
 public:
  FloatUnary(const Node& node, const KernelContext& context, Fmath::Unary fast, Exact exact,
             float a, float b)
      : Op(node, context), fast_(fast), exact_(exact), a_(a), b_(b) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    dtype_ = c.dtype(0);
    if (dtype_ != DType::kFloat32 && dtype_ != DType::kFloat64) bad_type(dtype_);
    c.set(0, dtype_, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return true; }
  std::string implementation() const override { return fast_ ? fmath_.name : "reference"; }

  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    c.pool().parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      if (dtype_ == DType::kFloat64) {
        for (int64_t i = begin; i < end; ++i) y.as<double>()[i] = exact_(x.as<double>()[i], a_, b_);
      } else if (fast_) {
        fast_(static_cast<size_t>(end - begin), x.as<float>() + begin, y.as<float>() + begin, a_,
              b_);
      } else {
        for (int64_t i = begin; i < end; ++i)
          y.as<float>()[i] = static_cast<float>(exact_(x.as<float>()[i], a_, b_));
      }
    });
  }

 private:
  Fmath::Unary fast_;
  Exact exact_;
  float a_, b_;
  DType dtype_ = DType::kUndefined;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
double clip(double x, double lo, double hi) { return x < lo ? lo : x > hi ? hi : x; }

// The attribute that is a function's parameter.
struct Parameter {
  const char* name;
  float otherwise;
};

std::unique_ptr<Kernel> make_unary(const Node& node, const KernelContext& context,
                                   Fmath::Unary Fmath::* fast, Exact exact,
                                   Parameter a = {nullptr, 0}, Parameter b = {nullptr, 0}) {
  return widened<FloatUnary>(node, context, fast ? select_fmath(context.isa).*fast : nullptr, exact,
                             a.name ? node.f(a.name, a.otherwise) : a.otherwise,
                             b.name ? node.f(b.name, b.otherwise) : b.otherwise);
}

constexpr float kSeluAlpha = 1.67326319217681884765625f, kSeluGamma = 1.05070102214813232421875f;

}  // namespace

// op_type's maker, fmath's function or nullptr, the same in float64, parameters.
#define WIA_UNARY(make, fast, exact, ...)                                                      \
  std::unique_ptr<Kernel> make(const Node& node, const KernelContext& context) {               \
    return make_unary(node, context, fast,                                                     \
                      [](double x, [[maybe_unused]] double a,                                  \
                         [[maybe_unused]] double b) -> double { return exact; } __VA_OPT__(, ) \
                                                        __VA_ARGS__);                          \
  }

WIA_UNARY(make_sqrt, &Fmath::unarySqrt, std::sqrt(x))
WIA_UNARY(make_reciprocal, &Fmath::unaryReciprocal, 1.0 / x)
WIA_UNARY(make_floor, &Fmath::unaryFloor, std::floor(x))
WIA_UNARY(make_ceil, &Fmath::unaryCeil, std::ceil(x))
WIA_UNARY(make_round, &Fmath::unaryRound, std::nearbyint(x))
WIA_UNARY(make_exp, &Fmath::unaryExp, std::exp(x))
WIA_UNARY(make_log, &Fmath::unaryLog, std::log(x))
WIA_UNARY(make_tanh, &Fmath::unaryTanh, std::tanh(x))
WIA_UNARY(make_erf, &Fmath::unaryErf, std::erf(x))
WIA_UNARY(make_sigmoid, &Fmath::unarySigmoid, sigmoid(x))
WIA_UNARY(make_softplus, &Fmath::unarySoftplus, softplus(x))
WIA_UNARY(make_softsign, &Fmath::unarySoftsign, x / (1.0 + std::fabs(x)))
WIA_UNARY(make_leaky_relu, &Fmath::unaryLeakyRelu, x < 0 ? a * x : x, {"alpha", 0.01f})
WIA_UNARY(make_thresholded_relu, &Fmath::unaryThresholdedRelu, x > a ? x : 0.0, {"alpha", 1.0f})
WIA_UNARY(make_elu, &Fmath::unaryElu, x < 0 ? a * std::expm1(x) : x, {"alpha", 1.0f},
          {nullptr, 1.0f})
WIA_UNARY(make_selu, &Fmath::unaryElu, b*(x < 0 ? a * std::expm1(x) : x), {"alpha", kSeluAlpha},
          {"gamma", kSeluGamma})
WIA_UNARY(make_celu, &Fmath::unaryCelu, x < 0 ? a * std::expm1(x / a) : x, {"alpha", 1.0f})
WIA_UNARY(make_hard_sigmoid, &Fmath::unaryHardSigmoid, clip(a* x + b, 0.0, 1.0), {"alpha", 0.2f},
          {"beta", 0.5f})
WIA_UNARY(make_hard_swish, &Fmath::unaryHardSwish, x* clip(x / 6.0 + 0.5, 0.0, 1.0))
WIA_UNARY(make_swish, &Fmath::unarySwish, x* sigmoid(a* x), {"alpha", 1.0f})
WIA_UNARY(make_mish, &Fmath::unaryMish, x* std::tanh(softplus(x)))
WIA_UNARY(make_sin, nullptr, std::sin(x))
WIA_UNARY(make_cos, nullptr, std::cos(x))
WIA_UNARY(make_tan, nullptr, std::tan(x))
WIA_UNARY(make_asin, nullptr, std::asin(x))
WIA_UNARY(make_acos, nullptr, std::acos(x))
WIA_UNARY(make_atan, nullptr, std::atan(x))
WIA_UNARY(make_sinh, nullptr, std::sinh(x))
WIA_UNARY(make_cosh, nullptr, std::cosh(x))
WIA_UNARY(make_asinh, nullptr, std::asinh(x))
WIA_UNARY(make_acosh, nullptr, std::acosh(x))
WIA_UNARY(make_atanh, nullptr, std::atanh(x))

namespace {
double gelu_exact(double x, double, double) {
  return 0.5 * x * (1.0 + std::erf(x * std::numbers::sqrt2 / 2));
}
double gelu_tanh(double x, double, double) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
}  // namespace

std::unique_ptr<Kernel> make_gelu(const Node& node, const KernelContext& context) {
  const std::string approximate = node.s("approximate", "none");
  require(approximate == "none" || approximate == "tanh",
          node.where() + ": approximate is '" + approximate + "', not 'none' or 'tanh'");
  if (approximate == "tanh") return make_unary(node, context, &Fmath::unaryGeluTanh, gelu_tanh);
  return make_unary(node, context, &Fmath::unaryGelu, gelu_exact);
}

namespace {

// A function of numbers of any type, to the same type or to bool.
template <class Function>
class AnyUnary final : public Op {
 public:
  using Op::Op;
  AnyUnary(const Node& node, const KernelContext& context, Function function,
           Fmath::Unary fast = nullptr)
      : Op(node, context), function_(std::move(function)), fast_(fast) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    dtype_ = c.dtype(0);
    bool known = Function::dispatch_types(dtype_, [&]<class T>() {
      c.set(0, kDTypeOf<decltype(function_(T{}))>, c.shape(0));
      same_size_ = sizeof(T) == sizeof(decltype(function_(T{})));
    });
    if (!known) bad_type(dtype_);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return same_size_; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    c.pool().parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      if (fast_ && dtype_ == DType::kFloat32)
        return fast_(static_cast<size_t>(end - begin), x.as<float>() + begin, y.as<float>() + begin,
                     0, 0);
      Function::dispatch_types(dtype_, [&]<class T>() {
        using Out = decltype(function_(T{}));
        const T* in = x.as<T>();
        Out* out = y.as<Out>();
        for (int64_t i = begin; i < end; ++i) out[i] = function_(in[i]);
      });
    });
  }

 private:
  Function function_{};
  Fmath::Unary fast_ = nullptr;  // for float32
  DType dtype_ = DType::kUndefined;
  bool same_size_ = false;
};

struct OfNumbers {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body);
  }
};
struct OfFloats {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch<float, double, Half, BFloat16, Float8E4M3, Float8E5M2>(dtype, body);
  }
};
struct OfIntegers {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch_integers(dtype, body);
  }
};

template <class T>
T negated(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(0 - static_cast<uint64_t>(x));
  else
    return -x;
}
struct Abs : OfNumbers {
  template <class T>
  T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(x);
    else if constexpr (std::is_signed_v<T>)
      return x < 0 ? negated(x) : x;
    else
      return x;
  }
};
struct Neg : OfNumbers {
  template <class T>
  T operator()(T x) const {
    return negated(x);
  }
};
struct Sign : OfNumbers {
  template <class T>
  T operator()(T x) const {
    if (x != x) return x;
    return static_cast<T>((x > T{0} ? 1 : 0) - (x < T{0} ? 1 : 0));
  }
};
struct Relu : OfNumbers {
  template <class T>
  T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};
struct Shrink : OfNumbers {
  float lambd = 0.5f, bias = 0.0f;
  template <class T>
  T operator()(T x) const {
    const double v = static_cast<double>(x);
    if (v != v) return x;
    const double y = v < -lambd ? v + bias : v > lambd ? v - bias : 0.0;
    if constexpr (std::is_integral_v<T>) {
      return saturated<T>(y);
    } else {
      return static_cast<T>(y);
    }
  }
};
struct Not {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch<bool>(dtype, body);
  }
  bool operator()(bool x) const { return !x; }
};
struct BitwiseNot : OfIntegers {
  template <class T>
  T operator()(T x) const {
    return static_cast<T>(~static_cast<uint64_t>(x));
  }
};
struct IsNan : OfFloats {
  template <class T>
  bool operator()(T x) const {
    const double v = static_cast<double>(x);
    return v != v;
  }
};
struct IsInf : OfFloats {
  bool positive = true, negative = true;
  template <class T>
  bool operator()(T x) const {
    const double v = static_cast<double>(x), infinity = std::numeric_limits<double>::infinity();
    return (positive && v == infinity) || (negative && v == -infinity);
  }
};

template <class Function>
std::unique_ptr<Kernel> any_unary(const Node& node, const KernelContext& context,
                                  Function function = {}, Fmath::Unary Fmath::* fast = nullptr) {
  return widen(std::make_unique<AnyUnary<Function>>(
                   node, context, function, fast ? select_fmath(context.isa).*fast : nullptr),
               context);
}

}  // namespace

std::unique_ptr<Kernel> make_abs(const Node& n, const KernelContext& c) {
  return any_unary<Abs>(n, c, {}, &Fmath::unaryAbs);
}
std::unique_ptr<Kernel> make_neg(const Node& n, const KernelContext& c) {
  return any_unary<Neg>(n, c, {}, &Fmath::unaryNeg);
}
std::unique_ptr<Kernel> make_sign(const Node& n, const KernelContext& c) {
  return any_unary<Sign>(n, c);
}
std::unique_ptr<Kernel> make_relu(const Node& n, const KernelContext& c) {
  return any_unary<Relu>(n, c, {}, &Fmath::unaryRelu);
}
std::unique_ptr<Kernel> make_not(const Node& n, const KernelContext& c) {
  return any_unary<Not>(n, c);
}
std::unique_ptr<Kernel> make_bitwise_not(const Node& n, const KernelContext& c) {
  return any_unary<BitwiseNot>(n, c);
}
std::unique_ptr<Kernel> make_is_nan(const Node& n, const KernelContext& c) {
  return std::make_unique<AnyUnary<IsNan>>(n, c);
}
std::unique_ptr<Kernel> make_is_inf(const Node& n, const KernelContext& c) {
  IsInf function;
  function.positive = n.i("detect_positive", 1) != 0;
  function.negative = n.i("detect_negative", 1) != 0;
  return std::make_unique<AnyUnary<IsInf>>(n, c, function);
}
std::unique_ptr<Kernel> make_shrink(const Node& n, const KernelContext& c) {
  Shrink function;
  function.lambd = n.f("lambd", 0.5f);
  function.bias = n.f("bias", 0.0f);
  return any_unary<Shrink>(n, c, function);
}

namespace {

// Clip: bounds as attributes before opset 11, as inputs since.
class Clip final : public Op {
 public:
  Clip(const Node& node, const KernelContext& context)
      : Op(node, context),
        lo_(node.f("min", std::numeric_limits<float>::lowest())),
        hi_(node.f("max", std::numeric_limits<float>::max())) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    dtype_ = c.dtype(0);
    for (size_t i = 1; i < 3; ++i) {
      has_[i - 1] = opset_ >= 11 && given(c, i);
      if (!has_[i - 1]) continue;
      check(c.shape(i).numel() == 1, "a bound is not a scalar");
      check_type(c.dtype(i), dtype_, "a bound");
    }
    if (!dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    c.set(0, dtype_, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0; }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    dispatch_numbers(dtype_, [&]<class T>() {
      T lo = std::numeric_limits<T>::lowest(), hi = std::numeric_limits<T>::max();
      if constexpr (std::is_floating_point_v<T>) {
        lo = -std::numeric_limits<T>::infinity();
        hi = std::numeric_limits<T>::infinity();
        if (opset_ < 11) {
          lo = static_cast<T>(lo_);
          hi = static_cast<T>(hi_);
        }
      }
      if (has_[0]) lo = *c.input(1)->as<T>();
      if (has_[1]) hi = *c.input(2)->as<T>();
      c.pool().parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
        const T* in = x.as<T>();
        T* out = y.as<T>();
        if constexpr (std::is_same_v<T, float>) {
          fmath_.unaryClip(static_cast<size_t>(end - begin), in + begin, out + begin, lo, hi);
        } else {
          for (int64_t i = begin; i < end; ++i) {
            const T v = in[i] < lo ? lo : in[i];
            out[i] = v > hi ? hi : v;
          }
        }
      });
    });
  }

 private:
  float lo_, hi_;
  bool has_[2] = {};
  DType dtype_ = DType::kUndefined;
};

}  // namespace

std::unique_ptr<Kernel> make_clip(const Node& n, const KernelContext& c) {
  return widened<Clip>(n, c);
}

}  // namespace wia
