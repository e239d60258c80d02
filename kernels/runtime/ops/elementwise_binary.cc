// SPDX-License-Identifier: Apache-2.0
// Functions of two or more tensors, element by element, with broadcasting.
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// Shared flag of a loop that met a value it cannot divide by or index with.
using Fault = std::atomic<bool>;

struct OfNumbers {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) { return dispatch_numbers(dtype, body); }
};
struct OfNumbersAndBool {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body) || dispatch<bool>(dtype, body);
  }
};
struct OfBool {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) { return dispatch<bool>(dtype, body); }
};
struct OfIntegers {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) { return dispatch_integers(dtype, body); }
};

// Integers wrap, as in numpy and onnxruntime; unsigned 64-bit arithmetic has the same low bits and no overflow.
template <class T>
constexpr bool kInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <class T>
uint64_t wide(T x) { return static_cast<uint64_t>(x); }

struct Add : OfNumbers {
  static constexpr auto kFast = &Fmath::binaryAdd;
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if constexpr (kInteger<T>) return static_cast<T>(wide(a) + wide(b));
    else return a + b;
  }
};
struct Sub : OfNumbers {
  static constexpr auto kFast = &Fmath::binarySub;
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if constexpr (kInteger<T>) return static_cast<T>(wide(a) - wide(b));
    else return a - b;
  }
};
struct Mul : OfNumbers {
  static constexpr auto kFast = &Fmath::binaryMul;
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if constexpr (kInteger<T>) return static_cast<T>(wide(a) * wide(b));
    else return a * b;
  }
};
struct Div : OfNumbers {
  static constexpr auto kFast = &Fmath::binaryDiv;
  template <class T>
  T operator()(T a, T b, Fault& fault) const {
    if constexpr (kInteger<T>) {
      if (b == 0) {
        fault.store(true, std::memory_order_relaxed);
        return 0;
      }
      if constexpr (std::is_signed_v<T>)
        if (b == -1) return static_cast<T>(0 - wide(a));
      return static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};
struct Max : OfNumbers {
  static constexpr auto kFast = &Fmath::binaryMax;
  template <class T>
  T operator()(T a, T b, Fault&) const { return a > b || a != a ? a : b; }
};
struct Min : OfNumbers {
  static constexpr auto kFast = &Fmath::binaryMin;
  template <class T>
  T operator()(T a, T b, Fault&) const { return a < b || a != a ? a : b; }
};
struct PRelu : OfNumbers {
  static constexpr auto kFast = &Fmath::binaryPRelu;
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if (!(a < T{0})) return a;
    if constexpr (kInteger<T>) return static_cast<T>(wide(a) * wide(b));
    else return a * b;
  }
};
struct Slow {};  // fmath has no such function
// The sign of the divisor for integers (fmod 0), of the dividend with fmod 1.
struct Mod : OfNumbers, Slow {
  bool fmod = false;
  template <class T>
  T operator()(T a, T b, Fault& fault) const {
    if constexpr (kInteger<T>) {
      if (b == 0) {
        fault.store(true, std::memory_order_relaxed);
        return 0;
      }
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
        const T r = static_cast<T>(a % b);
        return !fmod && r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
      } else {
        return static_cast<T>(a % b);
      }
    } else {
      const T r = std::fmod(a, b);
      return !fmod && r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
  }
};
struct BitShift : OfIntegers, Slow {
  bool left = true;
  template <class T>
  T operator()(T a, T b, Fault&) const {
    using U = std::make_unsigned_t<T>;
    if (static_cast<uint64_t>(static_cast<U>(b)) >= sizeof(T) * 8) return 0;
    const uint64_t v = static_cast<U>(a);
    return static_cast<T>(left ? v << static_cast<U>(b) : v >> static_cast<U>(b));
  }
};
struct BitwiseAnd : OfIntegers, Slow {
  template <class T>
  T operator()(T a, T b, Fault&) const { return static_cast<T>(a & b); }
};
struct BitwiseOr : OfIntegers, Slow {
  template <class T>
  T operator()(T a, T b, Fault&) const { return static_cast<T>(a | b); }
};
struct BitwiseXor : OfIntegers, Slow {
  template <class T>
  T operator()(T a, T b, Fault&) const { return static_cast<T>(a ^ b); }
};
struct And : OfBool, Slow {
  bool operator()(bool a, bool b, Fault&) const { return a && b; }
};
struct Or : OfBool, Slow {
  bool operator()(bool a, bool b, Fault&) const { return a || b; }
};
struct Xor : OfBool, Slow {
  bool operator()(bool a, bool b, Fault&) const { return a != b; }
};
struct Equal : OfNumbersAndBool, Slow {
  template <class T>
  bool operator()(T a, T b, Fault&) const { return a == b; }
};
struct Less : OfNumbers, Slow {
  template <class T>
  bool operator()(T a, T b, Fault&) const { return a < b; }
};
struct LessOrEqual : OfNumbers, Slow {
  template <class T>
  bool operator()(T a, T b, Fault&) const { return a <= b; }
};
struct Greater : OfNumbers, Slow {
  template <class T>
  bool operator()(T a, T b, Fault&) const { return a > b; }
};
struct GreaterOrEqual : OfNumbers, Slow {
  template <class T>
  bool operator()(T a, T b, Fault&) const { return a >= b; }
};

template <class Function>
constexpr bool kHasFast = !std::is_base_of_v<Slow, Function>;

template <class T, class Out, class Function>
void apply(size_t n, const T* a, size_t a_step, const T* b, size_t b_step, Out* y, const Function& f, Fault& fault) {
  if (a_step && b_step) {
    for (size_t i = 0; i < n; ++i) y[i] = f(a[i], b[i], fault);
  } else if (a_step) {
    const T v = *b;
    for (size_t i = 0; i < n; ++i) y[i] = f(a[i], v, fault);
  } else {
    const T v = *a;
    for (size_t i = 0; i < n; ++i) y[i] = f(v, b[i * b_step], fault);
  }
}

template <class Function>
class Binary final : public Op {
 public:
  Binary(const Node& node, const KernelContext& context, Function function)
      : Op(node, context), function_(std::move(function)), legacy_axis_(node.i("axis", -1)),
        legacy_broadcast_(node.opset < 7 && node.i("broadcast", 0) != 0) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    dtype_ = c.dtype(0);
    check_type(c.dtype(1), dtype_, "input 1");
    a_ = c.shape(0);
    b_ = c.shape(1);
    if constexpr (std::is_same_v<Function, PRelu>) b_ = prelu_slope(a_, b_);
    if (legacy_broadcast_) b_ = placed(a_, b_);
    out_ = broadcast_shape(a_, b_, where_);
    if constexpr (std::is_same_v<Function, PRelu>)
      check(out_ == a_, "the slope's shape " + b_.str() + " is wider than the input's " + a_.str());
    broadcast_ = Broadcast<2>(out_, {&a_, &b_});
    DType result = DType::kUndefined;
    Function::dispatch_types(dtype_, [&]<class T>() { result = kDTypeOf<Result<T>>; });
    if (result == DType::kUndefined) bad_type(dtype_);
    same_type_ = result == dtype_;
    c.set(0, result, out_);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override {
    return same_type_ && (input == 0 ? a_ == out_ : input == 1 && b_ == out_);
  }
  std::string implementation() const override { return kHasFast<Function> ? fmath_.name : "reference"; }

  void run(RunContext& c) override {
    const Tensor &a = *c.input(0), &b = *c.input(1);
    Tensor& y = *c.output(0);
    Fault fault{false};
    const size_t a_step = broadcast_.step(0), b_step = broadcast_.step(1);
    Function::dispatch_types(dtype_, [&]<class T>() {
      using Out = Result<T>;
      c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
        broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 2>& from, int64_t n) {
          const T *pa = a.as<T>() + from[0], *pb = b.as<T>() + from[1];
          Out* py = y.as<Out>() + at;
          if constexpr (std::is_same_v<T, float> && kHasFast<Function>) {
            (fmath_.*Function::kFast)(static_cast<size_t>(n), pa, a_step, pb, b_step, py);
          } else {
            apply(static_cast<size_t>(n), pa, a_step, pb, b_step, py, function_, fault);
          }
        });
      });
    });
    check(!fault.load(), "an integer is divided by zero");
  }

 private:
  template <class T>
  using Result = decltype(std::declval<const Function&>()(T{}, T{}, std::declval<Fault&>()));

  // A slope [C] of an input [N, C, ...] where numpy's rule does not fit it.
  Shape prelu_slope(const Shape& x, const Shape& slope) const {
    if (slope.rank() != 1 || x.rank() < 3 || slope[0] == 1 || slope[0] == x[x.rank() - 1] || slope[0] != x[1])
      return slope;
    Shape s = slope;
    for (int d = 2; d < x.rank(); ++d) s.push_back(1);
    return s;
  }
  // Before opset 7: b's dimensions stand at `axis` of a.
  Shape placed(const Shape& a, const Shape& b) const {
    const int64_t axis = legacy_axis_ < 0 ? a.rank() - b.rank() : legacy_axis_;
    check(axis >= 0 && axis + b.rank() <= a.rank(), "axis does not fit the shapes");
    Shape s = b;
    for (int64_t d = axis + b.rank(); d < a.rank(); ++d) s.push_back(1);
    return s;
  }

  Function function_;
  int64_t legacy_axis_;
  bool legacy_broadcast_;
  DType dtype_ = DType::kUndefined;
  bool same_type_ = false;
  Shape a_, b_, out_;
  Broadcast<2> broadcast_;
};

template <class Function>
std::unique_ptr<Kernel> binary(const Node& node, const KernelContext& context, Function function = {}) {
  return widen(std::make_unique<Binary<Function>>(node, context, function), context);
}

// Max, Min, Sum, Mean of any number of tensors, folded from the first on.
template <class Function>
class Variadic final : public Op {
 public:
  Variadic(const Node& node, const KernelContext& context, bool mean) : Op(node, context), mean_(mean) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    dtype_ = c.dtype(0);
    n_ = c.n_inputs();
    Shape out = c.shape(0);
    for (size_t i = 1; i < n_; ++i) {
      check(given(c, i), "an input is missing");
      check_type(c.dtype(i), dtype_, "an input");
      out = broadcast_shape(out, c.shape(i), where_);
    }
    if (!dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    if (mean_ && is_integer(dtype_)) bad_type(dtype_);
    inputs_.clear();
    for (size_t i = 0; i < n_; ++i) inputs_.push_back(Broadcast<2>(out, {&out, &c.shape(i)}));
    overwrite_ = c.shape(0) == out;
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0 && overwrite_; }

  void run(RunContext& c) override {
    Tensor& y = *c.output(0);
    Fault fault{false};
    dispatch_numbers(dtype_, [&]<class T>() {
      c.pool().parallel_for(y.numel(), kGrain, [&](int64_t begin, int64_t end) {
        T* out = y.as<T>();
        for (size_t i = 0; i < n_; ++i) {
          const T* in = c.input(i)->template as<T>();
          const size_t step = inputs_[i].step(1);
          inputs_[i].runs(begin, end, [&](int64_t at, const std::array<int64_t, 2>& from, int64_t n) {
            T* py = out + at;
            const T* px = in + from[1];
            if (i == 0) {
              for (int64_t j = 0; j < n; ++j) py[j] = px[static_cast<size_t>(j) * step];
            } else if constexpr (std::is_same_v<T, float>) {
              (fmath_.*Function::kFast)(static_cast<size_t>(n), py, 1, px, step, py);
            } else {
              apply(static_cast<size_t>(n), py, size_t{1}, px, step, py, Function{}, fault);
            }
          });
        }
        if (mean_)
          for (int64_t j = begin; j < end; ++j) out[j] = static_cast<T>(out[j] / static_cast<T>(n_));
      });
    });
  }

 private:
  bool mean_;
  size_t n_ = 0;
  DType dtype_ = DType::kUndefined;
  bool overwrite_ = false;
  std::vector<Broadcast<2>> inputs_;
};

// Pow: the exponent may be of another type; the result has the base's.
class Pow final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    base_ = c.dtype(0);
    exponent_ = c.dtype(1);
    if (!dispatch_numbers(base_, []<class T>() {})) bad_type(base_);
    if (!dispatch_numbers(exponent_, []<class T>() {})) bad_type(exponent_);
    const Shape out = broadcast_shape(c.shape(0), c.shape(1), where_);
    broadcast_ = Broadcast<2>(out, {&c.shape(0), &c.shape(1)});
    overwrite_ = c.shape(0) == out;
    c.set(0, base_, out);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0 && overwrite_; }

  void run(RunContext& c) override {
    const Tensor &a = *c.input(0), &b = *c.input(1);
    Tensor& y = *c.output(0);
    dispatch_numbers(base_, [&]<class T>() {
      dispatch_numbers(exponent_, [&]<class E>() {
        const size_t a_step = broadcast_.step(0), b_step = broadcast_.step(1);
        c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
          broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 2>& from, int64_t n) {
            const T* pa = a.as<T>() + from[0];
            const E* pb = b.as<E>() + from[1];
            T* py = y.as<T>() + at;
            if constexpr (std::is_same_v<T, float>) {
              if (!b_step && one_value(*pb, n, pa, a_step, py)) return;
            }
            for (int64_t i = 0; i < n; ++i)
              py[i] = power(pa[static_cast<size_t>(i) * a_step], pb[static_cast<size_t>(i) * b_step]);
          });
        });
      });
    });
  }

 private:
  // The exponents that models use: no libm call.
  template <class E>
  bool one_value(E exponent, int64_t n, const float* x, size_t step, float* y) const {
    if (!step) return false;
    if (exponent == E{2}) return fmath_.binaryMul(static_cast<size_t>(n), x, 1, x, 1, y), true;
    if (exponent == E{1}) {
      std::copy(x, x + n, y);
      return true;
    }
    if constexpr (std::is_floating_point_v<E>)
      if (exponent == E{0.5} && std::all_of(x, x + n, [](float v) { return v > 0.0f; }))
        return fmath_.unarySqrt(static_cast<size_t>(n), x, y, 0, 0), true;
    return false;
  }
  template <class T, class E>
  static T power(T x, E e) {
    if constexpr (std::is_integral_v<T> && std::is_integral_v<E>) {
      if constexpr (std::is_signed_v<E>) {
        if (e < 0) return x == T{1} ? T{1} : std::is_signed_v<T> && wide(x) == ~uint64_t{0} ? (e & 1 ? x : T{1}) : T{0};
      }
      uint64_t result = 1, base = wide(x);
      for (uint64_t left = wide(e); left; left >>= 1) {
        if (left & 1) result *= base;
        base *= base;
      }
      return static_cast<T>(result);
    } else if constexpr (std::is_integral_v<T>) {
      return saturated<T>(std::pow(static_cast<double>(x), static_cast<double>(e)));
    } else {
      return static_cast<T>(std::pow(static_cast<double>(x), static_cast<double>(e)));
    }
  }

  DType base_ = DType::kUndefined, exponent_ = DType::kUndefined;
  Broadcast<2> broadcast_;
  bool overwrite_ = false;
};

// Where(condition, x, y), for elements of any type.
class Where final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    check_type(c.dtype(0), DType::kBool, "the condition");
    check_type(c.dtype(2), c.dtype(1), "input 2");
    const Shape out = broadcast_shape(broadcast_shape(c.shape(0), c.shape(1), where_), c.shape(2), where_);
    broadcast_ = Broadcast<3>(out, {&c.shape(0), &c.shape(1), &c.shape(2)});
    dispatch_width(c.dtype(1), [](auto) {});
    c.set(0, c.dtype(1), out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const bool* condition = c.input(0)->as<bool>();
    const Tensor &x = *c.input(1), &y = *c.input(2);
    Tensor& out = *c.output(0);
    const size_t sc = broadcast_.step(0), sx = broadcast_.step(1), sy = broadcast_.step(2);
    dispatch_width(x.dtype, [&]<class W>(W) {
      c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
        broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 3>& from, int64_t n) {
          const bool* pc = condition + from[0];
          const W *px = x.as<W>() + from[1], *py = y.as<W>() + from[2];
          W* po = out.as<W>() + at;
          for (size_t i = 0; i < static_cast<size_t>(n); ++i) po[i] = pc[i * sc] ? px[i * sx] : py[i * sy];
        });
      });
    });
  }

 private:
  Broadcast<3> broadcast_;
};

}  // namespace

#define WIA_BINARY(make, Function) \
  std::unique_ptr<Kernel> make(const Node& n, const KernelContext& c) { return binary<Function>(n, c); }
WIA_BINARY(make_add, Add)
WIA_BINARY(make_sub, Sub)
WIA_BINARY(make_mul, Mul)
WIA_BINARY(make_div, Div)
WIA_BINARY(make_prelu, PRelu)
WIA_BINARY(make_bitwise_and, BitwiseAnd)
WIA_BINARY(make_bitwise_or, BitwiseOr)
WIA_BINARY(make_bitwise_xor, BitwiseXor)
WIA_BINARY(make_and, And)
WIA_BINARY(make_or, Or)
WIA_BINARY(make_xor, Xor)
WIA_BINARY(make_equal, Equal)
WIA_BINARY(make_less, Less)
WIA_BINARY(make_less_or_equal, LessOrEqual)
WIA_BINARY(make_greater, Greater)
WIA_BINARY(make_greater_or_equal, GreaterOrEqual)

std::unique_ptr<Kernel> make_mod(const Node& n, const KernelContext& c) {
  Mod function;
  function.fmod = n.i("fmod", 0) != 0;
  return binary(n, c, function);
}
std::unique_ptr<Kernel> make_bit_shift(const Node& n, const KernelContext& c) {
  BitShift function;
  const std::string direction = n.s("direction", "");
  require(direction == "LEFT" || direction == "RIGHT", n.where() + ": direction is neither LEFT nor RIGHT");
  function.left = direction == "LEFT";
  return binary(n, c, function);
}
std::unique_ptr<Kernel> make_max(const Node& n, const KernelContext& c) { return widened<Variadic<Max>>(n, c, false); }
std::unique_ptr<Kernel> make_min(const Node& n, const KernelContext& c) { return widened<Variadic<Min>>(n, c, false); }
std::unique_ptr<Kernel> make_sum(const Node& n, const KernelContext& c) { return widened<Variadic<Add>>(n, c, false); }
std::unique_ptr<Kernel> make_mean(const Node& n, const KernelContext& c) { return widened<Variadic<Add>>(n, c, true); }
std::unique_ptr<Kernel> make_pow(const Node& n, const KernelContext& c) { return widened<Pow>(n, c); }
std::unique_ptr<Kernel> make_where(const Node& n, const KernelContext& c) { return std::make_unique<Where>(n, c); }

}  // namespace wia
