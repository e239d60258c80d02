// SPDX-License-Identifier: Apache-2.0
// Reductions over axes, and the places of extremes.
#include <cmath>
#include <cstring>

#include "runtime/ops/op.h"

namespace wia {
namespace {

enum class Reduction { kSum, kMean, kMax, kMin, kProd, kL1, kL2, kSumSquare, kLogSum, kLogSumExp };

// n values in one row to one value, in float64 or integers (which wrap).
template <class T>
T reduce_row(Reduction kind, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, bool>) {
    bool any = false, all = true;
    for (int64_t i = 0; i < n; ++i) {
      any |= x[i];
      all &= x[i];
    }
    return kind == Reduction::kMax ? any : all;
  } else if constexpr (std::is_integral_v<T>) {
    uint64_t acc = 0;
    switch (kind) {
      case Reduction::kMax: {
        T m = std::numeric_limits<T>::min();
        for (int64_t i = 0; i < n; ++i) m = std::max(m, x[i]);
        return m;
      }
      case Reduction::kMin: {
        T m = std::numeric_limits<T>::max();
        for (int64_t i = 0; i < n; ++i) m = std::min(m, x[i]);
        return m;
      }
      case Reduction::kProd:
        acc = 1;
        for (int64_t i = 0; i < n; ++i) acc *= static_cast<uint64_t>(x[i]);
        return static_cast<T>(acc);
      case Reduction::kSum:
        for (int64_t i = 0; i < n; ++i) acc += static_cast<uint64_t>(x[i]);
        return static_cast<T>(acc);
      case Reduction::kL1:
        for (int64_t i = 0; i < n; ++i)
          acc += x[i] < T{0} ? 0 - static_cast<uint64_t>(x[i]) : static_cast<uint64_t>(x[i]);
        return static_cast<T>(acc);
      case Reduction::kSumSquare:
        for (int64_t i = 0; i < n; ++i)
          acc += static_cast<uint64_t>(x[i]) * static_cast<uint64_t>(x[i]);
        return static_cast<T>(acc);
      default:
        break;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = static_cast<double>(x[i]);
      sum += kind == Reduction::kL2 ? v * v : kind == Reduction::kLogSumExp ? std::exp(v) : v;
    }
    if (kind == Reduction::kMean) return saturated<T>(n ? sum / static_cast<double>(n) : 0.0);
    if (kind == Reduction::kL2) return saturated<T>(std::sqrt(sum));
    return saturated<T>(std::log(sum));
  } else {
    double acc = kind == Reduction::kProd ? 1.0 : 0.0;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    double peak = kind == Reduction::kMin ? kInfinity : -kInfinity;
    if (kind == Reduction::kMax || kind == Reduction::kLogSumExp)
      for (int64_t i = 0; i < n; ++i)
        peak = x[i] > peak || x[i] != x[i] ? static_cast<double>(x[i]) : peak;
    if (kind == Reduction::kMin)
      for (int64_t i = 0; i < n; ++i)
        peak = x[i] < peak || x[i] != x[i] ? static_cast<double>(x[i]) : peak;
    if (kind == Reduction::kMax || kind == Reduction::kMin) return static_cast<T>(peak);
    if (kind == Reduction::kLogSumExp && !std::isfinite(peak)) return static_cast<T>(peak);
    for (int64_t i = 0; i < n; ++i) {
      const double v = static_cast<double>(x[i]);
      switch (kind) {
        case Reduction::kProd:
          acc *= v;
          break;
        case Reduction::kL1:
          acc += std::fabs(v);
          break;
        case Reduction::kL2:
        case Reduction::kSumSquare:
          acc += v * v;
          break;
        case Reduction::kLogSumExp:
          acc += std::exp(v - peak);
          break;
        default:
          acc += v;
      }
    }
    switch (kind) {
      case Reduction::kMean:
        acc /= static_cast<double>(n);
        break;
      case Reduction::kL2:
        acc = std::sqrt(acc);
        break;
      case Reduction::kLogSum:
        acc = std::log(acc);
        break;
      case Reduction::kLogSumExp:
        acc = std::log(acc) + peak;
        break;
      default:
        break;
    }
    return static_cast<T>(acc);
  }
}

float reduce_row(const Fmath& f, Reduction kind, const float* x, int64_t count) {
  const size_t n = static_cast<size_t>(count);
  switch (kind) {
    case Reduction::kSum:
      return f.reduceSum(n, x);
    case Reduction::kMean:
      return f.reduceSum(n, x) / static_cast<float>(n);
    case Reduction::kMax:
      return f.reduceMax(n, x);
    case Reduction::kMin:
      return f.reduceMin(n, x);
    case Reduction::kProd:
      return f.reduceProd(n, x);
    case Reduction::kL1:
      return f.reduceSumAbs(n, x);
    case Reduction::kL2:
      return std::sqrt(f.reduceSumSquare(n, x));
    case Reduction::kSumSquare:
      return f.reduceSumSquare(n, x);
    default:
      return reduce_row(kind, x, count);
  }
}

// Axes as an attribute before opset 18 (ReduceSum: 13), as an input since.
class Reduce final : public Op {
 public:
  Reduce(const Node& node, const KernelContext& context, Reduction kind, int axes_input_since)
      : Op(node, context),
        kind_(kind),
        axes_input_(node.opset >= axes_input_since),
        axes_(node.ints("axes")),
        keep_(node.i("keepdims", 1) != 0),
        none_is_all_(node.i("noop_with_empty_axes", 0) == 0) {}

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    std::vector<int64_t> axes = axes_;
    if (axes_input_ && given(c, 1)) {
      if (!c.value(1)) return Inferred::kNeedsValues;
      axes = ints_of(*c.value(1));
    }
    dtype_ = c.dtype(0);
    const bool boolean =
        dtype_ == DType::kBool && (kind_ == Reduction::kMax || kind_ == Reduction::kMin);
    if (!boolean && !dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    bool reduced[Shape::kMaxRank] = {};
    if (axes.empty() && none_is_all_) std::fill_n(reduced, x.rank(), true);
    for (int64_t a : axes) reduced[axis_of(a, x.rank())] = true;
    order_.clear();
    Shape out;
    n_ = 1;
    for (int d = 0; d < x.rank(); ++d)
      if (!reduced[d]) order_.push_back(d);
    for (int d = 0; d < x.rank(); ++d) {
      if (reduced[d]) {
        order_.push_back(d);
        n_ *= x[d];
      }
      if (!reduced[d] || keep_) out.push_back(reduced[d] ? 1 : x[d]);
    }
    in_order_ = true;
    int last = -1;
    for (int d : order_) {
      if (x[d] == 1) continue;
      in_order_ &= d > last;
      last = d;
    }
    find_columns(x, reduced);
    bytes_ = in_order_ || columns_ ? 0 : static_cast<size_t>(x.numel()) * dtype_size(dtype_);
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return bytes_; }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    Tensor x = *c.input(0);
    Tensor& y = *c.output(0);
    if (columns_) return run_columns(x.as<float>(), y.as<float>(), c.pool());
    if (!in_order_) {
      transpose_elements(x, order_, c.scratch(), c.pool());
      x.data = c.scratch();
    }
    const auto rows = [&]<class T>() {
      c.pool().parallel_for(y.numel(), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n_)),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i) {
                                if constexpr (std::is_same_v<T, float>)
                                  y.as<T>()[i] = reduce_row(fmath_, kind_, x.as<T>() + i * n_, n_);
                                else
                                  y.as<T>()[i] = reduce_row(kind_, x.as<T>() + i * n_, n_);
                              }
                            });
    };
    dispatch_numbers(dtype_, rows) || dispatch<bool>(dtype_, rows);
  }

 private:
  static constexpr int64_t kPartials = 16, kColumns = 256, kLeastColumns = 8;

  // [outer, n, inner] with the n reduced: columns side by side instead of a transposed copy.
  void find_columns(const Shape& x, const bool* reduced) {
    fold_ = kind_ == Reduction::kSum || kind_ == Reduction::kMean ? fmath_.binaryAdd
            : kind_ == Reduction::kMax                            ? fmath_.binaryMax
            : kind_ == Reduction::kMin                            ? fmath_.binaryMin
                                                                  : nullptr;
    columns_ = false;
    int first = 0, last = x.rank();
    while (first < last && (!reduced[first] || x[first] == 1)) ++first;
    while (last > first && (!reduced[last - 1] || x[last - 1] == 1)) --last;
    for (int d = first; d < last; ++d)
      if (!reduced[d] && x[d] != 1) return;
    outer_ = product(x, 0, first);
    inner_ = product(x, last, x.rank());
    columns_ = fold_ && dtype_ == DType::kFloat32 && !in_order_ && n_ > 0 && outer_ > 0 &&
               inner_ >= kLeastColumns;
  }

  // For each column what reduce_row does, in its order (16).
  void run_columns(const float* x, float* y, ThreadPool& pool) const {
    const int64_t blocks = (inner_ + kColumns - 1) / kColumns;
    const float start = kind_ == Reduction::kMax   ? -std::numeric_limits<float>::infinity()
                        : kind_ == Reduction::kMin ? std::numeric_limits<float>::infinity()
                                                   : 0.0f;
    pool.parallel_for(outer_ * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t column = b % blocks * kColumns;
        const size_t width = static_cast<size_t>(std::min(kColumns, inner_ - column));
        const float* in = x + b / blocks * n_ * inner_ + column;
        float* out = y + b / blocks * inner_ + column;
        alignas(64) float partial[kPartials][kColumns];
        for (auto& row : partial) std::fill_n(row, width, start);
        for (int64_t i = 0; i < n_; ++i) {
          float* row = partial[i % kPartials];
          fold_(width, row, 1, in + i * inner_, 1, row);
        }
        for (int64_t half = kPartials / 2; half > 0; half /= 2)
          for (int64_t j = 0; j < half; ++j)
            fold_(width, partial[j], 1, partial[j + half], 1, partial[j]);
        const float n = static_cast<float>(n_);
        if (kind_ == Reduction::kMean)
          fmath_.binaryDiv(width, partial[0], 1, &n, 0, out);
        else
          std::copy_n(partial[0], width, out);
      }
    });
  }

  Reduction kind_;
  bool axes_input_;
  std::vector<int64_t> axes_;
  bool keep_, none_is_all_;
  DType dtype_ = DType::kUndefined;
  std::vector<int> order_;
  bool in_order_ = true, columns_ = false;
  Fmath::Binary fold_ = nullptr;
  int64_t n_ = 1, outer_ = 1, inner_ = 1;
  size_t bytes_ = 0;
};

class ArgExtreme final : public Op {
 public:
  ArgExtreme(const Node& node, const KernelContext& context, bool max)
      : Op(node, context),
        max_(max),
        axis_(node.i("axis", 0)),
        keep_(node.i("keepdims", 1) != 0),
        last_(node.i("select_last_index", 0) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    const int axis = axis_of(axis_, x.rank());
    outer_ = product(x, 0, axis);
    n_ = x[axis];
    inner_ = product(x, axis + 1, x.rank());
    check(n_ > 0, "the axis is empty");
    Shape out;
    for (int d = 0; d < x.rank(); ++d)
      if (d != axis || keep_) out.push_back(d == axis ? 1 : x[d]);
    c.set(0, DType::kInt64, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    int64_t* y = c.output(0)->as<int64_t>();
    dispatch_numbers(dtype_, [&]<class T>() {
      c.pool().parallel_for(
          outer_ * inner_, std::max<int64_t>(1, kGrain / n_), [&](int64_t begin, int64_t end) {
            for (int64_t o = begin; o < end; ++o) {
              const T* in = x.as<T>() + o / inner_ * n_ * inner_ + o % inner_;
              int64_t best = 0;
              T value = in[0];
              for (int64_t i = 1; i < n_; ++i) {
                const T v = in[i * inner_];
                const bool nan = v != v && value == value;
                if (nan || (max_ ? v > value : v < value) || (last_ && v == value)) {
                  best = i;
                  value = v;
                }
              }
              y[o] = best;
            }
          });
    });
  }

 private:
  bool max_;
  int64_t axis_;
  bool keep_, last_;
  DType dtype_ = DType::kUndefined;
  int64_t outer_ = 0, n_ = 0, inner_ = 1;
};

constexpr int kAxesInputSince = 18, kSumAxesInputSince = 13;

}  // namespace

#define WIA_REDUCE(make, kind, since)                                   \
  std::unique_ptr<Kernel> make(const Node& n, const KernelContext& c) { \
    return widened<Reduce>(n, c, Reduction::kind, since);               \
  }
WIA_REDUCE(make_reduce_sum, kSum, kSumAxesInputSince)
WIA_REDUCE(make_reduce_mean, kMean, kAxesInputSince)
WIA_REDUCE(make_reduce_max, kMax, kAxesInputSince)
WIA_REDUCE(make_reduce_min, kMin, kAxesInputSince)
WIA_REDUCE(make_reduce_prod, kProd, kAxesInputSince)
WIA_REDUCE(make_reduce_l1, kL1, kAxesInputSince)
WIA_REDUCE(make_reduce_l2, kL2, kAxesInputSince)
WIA_REDUCE(make_reduce_sum_square, kSumSquare, kAxesInputSince)
WIA_REDUCE(make_reduce_log_sum, kLogSum, kAxesInputSince)
WIA_REDUCE(make_reduce_log_sum_exp, kLogSumExp, kAxesInputSince)

std::unique_ptr<Kernel> make_arg_max(const Node& n, const KernelContext& c) {
  return widened<ArgExtreme>(n, c, true);
}
std::unique_ptr<Kernel> make_arg_min(const Node& n, const KernelContext& c) {
  return widened<ArgExtreme>(n, c, false);
}

}  // namespace wia
