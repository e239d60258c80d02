// SPDX-License-Identifier: Apache-2.0
// Tensors of the C API.
#include <algorithm>
#include <cmath>

#include "capi/objects.h"

using namespace wia;
using namespace wia::capi;

namespace {

void check_quantization(const wia_quantization_t& q, TensorObject& tensor) {
  if (q.scheme == WIA_QUANTIZATION_NONE) return;
  require(q.scheme >= WIA_QUANTIZATION_PER_TENSOR_SYMMETRIC &&
              q.scheme <= WIA_QUANTIZATION_PER_CHANNEL_ASYMMETRIC,
          "quantization.scheme is no wia_quantization_scheme_t");
  require(
      tensor.dtype == DType::kInt8 || tensor.dtype == DType::kUint8 ||
          tensor.dtype == DType::kInt32,
      std::string("quantization is for INT8, UINT8 and INT32, not ") + dtype_name(tensor.dtype));
  require(q.scales != nullptr, "quantization.scales must not be NULL");
  int count = 1;
  if (q.scheme == WIA_QUANTIZATION_PER_CHANNEL_ASYMMETRIC) {
    require(q.channel_axis >= 0 && q.channel_axis < tensor.shape.rank(),
            "quantization.channel_axis is out of range");
    tensor.quantization.axis = q.channel_axis;
    require(tensor.shape[q.channel_axis] <= INT32_MAX, "quantization.channel_axis is too long");
    count = static_cast<int>(tensor.shape[q.channel_axis]);
  }
  require(q.count == count, "quantization.count must be " + std::to_string(count) + ", not " +
                                std::to_string(q.count));
  const int64_t qmin = tensor.dtype == DType::kUint8  ? 0
                       : tensor.dtype == DType::kInt8 ? -128
                                                      : INT32_MIN;
  const int64_t qmax = tensor.dtype == DType::kUint8  ? 255
                       : tensor.dtype == DType::kInt8 ? 127
                                                      : INT32_MAX;
  for (int i = 0; i < count; ++i) {
    const int32_t zero_point = q.zero_points ? q.zero_points[i] : 0;
    require(std::isfinite(q.scales[i]) && q.scales[i] > 0,
            "quantization.scales[" + std::to_string(i) + "] is not > 0");
    require(zero_point >= qmin && zero_point <= qmax, "quantization.zero_points[" +
                                                          std::to_string(i) + "] is outside " +
                                                          dtype_name(tensor.dtype));
    require(q.scheme != WIA_QUANTIZATION_PER_TENSOR_SYMMETRIC || zero_point == 0,
            "quantization.zero_points of a symmetric scheme must be 0");
    tensor.quantization.scales.push_back(q.scales[i]);
    tensor.quantization.zero_points.push_back(zero_point);
  }
  tensor.quantization.scheme = q.scheme;
}

// Fills in strides; returns the bytes from element 0 to the end of the last one.
size_t check_strides(const wia_tensor_desc_t& desc, TensorObject& tensor) {
  const int rank = tensor.shape.rank();
  const bool dense =
      std::all_of(desc.strides, desc.strides + rank, [](int64_t s) { return s == 0; });
  int64_t stride = 1;
  for (int d = rank; d-- > 0;) {
    tensor.strides[d] = dense ? stride : desc.strides[d];
    stride *= tensor.shape[d];
  }
  int64_t last = 0;
  if (tensor.shape.numel() == 0) return 0;
  constexpr int64_t kMaxSpan = int64_t{1} << 40;  // elements, as of any tensor
  for (int d = 0; d < rank; ++d) {
    require(tensor.strides[d] >= 0 && tensor.strides[d] <= kMaxSpan,
            "desc->strides[" + std::to_string(d) + "] is negative or too large");
    last += (tensor.shape[d] - 1) *
            (tensor.shape[d] > 1 ? std::min(tensor.strides[d], kMaxSpan / tensor.shape[d]) : 0);
    require(tensor.shape[d] == 1 || tensor.strides[d] <= kMaxSpan / tensor.shape[d],
            "desc->strides span too much");
  }
  require(last < kMaxSpan, "desc->strides span too much");
  return (static_cast<size_t>(last) + 1) * dtype_size(tensor.dtype);
}

}  // namespace

extern "C" wia_status_t wia_allocate_tensor(wia_context_t ctx, const wia_tensor_desc_t* desc,
                                            wia_tensor_t* tensor) {
  return guard(__func__, [&] {
    auto context = get<Context>(ctx, "ctx");
    require(desc != nullptr && tensor != nullptr, "desc and tensor must not be NULL");
    auto object = std::make_shared<TensorObject>();
    object->dtype = static_cast<DType>(desc->dtype);
    require(desc->dtype > 0 && desc->dtype <= WIA_INT4 && dtype_size(object->dtype) != 0,
            "desc->dtype is no element type");
    require(desc->rank >= 0 && desc->rank <= WIA_MAX_DIMS,
            "desc->rank must be 0 to 8, not " + std::to_string(desc->rank));
    for (int d = 0; d < desc->rank; ++d) {
      require(desc->dims[d] >= 0, "desc->dims[" + std::to_string(d) + "] must not be negative");
      object->shape.push_back(desc->dims[d]);
    }
    (void)object->shape.numel();
    require(desc->layout >= WIA_LAYOUT_NCHW && desc->layout <= WIA_LAYOUT_CHWN,
            "desc->layout is no wia_layout_t");
    object->layout = desc->layout;
    const size_t span = check_strides(*desc, *object);
    check_quantization(desc->quantization, *object);
    const size_t size = dtype_size(object->dtype);
    if (desc->buffer) {
      require(desc->data == nullptr, "desc->buffer and desc->data exclude each other");
      auto buffer = get_in<capi::Buffer>(*context, desc->buffer, "desc->buffer");
      require(desc->offset_bytes % size == 0,
              "desc->offset_bytes is no multiple of the element size");
      require(desc->offset_bytes <= buffer->size && span <= buffer->size - desc->offset_bytes,
              "the tensor needs " + std::to_string(span) + " bytes from byte " +
                  std::to_string(desc->offset_bytes) + ", but the buffer has " +
                  std::to_string(buffer->size));
      object->memory = buffer->memory;
      object->data = static_cast<std::byte*>(buffer->memory.get()) + desc->offset_bytes;
    } else if (desc->data) {
      require(reinterpret_cast<uintptr_t>(desc->data) % size == 0,
              "desc->data is not aligned to its elements");
      object->data = static_cast<std::byte*>(desc->data);
    } else {
      const BudgetScope scope(context->budget);
      const Tensor memory = Tensor::allocate(DType::kUint8, {static_cast<int64_t>(span)});
      object->memory = memory.owner;
      object->data = static_cast<std::byte*>(memory.data);
    }
    *tensor = adopt<wia_tensor_t>(context, std::move(object));
  });
}

extern "C" wia_status_t wia_free_tensor(wia_tensor_t tensor) {
  return guard(__func__, [&] { release<TensorObject>(tensor, "tensor"); });
}

extern "C" wia_status_t wia_get_tensor_data(wia_tensor_t tensor, void** data) {
  return guard(__func__, [&] {
    auto object = get<TensorObject>(tensor, "tensor");
    require(data != nullptr, "data must not be NULL");
    *data = object->data;
  });
}

extern "C" wia_status_t wia_get_tensor_desc(wia_tensor_t tensor, wia_tensor_desc_t* desc) {
  return guard(__func__, [&] {
    auto object = get<TensorObject>(tensor, "tensor");
    require(desc != nullptr, "desc must not be NULL");
    *desc = {};
    desc->dtype = static_cast<wia_datatype_t>(object->dtype);
    desc->rank = object->shape.rank();
    for (int d = 0; d < desc->rank; ++d) {
      desc->dims[d] = object->shape[d];
      desc->strides[d] = object->strides[d];
    }
    desc->layout = object->layout;
    const Quantization& q = object->quantization;
    desc->quantization.scheme = q.scheme;
    desc->quantization.scales = q.scales.data();
    desc->quantization.zero_points = q.zero_points.data();
    desc->quantization.count = static_cast<int>(q.scales.size());
    desc->quantization.channel_axis = q.axis;
    desc->data = object->data;
  });
}
