// SPDX-License-Identifier: Apache-2.0
// The window of a channels-last convolution or pool: strides, dilations and padding as ONNX
// attributes state them.
#pragma once

#include <array>
#include <string>

#include "ops/qconv/qconv.h"
#include "runtime/kernel.h"

namespace wia {

class Window {
 public:
  explicit Window(const Node& node);

  // The kernel's size; the attributes must have one or two spatial dimensions to match. Throws
  // Error.
  void set_kernel(const std::string& where, std::array<int64_t, 2> kernel, bool one_dimension);
  // Kernel, strides and dilations into `shape`.
  void set(QConv* shape) const;
  // The padding before a transposed convolution, which its packed form depends on; it follows from
  // the attributes as long as they do not state output_shape.
  void set_transposed_pads(const std::string& where, QConv* shape) const;

  // The output of a window slid over x [N, H, W, C] or [N, W, C]; sizes and pads go to `shape`.
  // Throws Error.
  Shape slid(const std::string& where, const Shape& x, int64_t out_channels, QConv* shape) const;
  // The output of a transposed convolution.
  Shape transposed(const std::string& where, const Shape& x, int64_t out_channels,
                   QConv* shape) const;

  // Padding at the end of the last slid(), for averages.
  std::array<int64_t, 2> pad_end() const { return pad_end_; }

 private:
  std::array<int64_t, 2> spatial(const Shape& x) const;

  std::vector<int64_t> strides_list_, dilations_list_, pads_list_, output_padding_list_,
      output_shape_list_;
  std::string auto_pad_;
  bool ceil_mode_ = false, one_dimension_ = false;
  std::array<int64_t, 2> kernel_{1, 1}, strides_{1, 1}, dilations_{1, 1}, begin_{0, 0}, end_{0, 0};
  std::array<int64_t, 2> output_padding_{0, 0};
  mutable std::array<int64_t, 2> pad_end_{0, 0};
};

}  // namespace wia
