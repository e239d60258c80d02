// SPDX-License-Identifier: Apache-2.0
// wia.QMaxPool, QAveragePool (channels last) and QMean (over any axes) of uint8 levels;
// docs/quantization.md (14).
//
//   QMaxPool, QAveragePool  x [N, H, W, C] or [N, W, C]; attributes of MaxPool / AveragePool
//   QMean                   x any; attributes axes, keepdims
//   x_scale, y_scale, x_zero_point, y_zero_point: of the averages
#include "ops/qpool/qpool.h"

#include <cmath>

#include "runtime/ops/op.h"
#include "runtime/ops/qwindow.h"

namespace wia {
namespace {

constexpr int64_t kMostAveraged = int64_t{1}
                                  << 23;  // values a window may sum in int32: 255 * 2^23 < 2^31

void read_grids(const Node& node, QPool* pool) {
  pool->x_scale = node.f("x_scale", 1.0f);
  pool->y_scale = node.f("y_scale", 1.0f);
  const int64_t x = node.i("x_zero_point", 0), y = node.i("y_zero_point", 0);
  require(pool->x_scale > 0 && pool->y_scale > 0 && std::isfinite(pool->x_scale) &&
              std::isfinite(pool->y_scale) && x >= 0 && x <= 255 && y >= 0 && y <= 255,
          node.where() + ": a scale or zero point is out of range");
  pool->x_zero_point = static_cast<int32_t>(x);
  pool->y_zero_point = static_cast<int32_t>(y);
}

// Rows of the output shared among threads.
void run_pool(RunContext& c, const QPoolKernel& kernel, const QPool& pool, bool maximum,
              size_t slot_bytes, size_t n_threads) {
  const int64_t rows = static_cast<int64_t>(pool.batch * pool.out_h);
  const uint8_t* x = c.input(0)->as<uint8_t>();
  uint8_t* out = c.output(0)->as<uint8_t>();
  if (rows == 0 || pool.out_w == 0 || pool.channels == 0) return;
  ScratchSlots slots(c.scratch(), slot_bytes, n_threads);
  const int64_t work =
      static_cast<int64_t>(pool.out_w * pool.channels * pool.kernel_h * pool.kernel_w);
  c.pool().parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work)),
                        [&](int64_t begin, int64_t end) {
                          ScratchSlots::Lease lease(slots);
                          auto* run = maximum ? qmaxpool_run : qaveragepool_run;
                          run(kernel, pool, x, out, lease.as<void>(), static_cast<size_t>(begin),
                              static_cast<size_t>(end));
                        });
}

class PoolOp : public Op {
 public:
  PoolOp(const Node& node, const KernelContext& context, bool maximum)
      : Op(node, context), kernel_(select_qpool(context.isa)), window_(node), maximum_(maximum) {
    const auto kernel = node.ints("kernel_shape");
    check(kernel.size() == 1 || kernel.size() == 2, "a kernel of other than 1 or 2 dimensions");
    one_dimension_ = kernel.size() == 1;
    window_.set_kernel(where_, {one_dimension_ ? 1 : kernel[0], kernel.back()}, one_dimension_);
    if (!maximum) read_grids(node, &pool_);
    pool_.count_include_pad = node.i("count_include_pad", 0) != 0;
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check_type(c.dtype(0), DType::kUint8, "x");
    const Shape& x = c.shape(0);
    check(x.rank() == (one_dimension_ ? 3 : 4), "x is " + x.str());
    QConv shape;
    window_.set(&shape);
    check(static_cast<int64_t>(shape.kernel_h) <=
              kMostAveraged / static_cast<int64_t>(shape.kernel_w),
          "the kernel is too large");
    const Shape out = window_.slid(where_, x, x[x.rank() - 1], &shape);
    pool_.batch = shape.batch;
    pool_.in_h = shape.in_h;
    pool_.in_w = shape.in_w;
    pool_.out_h = shape.out_h;
    pool_.out_w = shape.out_w;
    pool_.channels = static_cast<size_t>(x[x.rank() - 1]);
    pool_.kernel_h = shape.kernel_h;
    pool_.kernel_w = shape.kernel_w;
    pool_.stride_h = shape.stride_h;
    pool_.stride_w = shape.stride_w;
    pool_.dilation_h = shape.dilation_h;
    pool_.dilation_w = shape.dilation_w;
    pool_.pad_top = shape.pad_top;
    pool_.pad_left = shape.pad_left;
    pool_.pad_bottom = static_cast<ptrdiff_t>(window_.pad_end()[0]);
    pool_.pad_right = static_cast<ptrdiff_t>(window_.pad_end()[1]);
    c.set(0, DType::kUint8, out);
    return Inferred::kDone;
  }

  size_t scratch_bytes() const override { return align64(qpool_scratch_bytes(pool_)) * n_threads_; }
  void run(RunContext& c) override {
    run_pool(c, kernel_, pool_, maximum_, align64(qpool_scratch_bytes(pool_)), n_threads_);
  }
  std::string implementation() const override { return kernel_.name; }

 private:
  const QPoolKernel& kernel_;
  Window window_;
  QPool pool_;
  bool maximum_, one_dimension_ = false;
};

// The mean over some axes: one window of the whole, [batch, reduced, kept]. Axes that are not
// neighbours are not merged: the pass makes none.
class MeanOp : public Op {
 public:
  MeanOp(const Node& node, const KernelContext& context)
      : Op(node, context),
        kernel_(select_qpool(context.isa)),
        axes_(node.ints("axes")),
        keepdims_(node.i("keepdims", 1) != 0) {
    read_grids(node, &pool_);
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    check_type(c.dtype(0), DType::kUint8, "x");
    const Shape& x = c.shape(0);
    std::array<bool, Shape::kMaxRank> reduced{};
    for (int64_t a : axes_) reduced[static_cast<size_t>(axis_of(a, x.rank()))] = true;
    int first = x.rank(), last = -1;
    Shape out;
    for (int d = 0; d < x.rank(); ++d) {
      if (!reduced[static_cast<size_t>(d)]) {
        out.push_back(x[d]);
        continue;
      }
      first = std::min(first, d);
      last = d;
      if (keepdims_) out.push_back(1);
    }
    check(last >= 0, "no axes");
    for (int d = first; d <= last; ++d)
      check(reduced[static_cast<size_t>(d)] || x[d] == 1, "axes that are not neighbours");
    const int64_t n = product(x, first, last + 1);
    check(n >= 1 && n <= kMostAveraged, "a mean of " + std::to_string(n) + " values");
    pool_.batch = static_cast<size_t>(product(x, 0, first));
    pool_.in_h = pool_.kernel_h = static_cast<size_t>(n);
    pool_.channels = static_cast<size_t>(product(x, last + 1, x.rank()));
    c.set(0, DType::kUint8, out);
    return Inferred::kDone;
  }

  size_t scratch_bytes() const override { return align64(qpool_scratch_bytes(pool_)) * n_threads_; }
  void run(RunContext& c) override {
    run_pool(c, kernel_, pool_, false, align64(qpool_scratch_bytes(pool_)), n_threads_);
  }
  std::string implementation() const override { return kernel_.name; }

 private:
  const QPoolKernel& kernel_;
  QPool pool_;
  std::vector<int64_t> axes_;
  bool keepdims_;
};

}  // namespace

std::unique_ptr<Kernel> make_qmaxpool(const Node& node, const KernelContext& context) {
  return std::make_unique<PoolOp>(node, context, true);
}
std::unique_ptr<Kernel> make_qaveragepool(const Node& node, const KernelContext& context) {
  return std::make_unique<PoolOp>(node, context, false);
}
std::unique_ptr<Kernel> make_qmean(const Node& node, const KernelContext& context) {
  return std::make_unique<MeanOp>(node, context);
}

}  // namespace wia
