// SPDX-License-Identifier: Apache-2.0
// wia.QGemm: rows of uint8 levels times a constant int8 matrix; docs/quantization.md (7)-(12).
//
//   inputs: x uint8 [..., K]; w int8, constant, [K, N] or, with trans_b, [N, K]; the residual,
//   uint8 [..., N], when the ending has one.  output: [..., N].  attributes: trans_b, x_zero_point,
//   w_zero_point, and the ending's.
#include "ops/qgemm/qgemm.h"

#include "runtime/ops/qending.h"
#include "runtime/ops/qsplit.h"

namespace wia {
namespace {

constexpr size_t kResidual = 2;

class QGemmOp : public Op {
 public:
  QGemmOp(const Node& node, const KernelContext& context)
      : Op(node, context), ending_(node), kernel_(select_qgemm(context.isa)) {
    check(node.inputs.size() >= 2 && context.graph->is_constant(node.inputs[1]),
          "w is not a constant");
    const Tensor& w = *context.graph->values[node.inputs[1]].constant;
    check(w.dtype == DType::kInt8 && w.shape.rank() == 2 && w.numel() > 0,
          "w is not an int8 matrix");
    const bool trans_b = node.i("trans_b", 0) != 0;
    QGemmB b;
    k_ = static_cast<size_t>(w.shape[trans_b ? 1 : 0]);
    n_ = static_cast<size_t>(w.shape[trans_b ? 0 : 1]);
    ending_.check_channels(where_, static_cast<int64_t>(n_));
    b.data = w.data;
    b.zero_point = w_zero_point_ = static_cast<int32_t>(node.i("w_zero_point", 0));
    b.segment_k = k_;
    b.n = n_;
    b.stride_k = trans_b ? 1 : static_cast<ptrdiff_t>(n_);
    b.stride_n = trans_b ? static_cast<ptrdiff_t>(k_) : 1;
    b.a_zero_point = static_cast<int32_t>(node.i("x_zero_point", 0));
    b.a_max = static_cast<uint8_t>(std::clamp<int64_t>(node.i("x_max", 255), 0, 255));
    check(b.a_zero_point >= 0 && b.a_zero_point <= 255, "x_zero_point is no uint8 level");
    check(b.zero_point >= -128 && b.zero_point <= 127, "w_zero_point is no int8 level");
    b.bias = ending_.bias();
    b.multiplier = ending_.multiplier();
    b.multiplier_stride = ending_.multiplier_stride();
    packed_ = Tensor::allocate(DType::kUint8,
                               {static_cast<int64_t>(qgemm_packed_bytes(kernel_, 1, k_, n_))});
    qgemm_pack(kernel_, b, packed_.data);
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2 + (ending_.has_residual() ? 1 : 0));
    check_type(c.dtype(0), DType::kUint8, "x");
    const Shape& x = c.shape(0);
    check(x.rank() >= 1 && x[x.rank() - 1] == static_cast<int64_t>(k_),
          "x is " + x.str() + " but the weights are for " + std::to_string(k_) + " values");
    Shape out = x;
    out[out.rank() - 1] = static_cast<int64_t>(n_);
    rows_ = product(x, 0, x.rank() - 1);
    if (ending_.has_residual()) {
      check_type(c.dtype(kResidual), DType::kUint8, "the residual");
      ld_residual_ = ending_.residual_ld(where_, c.shape(kResidual), out);
    }
    c.set(0, ending_.dtype(), out);
    return Inferred::kDone;
  }

  bool consumed(size_t input) const override { return input == 1; }

  void run(RunContext& c) override {
    if (rows_ == 0) return;
    const Tensor* residual = ending_.has_residual() ? c.input(kResidual) : nullptr;
    const QEpilogue epilogue =
        ending_.epilogue(residual ? residual->as<uint8_t>() : nullptr, ld_residual_);
    QGemmRun run;
    run.packed = packed_.data;
    run.k = k_;
    run.n = n_;
    run.b_zero_point = w_zero_point_;
    run.a = c.input(0)->as<uint8_t>();
    run.lda = k_;
    run.out = c.output(0)->data;
    run.ld_out = n_;
    const RowsAndPanels split(static_cast<size_t>(rows_), qgemm_panels(kernel_, n_), n_threads_);
    c.pool().parallel_for(split.tasks(), split.grain(), [&](int64_t begin, int64_t end) {
      split.each(begin, end,
                 [&](size_t row_begin, size_t row_end, size_t panel_begin, size_t panel_end) {
                   QGemmRun mine = run;
                   mine.row_begin = row_begin;
                   mine.row_end = row_end;
                   mine.panel_begin = panel_begin;
                   mine.panel_end = panel_end;
                   qgemm_run(kernel_, mine, epilogue);
                 });
    });
  }

  size_t owned_bytes() const override { return packed_.n_bytes(); }
  std::string implementation() const override { return kernel_.name; }

 private:
  Ending ending_;
  const QGemm& kernel_;
  size_t k_ = 0, n_ = 0, ld_residual_ = 0;
  int32_t w_zero_point_ = 0;
  int64_t rows_ = 0;
  Tensor packed_;
};

}  // namespace

std::unique_ptr<Kernel> make_qgemm(const Node& node, const KernelContext& context) {
  return std::make_unique<QGemmOp>(node, context);
}

}  // namespace wia
