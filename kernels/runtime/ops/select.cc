// SPDX-License-Identifier: Apache-2.0
// Choosing and ordering elements: TopK, NonZero, Unique, Compress, ReverseSequence, CumSum,
// CumProd.
#include <cstring>
#include <numeric>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// Less, with NaN above every number, so that sorting is well defined.
template <class T>
bool below(T a, T b) {
  if (a != a) return false;
  return b != b || a < b;
}

// -1, 0 or 1 as element a of data is below, equal to or above element b; one for each type, so that
// sorting is compiled once.
using Compare = int (*)(const void* data, int64_t a, int64_t b);

template <class T>
int compare_elements(const void* data, int64_t a, int64_t b) {
  const T va = static_cast<const T*>(data)[a], vb = static_cast<const T*>(data)[b];
  return below(va, vb) ? -1 : below(vb, va) ? 1 : 0;
}

// nullptr for types that have no order.
Compare compare_of(DType dtype) {
  Compare found = nullptr;
  const auto set = [&]<class T>() { found = compare_elements<T>; };
  dispatch_numbers(dtype, set) || dispatch<bool, Half, BFloat16>(dtype, set);
  return found;
}

class TopK final : public Op {
 public:
  TopK(const Node& node, const KernelContext& context)
      : Op(node, context),
        axis_(node.i("axis", -1)),
        k_attribute_(node.i("k", -1)),
        largest_(node.i("largest", 1) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    k_ = k_attribute_;
    if (opset_ >= 10) {
      check_inputs(c, 2);
      if (!c.value(1)) return Inferred::kNeedsValues;
      const std::vector<int64_t> k = ints_of(*c.value(1));
      check(k.size() == 1, "K is not one number");
      k_ = k[0];
    }
    const int axis = axis_of(axis_, x.rank());
    n_ = x[axis];
    check(k_ >= 0 && k_ <= n_,
          "K = " + std::to_string(k_) + " of an axis of " + std::to_string(n_));
    outer_ = product(x, 0, axis);
    inner_ = product(x, axis + 1, x.rank());
    Shape out = x;
    out[axis] = k_;
    row_bytes_ = align64(static_cast<size_t>(n_) * sizeof(int64_t));
    c.set(0, dtype_, out);
    wants_indices_ = wanted(c, 1);
    wants_values_ = wanted(c, 0);
    if (wants_indices_) c.set(1, DType::kInt64, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return row_bytes_ * n_threads_; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    ScratchSlots slots(c.scratch(), row_bytes_, n_threads_);
    int64_t* indices = wants_indices_ ? c.output(1)->as<int64_t>() : nullptr;
    std::byte* values = wants_values_ ? c.output(0)->as<std::byte>() : nullptr;
    const size_t size = dtype_size(dtype_);
    const Compare compare = compare_of(dtype_);
    c.pool().parallel_for(outer_ * inner_, 1, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      int64_t* order = lease.as<int64_t>();
      for (int64_t r = begin; r < end; ++r) {
        const int64_t first = r / inner_ * n_ * inner_ + r % inner_;
        std::iota(order, order + n_, 0);
        std::partial_sort(order, order + k_, order + n_, [&](int64_t a, int64_t b) {
          const int sign = compare(x.data, first + a * inner_, first + b * inner_);
          return sign != 0 ? (sign < 0) != largest_ : a < b;
        });
        const int64_t to = r / inner_ * k_ * inner_ + r % inner_;
        for (int64_t i = 0; i < k_; ++i) {
          const size_t from = static_cast<size_t>(first + order[i] * inner_) * size;
          if (values)
            std::memcpy(values + static_cast<size_t>(to + i * inner_) * size,
                        x.as<std::byte>() + from, size);
          if (indices) indices[to + i * inner_] = order[i];
        }
      }
    });
  }

 private:
  int64_t axis_, k_attribute_;
  bool largest_, wants_indices_ = false, wants_values_ = true;
  DType dtype_ = DType::kUndefined;
  int64_t k_ = 0, n_ = 0, outer_ = 0, inner_ = 1;
  size_t row_bytes_ = 0;
};

class NonZero final : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (!known(c.dtype(0), []<class T>() {})) bad_type(c.dtype(0));
    return Inferred::kAtRun;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const int64_t n = x.numel();
    const int rank = std::max(1, x.shape.rank());
    const auto steps = steps_of(x.shape);
    known(x.dtype, [&]<class T>() {
      const T* in = x.as<T>();
      int64_t count = 0;
      for (int64_t i = 0; i < n; ++i) count += static_cast<double>(in[i]) != 0;
      Tensor y = Tensor::allocate(DType::kInt64, {rank, count});
      int64_t at = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (static_cast<double>(in[i]) == 0) continue;
        for (int d = 0; d < rank; ++d)
          y.as<int64_t>()[d * count + at] = x.shape.rank() ? i / steps[d] % x.shape[d] : 0;
        ++at;
      }
      *c.output(0) = y;
    });
  }

 private:
  template <class Body>
  static bool known(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body) || dispatch<bool, Half, BFloat16>(dtype, body);
  }
};

class Unique final : public Op {
 public:
  Unique(const Node& node, const KernelContext& context)
      : Op(node, context),
        flat_(!node.has("axis")),
        axis_(node.i("axis", 0)),
        sorted_(node.i("sorted", 1) != 0),
        n_outputs_(node.outputs.size()) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (!compare_of(c.dtype(0))) bad_type(c.dtype(0));
    if (!flat_) axis_of(axis_, c.shape(0).rank());
    return Inferred::kAtRun;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const int axis = flat_ ? 0 : axis_of(axis_, x.shape.rank());
    const int64_t n = flat_ ? x.numel() : x.shape[axis];
    const int64_t outer = flat_ ? 1 : product(x.shape, 0, axis);
    const int64_t inner = flat_ ? 1 : product(x.shape, axis + 1, x.shape.rank());
    const Compare elements = compare_of(x.dtype);
    const auto compare = [&](int64_t a, int64_t b) {  // slices in lexicographic order
      for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i)
          if (const int sign = elements(x.data, (o * n + a) * inner + i, (o * n + b) * inner + i))
            return sign;
      return 0;
    };
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
    std::vector<int64_t> first, counts, group(static_cast<size_t>(n));
    for (size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || compare(order[i - 1], order[i]) != 0) {
        first.push_back(order[i]);
        counts.push_back(0);
      }
      ++counts.back();
      group[static_cast<size_t>(order[i])] = static_cast<int64_t>(first.size()) - 1;
    }
    std::vector<int64_t> place(first.size());  // where each group is put
    std::iota(place.begin(), place.end(), 0);
    if (!sorted_) {
      std::vector<int64_t> by_first(first.size());
      std::iota(by_first.begin(), by_first.end(), 0);
      std::sort(by_first.begin(), by_first.end(),
                [&](int64_t a, int64_t b) { return first[a] < first[b]; });
      for (size_t i = 0; i < by_first.size(); ++i)
        place[static_cast<size_t>(by_first[i])] = static_cast<int64_t>(i);
    }
    const int64_t n_groups = static_cast<int64_t>(first.size());
    Shape out = flat_ ? Shape{n_groups} : x.shape;
    if (!flat_) out[axis] = n_groups;
    Tensor y = Tensor::allocate(x.dtype, out);
    Tensor indices = Tensor::allocate(DType::kInt64, {n_groups}),
           inverse = Tensor::allocate(DType::kInt64, {n});
    Tensor n_each = Tensor::allocate(DType::kInt64, {n_groups});
    for (int64_t g = 0; g < n_groups; ++g) {
      const int64_t at = place[static_cast<size_t>(g)], from = first[static_cast<size_t>(g)];
      const int64_t row = inner * static_cast<int64_t>(dtype_size(x.dtype));
      for (int64_t o = 0; o < outer && row > 0; ++o)
        std::memcpy(y.as<std::byte>() + (o * n_groups + at) * row,
                    x.as<std::byte>() + (o * n + from) * row, static_cast<size_t>(row));
      indices.as<int64_t>()[at] = from;
      n_each.as<int64_t>()[at] = counts[static_cast<size_t>(g)];
    }
    for (int64_t i = 0; i < n; ++i)
      inverse.as<int64_t>()[i] = place[static_cast<size_t>(group[static_cast<size_t>(i)])];
    const Tensor results[] = {y, indices, inverse, n_each};
    for (size_t i = 0; i < std::min<size_t>(4, n_outputs_); ++i)
      if (c.output(i)) *c.output(i) = results[i];
  }

  bool flat_;
  int64_t axis_;
  bool sorted_;
  size_t n_outputs_;
};

class Compress final : public Op {
 public:
  Compress(const Node& node, const KernelContext& context)
      : Op(node, context), flat_(!node.has("axis")), axis_(node.i("axis", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    check_type(c.dtype(1), DType::kBool, "the condition");
    check(c.shape(1).rank() == 1, "the condition is not a list");
    const int axis = flat_ ? 0 : axis_of(axis_, c.shape(0).rank());
    const int64_t n = flat_ ? c.shape(0).numel() : c.shape(0)[axis];
    check(c.shape(1)[0] <= n, "the condition is longer than the axis");
    dispatch_width(c.dtype(0), [](auto) {});
    return Inferred::kAtRun;
  }
  void run(RunContext& c) override {
    const Tensor &x = *c.input(0), &condition = *c.input(1);
    const bool* keep = condition.as<bool>();
    const int axis = flat_ ? 0 : axis_of(axis_, x.shape.rank());
    const int64_t n = flat_ ? x.numel() : x.shape[axis],
                  outer = flat_ ? 1 : product(x.shape, 0, axis);
    const int64_t row = (flat_ ? 1 : product(x.shape, axis + 1, x.shape.rank())) *
                        static_cast<int64_t>(dtype_size(x.dtype));
    const int64_t count = std::count(keep, keep + condition.numel(), true);
    Shape out = flat_ ? Shape{count} : x.shape;
    if (!flat_) out[axis] = count;
    Tensor y = Tensor::allocate(x.dtype, out);
    std::byte* to = y.as<std::byte>();
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < condition.numel(); ++i) {
        if (!keep[i] || row == 0) continue;
        std::memcpy(to, x.as<std::byte>() + (o * n + i) * row, static_cast<size_t>(row));
        to += row;
      }
    *c.output(0) = y;
  }

 private:
  bool flat_;
  int64_t axis_;
};

class ReverseSequence final : public Op {
 public:
  ReverseSequence(const Node& node, const KernelContext& context)
      : Op(node, context),
        batch_axis_(node.i("batch_axis", 1)),
        time_axis_(node.i("time_axis", 0)) {
    check((batch_axis_ == 0 && time_axis_ == 1) || (batch_axis_ == 1 && time_axis_ == 0),
          "batch_axis and time_axis are not 0 and 1");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape& x = c.shape(0);
    check(x.rank() >= 2, "the input has fewer than two dimensions");
    check_type(c.dtype(1), DType::kInt64, "sequence_lens");
    check(c.shape(1) == Shape({x[static_cast<int>(batch_axis_)]}),
          "sequence_lens is not one number a batch entry");
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), x);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const int64_t* lengths = c.input(1)->as<int64_t>();
    std::byte* y = c.output(0)->as<std::byte>();
    const int64_t rows = x.shape[0], columns = x.shape[1];
    const int64_t bytes =
        product(x.shape, 2, x.shape.rank()) * static_cast<int64_t>(dtype_size(x.dtype));
    const int64_t n_time = time_axis_ == 0 ? rows : columns,
                  n_batch = time_axis_ == 0 ? columns : rows;
    for (int64_t b = 0; b < n_batch; ++b)
      check(lengths[b] >= 0 && lengths[b] <= n_time, "a sequence length is outside the time axis");
    if (bytes == 0) return;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < columns; ++k) {
        const int64_t t = time_axis_ == 0 ? r : k, b = time_axis_ == 0 ? k : r;
        const int64_t source = t < lengths[b] ? lengths[b] - 1 - t : t;
        const int64_t from = time_axis_ == 0 ? source * columns + k : r * columns + source;
        std::memcpy(y + (r * columns + k) * bytes, x.as<std::byte>() + from * bytes,
                    static_cast<size_t>(bytes));
      }
  }

 private:
  int64_t batch_axis_, time_axis_;
};

// Sums or products of all elements up to each, along one axis.
class Cumulative final : public Op {
 public:
  Cumulative(const Node& node, const KernelContext& context, bool product_of)
      : Op(node, context),
        product_(product_of),
        exclusive_(node.i("exclusive", 0) != 0),
        reverse_(node.i("reverse", 0) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (!c.value(1)) return Inferred::kNeedsValues;
    const Tensor& axis = *c.value(1);
    check(axis.numel() == 1, "axis is not one number");
    dtype_ = c.dtype(0);
    if (!dispatch_numbers(dtype_, []<class T>() {})) bad_type(dtype_);
    const Shape& x = c.shape(0);
    Tensor list = axis;
    list.shape = {1};
    const int d = axis_of(ints_of(list)[0], x.rank());
    outer_ = product(x, 0, d);
    n_ = x[d];
    inner_ = product(x, d + 1, x.rank());
    c.set(0, dtype_, x);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    dispatch_numbers(dtype_, [&]<class T>() {
      const T* x = c.input(0)->as<T>();
      T* y = c.output(0)->as<T>();
      for (int64_t r = 0; r < outer_ * inner_; ++r) {
        const int64_t base = r / inner_ * n_ * inner_ + r % inner_;
        T acc = product_ ? T{1} : T{0};
        for (int64_t i = 0; i < n_; ++i) {
          const int64_t at = base + (reverse_ ? n_ - 1 - i : i) * inner_;
          const T next = joined(acc, x[at]);
          y[at] = exclusive_ ? acc : next;
          acc = next;
        }
      }
    });
  }

 private:
  template <class T>
  T joined(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      const uint64_t ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
      return static_cast<T>(product_ ? ua * ub : ua + ub);
    } else {
      return product_ ? a * b : a + b;
    }
  }
  bool product_, exclusive_, reverse_;
  DType dtype_ = DType::kUndefined;
  int64_t outer_ = 0, n_ = 0, inner_ = 1;
};

}  // namespace

std::unique_ptr<Kernel> make_top_k(const Node& n, const KernelContext& c) {
  return widened<TopK>(n, c);
}
std::unique_ptr<Kernel> make_non_zero(const Node& n, const KernelContext& c) {
  return std::make_unique<NonZero>(n, c);
}
std::unique_ptr<Kernel> make_unique_op(const Node& n, const KernelContext& c) {
  return std::make_unique<Unique>(n, c);
}
std::unique_ptr<Kernel> make_compress(const Node& n, const KernelContext& c) {
  return std::make_unique<Compress>(n, c);
}
std::unique_ptr<Kernel> make_reverse_sequence(const Node& n, const KernelContext& c) {
  return std::make_unique<ReverseSequence>(n, c);
}
std::unique_ptr<Kernel> make_cum_sum(const Node& n, const KernelContext& c) {
  return widened<Cumulative>(n, c, false);
}
std::unique_ptr<Kernel> make_cum_prod(const Node& n, const KernelContext& c) {
  return widened<Cumulative>(n, c, true);
}

}  // namespace wia
