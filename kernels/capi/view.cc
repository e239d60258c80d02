// SPDX-License-Identifier: Apache-2.0
// Strided tensors to dense ones and back.
#include "capi/view.h"

#include <algorithm>
#include <cstring>

namespace wia::capi {
namespace {

// Calls copy(element offset in the view, element index in dense order, run length in elements);
// elements of a run are next to each other on both sides.
template <class Copy>
void each_run(const View& view, Copy copy) {
  const int rank = view.shape.rank();
  const int64_t n = view.shape.numel();
  if (n == 0) return;
  int inner = rank;
  int64_t run = 1;
  while (inner > 0 && (view.shape[inner - 1] == 1 || view.strides[inner - 1] == run))
    run *= view.shape[--inner];
  int64_t index[WIA_MAX_DIMS] = {};
  for (int64_t at = 0; at < n; at += run) {
    int64_t offset = 0;
    for (int d = 0; d < inner; ++d) offset += index[d] * view.strides[d];
    copy(offset, at, run);
    for (int d = inner; d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace

View::View(const TensorObject& tensor)
    : dtype(tensor.dtype),
      shape(tensor.shape),
      data(tensor.data),
      quantization(tensor.quantization) {
  std::copy(tensor.strides, tensor.strides + WIA_MAX_DIMS, strides);
}

void View::permute(const std::vector<int>& order) {
  const View from = *this;
  for (int i = 0; i < shape.rank(); ++i) {
    shape[i] = from.shape[order[static_cast<size_t>(i)]];
    strides[i] = from.strides[order[static_cast<size_t>(i)]];
    if (from.quantization.axis == order[static_cast<size_t>(i)]) quantization.axis = i;
  }
}

bool View::is_dense() const {
  int64_t stride = 1;
  for (int d = shape.rank(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != stride) return false;
    stride *= shape[d];
  }
  return true;
}

Tensor to_dense(const View& view) {
  constexpr uintptr_t kAlignment = 64;
  if (view.is_dense() && reinterpret_cast<uintptr_t>(view.data) % kAlignment == 0) {
    Tensor tensor;
    tensor.dtype = view.dtype;
    tensor.shape = view.shape;
    tensor.data = view.data;
    return tensor;
  }
  Tensor tensor = Tensor::allocate(view.dtype, view.shape);
  const size_t size = dtype_size(view.dtype);
  each_run(view, [&](int64_t from, int64_t to, int64_t run) {
    std::memcpy(tensor.as<std::byte>() + static_cast<size_t>(to) * size,
                view.data + static_cast<size_t>(from) * size, static_cast<size_t>(run) * size);
  });
  return tensor;
}

void from_dense(const Tensor& dense, const View& view) {
  const size_t size = dtype_size(view.dtype);
  each_run(view, [&](int64_t to, int64_t from, int64_t run) {
    std::memmove(view.data + static_cast<size_t>(to) * size,
                 dense.as<std::byte>() + static_cast<size_t>(from) * size,
                 static_cast<size_t>(run) * size);
  });
}

}  // namespace wia::capi
