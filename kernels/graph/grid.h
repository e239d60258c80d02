// SPDX-License-Identifier: Apache-2.0
// The grids of quantized values, as QuantizeLinear and DequantizeLinear nodes state them.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace wia {

// One scale and one zero point: docs/quantization.md (1), (2).
struct Grid {
  DType dtype = DType::kUint8;  // kUint8 or kInt8
  float scale = 1.0f;           // finite, > 0
  int32_t zero_point = 0;
  int32_t qmin() const { return dtype == DType::kInt8 ? -128 : 0; }
  int32_t qmax() const { return dtype == DType::kInt8 ? 127 : 255; }
  bool operator==(const Grid&) const = default;
};

bool is_op(const Node* node, const char* op_type);  // of ai.onnx

bool is_quantize(const Node* node);
bool is_dequantize(const Node* node);

// The grid of a QuantizeLinear or DequantizeLinear node between float32 and 8-bit integers whose
// scale and zero point are constants of one element; nullopt for any other (per-channel, blocked,
// dynamic, another type).
std::optional<Grid> grid_of(const Graph& graph, const Node& node);

// The element that a constant of one float32 element holds; nullopt otherwise.
std::optional<float> scalar_constant(const Graph& graph, ValueId v);

// Any integer constant (int32 or int64) as a list; nullopt otherwise.
std::optional<std::vector<int64_t>> integer_constant(const Graph& graph, ValueId v);

// level = saturate(rhe(x / scale) + zero_point), equation (1).
int32_t quantize_level(float x, const Grid& grid);
// equation (2).
inline float dequantize_level(int32_t q, const Grid& grid) {
  return static_cast<float>(q - grid.zero_point) * grid.scale;
}

// A QuantizeLinear (float -> grid) or DequantizeLinear (grid -> float) node of these parameters,
// appended.
Node& add_quantize(Graph& graph, ValueId x, ValueId y, const Grid& grid, const std::string& name);
Node& add_dequantize(Graph& graph, ValueId x, ValueId y, const Grid& grid, const std::string& name);

// A new value with the type given and the shape of another.
ValueId add_value_like(Graph& graph, ValueId like, const std::string& name, DType dtype);

Tensor scalar_tensor(float x);
Tensor scalar_tensor_u8(DType dtype, int32_t level);
Tensor int64_tensor(const std::vector<int64_t>& values);

}  // namespace wia
