// SPDX-License-Identifier: Apache-2.0
// Normalisations: Batch, Layer, RMS, Instance, Group, MeanVariance, Lp, LRN.
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

constexpr float kDefaultEpsilon = 1e-5f;

// The factor 1 / sqrt(variance + epsilon) of n centred values.
float inverse_deviation(float sum_of_squares, int64_t n, float epsilon) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + epsilon);
}

// y = (x - mean) / sqrt(variance + epsilon) * scale + bias, per channel, with the training
// statistics given.
class BatchNormalization final : public Op {
 public:
  BatchNormalization(const Node& node, const KernelContext& context)
      : Op(node, context),
        epsilon_(node.f("epsilon", kDefaultEpsilon)),
        momentum_(node.f("momentum", 0.9f)),
        training_(node.i("training_mode", 0) != 0) {
    if (node.opset < 9 && node.i("spatial", 1) == 0) unsupported("spatial=0 is not supported");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 5);
    const Shape& x = c.shape(0);
    check(x.rank() >= 1, "the input is a scalar");
    n_ = x.rank() >= 1 ? x[0] : 1;
    channels_ = x.rank() >= 2 ? x[1] : 1;
    inner_ = product(x, std::min(2, x.rank()), x.rank());
    for (size_t i = 0; i < 5; ++i) {
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
      if (i)
        check(c.shape(i) == Shape({channels_}),
              "input " + std::to_string(i) + " is not one number a channel");
    }
    c.set(0, DType::kFloat32, x);
    for (size_t i = 1; i < c.n_outputs(); ++i)
      if (wanted(c, i)) {
        if (!training_) unsupported("statistics are outputs outside of training");
        c.set(i, DType::kFloat32, {channels_});
      }
    statistics_ = training_ && wanted(c, 1) && wanted(c, 2);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0 && !training_; }
  size_t scratch_bytes() const override {
    return 2 * align64(static_cast<size_t>(channels_) * sizeof(float));
  }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    const float* scale = c.input(1)->as<float>();
    const float* bias = c.input(2)->as<float>();
    const float* mean = c.input(3)->as<float>();
    const float* variance = c.input(4)->as<float>();
    float* y = c.output(0)->as<float>();
    float* factors = reinterpret_cast<float*>(c.scratch());
    float* shifts =
        factors + align64(static_cast<size_t>(channels_) * sizeof(float)) / sizeof(float);
    for (int64_t ch = 0; ch < channels_; ++ch) {
      float m = mean[ch], v = variance[ch];
      if (training_) {
        m = v = 0;
        const int64_t count = n_ * inner_;
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < n_; ++n)
          for (int64_t i = 0; i < inner_; ++i) sum += x[(n * channels_ + ch) * inner_ + i];
        const double centre = sum / static_cast<double>(count);
        for (int64_t n = 0; n < n_; ++n)
          for (int64_t i = 0; i < inner_; ++i) {
            const double d = x[(n * channels_ + ch) * inner_ + i] - centre;
            squares += d * d;
          }
        m = static_cast<float>(centre);
        v = static_cast<float>(squares / static_cast<double>(count));
        if (statistics_) {
          c.output(1)->as<float>()[ch] = mean[ch] * momentum_ + m * (1.0f - momentum_);
          c.output(2)->as<float>()[ch] = variance[ch] * momentum_ + v * (1.0f - momentum_);
        }
      }
      factors[ch] = scale[ch] / std::sqrt(v + epsilon_);
      shifts[ch] = bias[ch] - m * factors[ch];
    }
    if (inner_ == 0) return;
    c.pool().parallel_for(
        n_ * channels_, std::max<int64_t>(1, kGrain / inner_), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            fmath_.affine(static_cast<size_t>(inner_), x + i * inner_, factors[i % channels_],
                          shifts[i % channels_], y + i * inner_);
        });
  }

 private:
  float epsilon_, momentum_;
  bool training_, statistics_ = false;
  int64_t n_ = 0, channels_ = 0, inner_ = 1;
};

// Layer (centred) and RMS normalisation over the axes from `axis` on; scale and bias broadcast to
// them.
class LayerNormalization final : public Op {
 public:
  LayerNormalization(const Node& node, const KernelContext& context, bool centred)
      : Op(node, context),
        centred_(centred),
        axis_(node.i("axis", -1)),
        epsilon_(node.f("epsilon", kDefaultEpsilon)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape& x = c.shape(0);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    check_type(c.dtype(1), DType::kFloat32, "the scale");
    const int axis = axis_of(axis_, x.rank());
    rows_ = product(x, 0, axis);
    n_ = product(x, axis, x.rank());
    check(n_ > 0 || x.numel() == 0, "nothing to normalise over");
    has_bias_ = given(c, 2);
    if (has_bias_) check_type(c.dtype(2), DType::kFloat32, "the bias");
    rowwise_ = true;
    for (size_t i = 1; i < (has_bias_ ? 3u : 2u); ++i) {
      check(broadcast_shape(x, c.shape(i), where_) == x,
            "scale or bias does not broadcast to the input");
      rowwise_ &= c.shape(i).numel() == n_ && trailing(c.shape(i), x, axis);
    }
    if (!rowwise_) {
      scale_ = Broadcast<1>(x, {&c.shape(1)});
      if (has_bias_) bias_ = Broadcast<1>(x, {&c.shape(2)});
    }
    c.set(0, DType::kFloat32, x);
    Shape statistics = x;
    for (int d = axis; d < x.rank(); ++d) statistics[d] = 1;
    for (size_t i = 0; i < 2; ++i) {
      wants_[i] = wanted(c, i + 1);
      if (wants_[i]) c.set(i + 1, DType::kFloat32, statistics);
    }
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0; }
  std::string implementation() const override { return fmath_.name; }

  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    const float* scale = c.input(1)->as<float>();
    const float* bias = has_bias_ ? c.input(2)->as<float>() : nullptr;
    float* y = c.output(0)->as<float>();
    float* means = wants_[0] ? c.output(1)->as<float>() : nullptr;
    float* factors = wants_[1] ? c.output(2)->as<float>() : nullptr;
    const size_t n = static_cast<size_t>(n_);
    c.pool().parallel_for(
        rows_, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n_)),
        [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            const float* row = x + r * n_;
            float* out = y + r * n_;
            const float mean = centred_ ? fmath_.reduceSum(n, row) / static_cast<float>(n) : 0.0f;
            const float squares =
                centred_ ? fmath_.sum_centered(n, row, mean) : fmath_.reduceSumSquare(n, row);
            const float factor = inverse_deviation(squares, n_, epsilon_);
            if (means) means[r] = mean;
            if (factors) factors[r] = factor;
            fmath_.normalize(n, row, mean, factor, rowwise_ ? scale : nullptr,
                             rowwise_ ? bias : nullptr, out);
          }
          if (rowwise_) return;
          const auto apply = [&](const Broadcast<1>& from, const float* values,
                                 Fmath::Binary function) {
            from.runs(begin * n_, end * n_,
                      [&](int64_t at, const std::array<int64_t, 1>& source, int64_t count) {
                        function(static_cast<size_t>(count), y + at, 1, values + source[0],
                                 from.step(0), y + at);
                      });
          };
          apply(scale_, scale, fmath_.binaryMul);
          if (bias) apply(bias_, bias, fmath_.binaryAdd);
        });
  }

 private:
  // Is `s` the dimensions of x from `axis` on, perhaps with leading ones?
  static bool trailing(const Shape& s, const Shape& x, int axis) {
    for (int d = 0; d < s.rank(); ++d) {
      const int own = x.rank() - s.rank() + d;
      if (own < 0 || s[d] != (own < axis ? 1 : x[own])) return false;
    }
    return true;
  }

  bool centred_;
  int64_t axis_;
  float epsilon_;
  bool has_bias_ = false, rowwise_ = true, wants_[2] = {};
  int64_t rows_ = 0, n_ = 0;
  Broadcast<1> scale_, bias_;
};

// Instance and group normalisation: [N, C, ...] in groups of channels, scale and bias by channel
// (by group before opset 21).
class GroupNormalization final : public Op {
 public:
  GroupNormalization(const Node& node, const KernelContext& context, bool instance)
      : Op(node, context),
        instance_(instance),
        groups_(node.i("num_groups", 0)),
        epsilon_(node.f("epsilon", kDefaultEpsilon)) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    const Shape& x = c.shape(0);
    check(x.rank() >= 2, "the input is not [N, C, ...]");
    channels_ = x[1];
    const int64_t groups = instance_ ? channels_ : groups_;
    check(groups > 0 && channels_ % groups == 0, "num_groups does not divide the channels");
    per_group_ = channels_ / groups;
    inner_ = product(x, 2, x.rank());
    n_groups_ = x[0] * groups;
    by_group_ = !instance_ && opset_ < 21;
    for (size_t i = 0; i < 3; ++i) {
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
      if (i)
        check(c.shape(i) == Shape({by_group_ ? groups : channels_}),
              "scale or bias has not one number a channel");
    }
    c.set(0, DType::kFloat32, x);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t input) const override { return input == 0; }
  std::string implementation() const override { return fmath_.name; }
  void run(RunContext& c) override {
    const float* x = c.input(0)->as<float>();
    const float* scale = c.input(1)->as<float>();
    const float* bias = c.input(2)->as<float>();
    float* y = c.output(0)->as<float>();
    const int64_t n = per_group_ * inner_, groups = channels_ / per_group_;
    if (n == 0) return;
    c.pool().parallel_for(
        n_groups_, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
          for (int64_t g = begin; g < end; ++g) {
            const float* in = x + g * n;
            const float mean = fmath_.reduceSum(static_cast<size_t>(n), in) / static_cast<float>(n);
            const float factor = inverse_deviation(
                fmath_.sum_centered(static_cast<size_t>(n), in, mean), n, epsilon_);
            fmath_.normalize(static_cast<size_t>(n), in, mean, factor, nullptr, nullptr, y + g * n);
            for (int64_t k = 0; k < per_group_; ++k) {
              const int64_t at = by_group_ ? g % groups : g % groups * per_group_ + k;
              float* out = y + g * n + k * inner_;
              fmath_.affine(static_cast<size_t>(inner_), out, scale[at], bias[at], out);
            }
          }
        });
  }

 private:
  bool instance_, by_group_ = false;
  int64_t groups_;
  float epsilon_;
  int64_t channels_ = 0, per_group_ = 0, inner_ = 0, n_groups_ = 0;
};

// (x - mean) / (deviation + 1e-9) over the axes.
class MeanVarianceNormalization final : public Op {
 public:
  MeanVarianceNormalization(const Node& node, const KernelContext& context)
      : Op(node, context), axes_(node.ints("axes", {0, 2, 3})) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    bool reduced[Shape::kMaxRank] = {};
    for (int64_t a : axes_) reduced[axis_of(a, x.rank())] = true;
    order_.clear();
    back_.assign(static_cast<size_t>(x.rank()), 0);
    moved_ = {};
    n_ = 1;
    for (const bool want : {false, true})
      for (int d = 0; d < x.rank(); ++d)
        if (reduced[d] == want) {
          back_[static_cast<size_t>(d)] = static_cast<int>(order_.size());
          order_.push_back(d);
          moved_.push_back(x[d]);
          if (want) n_ *= x[d];
        }
    bytes_ = static_cast<size_t>(x.numel()) * sizeof(float);
    c.set(0, DType::kFloat32, x);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override { return bytes_; }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    if (x.numel() == 0) return;
    float* rows = reinterpret_cast<float*>(c.scratch());
    transpose_elements(x, order_, rows, c.pool());
    const size_t n = static_cast<size_t>(n_);
    c.pool().parallel_for(
        x.numel() / n_, std::max<int64_t>(1, kGrain / n_), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            float* row = rows + r * n_;
            const float mean = fmath_.reduceSum(n, row) / static_cast<float>(n);
            const float deviation =
                std::sqrt(fmath_.sum_centered(n, row, mean) / static_cast<float>(n));
            fmath_.normalize(n, row, mean, 1.0f / (deviation + 1e-9f), nullptr, nullptr, row);
          }
        });
    transpose_elements(Tensor{DType::kFloat32, moved_, rows, nullptr}, back_, c.output(0)->data,
                       c.pool());
  }

 private:
  std::vector<int64_t> axes_;
  std::vector<int> order_, back_;
  Shape moved_;
  int64_t n_ = 1;
  size_t bytes_ = 0;
};

// x / |x|_p along one axis; rows of norm 0 stay 0.
class LpNormalization final : public Op {
 public:
  LpNormalization(const Node& node, const KernelContext& context)
      : Op(node, context), axis_(node.i("axis", -1)), p_(node.i("p", 2)) {
    check(p_ == 1 || p_ == 2, "p is neither 1 nor 2");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch<float, double>(dtype_, []<class T>() {})) bad_type(dtype_);
    const int axis = axis_of(axis_, x.rank());
    outer_ = product(x, 0, axis);
    n_ = x[axis];
    inner_ = product(x, axis + 1, x.rank());
    c.set(0, dtype_, x);
    return Inferred::kDone;
  }
  bool may_overwrite(size_t) const override { return true; }
  void run(RunContext& c) override {
    dispatch<float, double>(dtype_, [&]<class T>() {
      const T* x = c.input(0)->as<T>();
      T* y = c.output(0)->as<T>();
      for (int64_t r = 0; r < outer_ * inner_; ++r) {
        const int64_t at = r / inner_ * n_ * inner_ + r % inner_;
        double sum = 0;
        for (int64_t i = 0; i < n_; ++i) {
          const double v = static_cast<double>(x[at + i * inner_]);
          sum += p_ == 1 ? std::fabs(v) : v * v;
        }
        const T norm = static_cast<T>(p_ == 1 ? sum : std::sqrt(sum));
        for (int64_t i = 0; i < n_; ++i)
          y[at + i * inner_] = norm == T{0} ? T{0} : x[at + i * inner_] / norm;
      }
    });
  }

 private:
  int64_t axis_, p_;
  DType dtype_ = DType::kUndefined;
  int64_t outer_ = 0, n_ = 0, inner_ = 1;
};

// x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta.
class Lrn final : public Op {
 public:
  Lrn(const Node& node, const KernelContext& context)
      : Op(node, context),
        size_(node.i("size", 0)),
        alpha_(node.f("alpha", 1e-4f)),
        beta_(node.f("beta", 0.75f)),
        bias_(node.f("bias", 1.0f)) {
    check(size_ > 0, "size is not positive");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    check(c.shape(0).rank() >= 2, "the input is not [N, C, ...]");
    c.set(0, DType::kFloat32, c.shape(0));
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const int64_t channels = x.shape[1], inner = product(x.shape, 2, x.shape.rank());
    const int64_t before = (size_ - 1) / 2, after = size_ - 1 - before;
    const float* in = x.as<float>();
    float* out = c.output(0)->as<float>();
    c.pool().parallel_for(x.shape[0] * channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t ch = r % channels, first = std::max<int64_t>(0, ch - before);
        const int64_t last = after >= channels - ch ? channels - 1 : ch + after;
        for (int64_t i = 0; i < inner; ++i) {
          float sum = 0;
          for (int64_t k = first; k <= last; ++k) {
            const float v = in[(r - ch + k) * inner + i];
            sum += v * v;
          }
          const double base = bias_ + alpha_ / static_cast<float>(size_) * sum;
          out[r * inner + i] =
              static_cast<float>(in[r * inner + i] / std::pow(base, static_cast<double>(beta_)));
        }
      }
    });
  }

 private:
  int64_t size_;
  float alpha_, beta_, bias_;
};

}  // namespace

std::unique_ptr<Kernel> make_batch_normalization(const Node& n, const KernelContext& c) {
  return widened<BatchNormalization>(n, c);
}
// The statistics of Layer normalisation are float32 whatever the input is (stash_type 1).
std::unique_ptr<Kernel> make_layer_normalization(const Node& n, const KernelContext& c) {
  return widen(std::make_unique<LayerNormalization>(n, c, true), c, 0b110);
}
std::unique_ptr<Kernel> make_rms_normalization(const Node& n, const KernelContext& c) {
  return widened<LayerNormalization>(n, c, false);
}
std::unique_ptr<Kernel> make_instance_normalization(const Node& n, const KernelContext& c) {
  return widened<GroupNormalization>(n, c, true);
}
std::unique_ptr<Kernel> make_group_normalization(const Node& n, const KernelContext& c) {
  return widened<GroupNormalization>(n, c, false);
}
std::unique_ptr<Kernel> make_mean_variance_normalization(const Node& n, const KernelContext& c) {
  return widened<MeanVarianceNormalization>(n, c);
}
std::unique_ptr<Kernel> make_lp_normalization(const Node& n, const KernelContext& c) {
  return widened<LpNormalization>(n, c);
}
std::unique_ptr<Kernel> make_lrn(const Node& n, const KernelContext& c) {
  return widened<Lrn>(n, c);
}

}  // namespace wia
