// SPDX-License-Identifier: Apache-2.0
// MatMul and Gemm: float32 by fgemm, other numbers by a plain loop.
#include "ops/fgemm/fgemm.h"
#include "runtime/ops/op.h"

namespace wia {
namespace {

// A matrix in a tensor: element (i, j) is data[i * row_step + j * column_step].
struct Matrix {
  size_t rows, columns, row_step, column_step;
};

// Many products C = A B of one size, with packing planned into scratch and B packed once when it is
// a constant.
class Products {
 public:
  Products(const KernelContext& context) : kernel_(select_fgemm(context.isa)) {}

  // Packs a constant B of n_b matrices, each after the other.
  void pack_constant(const Matrix& b, size_t n_b, const float* data) {
    const size_t each = fgemm_packed_b_size(kernel_, b.rows, b.columns);
    packed_b_ = Tensor::allocate(DType::kFloat32, {static_cast<int64_t>(each * n_b)});
    for (size_t i = 0; i < n_b; ++i)
      fgemm_pack_b(kernel_, b.rows, b.columns, data + i * b.rows * b.columns, b.row_step,
                   b.column_step, 0, panels(b.columns), packed_b_.as<float>() + i * each);
  }
  size_t owned_bytes() const { return packed_b_.n_bytes(); }
  bool constant() const { return packed_b_.data != nullptr; }
  const char* name() const { return kernel_.name; }

  void plan(const Matrix& a, size_t n_a, const Matrix& b, size_t n_b) {
    a_ = a;
    b_ = b;
    n_a_ = n_a;
    n_b_ = n_b;
    a_bytes_ = align64(fgemm_packed_a_size(a.rows, a.columns) * sizeof(float));
    b_bytes_ = align64(fgemm_packed_b_size(kernel_, b.rows, b.columns) * sizeof(float));
  }
  size_t scratch_bytes() const { return n_a_ * a_bytes_ + (constant() ? 0 : n_b_ * b_bytes_); }

  // Product p is of matrix a_of(p) and b_of(p), into c + p * m * n.
  template <class AOf, class BOf>
  void run(const float* a, const float* b, float* c, size_t n_products, const float* column_bias,
           AOf a_of, BOf b_of, std::byte* scratch, ThreadPool& pool) const {
    const size_t m = a_.rows, k = a_.columns, n = b_.columns;
    if (m == 0 || n == 0) return;
    const size_t n_blocks = (m + kernel_.mr - 1) / kernel_.mr, n_panels = panels(n);
    std::byte* packed_a = scratch;
    std::byte* packed_b = scratch + n_a_ * a_bytes_;
    const auto grain = [](size_t work) {
      return std::max<int64_t>(1, kGrain / static_cast<int64_t>(work + 1));
    };
    pool.parallel_for(
        static_cast<int64_t>(n_a_ * n_blocks), grain(k * kernel_.mr),
        [&](int64_t begin, int64_t end) {
          for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
            const size_t matrix = i / n_blocks, block = i % n_blocks;
            fgemm_pack_a(kernel_, m, k, a + matrix * m * k, a_.row_step, a_.column_step, block,
                         block + 1, reinterpret_cast<float*>(packed_a + matrix * a_bytes_));
          }
        });
    if (!constant())
      pool.parallel_for(
          static_cast<int64_t>(n_b_ * n_panels), grain(k * kernel_.nr),
          [&](int64_t begin, int64_t end) {
            for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
              const size_t matrix = i / n_panels, panel = i % n_panels;
              fgemm_pack_b(kernel_, k, n, b + matrix * k * n, b_.row_step, b_.column_step, panel,
                           panel + 1, reinterpret_cast<float*>(packed_b + matrix * b_bytes_));
            }
          });
    // Tasks of some panels times all row blocks, or of some row blocks where there are few panels.
    const size_t panels_each =
        std::max<size_t>(1, std::min(n_panels, kTaskWork / (k * kernel_.nr * m + 1) + 1));
    const size_t column_tasks = (n_panels + panels_each - 1) / panels_each;
    const size_t threads = pool.size();
    const size_t row_tasks =
        std::min(n_blocks,
                 std::max<size_t>(1, threads * 2 / std::max<size_t>(1, column_tasks * n_products)));
    const size_t blocks_each = (n_blocks + row_tasks - 1) / row_tasks;
    const size_t tasks = n_products * column_tasks * row_tasks;
    pool.parallel_for(static_cast<int64_t>(tasks), 1, [&](int64_t begin, int64_t end) {
      for (size_t t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
        const size_t p = t / (column_tasks * row_tasks), in = t % (column_tasks * row_tasks);
        FgemmParams params{};
        params.m = m;
        params.n = n;
        params.k = k;
        params.a = reinterpret_cast<const float*>(packed_a + a_of(p) * a_bytes_);
        params.b = constant() ? packed_b_.as<float>() + b_of(p) * fgemm_packed_b_size(kernel_, k, n)
                              : reinterpret_cast<const float*>(packed_b + b_of(p) * b_bytes_);
        params.c = c + p * m * n;
        params.ld_c = n;
        params.column_bias = column_bias;
        params.first_block = in / column_tasks * blocks_each;
        params.last_block = std::min(n_blocks, params.first_block + blocks_each);
        params.first_panel = in % column_tasks * panels_each;
        params.last_panel = std::min(n_panels, params.first_panel + panels_each);
        if (params.first_block < params.last_block) fgemm_run(kernel_, params);
      }
    });
  }

 private:
  static constexpr size_t kTaskWork = size_t{1} << 20;  // multiply-adds that repay a task
  size_t panels(size_t n) const { return (n + kernel_.nr - 1) / kernel_.nr; }

  const FgemmKernel& kernel_;
  Tensor packed_b_;
  Matrix a_{}, b_{};
  size_t n_a_ = 0, n_b_ = 0, a_bytes_ = 0, b_bytes_ = 0;
};

// Any numbers, in order of k; integers wrap.
template <class T>
void plain_product(const T* a, const Matrix& ma, const T* b, const Matrix& mb, T* c) {
  for (size_t i = 0; i < ma.rows; ++i)
    for (size_t j = 0; j < mb.columns; ++j) {
      if constexpr (std::is_integral_v<T>) {
        uint64_t acc = 0;
        for (size_t k = 0; k < ma.columns; ++k)
          acc += static_cast<uint64_t>(a[i * ma.row_step + k * ma.column_step]) *
                 static_cast<uint64_t>(b[k * mb.row_step + j * mb.column_step]);
        c[i * mb.columns + j] = static_cast<T>(acc);
      } else {
        T acc = 0;
        for (size_t k = 0; k < ma.columns; ++k)
          acc += a[i * ma.row_step + k * ma.column_step] * b[k * mb.row_step + j * mb.column_step];
        c[i * mb.columns + j] = acc;
      }
    }
}

bool dispatch_products(DType dtype, auto&& body) {
  return dispatch<float, double, int32_t, uint32_t, int64_t, uint64_t>(dtype, body);
}

class MatMul final : public Op {
 public:
  MatMul(const Node& node, const KernelContext& context) : Op(node, context), products_(context) {
    const std::shared_ptr<const Tensor> b = constant_float(node, context, 1);
    if (!b || b->shape.rank() < 2 || b->numel() == 0) return;
    const int rank = b->shape.rank();
    const size_t k = static_cast<size_t>(b->shape[rank - 2]),
                 n = static_cast<size_t>(b->shape[rank - 1]);
    products_.pack_constant({k, n, n, 1}, static_cast<size_t>(product(b->shape, 0, rank - 2)),
                            b->as<float>());
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    dtype_ = c.dtype(0);
    check_type(c.dtype(1), dtype_, "input 1");
    if (!dispatch_products(dtype_, []<class T>() {})) bad_type(dtype_);
    Shape a = c.shape(0), b = c.shape(1);
    check(a.rank() >= 1 && b.rank() >= 1, "an input is a scalar");
    const bool row = a.rank() == 1, column = b.rank() == 1;
    if (row) a = {1, a[0]};
    if (column) b = {b[0], 1};
    const int ra = a.rank(), rb = b.rank();
    check(a[ra - 1] == b[rb - 2],
          "shapes " + c.shape(0).str() + " and " + c.shape(1).str() + " do not multiply");
    const Shape batch_a(a.dims().first(static_cast<size_t>(ra - 2))),
        batch_b(b.dims().first(static_cast<size_t>(rb - 2)));
    batch_ = broadcast_shape(batch_a, batch_b, where_);
    size_t m = static_cast<size_t>(a[ra - 2]);
    const size_t k = static_cast<size_t>(a[ra - 1]), n = static_cast<size_t>(b[rb - 1]);
    n_products_ = static_cast<size_t>(batch_.numel());
    check(n_products_ < (size_t{1} << 22), "too many products");
    size_t n_a = static_cast<size_t>(batch_a.numel()), n_b = static_cast<size_t>(batch_b.numel());
    index_a_.assign(n_products_, 0);
    index_b_.assign(n_products_, 0);
    if (n_b == 1 && n_products_ == n_a) {  // one B for all: the rows of every A are rows of one
      m *= n_a;
      n_a = n_products_ = 1;
      index_a_.assign(1, 0);
      index_b_.assign(1, 0);
    } else {
      const Broadcast<2> each(batch_, {&batch_a, &batch_b});
      each.runs(0, each.total(),
                [&](int64_t at, const std::array<int64_t, 2>& from, int64_t count) {
                  for (int64_t i = 0; i < count; ++i) {
                    index_a_[static_cast<size_t>(at + i)] =
                        static_cast<size_t>(from[0] + i * static_cast<int64_t>(each.step(0)));
                    index_b_[static_cast<size_t>(at + i)] =
                        static_cast<size_t>(from[1] + i * static_cast<int64_t>(each.step(1)));
                  }
                });
    }
    a_ = {m, k, k, 1};
    b_ = {k, n, n, 1};
    if (dtype_ == DType::kFloat32) products_.plan(a_, n_a, b_, n_b);
    Shape out = batch_;
    if (!row) out.push_back(a[ra - 2]);
    if (!column) out.push_back(b[rb - 1]);
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override {
    return dtype_ == DType::kFloat32 ? products_.scratch_bytes() : 0;
  }
  bool consumed(size_t input) const override { return input == 1 && products_.constant(); }
  size_t owned_bytes() const override { return products_.owned_bytes(); }
  std::string implementation() const override {
    return dtype_ == DType::kFloat32 ? products_.name() : "reference";
  }
  void run(RunContext& c) override {
    const Tensor &a = *c.input(0), &b = *c.input(1);
    Tensor& y = *c.output(0);
    if (dtype_ == DType::kFloat32) {
      products_.run(
          a.as<float>(), products_.constant() ? nullptr : b.as<float>(), y.as<float>(), n_products_,
          nullptr, [&](size_t p) { return index_a_[p]; }, [&](size_t p) { return index_b_[p]; },
          c.scratch(), c.pool());
      return;
    }
    dispatch_products(dtype_, [&]<class T>() {
      for (size_t p = 0; p < n_products_; ++p)
        plain_product(a.as<T>() + index_a_[p] * a_.rows * a_.columns, a_,
                      b.as<T>() + index_b_[p] * b_.rows * b_.columns, b_,
                      y.as<T>() + p * a_.rows * b_.columns);
    });
  }

 private:
  Products products_;
  DType dtype_ = DType::kUndefined;
  Shape batch_;
  Matrix a_{}, b_{};
  size_t n_products_ = 0;
  std::vector<size_t> index_a_, index_b_;
};

// Y = alpha * A' B' + beta * C.
class Gemm final : public Op {
 public:
  Gemm(const Node& node, const KernelContext& context)
      : Op(node, context),
        alpha_(node.f("alpha", 1.0f)),
        beta_(node.f("beta", 1.0f)),
        trans_a_(node.i("transA", 0) != 0),
        trans_b_(node.i("transB", 0) != 0),
        products_(context) {
    const std::shared_ptr<const Tensor> b = constant_float(node, context, 1);
    if (!b || b->shape.rank() != 2 || b->numel() == 0) return;
    products_.pack_constant(matrix(b->shape, trans_b_), 1, b->as<float>());
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    dtype_ = c.dtype(0);
    if (!dispatch_products(dtype_, []<class T>() {})) bad_type(dtype_);
    check_type(c.dtype(1), dtype_, "B");
    check(c.shape(0).rank() == 2 && c.shape(1).rank() == 2, "A or B is not a matrix");
    a_ = matrix(c.shape(0), trans_a_);
    b_ = matrix(c.shape(1), trans_b_);
    check(a_.columns == b_.rows,
          "shapes " + c.shape(0).str() + " and " + c.shape(1).str() + " do not multiply");
    const Shape out = {static_cast<int64_t>(a_.rows), static_cast<int64_t>(b_.columns)};
    has_c_ = given(c, 2);
    if (has_c_) {
      check_type(c.dtype(2), dtype_, "C");
      check(broadcast_shape(out, c.shape(2), where_) == out,
            "C " + c.shape(2).str() + " does not broadcast to " + out.str());
      addend_ = Broadcast<1>(out, {&c.shape(2)});
      const Shape& s = c.shape(2);
      plain_bias_ = alpha_ == 1.0f && beta_ == 1.0f && s.rank() >= 1 && s[s.rank() - 1] == out[1] &&
                    s.numel() == out[1];
    }
    if (dtype_ == DType::kFloat32) products_.plan(a_, 1, b_, 1);
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override {
    return dtype_ == DType::kFloat32 ? products_.scratch_bytes() : 0;
  }
  bool consumed(size_t input) const override { return input == 1 && products_.constant(); }
  size_t owned_bytes() const override { return products_.owned_bytes(); }
  std::string implementation() const override {
    return dtype_ == DType::kFloat32 ? products_.name() : "reference";
  }
  void run(RunContext& c) override {
    const Tensor &a = *c.input(0), &b = *c.input(1);
    Tensor& y = *c.output(0);
    const bool bias = has_c_ && plain_bias_ && dtype_ == DType::kFloat32;
    if (dtype_ == DType::kFloat32) {
      const auto zero = [](size_t) { return size_t{0}; };
      products_.run(a.as<float>(), b.as<float>(), y.as<float>(), 1,
                    bias ? c.input(2)->as<float>() : nullptr, zero, zero, c.scratch(), c.pool());
    }
    dispatch_products(dtype_, [&]<class T>() {
      T* out = y.as<T>();
      const int64_t n = y.numel();
      if constexpr (!std::is_same_v<T, float>) plain_product(a.as<T>(), a_, b.as<T>(), b_, out);
      if (alpha_ != 1.0f)
        for (int64_t i = 0; i < n; ++i) out[i] = scaled(out[i], alpha_);
      if (!has_c_ || bias || beta_ == 0.0f) return;
      const T* addend = c.input(2)->as<T>();
      addend_.runs(0, n, [&](int64_t at, const std::array<int64_t, 1>& from, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const T v = addend[from[0] + i * static_cast<int64_t>(addend_.step(0))];
          const T term = beta_ == 1.0f ? v : scaled(v, beta_);
          if constexpr (std::is_integral_v<T>)
            out[at + i] =
                static_cast<T>(static_cast<uint64_t>(out[at + i]) + static_cast<uint64_t>(term));
          else
            out[at + i] += term;
        }
      });
    });
  }

 private:
  static Matrix matrix(const Shape& s, bool transposed) {
    const size_t rows = static_cast<size_t>(s[0]), columns = static_cast<size_t>(s[1]);
    return transposed ? Matrix{columns, rows, 1, columns} : Matrix{rows, columns, columns, 1};
  }
  template <class T>
  static T scaled(T x, float factor) {
    if constexpr (std::is_integral_v<T>)
      return saturated<T>(static_cast<double>(x) * static_cast<double>(factor));
    else
      return x * static_cast<T>(factor);
  }

  float alpha_, beta_;
  bool trans_a_, trans_b_, has_c_ = false, plain_bias_ = false;
  Products products_;
  DType dtype_ = DType::kUndefined;
  Matrix a_{}, b_{};
  Broadcast<1> addend_;
};

}  // namespace

std::unique_ptr<Kernel> make_matmul(const Node& n, const KernelContext& c) {
  return widened<MatMul>(n, c);
}
std::unique_ptr<Kernel> make_gemm(const Node& n, const KernelContext& c) {
  return widened<Gemm>(n, c);
}

}  // namespace wia
