// SPDX-License-Identifier: Apache-2.0
// What follows an operator that ends in a quantization: Relu and Clip as bounds of the levels, then
// Q.
#pragma once

#include <optional>
#include <vector>

#include "graph/edges.h"
#include "graph/grid.h"

namespace wia {

struct ProductEnd {
  std::optional<Grid> grid;      // set: uint8 levels leave
  int32_t qmin = 0, qmax = 255;  // docs/quantization.md (10)
  ValueId out = kNoValue;        // what the fused operator makes
  std::vector<Node*> absorbed;   // the nodes between the operator and `out`
};

// The bounds of a Relu or Clip; false when the node is neither or its bounds are not constants.
bool bounds_of(const Graph& graph, const Node& node, float* lo, float* hi);

// Follows Relu, Clip and Q from `y` while nothing else reads the values between. Without a Q at the
// end, `out` is y and nothing is absorbed.
void follow(const Graph& graph, const Edges& edges, ValueId y, ProductEnd* end);

}  // namespace wia
