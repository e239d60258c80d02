// SPDX-License-Identifier: Apache-2.0
// DFT, STFT and window functions, in float64 from the definition.
#include <cmath>
#include <numbers>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// One integer out of a scalar tensor.
int64_t scalar_of(const Tensor& t, const std::string& where) {
  require(t.numel() == 1 && (t.dtype == DType::kInt64 || t.dtype == DType::kInt32),
          where + ": a parameter is no integer");
  return t.dtype == DType::kInt64 ? *t.as<int64_t>() : *t.as<int32_t>();
}

// cos and sin of 2 pi i / n.
std::vector<double> circle(int64_t n) {
  std::vector<double> table(static_cast<size_t>(2 * n));
  for (int64_t i = 0; i < n; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(n);
    table[static_cast<size_t>(2 * i)] = std::cos(angle);
    table[static_cast<size_t>(2 * i + 1)] = std::sin(angle);
  }
  return table;
}

constexpr int64_t kLongest = 1 << 20;

class Dft final : public Op {
 public:
  Dft(const Node& node, const KernelContext& context)
      : Op(node, context),
        inverse_(node.i("inverse", 0) != 0),
        onesided_(node.i("onesided", 0) != 0),
        axis_attribute_(node.i("axis", 1)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    check(x.rank() >= 2, "the input has fewer than two dimensions");
    parts_ = x[x.rank() - 1];
    check(parts_ == 1 || parts_ == 2, "the last dimension is neither real nor complex");
    int64_t axis = opset_ < 20 ? axis_attribute_ : -2;
    if (opset_ >= 20 && given(c, 2)) {
      if (!c.value(2)) return Inferred::kNeedsValues;
      axis = scalar_of(*c.value(2), where_);
    }
    const int d = axis_of(axis, x.rank());
    check(d < x.rank() - 1, "axis is the last dimension");
    n_in_ = x[d];
    length_ = inverse_ && onesided_ ? 2 * (n_in_ - 1) : n_in_;
    if (given(c, 1)) {
      if (!c.value(1)) return Inferred::kNeedsValues;
      length_ = scalar_of(*c.value(1), where_);
    }
    check(length_ > 0 && length_ <= kLongest, "dft_length is not positive, or too large");
    Shape out = x;
    real_out_ = inverse_ && onesided_;
    out[d] = onesided_ && !inverse_ ? length_ / 2 + 1 : length_;
    out[x.rank() - 1] = real_out_ ? 1 : 2;
    n_out_ = out[d];
    outer_ = product(x, 0, d);
    inner_ = product(x, d + 1, x.rank() - 1);
    out.numel();
    table_ = circle(length_);
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    dispatch<float, double>(dtype_, [&]<class T>() {
      const T* x = c.input(0)->as<T>();
      T* y = c.output(0)->as<T>();
      c.pool().parallel_for(outer_ * n_out_ * inner_, std::max<int64_t>(1, kGrain / length_),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i) one(x, y, i);
                            });
    });
  }

 private:
  template <class T>
  void one(const T* x, T* y, int64_t i) const {
    const int64_t in = i % inner_, k = i / inner_ % n_out_, o = i / inner_ / n_out_;
    double re = 0, im = 0;
    // A onesided inverse takes the missing half as the conjugates of what is there.
    const int64_t n_terms = real_out_ ? length_ : std::min(n_in_, length_);
    for (int64_t n = 0; n < n_terms; ++n) {
      const bool mirrored = real_out_ && n > length_ / 2;
      const int64_t source = mirrored ? length_ - n : n;
      if (source >= n_in_) continue;
      const T* at = x + ((o * n_in_ + source) * inner_ + in) * parts_;
      const double xr = static_cast<double>(at[0]);
      const double xi =
          parts_ == 2 ? (mirrored ? -static_cast<double>(at[1]) : static_cast<double>(at[1])) : 0.0;
      const size_t angle = static_cast<size_t>(k * n % length_);
      const double co = table_[2 * angle],
                   si = inverse_ ? table_[2 * angle + 1] : -table_[2 * angle + 1];
      re += xr * co - xi * si;
      im += xr * si + xi * co;
    }
    if (inverse_) {
      re /= static_cast<double>(length_);
      im /= static_cast<double>(length_);
    }
    T* to = y + i * (real_out_ ? 1 : 2);
    to[0] = static_cast<T>(re);
    if (!real_out_) to[1] = static_cast<T>(im);
  }

  bool inverse_, onesided_, real_out_ = false;
  int64_t axis_attribute_;
  DType dtype_ = DType::kUndefined;
  int64_t parts_ = 1, n_in_ = 0, n_out_ = 0, length_ = 0, outer_ = 0, inner_ = 1;
  std::vector<double> table_;
};

class Stft final : public Op {
 public:
  Stft(const Node& node, const KernelContext& context)
      : Op(node, context), onesided_(node.i("onesided", 1) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    check(x.rank() == 3 && (x[2] == 1 || x[2] == 2), "the signal is not [batch, length, 1 or 2]");
    if (!c.value(1) || (given(c, 3) && !c.value(3))) return Inferred::kNeedsValues;
    step_ = scalar_of(*c.value(1), where_);
    check(step_ > 0, "frame_step is not positive");
    has_window_ = given(c, 2);
    length_ = given(c, 3)   ? scalar_of(*c.value(3), where_)
              : has_window_ ? c.shape(2).numel()
                            : x[1];
    check(length_ > 0 && length_ <= kLongest && length_ <= x[1],
          "frame_length does not fit the signal");
    if (has_window_) {
      check_type(c.dtype(2), dtype_, "the window");
      check(c.shape(2) == Shape({length_}), "the window is not frame_length long");
    }
    parts_ = x[2];
    n_in_ = x[1];
    n_frames_ = (n_in_ - length_) / step_ + 1;
    n_out_ = onesided_ ? length_ / 2 + 1 : length_;
    const Shape out = {x[0], n_frames_, n_out_, 2};
    out.numel();
    table_ = circle(length_);
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    dispatch<float, double>(dtype_, [&]<class T>() {
      const T* x = c.input(0)->as<T>();
      const T* window = has_window_ ? c.input(2)->as<T>() : nullptr;
      T* y = c.output(0)->as<T>();
      c.pool().parallel_for(c.output(0)->numel() / 2, std::max<int64_t>(1, kGrain / length_),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i) {
                                const int64_t k = i % n_out_, frame = i / n_out_ % n_frames_,
                                              b = i / n_out_ / n_frames_;
                                const T* at = x + (b * n_in_ + frame * step_) * parts_;
                                double re = 0, im = 0;
                                for (int64_t n = 0; n < length_; ++n) {
                                  const double w = window ? static_cast<double>(window[n]) : 1.0;
                                  const double xr = w * static_cast<double>(at[n * parts_]);
                                  const double xi =
                                      parts_ == 2 ? w * static_cast<double>(at[n * 2 + 1]) : 0.0;
                                  const size_t angle = static_cast<size_t>(k * n % length_);
                                  const double co = table_[2 * angle], si = -table_[2 * angle + 1];
                                  re += xr * co - xi * si;
                                  im += xr * si + xi * co;
                                }
                                y[2 * i] = static_cast<T>(re);
                                y[2 * i + 1] = static_cast<T>(im);
                              }
                            });
    });
  }

 private:
  bool onesided_, has_window_ = false;
  DType dtype_ = DType::kUndefined;
  int64_t step_ = 1, length_ = 0, parts_ = 1, n_in_ = 0, n_frames_ = 0, n_out_ = 0;
  std::vector<double> table_;
};

// a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n).
class Window final : public Op {
 public:
  Window(const Node& node, const KernelContext& context, double a0, double a1, double a2)
      : Op(node, context),
        a0_(a0),
        a1_(a1),
        a2_(a2),
        periodic_(node.i("periodic", 1) != 0),
        dtype_(static_cast<DType>(node.i("output_datatype", 1))) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (!c.value(0)) return Inferred::kNeedsValues;
    n_ = scalar_of(*c.value(0), where_);
    check(n_ >= 0 && n_ < (int64_t{1} << 31), "size is negative or too large");
    if (!types(dtype_, []<class T>() {})) bad_type(dtype_);
    c.set(0, dtype_, {n_});
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const double period = static_cast<double>(periodic_ ? n_ : n_ - 1);
    types(dtype_, [&]<class T>() {
      for (int64_t i = 0; i < n_; ++i) {
        const double angle =
            period > 0 ? 2 * std::numbers::pi * static_cast<double>(i) / period : 0.0;
        const double v = a0_ - a1_ * std::cos(angle) + a2_ * std::cos(2 * angle);
        if constexpr (std::is_integral_v<T>)
          c.output(0)->as<T>()[i] = saturated<T>(v);
        else
          c.output(0)->as<T>()[i] = static_cast<T>(v);
      }
    });
  }

 private:
  template <class Body>
  static bool types(DType dtype, Body&& body) {
    return dispatch_numbers(dtype, body) || dispatch<Half, BFloat16>(dtype, body);
  }
  double a0_, a1_, a2_;
  bool periodic_;
  DType dtype_;
  int64_t n_ = 0;
};

class MelWeightMatrix final : public Op {
 public:
  MelWeightMatrix(const Node& node, const KernelContext& context)
      : Op(node, context), dtype_(static_cast<DType>(node.i("output_datatype", 1))) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 5);
    for (size_t i = 0; i < 5; ++i)
      if (!c.value(i)) return Inferred::kNeedsValues;
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    n_mel_ = scalar_of(*c.value(0), where_);
    length_ = scalar_of(*c.value(1), where_);
    rate_ = scalar_of(*c.value(2), where_);
    check(n_mel_ > 0 && n_mel_ < 65536 && length_ > 0 && length_ <= kLongest && rate_ > 0,
          "a parameter is not positive, or too large");
    for (size_t i = 0; i < 2; ++i) {
      const Tensor& edge = *c.value(3 + i);
      check(edge.numel() == 1, "an edge is not a scalar");
      if (!dispatch<float, double>(
              edge.dtype, [&]<class T>() { edge_[i] = static_cast<double>(*edge.as<T>()); }))
        bad_type(edge.dtype);
      check(edge_[i] >= 0 && edge_[i] < 1e9, "an edge is negative or too large");
    }
    c.set(0, dtype_, {length_ / 2 + 1, n_mel_});
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const int64_t n_bins = length_ / 2 + 1;
    const auto mel = [](double f) { return 2595 * std::log1p(f / 700) / std::log(10.0); };
    const double low = mel(edge_[0]),
                 step = (mel(edge_[1]) - low) / static_cast<double>(n_mel_ + 2);
    std::vector<int64_t> bins;
    for (int64_t i = 0; i < n_mel_ + 2; ++i) {
      const double f =
          700 * std::expm1((static_cast<double>(i) * step + low) / 2595 * std::log(10.0));
      bins.push_back(static_cast<int64_t>(
          std::floor(static_cast<double>(length_ + 1) * f / static_cast<double>(rate_))));
      check(bins.back() >= 0 && bins.back() < n_bins, "an edge is above half of the sample rate");
    }
    dispatch<float, double>(dtype_, [&]<class T>() {
      T* y = c.output(0)->as<T>();
      std::fill_n(y, n_bins * n_mel_, T{0});
      for (int64_t m = 0; m < n_mel_; ++m) {
        const int64_t left = bins[static_cast<size_t>(m)],
                      centre = bins[static_cast<size_t>(m) + 1];
        const int64_t right = bins[static_cast<size_t>(m) + 2];
        if (centre == left) y[centre * n_mel_ + m] = 1;
        for (int64_t j = left; centre > left && j <= centre; ++j)
          y[j * n_mel_ + m] =
              static_cast<T>(static_cast<double>(j - left) / static_cast<double>(centre - left));
        for (int64_t j = centre; right > centre && j < right; ++j)
          y[j * n_mel_ + m] =
              static_cast<T>(static_cast<double>(right - j) / static_cast<double>(right - centre));
      }
    });
  }

 private:
  DType dtype_;
  int64_t n_mel_ = 0, length_ = 0, rate_ = 1;
  double edge_[2] = {};
};

}  // namespace

std::unique_ptr<Kernel> make_dft(const Node& n, const KernelContext& c) {
  return widened<Dft>(n, c);
}
std::unique_ptr<Kernel> make_stft(const Node& n, const KernelContext& c) {
  return widened<Stft>(n, c);
}
std::unique_ptr<Kernel> make_hann_window(const Node& n, const KernelContext& c) {
  return std::make_unique<Window>(n, c, 0.5, 0.5, 0.0);
}
std::unique_ptr<Kernel> make_hamming_window(const Node& n, const KernelContext& c) {
  return std::make_unique<Window>(n, c, 25.0 / 46.0, 21.0 / 46.0, 0.0);
}
std::unique_ptr<Kernel> make_blackman_window(const Node& n, const KernelContext& c) {
  return std::make_unique<Window>(n, c, 0.42, 0.5, 0.08);
}
std::unique_ptr<Kernel> make_mel_weight_matrix(const Node& n, const KernelContext& c) {
  return std::make_unique<MelWeightMatrix>(n, c);
}

}  // namespace wia
