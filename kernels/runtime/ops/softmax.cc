// SPDX-License-Identifier: Apache-2.0
// Softmax, LogSoftmax and Hardmax along one axis; before opset 13 over everything from the axis on.
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

enum class Kind { kSoftmax, kLogSoftmax, kHardmax };

class Softmax final : public Op {
 public:
  Softmax(const Node& node, const KernelContext& context, Kind kind)
      : Op(node, context), kind_(kind), axis_(node.i("axis", node.opset < 13 ? 1 : -1)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    // Before opset 13 an axis equal to the rank is no error: rows of one.
    const bool past_end = opset_ < 13 && axis_ == x.rank();
    const int axis = past_end || x.rank() == 0 ? x.rank() : axis_of(axis_, x.rank());
    n_ = x.rank() == axis ? 1 : opset_ < 13 ? product(x, axis, x.rank()) : x[axis];
    inner_ = opset_ < 13 || x.rank() == axis ? 1 : product(x, axis + 1, x.rank());
    outer_ = n_ && inner_ ? x.numel() / n_ / inner_ : 0;
    columns_ = kind_ == Kind::kSoftmax && dtype_ == DType::kFloat32 && inner_ >= kLeastColumns;
    row_bytes_ = align64(static_cast<size_t>(n_) * dtype_size(dtype_));
    c.set(0, dtype_, x);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return true; }
  size_t scratch_bytes() const override {
    return inner_ == 1 || columns_ ? 0 : row_bytes_ * n_threads_;
  }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    Tensor& y = *c.output(0);
    if (columns_) return run_columns(x.as<float>(), y.as<float>(), c.pool());
    ScratchSlots slots(c.scratch(), row_bytes_, n_threads_);
    dispatch<float, double>(dtype_, [&]<class T>() {
      c.pool().parallel_for(outer_ * inner_,
                            std::max<int64_t>(1, kGrain / 4 / std::max<int64_t>(1, n_)),
                            [&](int64_t begin, int64_t end) {
                              if (inner_ == 1) {
                                for (int64_t r = begin; r < end; ++r)
                                  row(x.as<T>() + r * n_, y.as<T>() + r * n_);
                                return;
                              }
                              const ScratchSlots::Lease lease(slots);
                              T* buffer = lease.as<T>();
                              for (int64_t r = begin; r < end; ++r) {
                                const int64_t at = r / inner_ * n_ * inner_ + r % inner_;
                                for (int64_t i = 0; i < n_; ++i)
                                  buffer[i] = x.as<T>()[at + i * inner_];
                                row(buffer, buffer);
                                for (int64_t i = 0; i < n_; ++i)
                                  y.as<T>()[at + i * inner_] = buffer[i];
                              }
                            });
    });
  }

 private:
  static constexpr int64_t kLeastColumns = 8, kColumns = 256;

  void run_columns(const float* x, float* y, ThreadPool& pool) const {
    const int64_t blocks = (inner_ + kColumns - 1) / kColumns;
    pool.parallel_for(outer_ * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t column = b % blocks * kColumns, at = b / blocks * n_ * inner_ + column;
        fmath_.softmax_columns(static_cast<size_t>(n_),
                               static_cast<size_t>(std::min(kColumns, inner_ - column)),
                               static_cast<size_t>(inner_), x + at, y + at);
      }
    });
  }
  void hardmax(const auto* x, auto* y) const {
    int64_t best = 0;
    for (int64_t i = 1; i < n_; ++i)
      if (x[i] > x[best]) best = i;
    for (int64_t i = 0; i < n_; ++i) y[i] = i == best ? 1 : 0;
  }
  void row(const float* x, float* y) const {
    if (kind_ == Kind::kSoftmax) return fmath_.softmax(static_cast<size_t>(n_), x, y);
    if (kind_ == Kind::kLogSoftmax) return fmath_.log_softmax(static_cast<size_t>(n_), x, y);
    hardmax(x, y);
  }
  void row(const double* x, double* y) const {
    if (kind_ == Kind::kHardmax) return hardmax(x, y);
    const double peak = *std::max_element(x, x + n_);
    double sum = 0;
    for (int64_t i = 0; i < n_; ++i) sum += std::exp(x[i] - peak);
    for (int64_t i = 0; i < n_; ++i)
      y[i] = kind_ == Kind::kSoftmax ? std::exp(x[i] - peak) / sum : x[i] - peak - std::log(sum);
  }

  Kind kind_;
  int64_t axis_;
  DType dtype_ = DType::kUndefined;
  int64_t outer_ = 0, n_ = 0, inner_ = 1;
  size_t row_bytes_ = 0;
  bool columns_ = false;
};

}  // namespace

std::unique_ptr<Kernel> make_softmax(const Node& n, const KernelContext& c) {
  return widened<Softmax>(n, c, Kind::kSoftmax);
}
std::unique_ptr<Kernel> make_log_softmax(const Node& n, const KernelContext& c) {
  return widened<Softmax>(n, c, Kind::kLogSoftmax);
}
std::unique_ptr<Kernel> make_hardmax(const Node& n, const KernelContext& c) {
  return widened<Softmax>(n, c, Kind::kHardmax);
}

}  // namespace wia
