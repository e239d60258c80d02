// SPDX-License-Identifier: Apache-2.0
// What the kernels of ONNX operators share: checks that name the node, type dispatch, broadcasting,
// half precision.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/half.h"
#include "ops/fmath/fmath.h"
#include "runtime/kernel.h"

namespace wia {

// A kernel that knows its node's name and opset.
class Op : public Kernel {
 public:
  Op(const Node& node, const KernelContext& context)
      : where_(node.where()),
        opset_(node.opset),
        isa_(context.isa),
        n_threads_(std::max<size_t>(1, context.n_threads)),
        fmath_(select_fmath(context.isa)) {}

 protected:
  // Error "<node>: <what>" unless the condition holds.
  void check(bool condition, const char* what) const {
    if (!condition) reject(what);
  }
  void check(bool condition, const std::string& what) const {
    if (!condition) reject(what);
  }
  [[noreturn]] void reject(const std::string& what) const {
    fail(WIA_ERROR_INVALID_ARGUMENT, where_ + ": " + what);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(WIA_ERROR_NOT_SUPPORTED, where_ + ": " + what);
  }
  [[noreturn]] void bad_type(DType dtype) const {
    unsupported(std::string("element type ") + dtype_name(dtype) + " is not supported");
  }
  void check_type(DType got, DType wanted, const char* what) const {
    check(got == wanted,
          std::string(what) + " is " + dtype_name(got) + ", not " + dtype_name(wanted));
  }
  void check_inputs(const InferContext& c, size_t at_least) const {
    for (size_t i = 0; i < at_least; ++i)
      check(given(c, i), "input " + std::to_string(i) + " is missing");
  }
  static bool given(const InferContext& c, size_t i) { return i < c.n_inputs() && c.has(i); }
  static bool wanted(const InferContext& c, size_t i) { return i < c.n_outputs() && c.wants(i); }
  // -rank <= axis < rank, to 0 <= axis < rank.
  int axis_of(int64_t axis, int rank) const {
    check(axis >= -rank && axis < rank, "axis " + std::to_string(axis) +
                                            " is outside a tensor of " + std::to_string(rank) +
                                            " dimensions");
    return static_cast<int>(axis < 0 ? axis + rank : axis);
  }
  // The integers of an int32 or int64 tensor of at most one dimension.
  std::vector<int64_t> ints_of(const Tensor& t) const {
    check(t.shape.rank() <= 1,
          "a list of integers has " + std::to_string(t.shape.rank()) + " dimensions");
    const size_t n = static_cast<size_t>(t.numel());
    check(n <= 4096, "a list of integers is too long");
    if (t.dtype == DType::kInt64) return {t.as<int64_t>(), t.as<int64_t>() + n};
    check(t.dtype == DType::kInt32, std::string("a list of integers is ") + dtype_name(t.dtype));
    return {t.as<int32_t>(), t.as<int32_t>() + n};
  }

  std::string where_;
  int opset_;
  uint32_t isa_;
  size_t n_threads_;
  const Fmath& fmath_;
};

template <class T>
inline constexpr DType kDTypeOf = DType::kUndefined;
template <>
inline constexpr DType kDTypeOf<float> = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<Half> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<Float8E4M3> = DType::kFloat8E4M3;
template <>
inline constexpr DType kDTypeOf<Float8E5M2> = DType::kFloat8E5M2;
template <>
inline constexpr DType kDTypeOf<int8_t> = DType::kInt8;
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kUint8;
template <>
inline constexpr DType kDTypeOf<int16_t> = DType::kInt16;
template <>
inline constexpr DType kDTypeOf<uint16_t> = DType::kUint16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kInt32;
template <>
inline constexpr DType kDTypeOf<uint32_t> = DType::kUint32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kInt64;
template <>
inline constexpr DType kDTypeOf<uint64_t> = DType::kUint64;
template <>
inline constexpr DType kDTypeOf<bool> = DType::kBool;

// Calls body.operator()<T>() for the T of `Ts` whose DType it is; false when none is.
template <class... Ts, class Body>
bool dispatch(DType dtype, Body&& body) {
  return ((dtype == kDTypeOf<Ts> && (body.template operator()<Ts>(), true)) || ...);
}
template <class Body>
bool dispatch_integers(DType dtype, Body&& body) {
  return dispatch<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>(dtype,
                                                                                            body);
}
// float32, float64 and the integers: what remains when `widened` has taken the half types.
template <class Body>
bool dispatch_numbers(DType dtype, Body&& body) {
  return dispatch<float, double>(dtype, body) || dispatch_integers(dtype, body);
}

// The unsigned integer of a type's width, for moving elements about. `body` is called with a value
// of it.
template <class Body>
void dispatch_width(DType dtype, Body&& body) {
  switch (dtype_size(dtype)) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    case 8:
      return body(uint64_t{});
    default:
      fail(WIA_ERROR_NOT_SUPPORTED,
           std::string("elements of type ") + dtype_name(dtype) + " are not supported");
  }
}

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
inline bool is_integer(DType dtype) {
  return dispatch_integers(dtype, []<class T>() {});
}

// The nearest integer of T towards zero, NaN to 0.
template <class T>
T saturated(double x) {
  if (x != x) return T{0};
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (x >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(x);
}

// The elements between neighbours along each dimension of a dense tensor.
inline std::array<int64_t, Shape::kMaxRank> steps_of(const Shape& shape) {
  std::array<int64_t, Shape::kMaxRank> steps{};
  int64_t n = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    steps[d] = n;
    n *= shape[d];
  }
  return steps;
}

inline int64_t product(const Shape& shape, int first, int last) {
  int64_t n = 1;
  for (int d = first; d < last; ++d) n *= shape[d];
  return n;
}

// The shape that numpy would broadcast two shapes to; Error with `where` when there is none.
inline Shape broadcast_shape(const Shape& a, const Shape& b, const std::string& where) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out;
  for (int d = 0; d < rank; ++d) {
    const int da = d - (rank - a.rank()), db = d - (rank - b.rank());
    const int64_t x = da < 0 ? 1 : a[da], y = db < 0 ? 1 : b[db];
    if (x != y && x != 1 && y != 1)
      fail(WIA_ERROR_INVALID_ARGUMENT,
           where + ": shapes " + a.str() + " and " + b.str() + " do not broadcast");
    out.push_back(x == 1 ? y : x);
  }
  return out;
}

// N operands read along one output, neighbouring dimensions merged where all operands allow it.
template <size_t N>
class Broadcast {
 public:
  Broadcast() = default;
  Broadcast(const Shape& out, const std::array<const Shape*, N>& operands) {
    total_ = out.numel();
    for (int d = 0; d < out.rank(); ++d) {
      if (out[d] == 1) continue;
      int64_t steps[N];
      for (size_t n = 0; n < N; ++n) {
        const Shape& s = *operands[n];
        const int own = d - (out.rank() - s.rank());
        steps[n] = own < 0 || s[own] == 1 ? 0 : steps_of(s)[own];
      }
      bool merge = rank_ > 0;
      for (size_t n = 0; merge && n < N; ++n) merge = steps_[n][rank_ - 1] == steps[n] * out[d];
      if (!merge) ++rank_;
      dims_[rank_ - 1] = merge ? dims_[rank_ - 1] * out[d] : out[d];
      for (size_t n = 0; n < N; ++n) steps_[n][rank_ - 1] = steps[n];
    }
    if (rank_ == 0) dims_[rank_++] = 1;
  }

  int64_t total() const { return total_; }
  // The step (0 or 1) of operand n inside a run.
  size_t step(size_t n) const { return steps_[n][rank_ - 1] ? 1 : 0; }

  // body(output offset, operand offsets, count): runs that cover the outputs [begin, end).
  template <class Body>
  void runs(int64_t begin, int64_t end, Body&& body) const {
    if (begin >= end) return;
    const int inner = rank_ - 1;
    int64_t index[Shape::kMaxRank], rest = begin;
    for (int d = inner; d >= 0; --d) {
      index[d] = rest % dims_[d];
      rest /= dims_[d];
    }
    std::array<int64_t, N> offset{};
    for (size_t n = 0; n < N; ++n)
      for (int d = 0; d < rank_; ++d) offset[n] += index[d] * steps_[n][d];
    while (begin < end) {
      const int64_t count = std::min(end - begin, dims_[inner] - index[inner]);
      body(begin, offset, count);
      begin += count;
      if (begin >= end) return;
      for (size_t n = 0; n < N; ++n) offset[n] -= index[inner] * steps_[n][inner];
      index[inner] = 0;
      for (int d = inner - 1; d >= 0; --d) {
        ++index[d];
        for (size_t n = 0; n < N; ++n) offset[n] += steps_[n][d];
        if (index[d] < dims_[d]) break;
        for (size_t n = 0; n < N; ++n) offset[n] -= index[d] * steps_[n][d];
        index[d] = 0;
      }
    }
  }

 private:
  int64_t total_ = 1;
  int rank_ = 0;
  int64_t dims_[Shape::kMaxRank] = {};
  int64_t steps_[N][Shape::kMaxRank] = {};
};

// Elements that are worth a thread of their own.
inline constexpr int64_t kGrain = 16384;

inline constexpr size_t align64(size_t n) { return (n + 63) / 64 * 64; }

// As many buffers as threads; parallel bodies borrow one each.
class ScratchSlots {
 public:
  ScratchSlots(std::byte* base, size_t bytes_each, size_t n)
      : base_(base), bytes_each_(bytes_each) {
    free_ = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
  }
  // One buffer, returned when it goes out of scope.
  class Lease {
   public:
    explicit Lease(ScratchSlots& slots) : slots_(slots), slot_(slots.take()) {}
    ~Lease() { slots_.free_.fetch_or(uint64_t{1} << slot_, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    template <class T>
    T* as() const {
      return reinterpret_cast<T*>(slots_.base_ + slots_.bytes_each_ * slot_);
    }

   private:
    ScratchSlots& slots_;
    size_t slot_;
  };

 private:
  size_t take() {
    uint64_t free = free_.load(std::memory_order_acquire);
    for (;;) {
      if (free == 0) {  // more bodies at once than slots cannot happen with a pool of that size
        free = free_.load(std::memory_order_acquire);
        continue;
      }
      const uint64_t lowest = free & (~free + 1);
      if (free_.compare_exchange_weak(free, free & ~lowest, std::memory_order_acquire))
        return static_cast<size_t>(__builtin_ctzll(lowest));
    }
  }
  std::byte* base_;
  size_t bytes_each_;
  std::atomic<uint64_t> free_;
};

// Runs a float32 kernel on float16 or bfloat16 tensors: inputs are converted, outputs rounded back.
// Outputs whose bit is set in `float_outputs` stay float32.
std::unique_ptr<Kernel> widen(std::unique_ptr<Kernel> inner, const KernelContext& context,
                              uint32_t float_outputs = 0);

template <class K, class... Args>
std::unique_ptr<Kernel> widened(const Node& node, const KernelContext& context, Args&&... args) {
  return widen(std::make_unique<K>(node, context, std::forward<Args>(args)...), context);
}

// The contents of a constant input as float32, half types converted; nullptr when it is not a
// constant of them.
std::shared_ptr<const Tensor> constant_float(const Node& node, const KernelContext& context,
                                             size_t input);

// out[..] = in[..] with the dimensions permuted: output dimension d is input dimension order[d].
void transpose_elements(const Tensor& in, const std::vector<int>& order, void* out,
                        ThreadPool& pool);

}  // namespace wia
