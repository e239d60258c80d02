// SPDX-License-Identifier: Apache-2.0
// wia.QConv and wia.QConvTranspose: integer convolution, channels last; docs/quantization.md
// (7)-(12).
//
//   inputs: x uint8 [N, H, W, C] or [N, W, C]; w int8, constant, as ONNX has it ([O, I/groups, kh,
//   kw] or transposed [I, O/groups, kh, kw]); the residual, uint8 of the output's shape, when the
//   ending has one. attributes: those of Conv, x_zero_point, w_zero_point, and the ending's.
//
// A weight zero point z that int8 cannot absorb (QConv only):
//   sum (x - zp_x)(w - z) = sum (x - zp_x) w - z * sum (x - zp_x)
// the second sum is a convolution with weights of one, one channel a group.
#include <optional>

#include "ops/qconv/qconv.h"
#include "ops/qdepthwise/qdepthwise.h"
#include "ops/qelementwise/qelementwise.h"
#include "runtime/ops/qending.h"
#include "runtime/ops/qsplit.h"
#include "runtime/ops/qwindow.h"

namespace wia {
namespace {

constexpr int64_t kTasksPerThread = 4;
constexpr size_t kResidual = 2;   // the input
constexpr int64_t kSumRows = 96;  // pixels a task when the weights have a zero point

const Tensor& constant_weights(const Node& node, const KernelContext& context) {
  require(node.inputs.size() >= 2 && context.graph->is_constant(node.inputs[1]),
          node.where() + ": w is not a constant");
  const Tensor& w = *context.graph->values[node.inputs[1]].constant;
  require(w.dtype == DType::kInt8 && (w.shape.rank() == 3 || w.shape.rank() == 4) && w.numel() > 0,
          node.where() + ": w is not an int8 kernel of 3 or 4 dimensions");
  return w;
}

Tensor buffer(size_t n_bytes) {
  return Tensor::allocate(DType::kUint8, {static_cast<int64_t>(n_bytes)});
}

class QConvOp : public Op {
 public:
  QConvOp(const Node& node, const KernelContext& context, bool transposed)
      : Op(node, context),
        transposed_(transposed),
        ending_(node),
        window_(node),
        gemm_(select_qgemm(context.isa)),
        depthwise_(select_qdepthwise(context.isa)),
        elementwise_(select_qelementwise(context.isa)) {
    const Tensor& w = constant_weights(node, context);
    one_dimension_ = w.shape.rank() == 3;
    const int64_t kernel_h = one_dimension_ ? 1 : w.shape[2],
                  kernel_w = w.shape[w.shape.rank() - 1];
    const int64_t groups = node.i("group", 1);
    check(groups >= 1 && w.shape[0] % groups == 0, "the channels do not split into the groups");
    window_.set_kernel(where_, {kernel_h, kernel_w}, one_dimension_);
    shape_.groups = static_cast<size_t>(groups);
    shape_.in_c = static_cast<size_t>(transposed ? w.shape[0] : w.shape[1] * groups);
    shape_.out_c = static_cast<size_t>(transposed ? w.shape[1] * groups : w.shape[0]);
    window_.set(&shape_);
    if (transposed) window_.set_transposed_pads(where_, &shape_);
    ending_.check_channels(where_, static_cast<int64_t>(shape_.out_c));
    x_zero_point_ = static_cast<int32_t>(node.i("x_zero_point", 0));
    w_zero_point_ = static_cast<int32_t>(node.i("w_zero_point", 0));
    check(x_zero_point_ >= 0 && x_zero_point_ <= 255, "x_zero_point is no uint8 level");
    check(w_zero_point_ == 0 || !transposed, "a weight zero point on a transposed convolution");
    is_depthwise_ = !transposed && w_zero_point_ == 0 && groups > 1 &&
                    shape_.in_c == shape_.groups && shape_.out_c == shape_.groups;
    pack(w, static_cast<uint8_t>(std::min<int64_t>(node.i("x_max", 255), 255)));
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2 + (ending_.has_residual() ? 1 : 0));
    check_type(c.dtype(0), DType::kUint8, "x");
    const Shape& x = c.shape(0);
    check(x.rank() == (one_dimension_ ? 3 : 4), "x is " + x.str());
    check(x[x.rank() - 1] == static_cast<int64_t>(shape_.in_c),
          "x is " + x.str() + " but the weights are for " + std::to_string(shape_.in_c) +
              " channels");
    const Shape out =
        transposed_ ? window_.transposed(where_, x, static_cast<int64_t>(shape_.out_c), &shape_)
                    : window_.slid(where_, x, static_cast<int64_t>(shape_.out_c), &shape_);
    if (ending_.has_residual()) {
      const size_t r = kResidual;
      check_type(c.dtype(r), DType::kUint8, "the residual");
      ld_residual_ = ending_.residual_ld(where_, c.shape(r), out);
    }
    c.set(0, ending_.dtype(), out);
    return Inferred::kDone;
  }

  bool consumed(size_t input) const override { return input == 1; }
  size_t scratch_bytes() const override { return slot_bytes() * n_threads_; }
  bool may_overwrite(size_t) const override { return false; }

  void run(RunContext& c) override {
    const size_t n_pixels = shape_.batch * shape_.out_h * shape_.out_w;
    if (n_pixels == 0 || shape_.out_c == 0) return;
    const Tensor* residual = ending_.has_residual() ? c.input(kResidual) : nullptr;
    QEpilogue epilogue =
        ending_.epilogue(residual ? residual->as<uint8_t>() : nullptr, ld_residual_);
    QConvRun run;
    run.packed = packed_.data;
    run.x = c.input(0)->as<uint8_t>();
    run.x_zero_point = x_zero_point_;
    run.out = c.output(0)->data;
    ScratchSlots slots(c.scratch(), slot_bytes(), n_threads_);
    if (w_zero_point_ != 0) return run_with_zero_point(c, run, epilogue, slots);
    if (is_depthwise_ || transposed_) {
      const int64_t rows = static_cast<int64_t>(shape_.batch * shape_.out_h);
      c.pool().parallel_for(rows, split(rows), [&](int64_t begin, int64_t end) {
        ScratchSlots::Lease lease(slots);
        QConvRun mine = run;
        mine.scratch = lease.as<void>();
        mine.pixel_begin = static_cast<size_t>(begin);
        mine.pixel_end = static_cast<size_t>(end);
        if (transposed_) {
          qconv_transpose_run(gemm_, shape_, mine, epilogue);
        } else {
          qdepthwise_run(depthwise_, shape_, mine, epilogue);
        }
      });
      return;
    }
    const RowsAndPanels parts(n_pixels, qconv_panels(gemm_, shape_), n_threads_);
    c.pool().parallel_for(parts.tasks(), parts.grain(), [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(slots);
      QConvRun mine = run;
      mine.scratch = lease.as<void>();
      parts.each(begin, end,
                 [&](size_t row_begin, size_t row_end, size_t panel_begin, size_t panel_end) {
                   mine.pixel_begin = row_begin;
                   mine.pixel_end = row_end;
                   mine.panel_begin = panel_begin;
                   mine.panel_end = panel_end;
                   qconv_run(gemm_, shape_, mine, epilogue);
                 });
    });
  }

  size_t owned_bytes() const override { return packed_.n_bytes() + packed_sums_.n_bytes(); }
  std::string implementation() const override {
    const std::string how = is_depthwise_ ? depthwise_.name : gemm_.name;
    return w_zero_point_ != 0 ? how + "+weight_zero_point" : how;
  }

 private:
  int64_t split(int64_t n) const {
    if (n_threads_ == 1) return n;
    return std::max<int64_t>(1, n / (kTasksPerThread * static_cast<int64_t>(n_threads_)));
  }

  // The geometry of the sum over a group's inputs: one output channel a group.
  QConv sums_shape() const {
    QConv s = shape_;
    s.out_c = s.groups;
    return s;
  }

  size_t conv_scratch_bytes() const {
    if (is_depthwise_) return qdepthwise_scratch_bytes(shape_);
    return transposed_ ? qconv_transpose_scratch_bytes(gemm_, shape_)
                       : qconv_scratch_bytes(gemm_, shape_);
  }
  size_t acc_bytes() const { return align64(kSumRows * shape_.out_c * sizeof(int32_t)); }
  size_t sum_bytes() const { return align64(kSumRows * shape_.groups * sizeof(int32_t)); }
  size_t slot_bytes() const {
    if (w_zero_point_ == 0) return align64(conv_scratch_bytes());
    return align64(std::max(conv_scratch_bytes(), qconv_scratch_bytes(gemm_, sums_shape()))) +
           acc_bytes() + sum_bytes();
  }

  void pack(const Tensor& w, uint8_t x_max) {
    QConvWeights weights;
    weights.data = w.as<int8_t>();
    const ptrdiff_t kernel = static_cast<ptrdiff_t>(shape_.kernel_h * shape_.kernel_w);
    const ptrdiff_t second = static_cast<ptrdiff_t>(w.shape[1]) * kernel;
    weights.stride_h = static_cast<ptrdiff_t>(shape_.kernel_w);
    weights.stride_w = 1;
    weights.stride_o = transposed_ ? kernel : second;
    weights.stride_i = transposed_ ? second : kernel;
    weights.stride_group = transposed_
                               ? second * static_cast<ptrdiff_t>(shape_.in_c / shape_.groups)
                               : second * static_cast<ptrdiff_t>(shape_.out_c / shape_.groups);
    weights.bias = ending_.bias();
    weights.multiplier = ending_.multiplier();
    weights.multiplier_stride = ending_.multiplier_stride();
    weights.x_zero_point = x_zero_point_;
    weights.x_max = x_max;
    if (is_depthwise_) {
      packed_ = buffer(qdepthwise_packed_bytes(depthwise_, shape_));
      qdepthwise_pack(depthwise_, shape_, weights, packed_.data);
    } else if (transposed_) {
      packed_ = buffer(qconv_transpose_packed_bytes(gemm_, shape_));
      qconv_transpose_pack(gemm_, shape_, weights, packed_.data);
    } else {
      packed_ = buffer(qconv_packed_bytes(gemm_, shape_));
      qconv_pack(gemm_, shape_, weights, packed_.data);
    }
    if (w_zero_point_ == 0) return;
    multiplier_.assign(shape_.out_c, 0.0f);
    for (size_t o = 0; o < shape_.out_c; ++o)
      multiplier_[o] = ending_.multiplier()[o * ending_.multiplier_stride()];
    const QConv sums = sums_shape();
    const std::vector<int8_t> ones(shape_.kernel_h * shape_.kernel_w * shape_.in_c, 1);
    weights = {};
    weights.data = ones.data();
    weights.stride_o = static_cast<ptrdiff_t>(shape_.in_c / shape_.groups) * kernel;
    weights.stride_i = kernel;
    weights.stride_h = static_cast<ptrdiff_t>(shape_.kernel_w);
    weights.stride_w = 1;
    weights.stride_group = weights.stride_o;
    const float one = 1.0f;
    weights.multiplier = &one;
    weights.multiplier_stride = 0;
    weights.x_zero_point = x_zero_point_;
    packed_sums_ = buffer(qconv_packed_bytes(gemm_, sums));
    qconv_pack(gemm_, sums, weights, packed_sums_.data);
  }

  void run_with_zero_point(RunContext& c, const QConvRun& run, const QEpilogue& epilogue,
                           ScratchSlots& slots) {
    const int64_t n_pixels = static_cast<int64_t>(shape_.batch * shape_.out_h * shape_.out_w);
    const int64_t blocks = (n_pixels + kSumRows - 1) / kSumRows;
    const size_t out_size = dtype_size(ending_.dtype());
    const size_t conv_bytes = slot_bytes() - acc_bytes() - sum_bytes();
    QEpilogue integers;
    integers.output = QOutput::kI32;
    c.pool().parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      ScratchSlots::Lease lease(slots);
      std::byte* base = lease.as<std::byte>();
      int32_t* acc = reinterpret_cast<int32_t*>(base + conv_bytes);
      int32_t* sums = reinterpret_cast<int32_t*>(base + conv_bytes + acc_bytes());
      for (int64_t block = begin; block < end; ++block) {
        const size_t first = static_cast<size_t>(block * kSumRows);
        const size_t rows = static_cast<size_t>(std::min(n_pixels - block * kSumRows, kSumRows));
        QConvRun part = run;
        part.scratch = base;
        part.pixel_begin = first;
        part.pixel_end = first + rows;
        part.out = acc - static_cast<ptrdiff_t>(first * shape_.out_c);
        qconv_run(gemm_, shape_, part, integers);
        part.packed = packed_sums_.data;
        part.out = sums - static_cast<ptrdiff_t>(first * shape_.groups);
        qconv_run(gemm_, sums_shape(), part, integers);
        const size_t per_group = shape_.out_c / shape_.groups;
        for (size_t r = 0; r < rows; ++r)
          for (size_t o = 0; o < shape_.out_c; ++o)
            // Modulo 2^32: only the difference is proved to fit.
            acc[r * shape_.out_c + o] = static_cast<int32_t>(
                static_cast<uint32_t>(acc[r * shape_.out_c + o]) -
                static_cast<uint32_t>(w_zero_point_) *
                    static_cast<uint32_t>(sums[r * shape_.groups + o / per_group]));
        QRequantize q;
        q.rows = rows;
        q.columns = q.ld_acc = q.ld_out = shape_.out_c;
        q.acc = acc;
        q.multiplier = multiplier_.data();
        q.out = static_cast<std::byte*>(run.out) + first * shape_.out_c * out_size;
        QEpilogue mine = epilogue;
        if (mine.residual) mine.residual += first * ld_residual_;
        elementwise_.requantize(q, mine);
      }
    });
  }

  bool transposed_, one_dimension_ = false, is_depthwise_ = false;
  Ending ending_;
  Window window_;
  const QGemm& gemm_;
  const QDepthwise& depthwise_;
  const QElementwise& elementwise_;
  QConv shape_;
  int32_t x_zero_point_ = 0, w_zero_point_ = 0;
  size_t ld_residual_ = 0;
  Tensor packed_, packed_sums_;
  std::vector<float> multiplier_;  // [out_c], when the weights have a zero point
};

}  // namespace

std::unique_ptr<Kernel> make_qconv(const Node& node, const KernelContext& context) {
  return std::make_unique<QConvOp>(node, context, false);
}

std::unique_ptr<Kernel> make_qconv_transpose(const Node& node, const KernelContext& context) {
  return std::make_unique<QConvOp>(node, context, true);
}

}  // namespace wia
