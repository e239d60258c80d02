// SPDX-License-Identifier: Apache-2.0
// wia.RowTable: a row of a table for each integer of x; graph/passes/tabulate_rows.cc.
//
//   input: x int32 or int64.  attributes: table [n + 1, width]; first, the integer of row 0;
//   wraps, 1: a negative x counts from n.  Any x that is none of the n has the last row.
//   output: x's shape and a new last dimension, width, where appends is 1; otherwise width in the
//   place of x's last dimension, which is 1.
#include <cstring>

#include "runtime/ops/op.h"

namespace wia {
namespace {

class RowTable final : public Op {
 public:
  RowTable(const Node& node, const KernelContext& context)
      : Op(node, context),
        first_(node.i("first", 0)),
        wraps_(node.i("wraps", 0) != 0),
        appends_(node.i("appends", 0) != 0) {
    const Tensor* table = node.tensor("table");
    check(table && table->shape.rank() == 2 && table->shape[0] > 1,
          "attribute 'table' is no table");
    dispatch_width(table->dtype, [](auto) {});
    table_ = *table;
    n_ = table_.shape[0] - 1;
    row_bytes_ = static_cast<size_t>(table_.shape[1]) * dtype_size(table_.dtype);
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check(c.dtype(0) == DType::kInt32 || c.dtype(0) == DType::kInt64,
          std::string("x is ") + dtype_name(c.dtype(0)) + ", neither int32 nor int64");
    Shape out = c.shape(0);
    if (appends_) {
      check(out.rank() < Shape::kMaxRank, "x has 8 dimensions already");
      out.push_back(table_.shape[1]);
    } else {
      check(out.rank() > 0 && out[out.rank() - 1] == 1,
            "x is " + out.str() + ", its last dimension is not 1");
      out[out.rank() - 1] = table_.shape[1];
    }
    n_rows_ = c.shape(0).numel();
    c.set(0, table_.dtype, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    std::byte* y = c.output(0)->as<std::byte>();
    if (row_bytes_ == 0) return;
    const int64_t grain = std::max<int64_t>(1, kGrainBytes / static_cast<int64_t>(row_bytes_));
    c.pool().parallel_for(n_rows_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t v = x.dtype == DType::kInt32 ? x.as<int32_t>()[i] : x.as<int64_t>()[i];
        std::memcpy(y + static_cast<size_t>(i) * row_bytes_,
                    table_.as<std::byte>() + row_of(v) * row_bytes_, row_bytes_);
      }
    });
  }
  size_t owned_bytes() const override { return table_.n_bytes(); }

 private:
  static constexpr int64_t kGrainBytes = 65536;

  size_t row_of(int64_t v) const {
    const uint64_t n = static_cast<uint64_t>(n_);
    uint64_t at = static_cast<uint64_t>(v) - static_cast<uint64_t>(first_);
    if (wraps_ && v < 0) at += n;
    return static_cast<size_t>(std::min(at, n));
  }

  int64_t first_;
  bool wraps_, appends_;
  Tensor table_;
  int64_t n_ = 0, n_rows_ = 0;
  size_t row_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_row_table(const Node& node, const KernelContext& context) {
  return std::make_unique<RowTable>(node, context);
}

}  // namespace wia
