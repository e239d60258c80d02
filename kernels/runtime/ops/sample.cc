// SPDX-License-Identifier: Apache-2.0
// Reading images between pixels, and boxes: GridSample, AffineGrid, RoiAlign, NonMaxSuppression.
#include <cmath>
#include <numeric>

#include "runtime/ops/op.h"

namespace wia {
namespace {

class GridSample final : public Op {
 public:
  GridSample(const Node& node, const KernelContext& context)
      : Op(node, context),
        mode_(node.s("mode", "linear")),
        padding_(node.s("padding_mode", "zeros")),
        align_(node.i("align_corners", 0) != 0) {
    if (mode_ == "bilinear") mode_ = "linear";
    if (mode_ == "bicubic") mode_ = "cubic";
    check(mode_ == "linear" || mode_ == "nearest" || mode_ == "cubic",
          "mode '" + mode_ + "' is not known");
    check(padding_ == "zeros" || padding_ == "border" || padding_ == "reflection",
          "padding_mode '" + padding_ + "' is not known");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape &x = c.shape(0), &grid = c.shape(1);
    for (size_t i = 0; i < 2; ++i)
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
    n_spatial_ = x.rank() - 2;
    check(n_spatial_ >= 1 && n_spatial_ <= kMax,
          "the input has not one to three spatial dimensions");
    check(grid.rank() == x.rank() && grid[0] == x[0] && grid[grid.rank() - 1] == n_spatial_,
          "the grid " + grid.str() + " does not fit the input " + x.str());
    Shape out = {x[0], x[1]};
    for (int d = 1; d < grid.rank() - 1; ++d) out.push_back(grid[d]);
    for (int d = 0; d < n_spatial_; ++d)
      check(x[d + 2] > 0 || out.numel() == 0, "the input is empty");
    points_ = product(grid, 1, grid.rank() - 1);
    c.set(0, DType::kFloat32, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const float* grid = c.input(1)->as<float>();
    float* y = c.output(0)->as<float>();
    const int64_t channels = x.shape[1], plane = product(x.shape, 2, x.shape.rank());
    c.pool().parallel_for(x.shape[0] * points_, 256, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        Tap taps[kMax];
        const int lead = kMax - n_spatial_;  // dimensions that the input lacks
        for (int d = 0; d < lead; ++d) taps[d] = {1, {0}, {1.0f}};
        int64_t size[kMax] = {1, 1, 1};
        for (int d = 0; d < n_spatial_; ++d) {  // the grid counts from the last dimension
          size[lead + d] = x.shape[d + 2];
          taps[lead + d] = tap(grid[p * n_spatial_ + n_spatial_ - 1 - d], x.shape[d + 2]);
        }
        const int64_t image = p / points_, at = p % points_;
        for (int64_t ch = 0; ch < channels; ++ch) {
          const float* in = x.as<float>() + (image * channels + ch) * plane;
          y[(image * channels + ch) * points_ + at] = blend(in, size, taps);
        }
      }
    });
  }

 private:
  static constexpr int kMax = 3;
  struct Tap {
    int n = 0;
    int64_t index[4] = {};  // -1: outside, reads 0
    float weight[4] = {};
  };

  static double reflected(double x, double lo, double hi) {
    const double range = hi - lo;
    if (range <= 0) return lo;
    double d = std::fmod(std::fabs(x - lo), 2 * range);
    if (d > range) d = 2 * range - d;
    return lo + d;
  }
  int64_t pixel(double i, int64_t n) const {
    const double last = static_cast<double>(n - 1);
    if (i >= 0 && i <= last) return static_cast<int64_t>(i);
    if (padding_ == "zeros" || i != i) return -1;
    if (padding_ == "border") return i < 0 ? 0 : n - 1;
    const double r = align_ ? reflected(i, 0, last) : reflected(i, -0.5, last + 0.5);
    return std::clamp<int64_t>(static_cast<int64_t>(r), 0, n - 1);
  }
  Tap tap(float position, int64_t n) const {
    const double size = static_cast<double>(n), lo = align_ ? 0.0 : -0.5,
                 hi = align_ ? size - 1 : size - 0.5;
    float v = align_ ? (position + 1.0f) / 2.0f * static_cast<float>(n - 1)
                     : ((position + 1.0f) * static_cast<float>(n) - 1.0f) / 2.0f;
    if (mode_ == "nearest") v = std::nearbyintf(v);
    double x = static_cast<double>(v);
    if (!(std::fabs(x) < 0x1p31)) x = x < 0 ? -0x1p31 : 0x1p31;  // far outside, or NaN
    if (x < lo || x > hi) {
      if (padding_ == "border") x = std::fmin(std::fmax(x, 0), size - 1);
      if (padding_ == "reflection") x = reflected(x, lo, hi);
    }
    Tap t;
    if (mode_ == "nearest") {
      t.n = 1;
      t.index[0] = pixel(std::trunc(x), n);
      t.weight[0] = 1;
      return t;
    }
    const double base = std::floor(x);
    const float f = static_cast<float>(x - base);
    if (mode_ == "linear") {
      t.n = 2;
      t.weight[0] = 1 - f;
      t.weight[1] = f;
    } else {
      t.n = 4;
      constexpr float a = -0.75f;
      const auto outer = [&](float d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
      const auto inner = [&](float d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
      t.weight[0] = outer(f + 1);
      t.weight[1] = inner(f);
      t.weight[2] = inner(1 - f);
      t.weight[3] = outer(2 - f);
    }
    for (int i = 0; i < t.n; ++i) t.index[i] = pixel(base + i - (t.n == 4 ? 1 : 0), n);
    return t;
  }
  static float blend(const float* x, const int64_t* size, const Tap* taps) {
    float sum = 0;
    for (int k = 0; k < taps[0].n; ++k) {
      if (taps[0].index[k] < 0) continue;
      float plane = 0;
      for (int j = 0; j < taps[1].n; ++j) {
        if (taps[1].index[j] < 0) continue;
        const float* in = x + (taps[0].index[k] * size[1] + taps[1].index[j]) * size[2];
        float row = 0;
        for (int i = 0; i < taps[2].n; ++i)
          if (taps[2].index[i] >= 0) row += taps[2].weight[i] * in[taps[2].index[i]];
        plane += taps[1].weight[j] * row;
      }
      sum += taps[0].weight[k] * plane;
    }
    return sum;
  }

  std::string mode_, padding_;
  bool align_;
  int n_spatial_ = 2;
  int64_t points_ = 0;
};

class AffineGrid final : public Op {
 public:
  AffineGrid(const Node& node, const KernelContext& context)
      : Op(node, context), align_(node.i("align_corners", 0) != 0) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    if (c.dtype(0) != DType::kFloat32) bad_type(c.dtype(0));
    if (!c.value(1)) return Inferred::kNeedsValues;
    const std::vector<int64_t> size = ints_of(*c.value(1));
    check(size.size() == 4 || size.size() == 5, "size has not four or five numbers");
    n_ = static_cast<int>(size.size()) - 2;
    for (int64_t d : size) check(d >= 0 && d < (int64_t{1} << 31), "size is negative or too large");
    check(c.shape(0) == Shape({size[0], n_, n_ + 1}), "theta does not fit size");
    Shape out = {size[0]};
    for (int d = 0; d < n_; ++d) out.push_back(dims_[d] = size[static_cast<size_t>(d) + 2]);
    out.push_back(n_);
    out.numel();
    c.set(0, DType::kFloat32, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& theta = *c.input(0);
    Tensor& y = *c.output(0);
    int64_t points = 1;
    for (int d = 0; d < n_; ++d) points *= dims_[d];
    for (int64_t p = 0; p < theta.shape[0] * points; ++p) {
      double at[4] = {0, 0, 0, 1};  // x, y(, z), 1
      int64_t rest = p % points;
      for (int d = n_ - 1; d >= 0; --d) {
        const double i = static_cast<double>(rest % dims_[d]), n = static_cast<double>(dims_[d]);
        rest /= dims_[d];
        at[n_ - 1 - d] = align_ ? (dims_[d] > 1 ? -1 + 2 * i / (n - 1) : -1) : (2 * i + 1) / n - 1;
      }
      at[n_] = 1;
      const float* t = theta.as<float>() + p / points * n_ * (n_ + 1);
      for (int r = 0; r < n_; ++r) {
        double sum = 0;
        for (int k = 0; k <= n_; ++k) sum += static_cast<double>(t[r * (n_ + 1) + k]) * at[k];
        y.as<float>()[p * n_ + r] = static_cast<float>(sum);
      }
    }
  }

 private:
  bool align_;
  int n_ = 2;
  int64_t dims_[3] = {};
};

class RoiAlign final : public Op {
 public:
  RoiAlign(const Node& node, const KernelContext& context)
      : Op(node, context),
        max_(node.s("mode", "avg") == "max"),
        half_(node.s("coordinate_transformation_mode",
                     node.opset < 16 ? "output_half_pixel" : "half_pixel") == "half_pixel"),
        height_(node.i("output_height", 1)),
        width_(node.i("output_width", 1)),
        ratio_(node.i("sampling_ratio", 0)),
        scale_(node.f("spatial_scale", 1.0f)) {
    check(height_ > 0 && width_ > 0 && height_ < 65536 && width_ < 65536,
          "the output size is not positive, or too large");
    check(ratio_ >= 0 && ratio_ < 4096, "sampling_ratio is negative or too large");
  }
  Inferred infer(InferContext& c) override {
    check_inputs(c, 3);
    const Shape &x = c.shape(0), &rois = c.shape(1);
    for (size_t i = 0; i < 2; ++i)
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
    check(x.rank() == 4 && x[2] > 0 && x[3] > 0, "the input is not [N, C, H, W]");
    check(rois.rank() == 2 && rois[1] == 4, "rois is not [n, 4]");
    check_type(c.dtype(2), DType::kInt64, "batch_indices");
    check(c.shape(2) == Shape({rois[0]}), "batch_indices is not one number for each roi");
    const Shape out = {rois[0], x[1], height_, width_};
    out.numel();
    c.set(0, DType::kFloat32, out);
    return Inferred::kDone;
  }
  void run(RunContext& c) override {
    const Tensor& x = *c.input(0);
    const float* rois = c.input(1)->as<float>();
    const int64_t* images = c.input(2)->as<int64_t>();
    float* y = c.output(0)->as<float>();
    const int64_t n_rois = c.input(1)->shape[0], channels = x.shape[1],
                  plane = x.shape[2] * x.shape[3];
    for (int64_t r = 0; r < n_rois; ++r) {
      check(images[r] >= 0 && images[r] < x.shape[0], "a batch index is out of range");
      for (int i = 0; i < 4; ++i)
        check(std::fabs(rois[r * 4 + i] * scale_) < 1e6f, "a roi is too large or not a number");
      const float bins =
          std::fabs((rois[r * 4 + 2] - rois[r * 4]) * scale_ / static_cast<float>(width_)) *
          std::fabs((rois[r * 4 + 3] - rois[r * 4 + 1]) * scale_ / static_cast<float>(height_));
      check(bins < 1e6f, "a roi needs too many samples");
    }
    c.pool().parallel_for(n_rois * channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / channels;
        pool_roi(x.as<float>() + (images[r] * channels + i % channels) * plane, x.shape[2],
                 x.shape[3], rois + r * 4, y + i * height_ * width_);
      }
    });
  }

 private:
  void pool_roi(const float* x, int64_t h, int64_t w, const float* roi, float* y) const {
    const float offset = half_ ? 0.5f : 0.0f;
    const float x0 = roi[0] * scale_ - offset, y0 = roi[1] * scale_ - offset;
    float roi_w = roi[2] * scale_ - offset - x0, roi_h = roi[3] * scale_ - offset - y0;
    if (!half_) {
      roi_w = std::fmax(roi_w, 1.0f);
      roi_h = std::fmax(roi_h, 1.0f);
    }
    const float bin_h = roi_h / static_cast<float>(height_),
                bin_w = roi_w / static_cast<float>(width_);
    const int64_t ny = ratio_ ? ratio_ : static_cast<int64_t>(std::ceil(bin_h));
    const int64_t nx = ratio_ ? ratio_ : static_cast<int64_t>(std::ceil(bin_w));
    const float count = static_cast<float>(std::max<int64_t>(ny * nx, 1));
    for (int64_t ph = 0; ph < height_; ++ph)
      for (int64_t pw = 0; pw < width_; ++pw) {
        float sum = 0, peak = 0;
        bool first = true;
        for (int64_t iy = 0; iy < ny; ++iy)
          for (int64_t ix = 0; ix < nx; ++ix) {
            const float at_y = y0 + static_cast<float>(ph) * bin_h +
                               (static_cast<float>(iy) + 0.5f) * bin_h / static_cast<float>(ny);
            const float at_x = x0 + static_cast<float>(pw) * bin_w +
                               (static_cast<float>(ix) + 0.5f) * bin_w / static_cast<float>(nx);
            float corners[4] = {};
            sample(x, h, w, at_y, at_x, corners);
            sum += corners[0] + corners[1] + corners[2] + corners[3];
            const float largest =
                std::fmax(std::fmax(corners[0], corners[1]), std::fmax(corners[2], corners[3]));
            peak = first ? largest : std::fmax(peak, largest);
            first = false;
          }
        y[ph * width_ + pw] = max_ ? peak : sum / count;
      }
  }
  // The four weighted corners of a bilinear sample; zeros outside.
  static void sample(const float* x, int64_t h, int64_t w, float at_y, float at_x, float* corners) {
    if (!(at_y >= -1.0f && at_y <= static_cast<float>(h) && at_x >= -1.0f &&
          at_x <= static_cast<float>(w)))
      return;
    float py = std::fmax(at_y, 0.0f), px = std::fmax(at_x, 0.0f);
    int64_t y0 = static_cast<int64_t>(py), x0 = static_cast<int64_t>(px), y1 = y0 + 1, x1 = x0 + 1;
    if (y0 >= h - 1) {
      y0 = y1 = h - 1;
      py = static_cast<float>(y0);
    }
    if (x0 >= w - 1) {
      x0 = x1 = w - 1;
      px = static_cast<float>(x0);
    }
    const float ly = py - static_cast<float>(y0), lx = px - static_cast<float>(x0), hy = 1.0f - ly,
                hx = 1.0f - lx;
    corners[0] = hy * hx * x[y0 * w + x0];
    corners[1] = hy * lx * x[y0 * w + x1];
    corners[2] = ly * hx * x[y1 * w + x0];
    corners[3] = ly * lx * x[y1 * w + x1];
  }

  bool max_, half_;
  int64_t height_, width_, ratio_;
  float scale_;
};

class NonMaxSuppression final : public Op {
 public:
  NonMaxSuppression(const Node& node, const KernelContext& context)
      : Op(node, context),
        center_(node.i("center_point_box", 0) != 0),
        n_inputs_(node.inputs.size()) {}
  Inferred infer(InferContext& c) override {
    check_inputs(c, 2);
    const Shape &boxes = c.shape(0), &scores = c.shape(1);
    for (size_t i = 0; i < 2; ++i)
      if (c.dtype(i) != DType::kFloat32) bad_type(c.dtype(i));
    check(boxes.rank() == 3 && boxes[2] == 4, "boxes is not [batches, n, 4]");
    check(scores.rank() == 3 && scores[0] == boxes[0] && scores[2] == boxes[1],
          "scores is not [batches, classes, n]");
    for (size_t i = 2; i < 5; ++i) {
      if (!given(c, i)) continue;
      check_type(c.dtype(i), i == 2 ? DType::kInt64 : DType::kFloat32, "a parameter");
      check(c.shape(i).numel() == 1, "a parameter is not a scalar");
    }
    return Inferred::kAtRun;
  }
  void run(RunContext& c) override {
    const Tensor &boxes = *c.input(0), &scores = *c.input(1);
    const Tensor* limit = parameter(c, 2);
    const Tensor* overlap = parameter(c, 3);
    const Tensor* least = parameter(c, 4);
    const int64_t max_boxes = limit ? *limit->as<int64_t>() : 0;
    const float iou_threshold = overlap ? *overlap->as<float>() : 0.0f;
    const float score_threshold =
        least ? *least->as<float>() : -std::numeric_limits<float>::infinity();
    const int64_t n = boxes.shape[1], classes = scores.shape[1];
    std::vector<int64_t> selected, order, kept;
    for (int64_t batch = 0; batch < boxes.shape[0] && max_boxes > 0; ++batch)
      for (int64_t k = 0; k < classes; ++k) {
        const float* score = scores.as<float>() + (batch * classes + k) * n;
        const float* box = boxes.as<float>() + batch * n * 4;
        order.clear();
        for (int64_t i = 0; i < n; ++i)
          if (least ? score[i] > score_threshold : score[i] == score[i]) order.push_back(i);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return score[a] > score[b]; });
        kept.clear();
        for (int64_t i : order) {
          if (static_cast<int64_t>(kept.size()) >= max_boxes) break;
          const bool clash = std::any_of(kept.begin(), kept.end(), [&](int64_t other) {
            return iou(box + i * 4, box + other * 4) > iou_threshold;
          });
          if (!clash) kept.push_back(i);
        }
        for (int64_t i : kept) selected.insert(selected.end(), {batch, k, i});
      }
    Tensor y = Tensor::allocate(DType::kInt64, {static_cast<int64_t>(selected.size()) / 3, 3});
    std::copy(selected.begin(), selected.end(), y.as<int64_t>());
    *c.output(0) = y;
  }

 private:
  const Tensor* parameter(RunContext& c, size_t i) const {
    return i < n_inputs_ ? c.input(i) : nullptr;
  }
  void corners(const float* box, float* c) const {
    if (center_) {
      c[0] = box[0] - box[2] / 2;
      c[1] = box[1] - box[3] / 2;
      c[2] = box[0] + box[2] / 2;
      c[3] = box[1] + box[3] / 2;
    } else {
      for (int i = 0; i < 2; ++i) {
        c[i] = std::fmin(box[i], box[i + 2]);
        c[i + 2] = std::fmax(box[i], box[i + 2]);
      }
    }
  }
  float iou(const float* a, const float* b) const {
    float ca[4], cb[4];
    corners(a, ca);
    corners(b, cb);
    const float h = std::fmax(0.0f, std::fmin(ca[2], cb[2]) - std::fmax(ca[0], cb[0]));
    const float w = std::fmax(0.0f, std::fmin(ca[3], cb[3]) - std::fmax(ca[1], cb[1]));
    const float both = h * w, area_a = (ca[2] - ca[0]) * (ca[3] - ca[1]),
                area_b = (cb[2] - cb[0]) * (cb[3] - cb[1]);
    const float either = area_a + area_b - both;
    return either > 0 ? both / either : 0.0f;
  }

  bool center_;
  size_t n_inputs_;
};

}  // namespace

std::unique_ptr<Kernel> make_grid_sample(const Node& n, const KernelContext& c) {
  return widened<GridSample>(n, c);
}
std::unique_ptr<Kernel> make_affine_grid(const Node& n, const KernelContext& c) {
  return widened<AffineGrid>(n, c);
}
std::unique_ptr<Kernel> make_roi_align(const Node& n, const KernelContext& c) {
  return widened<RoiAlign>(n, c);
}
std::unique_ptr<Kernel> make_non_max_suppression(const Node& n, const KernelContext& c) {
  return std::make_unique<NonMaxSuppression>(n, c);
}

}  // namespace wia
