// SPDX-License-Identifier: Apache-2.0
// Sliding windows: the attributes that Conv, ConvTranspose and the pools share, fitted to an input.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace wia {

inline constexpr int kMaxSpatial = 3;

// One to three spatial dimensions, the missing outer ones of size 1.
struct Window {
  int64_t in[kMaxSpatial] = {1, 1, 1}, out[kMaxSpatial] = {1, 1, 1};
  int64_t kernel[kMaxSpatial] = {1, 1, 1}, stride[kMaxSpatial] = {1, 1, 1},
          dilation[kMaxSpatial] = {1, 1, 1};
  int64_t pad_lo[kMaxSpatial] = {0, 0, 0}, pad_hi[kMaxSpatial] = {0, 0, 0};

  int64_t n_in() const { return in[0] * in[1] * in[2]; }
  int64_t n_out() const { return out[0] * out[1] * out[2]; }
  int64_t n_taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  // The outputs [first, last) of dimension d whose tap k reads inside the input.
  void inside(int d, int64_t k, int64_t& first, int64_t& last) const {
    const int64_t shift = k * dilation[d] - pad_lo[d];  // input = output * stride + shift
    first = shift >= 0 ? 0 : (-shift + stride[d] - 1) / stride[d];
    last = in[d] - shift <= 0 ? 0 : (in[d] - shift - 1) / stride[d] + 1;
    first = std::min(first, out[d]);
    last = std::clamp(last, first, out[d]);
  }
};

// The outputs [first, last) of the innermost dimension that each of its taps reaches inside the
// input.
struct Reach {
  int64_t first, last;
};
inline std::vector<Reach> reaches(const Window& w) {
  std::vector<Reach> all;
  for (int64_t kx = 0; kx < w.kernel[2]; ++kx) {
    Reach r;
    w.inside(2, kx, r.first, r.last);
    all.push_back(r);
  }
  return all;
}

class WindowAttributes {
 public:
  explicit WindowAttributes(const Node& node)
      : where_(node.where()),
        auto_pad_(node.s("auto_pad", "NOTSET")),
        kernel_(node.ints("kernel_shape")),
        strides_(node.ints("strides")),
        dilations_(node.ints("dilations")),
        pads_(node.ints("pads")),
        ceil_(node.i("ceil_mode", 0) != 0) {
    need(auto_pad_.empty() || auto_pad_ == "NOTSET" || auto_pad_ == "VALID" ||
             auto_pad_ == "SAME_UPPER" || auto_pad_ == "SAME_LOWER",
         "auto_pad '" + auto_pad_ + "' is not known");
  }

  const std::vector<int64_t>& kernel() const { return kernel_; }

  // For an input [N, C, spatial...]; `kernel` is empty to take the attribute's.
  Window fit(const Shape& x, std::vector<int64_t> kernel) const {
    Window w = start(x, kernel);
    const int n = x.rank() - 2, lead = kMaxSpatial - n;
    for (int i = 0; i < n; ++i) {
      const int d = lead + i;
      const int64_t span = (w.kernel[d] - 1) * w.dilation[d] + 1;
      if (auto_pad_ == "SAME_UPPER" || auto_pad_ == "SAME_LOWER") {
        w.out[d] = (w.in[d] + w.stride[d] - 1) / w.stride[d];
        const int64_t total = std::max<int64_t>(0, (w.out[d] - 1) * w.stride[d] + span - w.in[d]);
        w.pad_lo[d] = auto_pad_ == "SAME_UPPER" ? total / 2 : total - total / 2;
        w.pad_hi[d] = total - w.pad_lo[d];
      } else {
        const int64_t room = w.in[d] + w.pad_lo[d] + w.pad_hi[d] - span;
        need(room >= 0, "the kernel is larger than the padded input " + x.str());
        w.out[d] = room / w.stride[d] + 1;
        if (ceil_ && room % w.stride[d] != 0 && w.out[d] * w.stride[d] < w.in[d] + w.pad_lo[d])
          ++w.out[d];
      }
    }
    return w;
  }

  // For ConvTranspose: `out` of the input's size, from output_shape or output_padding.
  Window fit_transposed(const Shape& x, std::vector<int64_t> kernel,
                        const std::vector<int64_t>& output_shape,
                        const std::vector<int64_t>& output_padding) const {
    Window w = start(x, kernel);
    const int n = x.rank() - 2, lead = kMaxSpatial - n;
    const bool same = auto_pad_ == "SAME_UPPER" || auto_pad_ == "SAME_LOWER";
    const size_t nn = static_cast<size_t>(n);
    need(output_padding.empty() || output_padding.size() == nn,
         "output_padding has not one number a dimension");
    need(output_shape.empty() || output_shape.size() == nn || output_shape.size() == nn + 2,
         "output_shape has not one number a dimension");
    for (int i = 0; i < n; ++i) {
      const int d = lead + i;
      const size_t at = static_cast<size_t>(i);
      const int64_t span = (w.kernel[d] - 1) * w.dilation[d] + 1;
      const int64_t extra = output_padding.empty() ? 0 : output_padding[at];
      need(extra >= 0 && extra < kLimit, "output_padding is negative or too large");
      const int64_t full = w.stride[d] * (w.in[d] - 1) + extra + span;
      if (!output_shape.empty() || same) {
        w.out[d] = output_shape.empty() ? w.in[d] * w.stride[d]
                                        : output_shape[output_shape.size() - nn + at];
        need(w.out[d] >= 0 && w.out[d] < kLimit, "output_shape is negative or too large");
        const int64_t total = std::max<int64_t>(0, full - w.out[d]);
        w.pad_lo[d] = auto_pad_ == "SAME_UPPER" ? total / 2 : total - total / 2;
        w.pad_hi[d] = total - w.pad_lo[d];
      } else {
        w.out[d] = full - w.pad_lo[d] - w.pad_hi[d];
        need(w.out[d] > 0, "pads leave no output");
      }
    }
    return w;
  }

 private:
  static constexpr int64_t kLimit = int64_t{1} << 31;
  static constexpr int64_t kLargestKernel = 1 << 16;  // of those larger than the input

  void need(bool condition, const std::string& what) const {
    if (!condition) fail(WIA_ERROR_INVALID_ARGUMENT, where_ + ": " + what);
  }

  Window start(const Shape& x, std::vector<int64_t>& kernel) const {
    const int n = x.rank() - 2, lead = kMaxSpatial - n;
    if (n > kMaxSpatial)
      fail(WIA_ERROR_NOT_SUPPORTED,
           where_ + ": " + std::to_string(n) + " spatial dimensions are not supported");
    need(n >= 1, "the input " + x.str() + " has no spatial dimension");
    const size_t nn = static_cast<size_t>(n);
    if (kernel.empty()) kernel = kernel_;
    need(kernel.size() == nn, "kernel_shape has not one number a dimension");
    need(kernel_.empty() || kernel_ == kernel, "kernel_shape is not the weight's");
    need(strides_.empty() || strides_.size() == nn, "strides has not one number a dimension");
    need(dilations_.empty() || dilations_.size() == nn, "dilations has not one number a dimension");
    need(pads_.empty() || pads_.size() == 2 * nn, "pads has not two numbers a dimension");
    Window w;
    for (int i = 0; i < n; ++i) {
      const int d = lead + i;
      const size_t at = static_cast<size_t>(i);
      w.in[d] = x[i + 2];
      w.kernel[d] = kernel[at];
      w.stride[d] = strides_.empty() ? 1 : strides_[at];
      w.dilation[d] = dilations_.empty() ? 1 : dilations_[at];
      need(w.in[d] < kLimit, "the input is too large");
      need(w.kernel[d] > 0 && w.kernel[d] <= std::max(w.in[d], kLargestKernel),
           "a kernel size is not positive, or too large");
      need(w.stride[d] > 0 && w.stride[d] < kLimit, "a stride is not positive, or too large");
      need(w.dilation[d] > 0 && w.dilation[d] < kLimit, "a dilation is not positive, or too large");
      if (auto_pad_ == "NOTSET" || auto_pad_.empty()) {
        w.pad_lo[d] = pads_.empty() ? 0 : pads_[at];
        w.pad_hi[d] = pads_.empty() ? 0 : pads_[at + nn];
      }
      need(w.pad_lo[d] >= 0 && w.pad_hi[d] >= 0 && w.pad_lo[d] < kLimit && w.pad_hi[d] < kLimit,
           "a pad is negative or too large");
    }
    return w;
  }

  std::string where_, auto_pad_;
  std::vector<int64_t> kernel_, strides_, dilations_, pads_;
  bool ceil_;
};

}  // namespace wia
