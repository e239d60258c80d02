// SPDX-License-Identifier: Apache-2.0
// Functions of two or more tensors, element by element, with broadcasting.
#include <cmath>
#include <cstring>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// Shared flag of a loop that met a value it cannot divide by or index with.
using Fault = std::atomic<bool>;

// Whether the result has the operands' type or is bool.
struct ToSame {
  static constexpr bool kSameType = true;
};
struct ToBool {
  static constexpr bool kSameType = false;
};

struct OfNumbers {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body);
  }
};
struct OfNumbersAndBool {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body) || dispatch<bool>(dtype, body);
  }
};
struct OfBool {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch<bool>(dtype, body);
  }
};
struct OfIntegers {
  template <class Body>
  static bool dispatch_types(DType dtype, Body&& body) {
    return dispatch_integers(dtype, body);
  }
};

// Integers wrap, as in numpy and onnxruntime; unsigned 64-bit arithmetic has the same low bits and
// no overflow.
template <class T>
constexpr bool kInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <class T>
uint64_t wide(T x) {
  return static_cast<uint64_t>(x);
}

struct Add : OfNumbers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if constexpr (kInteger<T>)
      return static_cast<T>(wide(a) + wide(b));
    else
      return a + b;
  }
};
struct Sub : OfNumbers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if constexpr (kInteger<T>)
      return static_cast<T>(wide(a) - wide(b));
    else
      return a - b;
  }
};
struct Mul : OfNumbers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if constexpr (kInteger<T>)
      return static_cast<T>(wide(a) * wide(b));
    else
      return a * b;
  }
};
struct Div : OfNumbers, ToSame {
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
struct Max : OfNumbers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    return a > b || a != a ? a : b;
  }
};
struct Min : OfNumbers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    return a < b || a != a ? a : b;
  }
};
struct PRelu : OfNumbers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    if (!(a < T{0})) return a;
    if constexpr (kInteger<T>)
      return static_cast<T>(wide(a) * wide(b));
    else
      return a * b;
  }
};
// The sign of the divisor for integers (fmod 0), of the dividend with fmod 1.
template <bool fmod>
struct Mod : OfNumbers, ToSame {
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
template <bool left>
struct BitShift : OfIntegers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    using U = std::make_unsigned_t<T>;
    // A shift of the width or more, which a negative one is too, leaves only the sign: as in numpy.
    constexpr uint64_t kBits = sizeof(T) * 8;
    const uint64_t by = static_cast<U>(b);
    if (by < kBits) return static_cast<T>(left ? wide(a) << by : wide(static_cast<T>(a >> by)));
    if constexpr (std::is_signed_v<T>)
      return !left && a < 0 ? T{-1} : T{0};
    else
      return 0;
  }
};
struct BitwiseAnd : OfIntegers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    return static_cast<T>(a & b);
  }
};
struct BitwiseOr : OfIntegers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    return static_cast<T>(a | b);
  }
};
struct BitwiseXor : OfIntegers, ToSame {
  template <class T>
  T operator()(T a, T b, Fault&) const {
    return static_cast<T>(a ^ b);
  }
};
struct And : OfBool, ToSame {
  bool operator()(bool a, bool b, Fault&) const { return a && b; }
};
struct Or : OfBool, ToSame {
  bool operator()(bool a, bool b, Fault&) const { return a || b; }
};
struct Xor : OfBool, ToSame {
  bool operator()(bool a, bool b, Fault&) const { return a != b; }
};
struct Equal : OfNumbersAndBool, ToBool {
  template <class T>
  bool operator()(T a, T b, Fault&) const {
    return a == b;
  }
};
struct Less : OfNumbers, ToBool {
  template <class T>
  bool operator()(T a, T b, Fault&) const {
    return a < b;
  }
};
struct LessOrEqual : OfNumbers, ToBool {
  template <class T>
  bool operator()(T a, T b, Fault&) const {
    return a <= b;
  }
};
struct Greater : OfNumbers, ToBool {
  template <class T>
  bool operator()(T a, T b, Fault&) const {
    return a > b;
  }
};
struct GreaterOrEqual : OfNumbers, ToBool {
  template <class T>
  bool operator()(T a, T b, Fault&) const {
    return a >= b;
  }
};

// One run of elements; steps are 0 or 1. Types are erased here so that what drives the loops is
// compiled once.
using Loop = void (*)(size_t n, const void* a, size_t a_step, const void* b, size_t b_step, void* y,
                      Fault& fault);

template <class Function, class T>
void loop(size_t n, const void* a, size_t a_step, const void* b, size_t b_step, void* y,
          Fault& fault) {
  const T *pa = static_cast<const T*>(a), *pb = static_cast<const T*>(b);
  auto* py = static_cast<decltype(Function{}(T{}, T{}, fault))*>(y);
  for (size_t i = 0; i < n; ++i) py[i] = Function{}(pa[i * a_step], pb[i * b_step], fault);
}

// What a function is for one element type.
struct Typed {
  Loop loop = nullptr;
  DType result = DType::kUndefined;
};

template <class Function>
Typed typed(DType dtype) {
  Typed t;
  Function::dispatch_types(dtype, [&]<class T>() {
    t.loop = loop<Function, T>;
    t.result = Function::kSameType ? dtype : DType::kBool;
  });
  return t;
}

struct BinarySpec {
  Typed (*typed)(DType);
  Fmath::Binary Fmath::* fast;  // for float32, or null
  bool prelu = false;
};

class Binary final : public Op {
 public:
  Binary(const Node& node, const KernelContext& context, const BinarySpec& spec)
      : Op(node, context), spec_(spec) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    dtype_ = c.dtype(0);
    check_type(c.dtype(1), dtype_, "input 1");
    a_ = c.shape(0);
    b_ = spec_.prelu ? prelu_slope(a_, c.shape(1)) : c.shape(1);
    out_ = broadcast_shape(a_, b_, where_);
    check(!spec_.prelu || out_ == a_,
          "the slope's shape " + b_.str() + " is wider than the input's " + a_.str());
    broadcast_ = Broadcast<2>(out_, {&a_, &b_});
    typed_ = spec_.typed(dtype_);
    if (!typed_.loop) bad_type(dtype_);
    c.set(0, typed_.result, out_);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override {
    return typed_.result == dtype_ && (input == 0 ? a_ == out_ : input == 1 && b_ == out_);
  }
  std::string implementation() const override { return spec_.fast ? fmath_.name : "reference"; }

  void run(RunContext& c) override {
    const std::byte *a = c.input(0)->as<std::byte>(), *b = c.input(1)->as<std::byte>();
    std::byte* y = c.output(0)->as<std::byte>();
    const int64_t in_size = static_cast<int64_t>(dtype_size(dtype_));
    const int64_t out_size = static_cast<int64_t>(dtype_size(typed_.result));
    const size_t a_step = broadcast_.step(0), b_step = broadcast_.step(1);
    const Fmath::Binary fast =
        spec_.fast && dtype_ == DType::kFloat32 ? fmath_.*spec_.fast : nullptr;
    Fault fault{false};
    c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
      broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 2>& from, int64_t n) {
        const std::byte *pa = a + from[0] * in_size, *pb = b + from[1] * in_size;
        std::byte* py = y + at * out_size;
        if (fast)
          fast(static_cast<size_t>(n), reinterpret_cast<const float*>(pa), a_step,
               reinterpret_cast<const float*>(pb), b_step, reinterpret_cast<float*>(py));
        else
          typed_.loop(static_cast<size_t>(n), pa, a_step, pb, b_step, py, fault);
      });
    });
    check(!fault.load(), "an integer is divided by zero");
  }

 private:
  // A slope [C] of an input [N, C, ...] where numpy's rule does not fit it.
  static Shape prelu_slope(const Shape& x, const Shape& slope) {
    if (slope.rank() != 1 || x.rank() < 3 || slope[0] == 1 || slope[0] == x[x.rank() - 1] ||
        slope[0] != x[1])
      return slope;
    Shape s = slope;
    for (int d = 2; d < x.rank(); ++d) s.push_back(1);
    return s;
  }

  BinarySpec spec_;
  DType dtype_ = DType::kUndefined;
  Typed typed_;
  Shape a_, b_, out_;
  Broadcast<2> broadcast_;
};

template <class Function>
std::unique_ptr<Kernel> binary(const Node& node, const KernelContext& context,
                               Fmath::Binary Fmath::* fast = nullptr, bool prelu = false) {
  return widened<Binary>(node, context, BinarySpec{typed<Function>, fast, prelu});
}

// Max, Min, Sum, Mean of any number of tensors, folded from the first on.
class Variadic final : public Op {
 public:
  Variadic(const Node& node, const KernelContext& context, const BinarySpec& spec, bool mean)
      : Op(node, context), spec_(spec), mean_(mean) {}

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
    typed_ = spec_.typed(dtype_);
    if (!typed_.loop || (mean_ && is_integer(dtype_))) bad_type(dtype_);
    inputs_.clear();
    for (size_t i = 0; i < n_; ++i) inputs_.push_back(Broadcast<2>(out, {&out, &c.shape(i)}));
    overwrite_ = c.shape(0) == out;
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0 && overwrite_; }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    Tensor& y = *c.output(0);
    const size_t size = dtype_size(dtype_);
    const Fmath::Binary fast = dtype_ == DType::kFloat32 ? fmath_.*spec_.fast : nullptr;
    Fault fault{false};
    c.pool().parallel_for(y.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (size_t i = 0; i < n_; ++i) {
        const std::byte* in = c.input(i)->as<std::byte>();
        const size_t step = inputs_[i].step(1);
        inputs_[i].runs(begin, end, [&](int64_t at, const std::array<int64_t, 2>& from, int64_t n) {
          std::byte* py = y.as<std::byte>() + static_cast<size_t>(at) * size;
          const std::byte* px = in + static_cast<size_t>(from[1]) * size;
          const size_t count = static_cast<size_t>(n);
          if (i == 0) {
            for (size_t j = 0; j < count && px != py; ++j)
              std::memcpy(py + j * size, px + j * step * size, size);
          } else if (fast) {
            float* out = reinterpret_cast<float*>(py);
            fast(count, out, 1, reinterpret_cast<const float*>(px), step, out);
          } else {
            typed_.loop(count, py, 1, px, step, py, fault);
          }
        });
      }
      if (!mean_) return;
      for (int64_t j = begin; j < end; ++j) {
        if (dtype_ == DType::kFloat32)
          y.as<float>()[j] /= static_cast<float>(n_);
        else
          y.as<double>()[j] /= static_cast<double>(n_);
      }
    });
  }

 private:
  BinarySpec spec_;
  bool mean_;
  size_t n_ = 0;
  DType dtype_ = DType::kUndefined;
  Typed typed_;
  bool overwrite_ = false;
  std::vector<Broadcast<2>> inputs_;
};

// An exponent: an integer where it is one.
struct Exponent {
  bool integer;
  int64_t i;
  double f;
};

Exponent exponent_at(DType dtype, const void* data, int64_t at) {
  Exponent e{true, 0, 0};
  dispatch_numbers(dtype, [&]<class E>() {
    const E v = static_cast<const E*>(data)[at];
    e.integer = std::is_integral_v<E>;
    e.f = static_cast<double>(v);
    if constexpr (std::is_integral_v<E>) e.i = static_cast<int64_t>(v);
  });
  return e;
}

template <class T>
T power(T x, const Exponent& e) {
  if constexpr (std::is_integral_v<T>) {
    if (!e.integer) return saturated<T>(std::pow(static_cast<double>(x), e.f));
    if (e.i < 0) {
      if (x == T{1}) return x;
      if (std::is_signed_v<T> && wide(x) == ~uint64_t{0}) return e.i & 1 ? x : T{1};
      return 0;
    }
    uint64_t result = 1, base = wide(x);
    for (uint64_t left = wide(e.i); left; left >>= 1) {
      if (left & 1) result *= base;
      base *= base;
    }
    return static_cast<T>(result);
  } else {
    return static_cast<T>(std::pow(static_cast<double>(x), e.f));
  }
}

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
    const int64_t a_step = static_cast<int64_t>(broadcast_.step(0)),
                  b_step = static_cast<int64_t>(broadcast_.step(1));
    c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
      broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 2>& from, int64_t n) {
        if (base_ == DType::kFloat32 && a_step && !b_step &&
            usual(exponent_at(exponent_, b.data, from[1]), n, a.as<float>() + from[0],
                  y.as<float>() + at))
          return;
        dispatch_numbers(base_, [&]<class T>() {
          for (int64_t i = 0; i < n; ++i)
            y.as<T>()[at + i] = power(a.as<T>()[from[0] + i * a_step],
                                      exponent_at(exponent_, b.data, from[1] + i * b_step));
        });
      });
    });
  }

 private:
  // The exponents that models use: no libm call.
  bool usual(const Exponent& e, int64_t n, const float* x, float* y) const {
    const size_t count = static_cast<size_t>(n);
    if (e.f == 2.0) return fmath_.binaryMul(count, x, 1, x, 1, y), true;
    if (e.f == 0.5 && std::all_of(x, x + n, [](float v) { return v > 0.0f; }))
      return fmath_.unarySqrt(count, x, y, 0, 0), true;
    return false;
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
    const Shape out =
        broadcast_shape(broadcast_shape(c.shape(0), c.shape(1), where_), c.shape(2), where_);
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
    c.pool().parallel_for(broadcast_.total(), kGrain, [&](int64_t begin, int64_t end) {
      broadcast_.runs(begin, end, [&](int64_t at, const std::array<int64_t, 3>& from, int64_t n) {
        dispatch_width(x.dtype, [&]<class W>(W) {
          const bool* pc = condition + from[0];
          const W *px = x.as<W>() + from[1], *py = y.as<W>() + from[2];
          W* po = out.as<W>() + at;
          for (size_t i = 0; i < static_cast<size_t>(n); ++i)
            po[i] = pc[i * sc] ? px[i * sx] : py[i * sy];
        });
      });
    });
  }

 private:
  Broadcast<3> broadcast_;
};

}  // namespace

#define WIA_BINARY(make, Function, ...)                                 \
  std::unique_ptr<Kernel> make(const Node& n, const KernelContext& c) { \
    return binary<Function>(n, c __VA_OPT__(, ) __VA_ARGS__);           \
  }
WIA_BINARY(make_add, Add, &Fmath::binaryAdd)
WIA_BINARY(make_sub, Sub, &Fmath::binarySub)
WIA_BINARY(make_mul, Mul, &Fmath::binaryMul)
WIA_BINARY(make_div, Div, &Fmath::binaryDiv)
WIA_BINARY(make_prelu, PRelu, &Fmath::binaryPRelu, true)
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
  return n.i("fmod", 0) != 0 ? binary<Mod<true>>(n, c) : binary<Mod<false>>(n, c);
}
std::unique_ptr<Kernel> make_bit_shift(const Node& n, const KernelContext& c) {
  const std::string direction = n.s("direction", "");
  require(direction == "LEFT" || direction == "RIGHT",
          n.where() + ": direction is neither LEFT nor RIGHT");
  return direction == "LEFT" ? binary<BitShift<true>>(n, c) : binary<BitShift<false>>(n, c);
}

#define WIA_VARIADIC(make, Function, fast, mean)                                     \
  std::unique_ptr<Kernel> make(const Node& n, const KernelContext& c) {              \
    return widened<Variadic>(n, c, BinarySpec{typed<Function>, &Fmath::fast}, mean); \
  }
WIA_VARIADIC(make_max, Max, binaryMax, false)
WIA_VARIADIC(make_min, Min, binaryMin, false)
WIA_VARIADIC(make_sum, Add, binaryAdd, false)
WIA_VARIADIC(make_mean, Add, binaryAdd, true)

std::unique_ptr<Kernel> make_pow(const Node& n, const KernelContext& c) {
  return widened<Pow>(n, c);
}
std::unique_ptr<Kernel> make_where(const Node& n, const KernelContext& c) {
  return std::make_unique<Where>(n, c);
}

}  // namespace wia
