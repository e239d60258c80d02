// SPDX-License-Identifier: Apache-2.0
// What follows an operator that ends in a quantization.
#include "graph/ending.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace wia {

bool bounds_of(const Graph& graph, const Node& node, float* lo, float* hi) {
  *lo = -std::numeric_limits<float>::infinity();
  *hi = std::numeric_limits<float>::infinity();
  if (is_op(&node, "Relu")) {
    *lo = 0.0f;
    return true;
  }
  if (!is_op(&node, "Clip")) return false;
  if (node.opset < 11) {
    *lo = node.f("min", *lo);
    *hi = node.f("max", *hi);
    return *lo <= *hi;
  }
  for (size_t i = 1; i < 3 && i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue) continue;
    const std::optional<float> bound = scalar_constant(graph, node.inputs[i]);
    if (!bound) return false;
    *(i == 1 ? lo : hi) = *bound;
  }
  return *lo <= *hi;
}

void follow(const Graph& graph, const Edges& edges, ValueId y, ProductEnd* end) {
  end->out = y;
  float lo = -std::numeric_limits<float>::infinity(), hi = std::numeric_limits<float>::infinity();
  std::vector<Node*> passed;
  ValueId at = y;
  while (edges.single_use(at)) {
    Node* next = edges.consumers(at)[0];
    float next_lo = 0, next_hi = 0;
    if (bounds_of(graph, *next, &next_lo, &next_hi) && next->inputs[0] == at) {
      lo = std::clamp(lo, next_lo, next_hi);
      hi = std::clamp(hi, next_lo, next_hi);
      passed.push_back(next);
      at = next->outputs[0];
      continue;
    }
    const std::optional<Grid> grid = grid_of(graph, *next);
    if (!is_quantize(next) || !grid || grid->dtype != DType::kUint8) return;
    passed.push_back(next);
    end->grid = grid;
    end->qmin = quantize_level(lo, *grid);
    end->qmax = quantize_level(hi, *grid);
    end->out = next->outputs[0];
    end->absorbed.insert(end->absorbed.end(), passed.begin(), passed.end());
    return;
  }
}

}  // namespace wia
