// SPDX-License-Identifier: Apache-2.0
// wia.QMatMul: the product of two uint8 activations, batched; docs/quantization.md (7)-(11).
//
//   inputs: a, b as numpy.matmul has them once perm_a and perm_b have been applied (attributes, as
//   Transpose's; the last axis of a stays last). output: transposed by perm_y (its last axis stays
//   last). Nothing is moved: the permutations become strides.  attributes: a_zero_point,
//   b_zero_point, and the ending's.
//
// K beyond 2^31 / 255^2 sums in int64, slowly.
#include "ops/qgemm/qgemm.h"

#include "runtime/ops/qending.h"
#include "runtime/ops/qsplit.h"

namespace wia {
namespace {

constexpr size_t kResidual = 2;
constexpr size_t kMostExactK = 33025;  // 255 * 255 * K < 2^31

struct Strided {
  Shape shape;
  std::array<int64_t, Shape::kMaxRank> steps{};
};

class QMatMulOp : public Op {
 public:
  QMatMulOp(const Node& node, const KernelContext& context)
      : Op(node, context),
        ending_(node),
        kernel_(select_qgemm(context.isa)),
        perm_a_(node.ints("perm_a")),
        perm_b_(node.ints("perm_b")),
        perm_y_(node.ints("perm_y")),
        a_zero_point_(static_cast<int32_t>(node.i("a_zero_point", 0))),
        b_zero_point_(static_cast<int32_t>(node.i("b_zero_point", 0))) {
    check(a_zero_point_ >= 0 && a_zero_point_ <= 255 && b_zero_point_ >= 0 && b_zero_point_ <= 255,
          "a zero point is no uint8 level");
    check(!ending_.has_residual() || perm_y_.empty(), "a residual of a transposed product");
    ending_.check_channels(where_, 1);
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 2 + (ending_.has_residual() ? 1 : 0));
    check_type(c.dtype(0), DType::kUint8, "a");
    check_type(c.dtype(1), DType::kUint8, "b");
    Strided a = permuted(c.shape(0), perm_a_), b = permuted(c.shape(1), perm_b_);
    check(a.shape.rank() >= 1 && b.shape.rank() >= 1, "a scalar operand");
    const bool vector_a = a.shape.rank() == 1, vector_b = b.shape.rank() == 1;
    check((!vector_a && !vector_b) || perm_y_.empty(), "perm_y of a vector product");
    if (vector_a) a = widened_front(a);
    if (vector_b) b = widened_back(b);
    const int ra = a.shape.rank(), rb = b.shape.rank();
    m_ = static_cast<size_t>(a.shape[ra - 2]);
    k_ = static_cast<size_t>(a.shape[ra - 1]);
    n_ = static_cast<size_t>(b.shape[rb - 1]);
    check(b.shape[rb - 2] == static_cast<int64_t>(k_),
          "the shapes " + a.shape.str() + " and " + b.shape.str() + " do not multiply");
    check(k_ <= 1 || a.steps[ra - 1] == 1, "the last axis of a does not stay last");
    lda_ = static_cast<size_t>(a.steps[ra - 2]);
    stride_k_ = b.steps[rb - 2];
    stride_n_ = b.steps[rb - 1];

    Shape batch_a, batch_b;
    for (int d = 0; d + 2 < ra; ++d) batch_a.push_back(a.shape[d]);
    for (int d = 0; d + 2 < rb; ++d) batch_b.push_back(b.shape[d]);
    batch_ = broadcast_shape(batch_a, batch_b, where_);
    Shape y = batch_;
    y.push_back(static_cast<int64_t>(m_));
    y.push_back(static_cast<int64_t>(n_));
    // The output as it lies in memory, and the steps of the logical axes in it.
    Shape out = y;
    std::array<int64_t, Shape::kMaxRank> y_steps = steps_of(y);
    if (!perm_y_.empty()) {
      check(static_cast<int>(perm_y_.size()) == y.rank() && perm_y_.back() == y.rank() - 1,
            "perm_y is " + y.str());
      check_perm(perm_y_, y.rank());
      for (int d = 0; d < y.rank(); ++d) out[d] = y[static_cast<int>(perm_y_[d])];
      const auto out_steps = steps_of(out);
      for (int d = 0; d < y.rank(); ++d) y_steps[static_cast<size_t>(perm_y_[d])] = out_steps[d];
    }
    ld_out_ = static_cast<size_t>(y_steps[y.rank() - 2]);
    for (int d = 0; d < batch_.rank(); ++d) {
      const int da = d - (batch_.rank() - batch_a.rank()),
                db = d - (batch_.rank() - batch_b.rank());
      steps_[d] = {da < 0 || batch_a[da] == 1 ? 0 : a.steps[da],
                   db < 0 || batch_b[db] == 1 ? 0 : b.steps[db], y_steps[d]};
    }
    n_batches_ = batch_.numel();
    if (ending_.has_residual()) plan_residual(c, y);

    Shape stated = out;
    if (vector_a || vector_b) {
      stated = batch_;
      if (!vector_a) stated.push_back(static_cast<int64_t>(m_));
      if (!vector_b) stated.push_back(static_cast<int64_t>(n_));
    }
    c.set(0, ending_.dtype(), stated);
    return Inferred::kDone;
  }

  size_t scratch_bytes() const override {
    return packed_bytes() *
           static_cast<size_t>(by_batch() ? static_cast<int64_t>(n_threads_) : n_batches_);
  }

  void run(RunContext& c) override {
    if (n_batches_ == 0 || m_ == 0 || n_ == 0) return;
    if (k_ > kMostExactK || k_ == 0) return run_wide(c);
    QGemmRun run;
    run.k = k_;
    run.n = n_;
    run.b_zero_point = b_zero_point_;
    run.b_is_unsigned = true;
    run.lda = lda_;
    run.ld_out = ld_out_;
    const size_t panels = qgemm_panels(kernel_, n_);
    if (by_batch()) {
      ScratchSlots slots(c.scratch(), packed_bytes(), n_threads_);
      c.pool().parallel_for(n_batches_, 1, [&](int64_t begin, int64_t end) {
        ScratchSlots::Lease lease(slots);
        for (int64_t batch = begin; batch < end; ++batch) {
          QGemmRun mine = at(c, run, batch);
          qgemm_pack(kernel_, operand(c, batch), lease.as<void>());
          mine.packed = lease.as<void>();
          mine.row_end = m_;
          qgemm_run(kernel_, mine, epilogue_of(c, batch));
        }
      });
      return;
    }
    // Fewer products than threads: pack them all, then share rows and panels.
    const int64_t n_panels = static_cast<int64_t>(panels);
    c.pool().parallel_for(n_batches_ * n_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / n_panels;
        const size_t panel = static_cast<size_t>(i % n_panels);
        qgemm_pack(kernel_, operand(c, batch),
                   c.scratch() + packed_bytes() * static_cast<size_t>(batch), panel, panel + 1);
      }
    });
    const RowsAndPanels split(m_, panels, n_threads_);
    c.pool().parallel_for(n_batches_ * split.tasks(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / split.tasks(), task = i % split.tasks();
        split.each(task, task + 1,
                   [&](size_t row_begin, size_t row_end, size_t panel_begin, size_t panel_end) {
                     QGemmRun mine = at(c, run, batch);
                     mine.packed = c.scratch() + packed_bytes() * static_cast<size_t>(batch);
                     mine.row_begin = row_begin;
                     mine.row_end = row_end;
                     mine.panel_begin = panel_begin;
                     mine.panel_end = panel_end;
                     qgemm_run(kernel_, mine, epilogue_of(c, batch));
                   });
      }
    });
  }

  std::string implementation() const override { return k_ > kMostExactK ? "int64" : kernel_.name; }

 private:
  struct Steps {
    int64_t a = 0, b = 0, y = 0, residual = 0;
  };

  // The residual broadcasts to y [batch, m, n]; its last dimension is n.
  void plan_residual(const InferContext& c, const Shape& y) {
    check_type(c.dtype(kResidual), DType::kUint8, "the residual");
    const Shape& r = c.shape(kResidual);
    check(r.rank() >= 1 && r.rank() <= y.rank() && r[r.rank() - 1] == y[y.rank() - 1] &&
              broadcast_shape(r, y, where_) == y,
          "the residual is " + r.str() + " but the output " + y.str());
    const auto steps = steps_of(r);
    auto step = [&](int d) {
      const int own = d - (y.rank() - r.rank());
      return own < 0 || r[own] == 1 ? 0 : steps[static_cast<size_t>(own)];
    };
    ld_residual_ = static_cast<size_t>(step(y.rank() - 2));
    for (int d = 0; d < batch_.rank(); ++d) steps_[d].residual = step(d);
  }

  // The epilogue of one product.
  QEpilogue epilogue_of(RunContext& c, int64_t batch) const {
    if (!ending_.has_residual()) return ending_.epilogue(nullptr, 0);
    return ending_.epilogue(c.input(kResidual)->as<uint8_t>() + offsets(batch).residual,
                            ld_residual_);
  }

  void check_perm(const std::vector<int64_t>& perm, int rank) const {
    uint32_t seen = 0;
    for (int64_t d : perm) {
      check(d >= 0 && d < rank && !(seen >> d & 1), "a permutation of other dimensions");
      seen |= 1u << d;
    }
  }

  Strided permuted(const Shape& shape, const std::vector<int64_t>& perm) const {
    Strided s{shape, steps_of(shape)};
    if (perm.empty()) return s;
    check(static_cast<int>(perm.size()) == shape.rank(),
          "a permutation of another rank than " + shape.str());
    check_perm(perm, shape.rank());
    const auto steps = s.steps;
    for (int d = 0; d < shape.rank(); ++d) {
      s.shape[d] = shape[static_cast<int>(perm[d])];
      s.steps[d] = steps[static_cast<size_t>(perm[d])];
    }
    return s;
  }

  static Strided widened_front(const Strided& s) { return {{1, s.shape[0]}, {s.shape[0], 1}}; }
  static Strided widened_back(const Strided& s) { return {{s.shape[0], 1}, {1, 1}}; }

  bool by_batch() const { return n_batches_ >= static_cast<int64_t>(n_threads_); }
  size_t packed_bytes() const {
    return k_ > kMostExactK || k_ == 0 ? 0 : align64(qgemm_packed_bytes(kernel_, 1, k_, n_));
  }

  Steps offsets(int64_t batch) const {
    Steps at;
    for (int d = batch_.rank() - 1; d >= 0; --d) {
      const int64_t index = batch % batch_[d];
      batch /= batch_[d];
      at.a += index * steps_[d].a;
      at.b += index * steps_[d].b;
      at.y += index * steps_[d].y;
      at.residual += index * steps_[d].residual;
    }
    return at;
  }

  QGemmRun at(RunContext& c, QGemmRun run, int64_t batch) const {
    const Steps offset = offsets(batch);
    run.a = c.input(0)->as<uint8_t>() + offset.a;
    run.out =
        c.output(0)->as<uint8_t>() + static_cast<size_t>(offset.y) * dtype_size(ending_.dtype());
    return run;
  }

  QGemmB operand(RunContext& c, int64_t batch) const {
    QGemmB b;
    b.data = c.input(1)->as<uint8_t>() + offsets(batch).b;
    b.is_unsigned = true;
    b.zero_point = b_zero_point_;
    b.segment_k = k_;
    b.n = n_;
    b.stride_k = stride_k_;
    b.stride_n = stride_n_;
    b.a_zero_point = a_zero_point_;
    b.multiplier = ending_.multiplier();
    b.multiplier_stride = 0;
    return b;
  }

  void run_wide(RunContext& c) {
    const float m = ending_.multiplier()[0];
    const int64_t rows = static_cast<int64_t>(m_);
    c.pool().parallel_for(n_batches_ * rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const QEpilogue e = epilogue_of(c, i / rows);
        const Steps offset = offsets(i / rows);
        const int64_t row = i % rows;
        const uint8_t* a = c.input(0)->as<uint8_t>() + offset.a + row * static_cast<int64_t>(lda_);
        const uint8_t* b = c.input(1)->as<uint8_t>() + offset.b;
        const uint8_t* residual =
            e.residual ? e.residual + static_cast<size_t>(row) * e.ld_residual : nullptr;
        const int64_t to = offset.y + row * static_cast<int64_t>(ld_out_);
        for (int64_t n = 0; n < static_cast<int64_t>(n_); ++n) {
          int64_t acc = 0;
          for (int64_t k = 0; k < static_cast<int64_t>(k_); ++k)
            acc += (a[k] - a_zero_point_) * (b[k * stride_k_ + n * stride_n_] - b_zero_point_);
          const float y = static_cast<float>(acc) * m;
          if (!ending_.quantized()) {
            c.output(0)->as<float>()[to + n] = y;
            continue;
          }
          uint8_t q = requantize_value(y, e.zero_point, e.qmin, e.qmax);
          if (e.table) q = e.table[q];
          if (residual) {
            const float a_part = static_cast<float>(q - e.sum_a_zero_point) * e.sum_a_multiplier;
            const float b_part =
                static_cast<float>(residual[n] - e.sum_b_zero_point) * e.sum_b_multiplier;
            q = requantize_value(a_part + b_part, e.sum_zero_point, e.sum_qmin, e.sum_qmax);
            if (e.sum_table) q = e.sum_table[q];
          }
          c.output(0)->as<uint8_t>()[to + n] = q;
        }
      }
    });
  }

  Ending ending_;
  const QGemm& kernel_;
  std::vector<int64_t> perm_a_, perm_b_, perm_y_;
  int32_t a_zero_point_, b_zero_point_;
  size_t m_ = 0, k_ = 0, n_ = 0, lda_ = 0, ld_out_ = 0, ld_residual_ = 0;
  int64_t stride_k_ = 0, stride_n_ = 0, n_batches_ = 0;
  Shape batch_;
  std::array<Steps, Shape::kMaxRank> steps_{};
};

}  // namespace

std::unique_ptr<Kernel> make_qmatmul(const Node& node, const KernelContext& context) {
  return std::make_unique<QMatMulOp>(node, context);
}

}  // namespace wia
