// SPDX-License-Identifier: Apache-2.0
// Reading and writing at indices: Gather, GatherElements, GatherND, ScatterElements, ScatterND.
#include <cstring>

#include "runtime/ops/op.h"

namespace wia {
namespace {

int64_t index_at(const Tensor& indices, int64_t i) {
  return indices.dtype == DType::kInt64 ? indices.as<int64_t>()[i] : indices.as<int32_t>()[i];
}

class Indexing : public Op {
 public:
  using Op::Op;

 protected:
  void check_index_type(DType dtype) const {
    check(dtype == DType::kInt64 || dtype == DType::kInt32, "indices are neither int32 nor int64");
  }
  // Contents can only be looked at while running; a wrong index is remembered and thrown after the
  // loop.
  static int64_t place(int64_t index, int64_t n, std::atomic<bool>& fault) {
    if (index < 0) index += n;
    if (index >= 0 && index < n) return index;
    fault.store(true, std::memory_order_relaxed);
    return -1;
  }
  void check_fault(const std::atomic<bool>& fault) const {
    check(!fault.load(), "an index is out of range");
  }
};

class Gather final : public Indexing {
 public:
  Gather(const Node& node, const KernelContext& context)
      : Indexing(node, context), axis_(node.i("axis", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    check_index_type(c.dtype(1));
    const Shape &x = c.shape(0), &indices = c.shape(1);
    const int axis = axis_of(axis_, x.rank());
    Shape out;
    for (int d = 0; d < axis; ++d) out.push_back(x[d]);
    for (int64_t d : indices) out.push_back(d);
    for (int d = axis + 1; d < x.rank(); ++d) out.push_back(x[d]);
    dispatch_width(c.dtype(0), [](auto) {});
    outer_ = product(x, 0, axis);
    n_ = x[axis];
    row_ = product(x, axis + 1, x.rank()) * static_cast<int64_t>(dtype_size(c.dtype(0)));
    n_indices_ = indices.numel();
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const std::byte* x = c.input(0)->as<std::byte>();
    const Tensor& indices = *c.input(1);
    std::byte* y = c.output(0)->as<std::byte>();
    std::atomic<bool> fault{false};
    c.pool().parallel_for(
        outer_ * n_indices_, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, row_)),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t at = place(index_at(indices, i % n_indices_), n_, fault);
            if (at < 0 || row_ == 0) continue;
            std::memcpy(y + i * row_, x + (i / n_indices_ * n_ + at) * row_,
                        static_cast<size_t>(row_));
          }
        });
    check_fault(fault);
  }

 private:
  int64_t axis_, outer_ = 0, n_ = 0, row_ = 0, n_indices_ = 0;
};

class GatherElements final : public Indexing {
 public:
  GatherElements(const Node& node, const KernelContext& context)
      : Indexing(node, context), axis_(node.i("axis", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    check_index_type(c.dtype(1));
    in_ = c.shape(0);
    out_ = c.shape(1);
    axis_at_ = axis_of(axis_, in_.rank());
    check(out_.rank() == in_.rank(), "indices and data differ in their number of dimensions");
    for (int d = 0; d < in_.rank(); ++d)
      check(d == axis_at_ || out_[d] <= in_[d], "indices are wider than data outside the axis");
    dispatch_width(c.dtype(0), [](auto) {});
    c.set(0, c.dtype(0), out_);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor &x = *c.input(0), &indices = *c.input(1);
    Tensor& y = *c.output(0);
    const auto steps = steps_of(in_);
    std::atomic<bool> fault{false};
    dispatch_width(x.dtype, [&]<class W>(W) {
      c.pool().parallel_for(y.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          int64_t rest = i, from = 0;
          for (int d = out_.rank() - 1; d >= 0; --d) {
            const int64_t at = rest % out_[d];
            rest /= out_[d];
            if (d != axis_at_) from += at * steps[d];
          }
          const int64_t at = place(index_at(indices, i), in_[axis_at_], fault);
          if (at >= 0) y.as<W>()[i] = x.as<W>()[from + at * steps[axis_at_]];
        }
      });
    });
    check_fault(fault);
  }

 private:
  int64_t axis_;
  int axis_at_ = 0;
  Shape in_, out_;
};

class GatherND final : public Indexing {
 public:
  GatherND(const Node& node, const KernelContext& context)
      : Indexing(node, context), batch_dims_(node.i("batch_dims", 0)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    check_type(c.dtype(1), DType::kInt64, "indices");
    in_ = c.shape(0);
    const Shape& indices = c.shape(1);
    check(in_.rank() >= 1 && indices.rank() >= 1, "an input is a scalar");
    check(batch_dims_ >= 0 && batch_dims_ < std::min(in_.rank(), indices.rank()),
          "batch_dims is too large");
    const int batch = static_cast<int>(batch_dims_);
    depth_ = indices[indices.rank() - 1];
    check(depth_ >= 1 && depth_ <= in_.rank() - batch,
          "the last dimension of indices is not 1..rank");
    Shape out;
    for (int d = 0; d < batch; ++d) check(in_[d] == indices[d], "the batch dimensions differ");
    for (int d = 0; d < indices.rank() - 1; ++d) out.push_back(indices[d]);
    for (int d = batch + static_cast<int>(depth_); d < in_.rank(); ++d) out.push_back(in_[d]);
    dispatch_width(c.dtype(0), [](auto) {});
    row_ = product(in_, batch + static_cast<int>(depth_), in_.rank());
    n_batches_ = product(in_, 0, batch);
    per_batch_ = product(indices, batch, indices.rank() - 1);
    c.set(0, c.dtype(0), out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor &x = *c.input(0), &indices = *c.input(1);
    Tensor& y = *c.output(0);
    const auto steps = steps_of(in_);
    const int batch = static_cast<int>(batch_dims_);
    std::atomic<bool> fault{false};
    dispatch_width(x.dtype, [&]<class W>(W) {
      const int64_t per_data = product(in_, batch, in_.rank());
      for (int64_t i = 0; i < n_batches_ * per_batch_; ++i) {
        int64_t from = i / per_batch_ * per_data;
        bool ok = true;
        for (int64_t k = 0; k < depth_; ++k) {
          const int d = batch + static_cast<int>(k);
          const int64_t at = place(index_at(indices, i * depth_ + k), in_[d], fault);
          ok &= at >= 0;
          from += at * steps[d];
        }
        if (ok && row_)
          std::memcpy(y.as<W>() + i * row_, x.as<W>() + from,
                      static_cast<size_t>(row_) * sizeof(W));
      }
    });
    check_fault(fault);
  }

 private:
  int64_t batch_dims_, depth_ = 0, row_ = 0, n_batches_ = 0, per_batch_ = 0;
  Shape in_;
};

enum class Join { kNone, kAdd, kMul, kMax, kMin };

Join join_of(const std::string& name, const std::string& where) {
  if (name == "none") return Join::kNone;
  if (name == "add") return Join::kAdd;
  if (name == "mul") return Join::kMul;
  if (name == "max") return Join::kMax;
  if (name == "min") return Join::kMin;
  fail(WIA_ERROR_NOT_SUPPORTED, where + ": reduction '" + name + "' is not known");
}

template <class T>
T joined(Join join, T old, T update) {
  if constexpr (std::is_integral_v<T>) {
    if (join == Join::kAdd)
      return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(update));
    if (join == Join::kMul)
      return static_cast<T>(static_cast<uint64_t>(old) * static_cast<uint64_t>(update));
  } else {
    if (join == Join::kAdd) return static_cast<T>(old + update);
    if (join == Join::kMul) return static_cast<T>(old * update);
  }
  if (join == Join::kMax) return old < update ? update : old;
  if (join == Join::kMin) return update < old ? update : old;
  return update;
}

// One thread, in the order of the indices: equal indices have a defined result.
template <class Body>
void dispatch_join(Join join, DType dtype, const std::string& where, Body&& body) {
  if (join == Join::kNone) {
    dispatch_width(dtype, [&]<class W>(W) { body.template operator()<W>(); });
  } else if (!dispatch_numbers(dtype, body) && !dispatch<Half, BFloat16>(dtype, body)) {
    fail(WIA_ERROR_NOT_SUPPORTED, where + ": cannot reduce elements of type " + dtype_name(dtype));
  }
}

class Scatter : public Indexing {
 public:
  Scatter(const Node& node, const KernelContext& context)
      : Indexing(node, context), join_(join_of(node.s("reduction", "none"), where_)) {}
  bool may_overwrite(size_t input) const override { return input == 0; }

 protected:
  void infer_data(InferContext& c) {
    check_inputs(c, 3);
    check_type(c.dtype(2), c.dtype(0), "updates");
    dispatch_join(join_, c.dtype(0), where_, []<class T>() {});
    in_ = c.shape(0);
    c.set(0, c.dtype(0), in_);
  }
  static void copy_data(const Tensor& x, Tensor& y) {
    if (x.data != y.data && x.n_bytes()) std::memcpy(y.data, x.data, x.n_bytes());
  }
  Join join_;
  Shape in_;
};

class ScatterElements final : public Scatter {
 public:
  ScatterElements(const Node& node, const KernelContext& context)
      : Scatter(node, context), axis_(node.i("axis", 0)) {}
  Inferred infer(InferContext& c) override {
    infer_data(c);
    check_index_type(c.dtype(1));
    indices_ = c.shape(1);
    check(indices_ == c.shape(2), "indices and updates differ in shape");
    check(indices_.rank() == in_.rank(), "indices and data differ in their number of dimensions");
    axis_at_ = axis_of(axis_, in_.rank());
    for (int d = 0; d < in_.rank(); ++d)
      check(d == axis_at_ || indices_[d] <= in_[d], "indices are wider than data outside the axis");
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor &indices = *c.input(1), &updates = *c.input(2);
    Tensor& y = *c.output(0);
    copy_data(*c.input(0), y);
    const auto steps = steps_of(in_);
    std::atomic<bool> fault{false};
    dispatch_join(join_, y.dtype, where_, [&]<class T>() {
      const int64_t n = indices.numel();
      for (int64_t i = 0; i < n; ++i) {
        int64_t rest = i, to = 0;
        for (int d = in_.rank() - 1; d >= 0; --d) {
          const int64_t at = rest % indices_[d];
          rest /= indices_[d];
          if (d != axis_at_) to += at * steps[d];
        }
        const int64_t at = place(index_at(indices, i), in_[axis_at_], fault);
        if (at < 0) continue;
        T& slot = y.as<T>()[to + at * steps[axis_at_]];
        slot = joined(join_, slot, updates.as<T>()[i]);
      }
    });
    check_fault(fault);
  }

 private:
  int64_t axis_;
  int axis_at_ = 0;
  Shape indices_;
};

class ScatterND final : public Scatter {
 public:
  using Scatter::Scatter;
  Inferred infer(InferContext& c) override {
    infer_data(c);
    check_type(c.dtype(1), DType::kInt64, "indices");
    const Shape &indices = c.shape(1), &updates = c.shape(2);
    check(indices.rank() >= 1, "indices is a scalar");
    depth_ = indices[indices.rank() - 1];
    check(depth_ >= 1 && depth_ <= in_.rank(), "the last dimension of indices is not 1..rank");
    Shape wanted_updates;
    for (int d = 0; d < indices.rank() - 1; ++d) wanted_updates.push_back(indices[d]);
    for (int d = static_cast<int>(depth_); d < in_.rank(); ++d) wanted_updates.push_back(in_[d]);
    check(updates == wanted_updates,
          "updates is " + updates.str() + ", not " + wanted_updates.str());
    row_ = product(in_, static_cast<int>(depth_), in_.rank());
    n_ = product(indices, 0, indices.rank() - 1);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor &indices = *c.input(1), &updates = *c.input(2);
    Tensor& y = *c.output(0);
    copy_data(*c.input(0), y);
    const auto steps = steps_of(in_);
    std::atomic<bool> fault{false};
    dispatch_join(join_, y.dtype, where_, [&]<class T>() {
      for (int64_t i = 0; i < n_; ++i) {
        int64_t to = 0;
        bool ok = true;
        for (int64_t k = 0; k < depth_; ++k) {
          const int64_t at =
              place(indices.as<int64_t>()[i * depth_ + k], in_[static_cast<int>(k)], fault);
          ok &= at >= 0;
          to += at * steps[k];
        }
        if (!ok) continue;
        for (int64_t j = 0; j < row_; ++j) {
          T& slot = y.as<T>()[to + j];
          slot = joined(join_, slot, updates.as<T>()[i * row_ + j]);
        }
      }
    });
    check_fault(fault);
  }

 private:
  int64_t depth_ = 0, row_ = 0, n_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_gather(const Node& n, const KernelContext& c) {
  return std::make_unique<Gather>(n, c);
}
std::unique_ptr<Kernel> make_gather_elements(const Node& n, const KernelContext& c) {
  return std::make_unique<GatherElements>(n, c);
}
std::unique_ptr<Kernel> make_gather_nd(const Node& n, const KernelContext& c) {
  return std::make_unique<GatherND>(n, c);
}
std::unique_ptr<Kernel> make_scatter_elements(const Node& n, const KernelContext& c) {
  return std::make_unique<ScatterElements>(n, c);
}
std::unique_ptr<Kernel> make_scatter_nd(const Node& n, const KernelContext& c) {
  return std::make_unique<ScatterND>(n, c);
}

}  // namespace wia
