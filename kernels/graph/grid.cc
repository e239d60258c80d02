// SPDX-License-Identifier: Apache-2.0
// The grids of quantized values, as QuantizeLinear and DequantizeLinear nodes state them.
#include "graph/grid.h"

#include <algorithm>
#include <cmath>

namespace wia {

bool is_op(const Node* node, const char* op_type) {
  return node && node->domain.empty() && node->op_type == op_type;
}
bool is_quantize(const Node* node) { return is_op(node, "QuantizeLinear"); }
bool is_dequantize(const Node* node) { return is_op(node, "DequantizeLinear"); }

std::optional<float> scalar_constant(const Graph& graph, ValueId v) {
  if (!graph.is_constant(v)) return std::nullopt;
  const Tensor& t = *graph.values[v].constant;
  if (t.dtype != DType::kFloat32 || t.numel() != 1) return std::nullopt;
  return t.as<float>()[0];
}

std::optional<std::vector<int64_t>> integer_constant(const Graph& graph, ValueId v) {
  if (!graph.is_constant(v)) return std::nullopt;
  const Tensor& t = *graph.values[v].constant;
  const int64_t n = t.numel();
  if (t.dtype == DType::kInt64) return std::vector<int64_t>(t.as<int64_t>(), t.as<int64_t>() + n);
  if (t.dtype == DType::kInt32) return std::vector<int64_t>(t.as<int32_t>(), t.as<int32_t>() + n);
  return std::nullopt;
}

std::optional<Grid> grid_of(const Graph& graph, const Node& node) {
  if (!is_quantize(&node) && !is_dequantize(&node)) return std::nullopt;
  if (node.inputs.size() < 2 || node.outputs.size() != 1) return std::nullopt;
  if (node.i("block_size", 0) != 0) return std::nullopt;
  if (node.has("precision") && node.i("precision", 0) > 1) return std::nullopt;
  const std::optional<float> scale = scalar_constant(graph, node.inputs[1]);
  if (!scale || !(*scale > 0.0f) || !std::isfinite(*scale)) return std::nullopt;
  Grid grid;
  grid.scale = *scale;
  if (node.inputs.size() > 2 && node.inputs[2] != kNoValue) {
    if (!graph.is_constant(node.inputs[2])) return std::nullopt;
    const Tensor& t = *graph.values[node.inputs[2]].constant;
    if (t.numel() != 1) return std::nullopt;
    if (t.dtype == DType::kUint8) {
      grid.zero_point = t.as<uint8_t>()[0];
    } else if (t.dtype == DType::kInt8) {
      grid.zero_point = t.as<int8_t>()[0];
    } else {
      return std::nullopt;
    }
    grid.dtype = t.dtype;
  } else if (is_quantize(&node)) {
    const int64_t output_dtype = node.i("output_dtype", 0);
    grid.dtype = output_dtype ? static_cast<DType>(output_dtype) : DType::kUint8;
  } else {
    grid.dtype = graph.values[node.inputs[0]].dtype;
  }
  if (grid.dtype != DType::kUint8 && grid.dtype != DType::kInt8) return std::nullopt;
  if (is_dequantize(&node)) {
    const int64_t output_dtype = node.i("output_dtype", 0);
    if (output_dtype != 0 && output_dtype != static_cast<int64_t>(DType::kFloat32))
      return std::nullopt;
  } else if (graph.values[node.inputs[0]].dtype != DType::kFloat32 &&
             graph.values[node.inputs[0]].dtype != DType::kUndefined) {
    return std::nullopt;
  }
  return grid;
}

int32_t quantize_level(float x, const Grid& grid) {
  if (std::isnan(x)) return grid.zero_point;
  const float level = std::nearbyint(x / grid.scale) + static_cast<float>(grid.zero_point);
  return static_cast<int32_t>(
      std::clamp(level, static_cast<float>(grid.qmin()), static_cast<float>(grid.qmax())));
}

Tensor scalar_tensor(float x) {
  Tensor t = Tensor::allocate(DType::kFloat32, {});
  t.as<float>()[0] = x;
  return t;
}

Tensor scalar_tensor_u8(DType dtype, int32_t level) {
  Tensor t = Tensor::allocate(dtype, {});
  t.as<uint8_t>()[0] = static_cast<uint8_t>(level);
  return t;
}

Tensor int64_tensor(const std::vector<int64_t>& values) {
  Tensor t = Tensor::allocate(DType::kInt64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.as<int64_t>());
  return t;
}

namespace {

constexpr int kOpsetOfNewNodes = 13;

Node& add_linear(Graph& graph, const char* op_type, ValueId x, ValueId y, const Grid& grid,
                 const std::string& name) {
  const ValueId scale = graph.add_constant(name + "/scale", scalar_tensor(grid.scale));
  const ValueId zero_point =
      graph.add_constant(name + "/zero_point", scalar_tensor_u8(grid.dtype, grid.zero_point));
  Node& node = graph.add_node(op_type, "", name, {x, scale, zero_point}, {y});
  node.opset = kOpsetOfNewNodes;
  return node;
}

}  // namespace

Node& add_quantize(Graph& graph, ValueId x, ValueId y, const Grid& grid, const std::string& name) {
  return add_linear(graph, "QuantizeLinear", x, y, grid, name);
}

Node& add_dequantize(Graph& graph, ValueId x, ValueId y, const Grid& grid,
                     const std::string& name) {
  return add_linear(graph, "DequantizeLinear", x, y, grid, name);
}

ValueId add_value_like(Graph& graph, ValueId like, const std::string& name, DType dtype) {
  const bool has_shape = graph.values[like].has_shape;
  const Shape shape = graph.values[like].shape;
  const ValueId v = graph.add_value(name, dtype);
  graph.values[v].has_shape = has_shape;
  graph.values[v].shape = shape;
  return v;
}

}  // namespace wia
