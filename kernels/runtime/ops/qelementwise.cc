// SPDX-License-Identifier: Apache-2.0
// Elementwise operators on uint8 levels: wia.Table, FlipSign, Quantize, Dequantize, QAdd, QMul;
// docs/quantization.md (1), (2), (11)-(13).
//
//   Table     x uint8 -> table[x]; attribute table: uint8[256] or float32[256]
//   FlipSign  uint8 <-> int8 of the same reals: the top bit changes
//   Quantize, Dequantize   float32 <-> uint8, or int8 with attribute flip; attributes scale,
//   zero_point (of the uint8) QAdd, QMul  a, b uint8, broadcast -> uint8; attributes a_zero_point,
//   b_zero_point, a_multiplier, b_multiplier,
//               zero_point, qmin, qmax, and optionally table (uint8[256])
#include "ops/qelementwise/qelementwise.h"

#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

constexpr int64_t kLevels = 256;
constexpr int64_t kTableGrain = 65536;

class TableOp : public Op {
 public:
  TableOp(const Node& node, const KernelContext& context)
      : Op(node, context), kernel_(select_qelementwise(context.isa)) {
    const Tensor* table = node.tensor("table");
    check(table && table->numel() == kLevels, "attribute 'table' has not 256 values");
    check(table->dtype == DType::kUint8 || table->dtype == DType::kFloat32,
          "a table of another type");
    table_ = *table;
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check_type(c.dtype(0), DType::kUint8, "x");
    n_ = c.shape(0).numel();
    c.set(0, table_.dtype, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return table_.dtype == DType::kUint8; }
  void run(RunContext& c) override {
    const uint8_t* x = c.input(0)->as<uint8_t>();
    if (table_.dtype == DType::kUint8) {
      uint8_t* y = c.output(0)->as<uint8_t>();
      c.pool().parallel_for(n_, kTableGrain, [&](int64_t begin, int64_t end) {
        kernel_.table(table_.as<uint8_t>(), static_cast<size_t>(end - begin), x + begin, y + begin);
      });
      return;
    }
    float* y = c.output(0)->as<float>();
    const float* table = table_.as<float>();
    c.pool().parallel_for(n_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = table[x[i]];
    });
  }
  std::string implementation() const override { return kernel_.name; }

 private:
  const QElementwise& kernel_;
  Tensor table_;
  int64_t n_ = 0;
};

class FlipSignOp : public Op {
 public:
  using Op::Op;
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const DType from = c.dtype(0);
    check(from == DType::kUint8 || from == DType::kInt8, std::string("x is ") + dtype_name(from));
    n_ = c.shape(0).numel();
    c.set(0, from == DType::kUint8 ? DType::kInt8 : DType::kUint8, c.shape(0));
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return true; }
  void run(RunContext& c) override {
    const uint8_t* x = c.input(0)->as<uint8_t>();
    uint8_t* y = c.output(0)->as<uint8_t>();
    c.pool().parallel_for(n_, kTableGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] ^ 0x80;
    });
  }

 private:
  int64_t n_ = 0;
};

// Quantize and Dequantize.
class ConvertOp : public Op {
 public:
  ConvertOp(const Node& node, const KernelContext& context, bool quantizes)
      : Op(node, context),
        kernel_(select_qelementwise(context.isa)),
        quantizes_(quantizes),
        flip_(node.i("flip", 0) ? 0x80 : 0),
        scale_(node.f("scale", 1.0f)),
        zero_point_(static_cast<int32_t>(node.i("zero_point", 0))) {
    check(scale_ > 0.0f && std::isfinite(scale_), "attribute 'scale' is not a positive number");
    check(zero_point_ >= 0 && zero_point_ <= 255, "attribute 'zero_point' is no uint8 level");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const DType levels = flip_ ? DType::kInt8 : DType::kUint8;
    check_type(c.dtype(0), quantizes_ ? DType::kFloat32 : levels, "x");
    n_ = c.shape(0).numel();
    c.set(0, quantizes_ ? levels : DType::kFloat32, c.shape(0));
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const void* x = c.input(0)->data;
    void* y = c.output(0)->data;
    c.pool().parallel_for(n_, kGrain, [&](int64_t begin, int64_t end) {
      const size_t n = static_cast<size_t>(end - begin);
      if (quantizes_) {
        QQuantize q;
        q.scale = scale_;
        q.zero_point = zero_point_;
        q.flip = flip_;
        kernel_.quantize(q, n, static_cast<const float*>(x) + begin,
                         static_cast<uint8_t*>(y) + begin);
      } else {
        kernel_.dequantize(scale_, zero_point_, flip_, n, static_cast<const uint8_t*>(x) + begin,
                           static_cast<float*>(y) + begin);
      }
    });
  }
  std::string implementation() const override { return kernel_.name; }

 private:
  const QElementwise& kernel_;
  bool quantizes_;
  uint8_t flip_;
  float scale_;
  int32_t zero_point_;
  int64_t n_ = 0;
};

// QAdd and QMul: two operands of any broadcast, as rows and columns under outer loops.
class BinaryOp : public Op {
 public:
  BinaryOp(const Node& node, const KernelContext& context, bool adds)
      : Op(node, context), kernel_(select_qelementwise(context.isa)), adds_(adds) {
    q_.a.zero_point = level(node, "a_zero_point", 0);
    q_.b.zero_point = level(node, "b_zero_point", 0);
    q_.a_multiplier = node.f("a_multiplier", 1.0f);
    q_.b_multiplier = node.f("b_multiplier", 1.0f);
    q_.zero_point = level(node, "zero_point", 0);
    q_.qmin = static_cast<uint8_t>(level(node, "qmin", 0));
    q_.qmax = static_cast<uint8_t>(level(node, "qmax", 255));
    if (const Tensor* table = node.tensor("table")) {
      check(table->dtype == DType::kUint8 && table->numel() == kLevels,
            "attribute 'table' is not 256 levels");
      table_ = *table;
      q_.table = table_.as<uint8_t>();
    }
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    check_type(c.dtype(0), DType::kUint8, "a");
    check_type(c.dtype(1), DType::kUint8, "b");
    const Shape out = broadcast_shape(c.shape(0), c.shape(1), where_);
    plan(out, c.shape(0), c.shape(1));
    for (size_t i = 0; i < 2; ++i) same_size_[i] = c.shape(i) == out;
    c.set(0, DType::kUint8, out);
    return Inferred::kDone;
  }

  bool may_overwrite(size_t input) const override { return input < 2 && same_size_[input]; }

  void run(RunContext& c) override {
    if (columns_ == 0 || rows_ == 0 || outer_ == 0) return;
    const uint8_t* a = c.input(0)->as<uint8_t>();
    const uint8_t* b = c.input(1)->as<uint8_t>();
    uint8_t* out = c.output(0)->as<uint8_t>();
    // A task is some rows of one outer index, or some columns when there is one row.
    const int64_t lines = outer_ * rows_;
    if (lines == 1) {
      c.pool().parallel_for(columns_, kTableGrain, [&](int64_t begin, int64_t end) {
        QBinary q = q_;
        q.columns = static_cast<size_t>(end - begin);
        place(&q.a, a + begin * last_.a, row_.a, last_.a);
        place(&q.b, b + begin * last_.b, row_.b, last_.b);
        q.out = out + begin;
        q.ld_out = q.columns;
        call(q);
      });
      return;
    }
    c.pool().parallel_for(lines, std::max<int64_t>(1, kTableGrain / columns_),
                          [&](int64_t begin, int64_t end) {
                            while (begin < end) {
                              const int64_t o = begin / rows_, row = begin % rows_,
                                            count = std::min(end - begin, rows_ - row);
                              Steps at{row * row_.a, row * row_.b};
                              int64_t rest = o;
                              for (int d = n_outer_ - 1; d >= 0; --d) {
                                at.a += rest % outer_dims_[d] * outer_steps_[d].a;
                                at.b += rest % outer_dims_[d] * outer_steps_[d].b;
                                rest /= outer_dims_[d];
                              }
                              QBinary q = q_;
                              q.rows = static_cast<size_t>(count);
                              q.columns = q.ld_out = static_cast<size_t>(columns_);
                              place(&q.a, a + at.a, row_.a, last_.a);
                              place(&q.b, b + at.b, row_.b, last_.b);
                              q.out = out + begin * columns_;
                              call(q);
                              begin += count;
                            }
                          });
  }

  std::string implementation() const override { return kernel_.name; }

 private:
  struct Steps {
    int64_t a = 0, b = 0;
    bool operator==(const Steps&) const = default;
  };

  int32_t level(const Node& node, const char* key, int64_t otherwise) const {
    const int64_t value = node.i(key, otherwise);
    check(value >= 0 && value < kLevels, std::string("attribute '") + key + "' is no uint8 level");
    return static_cast<int32_t>(value);
  }

  void call(const QBinary& q) const {
    if (adds_) {
      kernel_.add(q);
    } else {
      kernel_.mul(q);
    }
  }

  static void place(QOperand* operand, const uint8_t* data, int64_t row, int64_t column) {
    operand->data = data;
    operand->stride_row = static_cast<size_t>(row);
    operand->stride_column = static_cast<size_t>(column);
  }

  // Merges neighbouring dimensions that both operands step through evenly.
  void plan(const Shape& out, const Shape& a, const Shape& b) {
    std::vector<int64_t> dims;
    std::vector<Steps> steps;
    const auto a_steps = steps_of(a), b_steps = steps_of(b);
    for (int d = 0; d < out.rank(); ++d) {
      if (out[d] == 1) continue;
      const int da = d - (out.rank() - a.rank()), db = d - (out.rank() - b.rank());
      const Steps step{da < 0 || a[da] == 1 ? 0 : a_steps[static_cast<size_t>(da)],
                       db < 0 || b[db] == 1 ? 0 : b_steps[static_cast<size_t>(db)]};
      if (!steps.empty() && steps.back() == Steps{step.a * out[d], step.b * out[d]}) {
        dims.back() *= out[d];
        steps.back() = step;
      } else {
        dims.push_back(out[d]);
        steps.push_back(step);
      }
    }
    columns_ = rows_ = outer_ = 1;
    last_ = Steps{1, 1};
    row_ = {};
    n_outer_ = 0;
    if (dims.empty()) return;
    columns_ = dims.back();
    last_ = steps.back();
    dims.pop_back();
    steps.pop_back();
    if (dims.empty()) return;
    rows_ = dims.back();
    row_ = steps.back();
    dims.pop_back();
    steps.pop_back();
    n_outer_ = static_cast<int>(dims.size());
    for (int d = 0; d < n_outer_; ++d) {
      outer_ *= dims[static_cast<size_t>(d)];
      outer_dims_[d] = dims[static_cast<size_t>(d)];
      outer_steps_[d] = steps[static_cast<size_t>(d)];
    }
  }

  const QElementwise& kernel_;
  bool adds_;
  QBinary q_;
  Tensor table_;
  bool same_size_[2] = {};
  int64_t columns_ = 1, rows_ = 1, outer_ = 1;
  Steps last_, row_;
  int n_outer_ = 0;
  int64_t outer_dims_[Shape::kMaxRank] = {};
  Steps outer_steps_[Shape::kMaxRank];
};

}  // namespace

std::unique_ptr<Kernel> make_table(const Node& node, const KernelContext& context) {
  return std::make_unique<TableOp>(node, context);
}
std::unique_ptr<Kernel> make_flip_sign(const Node& node, const KernelContext& context) {
  return std::make_unique<FlipSignOp>(node, context);
}
std::unique_ptr<Kernel> make_quantize(const Node& node, const KernelContext& context) {
  return std::make_unique<ConvertOp>(node, context, true);
}
std::unique_ptr<Kernel> make_dequantize(const Node& node, const KernelContext& context) {
  return std::make_unique<ConvertOp>(node, context, false);
}
std::unique_ptr<Kernel> make_qadd(const Node& node, const KernelContext& context) {
  return std::make_unique<BinaryOp>(node, context, true);
}
std::unique_ptr<Kernel> make_qmul(const Node& node, const KernelContext& context) {
  return std::make_unique<BinaryOp>(node, context, false);
}

}  // namespace wia
