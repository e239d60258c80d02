// SPDX-License-Identifier: Apache-2.0
// The 8-bit levels behind a float value: what DequantizeLinear made it of.
#pragma once

#include <optional>
#include <vector>

#include "graph/edges.h"
#include "graph/graph.h"
#include "graph/grid.h"

namespace wia {

// x = dequantize(q) on one uint8 grid.
struct Levels {
  ValueId q;
  Grid grid;
};

// The levels of x where a per-tensor DequantizeLinear makes it; an int8 constant is moved to uint8
// as a new constant.
std::optional<Levels> levels_of(Graph& graph, const Edges& edges, ValueId x);

// A float32 constant as a constant of levels; kNoValue when `exactly` and an element is no level of
// the grid.
ValueId constant_levels(Graph& graph, ValueId x, const Grid& grid, bool exactly);

// Constant 8-bit weights behind a DequantizeLinear, per tensor or along one axis.
struct WeightLevels {
  const Tensor* q;                  // int8 or uint8
  std::vector<float> scale;         // one value, or one for each index of the axis; finite and > 0
  std::vector<int32_t> zero_point;  // as many as scales
  int axis;                         // -1: one scale
};
std::optional<WeightLevels> weight_levels_of(const Graph& graph, const Edges& edges, ValueId w);

// The reals of a constant float32 value, or of the DequantizeLinear of a constant (8-bit or int32);
// nullopt otherwise.
std::optional<std::vector<float>> constant_reals(const Graph& graph, const Edges& edges, ValueId x);

}  // namespace wia
