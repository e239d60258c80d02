// SPDX-License-Identifier: Apache-2.0
// A tensor of the C API seen through strides, and its way into and out of dense memory.
#pragma once

#include <vector>

#include "capi/objects.h"

namespace wia::capi {

struct View {
  DType dtype = DType::kUndefined;
  Shape shape;
  int64_t strides[WIA_MAX_DIMS] = {};  // elements
  std::byte* data = nullptr;
  Quantization quantization;

  explicit View(const TensorObject& tensor);
  // Dimension i becomes what was dimension order[i].
  void permute(const std::vector<int>& order);
  bool is_dense() const;
};

// The elements in dense, aligned memory: the view's own where it is so, else a copy.
Tensor to_dense(const View& view);
// Writes a dense tensor of the view's type and shape to where the view's elements lie.
void from_dense(const Tensor& dense, const View& view);

}  // namespace wia::capi
