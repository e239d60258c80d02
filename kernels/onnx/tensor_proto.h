// SPDX-License-Identifier: Apache-2.0
// TensorProto -> Tensor: every element type, raw or typed fields, in the file or beside it.
#pragma once

#include <string>

#include "base/tensor.h"
#include "onnx/external_data.h"
#include "onnx/wire.h"

namespace wia::onnx {

// The element type of data_type; throws Error naming `where` for one that libwia does not have.
DType to_dtype(int64_t data_type, const std::string& where);

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// `where` says what holds the tensor, for one without a name.
NamedTensor read_tensor(Bytes message, ExternalData& external, const std::string& where);

}  // namespace wia::onnx
