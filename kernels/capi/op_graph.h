// SPDX-License-Identifier: Apache-2.0
// One call of the C API as a small graph, so that it runs on the same kernels as models do.
#pragma once

#include <string>
#include <vector>

#include "capi/view.h"

namespace wia::capi {

// Usage: values of the inputs, nodes between them, then run() with the value that becomes the
// output. Quantized tensors come in through DequantizeLinear and go out through QuantizeLinear; the
// graph passes make integer kernels of it.
class OpGraph {
 public:
  explicit OpGraph(Context& context) : context_(context) {}

  // The reals of a tensor: dequantized, or as it is. A constant: a weight, which integer kernels
  // pack.
  ValueId real(const View& view, bool constant = false);
  // The elements of a tensor as they are, quantized or not.
  ValueId raw(const View& view);
  ValueId scalar(float value, DType dtype);
  ValueId ints(const std::vector<int64_t>& values);
  // A node of ai.onnx; its attributes may be added until the next call.
  Node& node(const char* op_type, std::vector<ValueId> inputs);
  static ValueId result(const Node& node) { return node.outputs[0]; }

  // Computes and writes the output: quantized by its own parameters, or as it is when `is_raw`.
  void run(ValueId value, const View& output, bool is_raw = false);

 private:
  ValueId feed(const View& view);
  ValueId constant(Tensor tensor);
  ValueId quantizer(const char* op_type, ValueId value, const Quantization& quantization,
                    DType dtype);
  std::string signature() const;

  Context& context_;
  Graph graph_;
  std::vector<Tensor> feeds_;
  bool cacheable_ = true;  // false: weights are inside
};

}  // namespace wia::capi
