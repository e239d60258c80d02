// SPDX-License-Identifier: Apache-2.0
// The window of a channels-last convolution or pool.
#include "runtime/ops/qwindow.h"

#include <algorithm>

namespace wia {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;  // of any size here, so that products fit int64

}  // namespace

Window::Window(const Node& node)
    : strides_list_(node.ints("strides")),
      dilations_list_(node.ints("dilations")),
      pads_list_(node.ints("pads")),
      output_padding_list_(node.ints("output_padding")),
      output_shape_list_(node.ints("output_shape")),
      auto_pad_(node.s("auto_pad", "NOTSET")),
      ceil_mode_(node.i("ceil_mode", 0) != 0) {}

void Window::set_kernel(const std::string& where, std::array<int64_t, 2> kernel,
                        bool one_dimension) {
  one_dimension_ = one_dimension;
  kernel_ = kernel;
  const size_t n = one_dimension ? 1 : 2, at = one_dimension ? 1 : 0;
  auto take = [&](const std::vector<int64_t>& list, size_t offset, int64_t least,
                  std::array<int64_t, 2>* out, const char* what) {
    if (list.empty()) return;
    require(list.size() >= offset + n,
            where + ": attribute '" + what + "' has " + std::to_string(list.size()) + " values");
    for (size_t d = 0; d < n; ++d) {
      require(list[offset + d] >= least && list[offset + d] <= kMost,
              where + ": attribute '" + what + "' is out of range");
      (*out)[at + d] = list[offset + d];
    }
  };
  take(strides_list_, 0, 1, &strides_, "strides");
  take(dilations_list_, 0, 1, &dilations_, "dilations");
  if (auto_pad_ == "NOTSET" || auto_pad_.empty()) {
    take(pads_list_, 0, 0, &begin_, "pads");
    take(pads_list_, n, 0, &end_, "pads");
  }
  take(output_padding_list_, 0, 0, &output_padding_, "output_padding");
  for (int64_t k : kernel_)
    require(k >= 1 && k <= kMost, where + ": the kernel is empty or too large");
}

void Window::set(QConv* shape) const {
  shape->kernel_h = static_cast<size_t>(kernel_[0]);
  shape->kernel_w = static_cast<size_t>(kernel_[1]);
  shape->stride_h = static_cast<size_t>(strides_[0]);
  shape->stride_w = static_cast<size_t>(strides_[1]);
  shape->dilation_h = static_cast<size_t>(dilations_[0]);
  shape->dilation_w = static_cast<size_t>(dilations_[1]);
}

void Window::set_transposed_pads(const std::string& where, QConv* shape) const {
  require(output_shape_list_.empty(), where + ": attribute 'output_shape'");
  std::array<int64_t, 2> begin = begin_;
  for (size_t d = one_dimension_ ? 1 : 0; d < 2; ++d) {
    if (auto_pad_ != "SAME_UPPER" && auto_pad_ != "SAME_LOWER") break;
    const int64_t reach = dilations_[d] * (kernel_[d] - 1) + 1;
    const int64_t total = std::max<int64_t>(0, output_padding_[d] + reach - strides_[d]);
    begin[d] = auto_pad_ == "SAME_UPPER" ? total / 2 : total - total / 2;
  }
  shape->pad_top = static_cast<ptrdiff_t>(begin[0]);
  shape->pad_left = static_cast<ptrdiff_t>(begin[1]);
}

std::array<int64_t, 2> Window::spatial(const Shape& x) const {
  return one_dimension_ ? std::array<int64_t, 2>{1, x[1]} : std::array<int64_t, 2>{x[1], x[2]};
}

namespace {

Shape output_of(const Shape& x, std::array<int64_t, 2> out, int64_t channels, bool one_dimension) {
  return one_dimension ? Shape{x[0], out[1], channels} : Shape{x[0], out[0], out[1], channels};
}

}  // namespace

Shape Window::slid(const std::string& where, const Shape& x, int64_t out_channels,
                   QConv* shape) const {
  const std::array<int64_t, 2> in = spatial(x);
  std::array<int64_t, 2> out{}, begin = begin_, end = end_;
  for (size_t d = 0; d < 2; ++d) {
    require(in[d] >= 0 && in[d] <= kMost, where + ": x is too large");
    const int64_t reach = dilations_[d] * (kernel_[d] - 1) + 1;
    if (auto_pad_ == "SAME_UPPER" || auto_pad_ == "SAME_LOWER") {
      out[d] = (in[d] + strides_[d] - 1) / strides_[d];
      const int64_t total = std::max<int64_t>(0, (out[d] - 1) * strides_[d] + reach - in[d]);
      begin[d] = auto_pad_ == "SAME_UPPER" ? total / 2 : total - total / 2;
      end[d] = total - begin[d];
      continue;
    }
    const int64_t span = in[d] + begin[d] + end[d] - reach;
    require(span >= 0, where + ": the kernel is larger than the padded input");
    out[d] = span / strides_[d] + 1;
    if (ceil_mode_ && span % strides_[d] != 0) {
      // A window that begins beyond the input and its first padding is none.
      if (out[d] * strides_[d] < in[d] + begin[d]) ++out[d];
    }
  }
  pad_end_ = end;
  shape->batch = static_cast<size_t>(x[0]);
  shape->in_h = static_cast<size_t>(in[0]);
  shape->in_w = static_cast<size_t>(in[1]);
  shape->out_h = static_cast<size_t>(out[0]);
  shape->out_w = static_cast<size_t>(out[1]);
  shape->pad_top = static_cast<ptrdiff_t>(begin[0]);
  shape->pad_left = static_cast<ptrdiff_t>(begin[1]);
  return output_of(x, out, out_channels, one_dimension_);
}

Shape Window::transposed(const std::string& where, const Shape& x, int64_t out_channels,
                         QConv* shape) const {
  const std::array<int64_t, 2> in = spatial(x);
  std::array<int64_t, 2> out{};
  const bool same = auto_pad_ == "SAME_UPPER" || auto_pad_ == "SAME_LOWER";
  for (size_t d = 0; d < 2; ++d) {
    require(in[d] >= 0 && in[d] <= kMost, where + ": x is too large");
    const int64_t reach = dilations_[d] * (kernel_[d] - 1) + 1;
    const int64_t full = strides_[d] * (in[d] - 1) + output_padding_[d] + reach;
    out[d] = same && !(one_dimension_ && d == 0) ? in[d] * strides_[d] : full - begin_[d] - end_[d];
    require(out[d] >= 0 && out[d] <= kMost, where + ": the padding is larger than the output");
  }
  shape->batch = static_cast<size_t>(x[0]);
  shape->in_h = static_cast<size_t>(in[0]);
  shape->in_w = static_cast<size_t>(in[1]);
  shape->out_h = static_cast<size_t>(out[0]);
  shape->out_w = static_cast<size_t>(out[1]);
  return output_of(x, out, out_channels, one_dimension_);
}

}  // namespace wia
