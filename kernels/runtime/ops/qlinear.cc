// SPDX-License-Identifier: Apache-2.0
// MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv: exact int32 products
// (docs/quantization.md 7-8).
#include <cmath>

#include "runtime/ops/op.h"
#include "runtime/ops/window.h"

namespace wia {
namespace {

bool dispatch_bytes(DType dtype, auto&& body) { return dispatch<uint8_t, int8_t>(dtype, body); }

int32_t byte_at(const Tensor& t, int64_t i) {
  return t.dtype == DType::kUint8 ? static_cast<int32_t>(t.as<uint8_t>()[i])
                                  : static_cast<int32_t>(t.as<int8_t>()[i]);
}

// Products of 8-bit levels; sums wrap, as every int32 accumulation does.
int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// saturate(rhe(float32(acc) * multiplier) + zero_point), (8).
int32_t requantized(int32_t acc, float multiplier, int32_t zero_point, int32_t lo, int32_t hi) {
  const float v = std::nearbyintf(static_cast<float>(acc) * multiplier);
  if (v != v) return zero_point;
  const float y = std::fmin(std::fmax(v, static_cast<float>(lo - zero_point)),
                            static_cast<float>(hi - zero_point));
  return static_cast<int32_t>(y) + zero_point;
}

float scale_at(const Tensor& t, int64_t i) {
  if (t.dtype == DType::kFloat16) return half_to_float(t.as<uint16_t>()[i]);
  if (t.dtype == DType::kBFloat16) return bfloat16_to_float(t.as<uint16_t>()[i]);
  return t.as<float>()[i];
}

float multiplier_of(float x, float w, float y) { return x * w / y; }

// The inputs of the quantized forms: x, scale, zero point, w, scale, zero point, y scale, y zero
// point, bias; those of the integer forms: x, w, zero point of x, zero point of w.
struct Places {
  size_t x, w, x_scale, x_zero, w_scale, w_zero, y_scale, y_zero, bias, n_required;
};
constexpr size_t kNone = 99;
constexpr Places kInteger = {0, 1, kNone, 2, kNone, 3, kNone, kNone, kNone, 2};
constexpr Places kQLinear = {0, 3, 1, 2, 4, 5, 6, 7, 8, 8};

class ByteProduct : public Op {
 public:
  ByteProduct(const Node& node, const KernelContext& context, const Places& at)
      : Op(node, context), at_(at) {}

 protected:
  bool quantized() const { return at_.y_scale != kNone; }
  bool has(const InferContext& c, size_t i) const { return i != kNone && given(c, i); }
  void infer_types(InferContext& c) {
    check_inputs(c, at_.n_required);
    for (size_t i : {at_.x, at_.w})
      if (!dispatch_bytes(c.dtype(i), []<class T>() {})) bad_type(c.dtype(i));
    has_x_zero_ = has(c, at_.x_zero);
    has_w_zero_ = has(c, at_.w_zero);
    if (has_x_zero_) check_type(c.dtype(at_.x_zero), c.dtype(at_.x), "the zero point of the input");
    if (has_w_zero_)
      check_type(c.dtype(at_.w_zero), c.dtype(at_.w), "the zero point of the weight");
    if (!quantized()) return;
    for (size_t i : {at_.x_scale, at_.w_scale, at_.y_scale})
      check(c.dtype(i) == DType::kFloat32 || is_half(c.dtype(i)), "a scale is not a float");
    check(c.shape(at_.y_scale).numel() == 1 && c.shape(at_.y_zero).numel() == 1,
          "the output's scale is not a scalar");
    if (!dispatch_bytes(c.dtype(at_.y_zero), []<class T>() {})) bad_type(c.dtype(at_.y_zero));
  }
  // One value, or one for each of n.
  void check_list(InferContext& c, size_t i, int64_t n, const char* what) const {
    const Shape& s = c.shape(i);
    check(s.numel() == 1 || s.numel() == n,
          std::string(what) + " is neither one value nor one for each channel");
  }
  int32_t zero_of(RunContext& c, size_t i, bool given, int64_t channel) const {
    if (!given) return 0;
    const Tensor& t = *c.input(i);
    return byte_at(t, t.numel() == 1 ? 0 : channel);
  }
  float scale_of(RunContext& c, size_t i, int64_t channel) const {
    const Tensor& t = *c.input(i);
    return scale_at(t, t.numel() == 1 ? 0 : channel);
  }

  Places at_;
  bool has_x_zero_ = false, has_w_zero_ = false;
};

class ByteMatMul final : public ByteProduct {
 public:
  using ByteProduct::ByteProduct;
  Inferred infer(InferContext& c) override {
    infer_types(c);
    Shape a = c.shape(at_.x), b = c.shape(at_.w);
    check(a.rank() >= 1 && b.rank() >= 1, "an input is a scalar");
    const bool row = a.rank() == 1, column = b.rank() == 1;
    if (row) a = {1, a[0]};
    if (column) b = {b[0], 1};
    m_ = a[a.rank() - 2];
    k_ = a[a.rank() - 1];
    n_ = b[b.rank() - 1];
    check(k_ == b[b.rank() - 2], "shapes " + a.str() + " and " + b.str() + " do not multiply");
    batch_a_ = Shape(a.dims().first(static_cast<size_t>(a.rank() - 2)));
    batch_b_ = Shape(b.dims().first(static_cast<size_t>(b.rank() - 2)));
    const Shape batch = broadcast_shape(batch_a_, batch_b_, where_);
    each_ = Broadcast<2>(batch, {&batch_a_, &batch_b_});
    rows_total_ = batch_a_.numel() * m_;
    columns_total_ = batch_b_.numel() * n_;
    // Per row of the left, per column of the right; of one matrix or of each of the batch.
    const auto lists = [&](size_t i, int64_t one, int64_t all, const char* what) {
      const int64_t n = c.shape(i).numel();
      check(n == 1 || n == one || n == all,
            std::string(what) + " is neither one value nor one for each row or column");
    };
    if (has_x_zero_) lists(at_.x_zero, m_, rows_total_, "a zero point");
    if (has_w_zero_) lists(at_.w_zero, n_, columns_total_, "a zero point");
    if (quantized()) {
      lists(at_.x_scale, m_, rows_total_, "a scale");
      lists(at_.w_scale, n_, columns_total_, "a scale");
    }
    Shape out = batch;
    if (!row) out.push_back(m_);
    if (!column) out.push_back(n_);
    out.numel();
    acc_bytes_ = align64(static_cast<size_t>(n_) * sizeof(int32_t));
    c.set(0, quantized() ? c.dtype(at_.y_zero) : DType::kInt32, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return acc_bytes_ * n_threads_; }

  void run(RunContext& c) override {
    const Tensor &a = *c.input(at_.x), &b = *c.input(at_.w);
    Tensor& y = *c.output(0);
    if (y.numel() == 0) return;
    ScratchSlots slots(c.scratch(), acc_bytes_, n_threads_);
    each_.runs(
        0, each_.total(), [&](int64_t at, const std::array<int64_t, 2>& from, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            const int64_t pa = from[0] + i * static_cast<int64_t>(each_.step(0));
            const int64_t pb = from[1] + i * static_cast<int64_t>(each_.step(1));
            c.pool().parallel_for(
                m_, std::max<int64_t>(1, kGrain / (k_ * n_ + 1)), [&](int64_t begin, int64_t end) {
                  const ScratchSlots::Lease lease(slots);
                  for (int64_t r = begin; r < end; ++r)
                    one_row(c, a, b, pa, pb, r, lease.as<int32_t>(), y, (at + i) * m_ + r);
                });
          }
        });
  }

 private:
  // The entry of a list for row or column i of matrix p.
  static int64_t entry(const Tensor& t, int64_t p, int64_t i, int64_t one) {
    return t.numel() == 1 ? 0 : t.numel() == one ? i : p * one + i;
  }
  void one_row(RunContext& c, const Tensor& a, const Tensor& b, int64_t pa, int64_t pb, int64_t r,
               int32_t* acc, Tensor& y, int64_t out_row) const {
    const Tensor* xz = has_x_zero_ ? c.input(at_.x_zero) : nullptr;
    const Tensor* wz = has_w_zero_ ? c.input(at_.w_zero) : nullptr;
    const int32_t x_zero = xz ? byte_at(*xz, entry(*xz, pa, r, m_)) : 0;
    std::fill_n(acc, n_, 0);
    int32_t row_sum = 0;
    dispatch_bytes(b.dtype, [&]<class W>() {
      for (int64_t k = 0; k < k_; ++k) {
        const int32_t x = byte_at(a, (pa * m_ + r) * k_ + k) - x_zero;
        row_sum = wrapping_add(row_sum, x);
        const W* w = b.as<W>() + (pb * k_ + k) * n_;
        for (int64_t j = 0; j < n_; ++j)
          acc[j] = wrapping_add(acc[j], x * static_cast<int32_t>(w[j]));
      }
    });
    for (int64_t j = 0; j < n_ && wz; ++j) {
      const uint32_t zero = static_cast<uint32_t>(byte_at(*wz, entry(*wz, pb, j, n_)));
      acc[j] = static_cast<int32_t>(static_cast<uint32_t>(acc[j]) -
                                    zero * static_cast<uint32_t>(row_sum));
    }
    if (!quantized()) {
      std::copy(acc, acc + n_, y.as<int32_t>() + out_row * n_);
      return;
    }
    const Tensor &xs = *c.input(at_.x_scale), &ws = *c.input(at_.w_scale),
                 &yz = *c.input(at_.y_zero);
    const float x_scale = scale_at(xs, entry(xs, pa, r, m_)),
                y_scale = scale_at(*c.input(at_.y_scale), 0);
    const int32_t y_zero = byte_at(yz, 0);
    dispatch_bytes(y.dtype, [&]<class Q>() {
      for (int64_t j = 0; j < n_; ++j) {
        const float multiplier =
            multiplier_of(x_scale, scale_at(ws, entry(ws, pb, j, n_)), y_scale);
        y.as<Q>()[out_row * n_ + j] =
            static_cast<Q>(requantized(acc[j], multiplier, y_zero, std::numeric_limits<Q>::min(),
                                       std::numeric_limits<Q>::max()));
      }
    });
  }

  int64_t m_ = 0, n_ = 0, k_ = 0, rows_total_ = 0, columns_total_ = 0;
  Shape batch_a_, batch_b_;
  Broadcast<2> each_;
  size_t acc_bytes_ = 0;
};

class ByteConv final : public ByteProduct {
 public:
  ByteConv(const Node& node, const KernelContext& context, const Places& at)
      : ByteProduct(node, context, at), attributes_(node), group_(node.i("group", 1)) {
    check(group_ > 0, "group is not positive");
  }
  Inferred infer(InferContext& c) override {
    infer_types(c);
    const Shape &x = c.shape(at_.x), &weight = c.shape(at_.w);
    check(x.rank() >= 3 && weight.rank() == x.rank(),
          "the input and the weight have no or different spatial dimensions");
    w_ = attributes_.fit(x, {weight.begin() + 2, weight.end()});
    check(x[1] % group_ == 0 && weight[0] % group_ == 0 && weight[1] == x[1] / group_,
          "the weight " + weight.str() + " does not fit the input " + x.str() + " in " +
              std::to_string(group_) + " groups");
    n_ = x[0];
    channels_ = x[1] / group_;
    filters_ = weight[0];
    if (has_x_zero_)
      check(c.shape(at_.x_zero).numel() == 1, "the zero point of the input is not a scalar");
    if (has_w_zero_) check_list(c, at_.w_zero, filters_, "the zero point of the weight");
    if (quantized()) {
      check(c.shape(at_.x_scale).numel() == 1, "the scale of the input is not a scalar");
      check_list(c, at_.w_scale, filters_, "the scale of the weight");
    }
    has_bias_ = has(c, at_.bias);
    if (has_bias_) {
      check_type(c.dtype(at_.bias), DType::kInt32, "the bias");
      check(c.shape(at_.bias) == Shape({filters_}),
            "the bias is not one number for each output channel");
    }
    Shape out = {x[0], filters_};
    for (int i = 0; i < x.rank() - 2; ++i) out.push_back(w_.out[kMaxSpatial - (x.rank() - 2) + i]);
    out.numel();
    acc_bytes_ = align64(static_cast<size_t>(w_.out[2]) * sizeof(int32_t));
    c.set(0, quantized() ? c.dtype(at_.y_zero) : DType::kInt32, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return acc_bytes_ * n_threads_; }

  void run(RunContext& c) override {
    const Tensor &x = *c.input(at_.x), &weight = *c.input(at_.w);
    Tensor& y = *c.output(0);
    if (y.numel() == 0) return;
    ScratchSlots slots(c.scratch(), acc_bytes_, n_threads_);
    const int64_t rows = w_.out[0] * w_.out[1], taps = w_.n_taps(), per_group = filters_ / group_;
    const int32_t x_zero = zero_of(c, at_.x_zero, has_x_zero_, 0);
    c.pool().parallel_for(n_ * filters_ * rows, 1, [&](int64_t begin, int64_t end) {
      const ScratchSlots::Lease lease(slots);
      int32_t* acc = lease.as<int32_t>();
      for (int64_t t = begin; t < end; ++t) {
        const int64_t filter = t / rows % filters_, image = t / rows / filters_;
        const int64_t oz = t % rows / w_.out[1], oy = t % w_.out[1];
        const int32_t w_zero = zero_of(c, at_.w_zero, has_w_zero_, filter);
        std::fill_n(acc, w_.out[2], has_bias_ ? c.input(at_.bias)->as<int32_t>()[filter] : 0);
        for (int64_t ch = 0; ch < channels_; ++ch)
          dispatch_bytes(x.dtype, [&]<class T>() {
            const T* plane =
                x.as<T>() + ((image * group_ + filter / per_group) * channels_ + ch) * w_.n_in();
            add_plane(plane, weight, (filter * channels_ + ch) * taps, x_zero, w_zero, oz, oy, acc);
          });
        finish(c, acc, filter, y, t * w_.out[2]);
      }
    });
  }

 private:
  template <class T>
  void add_plane(const T* plane, const Tensor& weight, int64_t tap, int32_t x_zero, int32_t w_zero,
                 int64_t oz, int64_t oy, int32_t* acc) const {
    for (int64_t kz = 0; kz < w_.kernel[0]; ++kz) {
      const int64_t iz = oz * w_.stride[0] + kz * w_.dilation[0] - w_.pad_lo[0];
      for (int64_t ky = 0; ky < w_.kernel[1]; ++ky) {
        const int64_t iy = oy * w_.stride[1] + ky * w_.dilation[1] - w_.pad_lo[1];
        const bool inside = iz >= 0 && iz < w_.in[0] && iy >= 0 && iy < w_.in[1];
        for (int64_t kx = 0; kx < w_.kernel[2]; ++kx, ++tap) {
          if (!inside) continue;  // padding is the zero point: it adds nothing
          int64_t first, last;
          w_.inside(2, kx, first, last);
          const int32_t w = byte_at(weight, tap) - w_zero;
          const T* row =
              plane + (iz * w_.in[1] + iy) * w_.in[2] + kx * w_.dilation[2] - w_.pad_lo[2];
          for (int64_t ox = first; ox < last; ++ox)
            acc[ox] =
                wrapping_add(acc[ox], (static_cast<int32_t>(row[ox * w_.stride[2]]) - x_zero) * w);
        }
      }
    }
  }
  void finish(RunContext& c, const int32_t* acc, int64_t filter, Tensor& y, int64_t at) const {
    if (!quantized()) {
      std::copy(acc, acc + w_.out[2], y.as<int32_t>() + at);
      return;
    }
    const float multiplier = multiplier_of(
        scale_of(c, at_.x_scale, 0), scale_of(c, at_.w_scale, filter), scale_of(c, at_.y_scale, 0));
    const int32_t y_zero = byte_at(*c.input(at_.y_zero), 0);
    dispatch_bytes(y.dtype, [&]<class Q>() {
      for (int64_t i = 0; i < w_.out[2]; ++i)
        y.as<Q>()[at + i] =
            static_cast<Q>(requantized(acc[i], multiplier, y_zero, std::numeric_limits<Q>::min(),
                                       std::numeric_limits<Q>::max()));
    });
  }

  WindowAttributes attributes_;
  int64_t group_;
  Window w_;
  int64_t n_ = 0, channels_ = 0, filters_ = 0;
  bool has_bias_ = false;
  size_t acc_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_matmul_integer(const Node& n, const KernelContext& c) {
  return std::make_unique<ByteMatMul>(n, c, kInteger);
}
std::unique_ptr<Kernel> make_qlinear_matmul(const Node& n, const KernelContext& c) {
  return std::make_unique<ByteMatMul>(n, c, kQLinear);
}
std::unique_ptr<Kernel> make_conv_integer(const Node& n, const KernelContext& c) {
  return std::make_unique<ByteConv>(n, c, kInteger);
}
std::unique_ptr<Kernel> make_qlinear_conv(const Node& n, const KernelContext& c) {
  return std::make_unique<ByteConv>(n, c, kQLinear);
}

}  // namespace wia
