// SPDX-License-Identifier: Apache-2.0
// What is left of Q and DQ per tensor becomes wia.Quantize and wia.Dequantize, which know uint8 and
// int8:
//
//   FlipSign(FlipSign(x)) = x;  FlipSign(Quantize(x)) and Dequantize(FlipSign(x)) are one node with
//   `flip`
#include <optional>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

bool is_flip(const Node* node) {
  return node && node->domain == kWiaDomain && node->op_type == "FlipSign";
}

void lower(Graph& graph, Edges& edges, Node& node, const Grid& grid) {
  const bool quantizes = is_quantize(&node);
  ValueId x = node.inputs[0], y = node.outputs[0];
  int64_t flip = 0;
  if (quantizes && edges.single_use(y) && is_flip(edges.consumers(y)[0])) {
    Node* below = edges.consumers(y)[0];
    y = below->outputs[0];
    edges.detach(*below);
    flip = 1;
  }
  if (!quantizes && is_flip(edges.producer(x))) {
    x = edges.producer(x)->inputs[0];
    flip = 1;
  }
  const std::string name = node.name;
  edges.detach(node);
  Node& made = graph.add_node(quantizes ? "Quantize" : "Dequantize", kWiaDomain, name, {x}, {y});
  made.opset = 1;
  made.attributes["scale"] = grid.scale;
  made.attributes["zero_point"] = int64_t{grid.zero_point};
  made.attributes["flip"] = flip;
  edges.add(made);
}

}  // namespace

bool lower_qdq(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    if (is_flip(&node) && is_flip(edges.producer(node.inputs[0]))) {
      edges.replace_uses(node.outputs[0], edges.producer(node.inputs[0])->inputs[0]);
      changed = true;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    const std::optional<Grid> grid = grid_of(graph, node);
    if (!grid || grid->dtype != DType::kUint8 || graph.is_constant(node.inputs[0])) continue;
    lower(graph, edges, node, *grid);
    changed = true;
  }
  return changed;
}

}  // namespace wia
