// SPDX-License-Identifier: Apache-2.0
// Resize (opset 10 on) and Upsample: each dimension is a table of source indices and weights.
#include <cmath>

#include "runtime/ops/op.h"

namespace wia {
namespace {

// What one output index of one dimension is made of.
struct Source {
  std::vector<int64_t> index;  // [out * taps], always inside the input
  std::vector<double> weight;  // [out * taps]
  std::vector<char> outside;   // [out]: tf_crop_and_resize left the input
  int64_t taps = 1;
};

class Resize final : public Op {
 public:
  Resize(const Node& node, const KernelContext& context, bool upsample)
      : Op(node, context),
        upsample_(upsample),
        mode_(node.s("mode", "nearest")),
        transform_(node.s("coordinate_transformation_mode",
                          node.opset < 11 || upsample ? "asymmetric" : "half_pixel")),
        nearest_(
            node.s("nearest_mode", node.opset < 11 || upsample ? "floor" : "round_prefer_floor")),
        policy_(node.s("keep_aspect_ratio_policy", "stretch")),
        axes_(node.ints("axes")),
        scales_attribute_(node.floats("scales")),
        antialias_(node.i("antialias", 0) != 0),
        exclude_outside_(node.i("exclude_outside", 0) != 0),
        cubic_(node.f("cubic_coeff_a", -0.75f)),
        extrapolation_(node.f("extrapolation_value", 0.0f)) {
    if (mode_ == "bilinear") mode_ = "linear";
    check(mode_ == "nearest" || mode_ == "linear" || mode_ == "cubic",
          "mode '" + mode_ + "' is not known");
    const char* transforms[] = {"half_pixel",          "half_pixel_symmetric", "pytorch_half_pixel",
                                "align_corners",       "asymmetric",           "tf_crop_and_resize",
                                "tf_half_pixel_for_nn"};
    check(
        std::find(std::begin(transforms), std::end(transforms), transform_) != std::end(transforms),
        "coordinate_transformation_mode '" + transform_ + "' is not known");
    const char* nearests[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    check(std::find(std::begin(nearests), std::end(nearests), nearest_) != std::end(nearests),
          "nearest_mode '" + nearest_ + "' is not known");
  }

  Inferred infer(InferContext& c) override {
    check_inputs(c, 1);
    const Shape& x = c.shape(0);
    dtype_ = c.dtype(0);
    if (!dispatch<float, double, int8_t, uint8_t, int32_t, int64_t>(dtype_, []<class T>() {}))
      bad_type(dtype_);
    const bool old = upsample_ || opset_ < 11;  // inputs: X, scales
    const size_t roi_at = old ? 99 : 1, scales_at = old ? 1 : 2, sizes_at = old ? 99 : 3;
    std::vector<double> scales(scales_attribute_.begin(), scales_attribute_.end()), roi;
    std::vector<int64_t> sizes;
    if (!read(c, scales_at, scales)) return Inferred::kNeedsValues;
    if (transform_ == "tf_crop_and_resize" && !read(c, roi_at, roi)) return Inferred::kNeedsValues;
    if (given(c, sizes_at) && c.shape(sizes_at).numel() > 0) {
      if (!c.value(sizes_at)) return Inferred::kNeedsValues;
      sizes = ints_of(*c.value(sizes_at));
    }
    std::vector<int> axes;
    for (int64_t a : axes_) axes.push_back(axis_of(a, x.rank()));
    if (axes_.empty())
      for (int d = 0; d < x.rank(); ++d) axes.push_back(d);
    check(scales.empty() != sizes.empty(), "give either scales or sizes");
    check(scales.empty() || scales.size() == axes.size(),
          "scales has not one number for each axis");
    check(sizes.empty() || sizes.size() == axes.size(), "sizes has not one number for each axis");
    check(transform_ != "tf_crop_and_resize" || roi.size() == 2 * axes.size(),
          "roi has not two numbers for each axis");

    Shape out = x;
    std::vector<double> scale(static_cast<size_t>(x.rank()), 1.0), start(scale.size(), 0.0),
        end(scale.size(), 1.0);
    std::vector<double> length(scale.size());
    for (int d = 0; d < x.rank(); ++d) length[static_cast<size_t>(d)] = static_cast<double>(x[d]);
    double shared = 0;  // of a policy that keeps the aspect ratio
    if (!sizes.empty() && policy_ != "stretch") {
      check(policy_ == "not_larger" || policy_ == "not_smaller",
            "keep_aspect_ratio_policy is not known");
      for (size_t i = 0; i < axes.size(); ++i) {
        check(x[axes[i]] > 0, "the input is empty");
        const double s = static_cast<double>(sizes[i]) / static_cast<double>(x[axes[i]]);
        shared = i == 0 ? s : policy_ == "not_larger" ? std::min(shared, s) : std::max(shared, s);
      }
    }
    for (size_t i = 0; i < axes.size(); ++i) {
      const int d = axes[i];
      const size_t at = static_cast<size_t>(d);
      const double n = static_cast<double>(x[d]);
      if (!scales.empty()) {
        check(scales[i] > 0 && scales[i] < 0x1p31, "a scale is not positive, or too large");
        scale[at] = scales[i];
        length[at] = n * scale[at];
        out[d] = integer(std::floor(length[at]));
      } else if (policy_ == "stretch") {
        check(sizes[i] >= 0 && sizes[i] < kLimit, "a size is negative or too large");
        out[d] = sizes[i];
        scale[at] = x[d] ? static_cast<double>(sizes[i]) / n : 1.0;
        length[at] = static_cast<double>(sizes[i]);
      } else {
        check(shared > 0, "a size is not positive");
        scale[at] = shared;
        length[at] = n * shared;
        out[d] = integer(std::floor(length[at] + 0.5));
      }
      if (!roi.empty()) {
        start[at] = roi[i];
        end[at] = roi[i + axes.size()];
        if (scales.size()) out[d] = integer(std::floor(n * (end[at] - start[at]) * scale[at]));
        length[at] = static_cast<double>(out[d]);
      }
      check(x[d] > 0 || out[d] == 0, "the input is empty and the output is not");
    }
    out.numel();
    in_ = x;
    out_ = out;
    source_.clear();
    size_t largest[2] = {0, 0};
    Shape stage = x;
    moving_.clear();
    for (int d = 0; d < x.rank(); ++d) {
      const size_t at = static_cast<size_t>(d);
      source_.push_back(sources(x[d], out[d], scale[at], length[at], start[at], end[at]));
      const bool same = out[d] == x[d] && scale[at] == 1.0 && roi.empty();
      if (same) continue;
      moving_.push_back(d);
      stage[d] = out[d];
      size_t& buffer = largest[moving_.size() % 2];
      buffer = std::max(buffer, static_cast<size_t>(stage.numel()));
    }
    nearest_only_ = mode_ == "nearest";
    const size_t width = dtype_ == DType::kFloat32 ? sizeof(float) : sizeof(double);
    buffer_bytes_[0] = nearest_only_ ? 0 : align64(largest[1] * width);
    buffer_bytes_[1] = nearest_only_ ? 0 : align64(largest[0] * width);
    // The input itself, widened.
    input_bytes_ = nearest_only_ || dtype_ == DType::kFloat32
                       ? 0
                       : align64(static_cast<size_t>(x.numel()) * width);
    c.set(0, dtype_, out);
    return Inferred::kDone;
  }
  size_t scratch_bytes() const override {
    return buffer_bytes_[0] + buffer_bytes_[1] + input_bytes_;
  }

  void run(RunContext& c) override {
    Tensor& y = *c.output(0);
    if (y.numel() == 0) return;
    if (nearest_only_) {
      dispatch_width(dtype_, [&]<class W>(W) { pick<W>(*c.input(0), y, c.pool()); });
    } else {
      dispatch<float, double, int8_t, uint8_t, int32_t, int64_t>(
          dtype_, [&]<class T>() { blend<T>(c, y); });
    }
    fill_outside(y);
  }

 private:
  static constexpr int64_t kLimit = int64_t{1} << 31;

  // A list of numbers as float64; false while its contents are unknown.
  bool read(const InferContext& c, size_t input, std::vector<double>& into) const {
    if (!given(c, input) || c.shape(input).numel() == 0) return true;
    const Tensor* v = c.value(input);
    if (!v) return false;
    check(v->shape.rank() <= 1 && v->numel() <= 2 * Shape::kMaxRank,
          "scales or roi is no short list");
    const bool known = dispatch<float, double>(
        v->dtype, [&]<class T>() { into.assign(v->as<T>(), v->as<T>() + v->numel()); });
    check(known, "scales or roi are not floats");
    return true;
  }
  int64_t integer(double v) const {
    check(v >= 0 && v < static_cast<double>(kLimit),
          "an output dimension is negative or too large");
    return static_cast<int64_t>(v);
  }

  double original(double o, double n_in, double scale, double length, double start,
                  double end) const {
    if (transform_ == "half_pixel" || transform_ == "tf_half_pixel_for_nn") {
      const double shift = transform_ == "half_pixel" ? 0.5 : 0.0;
      return (o + 0.5) / scale - shift;
    }
    if (transform_ == "half_pixel_symmetric") {
      const double adjustment = std::floor(length) / length;
      const double center = n_in / 2, offset = center * (1 - adjustment);
      return offset + (o + 0.5) / scale - 0.5;
    }
    if (transform_ == "pytorch_half_pixel") return length <= 1 ? 0.0 : (o + 0.5) / scale - 0.5;
    if (transform_ == "align_corners") return length <= 1 ? 0.0 : o * (n_in - 1) / (length - 1);
    if (transform_ == "tf_crop_and_resize")
      return length <= 1 ? 0.5 * (start + end) * (n_in - 1)
                         : start * (n_in - 1) + o * (end - start) * (n_in - 1) / (length - 1);
    return o / scale;
  }

  double cubic(double distance) const {
    const double a = cubic_, t = std::fabs(distance);
    if (t <= 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    if (t < 2) return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a;
    return 0;
  }

  Source sources(int64_t n_in, int64_t n_out, double scale, double length, double start,
                 double end) const {
    Source s;
    s.outside.assign(static_cast<size_t>(n_out), 0);
    const double shrink = antialias_ && scale < 1 ? scale : 1.0;
    const double support = (mode_ == "linear" ? 1.0 : 2.0) / shrink;
    if (mode_ != "nearest") s.taps = 2 * static_cast<int64_t>(std::ceil(support));
    check(s.taps < (int64_t{1} << 24) / std::max<int64_t>(1, n_out),
          "antialiasing needs too many taps");
    for (int64_t o = 0; o < n_out; ++o) {
      const double x =
          original(static_cast<double>(o), static_cast<double>(n_in), scale, length, start, end);
      s.outside[static_cast<size_t>(o)] =
          transform_ == "tf_crop_and_resize" && !(x >= 0 && x <= static_cast<double>(n_in - 1));
      if (mode_ == "nearest") {
        double r = std::floor(x);
        if (nearest_ == "ceil") r = std::ceil(x);
        if (nearest_ == "round_prefer_floor") r = std::ceil(x - 0.5);
        if (nearest_ == "round_prefer_ceil") r = std::floor(x + 0.5);
        s.index.push_back(clamped(r, n_in));
        continue;
      }
      const double base = std::floor(x);
      const int64_t half = s.taps / 2;
      double sum = 0;
      const size_t first = s.weight.size();
      for (int64_t t = 0; t < s.taps; ++t) {
        const double i = base - static_cast<double>(half) + 1 + static_cast<double>(t);
        double w = mode_ == "linear" ? std::fmax(0.0, 1 - std::fabs(x - i) * shrink)
                                     : cubic((x - i) * shrink);
        if (exclude_outside_ && !(i >= 0 && i < static_cast<double>(n_in))) w = 0;
        s.index.push_back(clamped(i, n_in));
        s.weight.push_back(w);
        sum += w;
      }
      if ((exclude_outside_ || shrink != 1.0) && sum != 0)
        for (size_t k = first; k < s.weight.size(); ++k) s.weight[k] /= sum;
    }
    return s;
  }
  static int64_t clamped(double i, int64_t n) {
    if (!(i > 0)) return 0;
    return i > static_cast<double>(n - 1) ? n - 1 : static_cast<int64_t>(i);
  }

  template <class W>
  void pick(const Tensor& x, Tensor& y, ThreadPool& pool) const {
    const int rank = out_.rank();
    const auto steps = steps_of(in_);
    if (rank == 0) {
      *y.as<W>() = *x.as<W>();
      return;
    }
    const int64_t n = out_[rank - 1];
    const std::vector<int64_t>& inner = source_.back().index;
    // Channels last: pixels move whole.
    bool whole = true;
    for (int64_t i = 0; i < n; ++i) whole &= inner[static_cast<size_t>(i)] == i;
    pool.parallel_for(
        y.numel() / n, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            int64_t rest = row, from = 0;
            for (int d = rank - 2; d >= 0; --d) {
              from += source_[static_cast<size_t>(d)].index[static_cast<size_t>(rest % out_[d])] *
                      steps[d];
              rest /= out_[d];
            }
            const W* in = x.as<W>() + from;
            W* out = y.as<W>() + row * n;
            if (whole) {
              std::copy_n(in, n, out);
              continue;
            }
            for (int64_t i = 0; i < n; ++i) out[i] = in[inner[static_cast<size_t>(i)]];
          }
        });
  }

  // One dimension after the other, in float32 (float64 for other types).
  template <class T>
  void blend(RunContext& c, Tensor& y) const {
    using F = std::conditional_t<std::is_same_v<T, float>, float, double>;
    std::byte* scratch = c.scratch();
    F* buffers[2] = {reinterpret_cast<F*>(scratch),
                     reinterpret_cast<F*>(scratch + buffer_bytes_[0])};
    const F* in = nullptr;
    if constexpr (std::is_same_v<T, float>) {
      in = c.input(0)->as<float>();
    } else {
      F* wide = reinterpret_cast<F*>(scratch + buffer_bytes_[0] + buffer_bytes_[1]);
      const int64_t n = in_.numel();
      for (int64_t i = 0; i < n; ++i) wide[i] = static_cast<F>(c.input(0)->as<T>()[i]);
      in = wide;
    }
    Shape stage = in_;
    for (size_t m = 0; m < moving_.size(); ++m) {
      const int d = moving_[m];
      const Source& s = source_[static_cast<size_t>(d)];
      const int64_t n_in = stage[d], n_out = out_[d], inner = product(stage, d + 1, stage.rank());
      const int64_t outer = product(stage, 0, d);
      F* out = buffers[m % 2];
      if constexpr (std::is_same_v<T, float>)
        if (m + 1 == moving_.size()) out = y.as<float>();
      if (inner == 1) {
        blend_rows(s, in, out, outer, n_in, n_out, c.pool());
        in = out;
        stage[d] = n_out;
        continue;
      }
      c.pool().parallel_for(
          outer * n_out, std::max<int64_t>(1, kGrain / inner), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              const F* from = in + row / n_out * n_in * inner;
              F* to = out + row * inner;
              const size_t first = static_cast<size_t>(row % n_out * s.taps);
              for (int64_t i = 0; i < inner; ++i) to[i] = 0;
              for (int64_t t = 0; t < s.taps; ++t) {
                const F w = static_cast<F>(s.weight[first + static_cast<size_t>(t)]);
                if (w == 0) continue;
                const F* tap = from + s.index[first + static_cast<size_t>(t)] * inner;
                for (int64_t i = 0; i < inner; ++i) to[i] += tap[i] * w;
              }
            }
          });
      in = out;
      stage[d] = n_out;
    }
    const int64_t n = y.numel();
    if (static_cast<const void*>(in) == y.data) return;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_integral_v<T>)
        y.as<T>()[i] = saturated<T>(in[i]);
      else
        y.as<T>()[i] = in[i];
    }
  }

  // The last dimension: what blend does, an output at a time.
  template <class F>
  static void blend_rows(const Source& s, const F* in, F* out, int64_t outer, int64_t n_in,
                         int64_t n_out, ThreadPool& pool) {
    const int64_t* index = s.index.data();
    const double* weight = s.weight.data();
    pool.parallel_for(outer, std::max<int64_t>(1, kGrain / n_out), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const F* from = in + row * n_in;
        F* to = out + row * n_out;
        for (int64_t o = 0; o < n_out; ++o) {
          F sum = 0;
          for (int64_t t = o * s.taps; t < (o + 1) * s.taps; ++t) {
            const F w = static_cast<F>(weight[t]);
            if (w != 0) sum += from[index[t]] * w;
          }
          to[o] = sum;
        }
      }
    });
  }

  void fill_outside(Tensor& y) const {
    if (transform_ != "tf_crop_and_resize") return;
    dispatch<float, double, int8_t, uint8_t, int32_t, int64_t>(dtype_, [&]<class T>() {
      const int64_t n = y.numel();
      for (int64_t i = 0; i < n; ++i) {
        int64_t rest = i;
        bool outside = false;
        for (int d = out_.rank() - 1; d >= 0; --d) {
          outside |=
              source_[static_cast<size_t>(d)].outside[static_cast<size_t>(rest % out_[d])] != 0;
          rest /= out_[d];
        }
        if (outside) y.as<T>()[i] = static_cast<T>(extrapolation_);
      }
    });
  }

  bool upsample_;
  std::string mode_, transform_, nearest_, policy_;
  std::vector<int64_t> axes_;
  std::vector<float> scales_attribute_;
  bool antialias_, exclude_outside_;
  double cubic_;
  float extrapolation_;
  DType dtype_ = DType::kUndefined;
  Shape in_, out_;
  std::vector<Source> source_;
  std::vector<int> moving_;
  bool nearest_only_ = true;
  size_t buffer_bytes_[2] = {}, input_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_resize(const Node& n, const KernelContext& c) {
  return widened<Resize>(n, c, false);
}
std::unique_ptr<Kernel> make_upsample(const Node& n, const KernelContext& c) {
  return widened<Resize>(n, c, true);
}

}  // namespace wia
