// SPDX-License-Identifier: Apache-2.0
// Softmax and LayerNormalization next to Q or DQ work on levels, a row at a time:
//
//   [DQ ->] Softmax over the last axis [-> Q]         QSoftmax
//   [DQ ->] LayerNormalization [-> Q]                 QLayerNorm
//
// The floats in between are the same, so the bytes are too.
#include <algorithm>
#include <optional>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/levels.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int kSoftmaxOfOneAxis = 13;

bool last_axis(const Graph& graph, const Node& node) {
  const Value& x = graph.values[node.inputs[0]];
  const int64_t axis = node.i("axis", node.opset < kSoftmaxOfOneAxis ? 1 : -1);
  return axis == -1 || (x.has_shape && axis == x.shape.rank() - 1);
}

// Scale and bias of exactly the normalized shape, one row; dequantized constants become constants.
bool row_affine(Graph& graph, Edges& edges, Node& node) {
  const Value& x = graph.values[node.inputs[0]];
  if (!x.has_shape || node.inputs.size() < 2) return false;
  const int64_t rank = x.shape.rank(), stated = node.i("axis", -1);
  const int64_t axis = stated < 0 ? stated + rank : stated;
  if (axis < 0 || axis >= rank) return false;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue) continue;
    if (!graph.is_constant(node.inputs[i])) {
      const std::optional<std::vector<float>> reals = constant_reals(graph, edges, node.inputs[i]);
      if (!reals) return false;
      const Node* dq = edges.producer(node.inputs[i]);
      Tensor t = Tensor::allocate(DType::kFloat32, graph.values[dq->inputs[0]].constant->shape);
      std::copy(reals->begin(), reals->end(), t.as<float>());
      edges.set_input(node, i, graph.add_constant(node.name + "/affine", std::move(t)));
    }
    const Tensor& t = *graph.values[node.inputs[i]].constant;
    if (t.dtype != DType::kFloat32 || t.shape.rank() != rank - axis) return false;
    for (int d = 0; d < t.shape.rank(); ++d)
      if (t.shape[d] != x.shape[d + static_cast<int>(axis)]) return false;
  }
  return true;
}

bool fuse(Graph& graph, Edges& edges, Node& node) {
  const bool softmax = node.op_type == "Softmax";
  if (softmax ? !last_axis(graph, node) : !row_affine(graph, edges, node)) return false;
  for (size_t o = 1; o < node.outputs.size(); ++o)
    if (node.outputs[o] != kNoValue) return false;
  if (!softmax && node.i("stash_type", 1) != 1) return false;
  const std::optional<Levels> x = levels_of(graph, edges, node.inputs[0]);
  if (!x && graph.values[node.inputs[0]].dtype != DType::kFloat32) return false;
  ValueId y = node.outputs[0];
  std::optional<Grid> grid;
  if (edges.single_use(y)) {
    Node* q = edges.consumers(y)[0];
    grid = is_quantize(q) ? grid_of(graph, *q) : std::nullopt;
    if (grid && grid->dtype != DType::kUint8) grid.reset();
    if (grid) {
      y = q->outputs[0];
      edges.detach(*q);
    }
  }
  if (!x && !grid) return false;
  std::vector<ValueId> inputs = node.inputs;
  if (x) inputs[0] = x->q;
  const std::string name = node.name;
  const auto attributes = node.attributes;
  edges.detach(node);
  Node& fused =
      graph.add_node(softmax ? "QSoftmax" : "QLayerNorm", kWiaDomain, name, std::move(inputs), {y});
  fused.opset = 1;
  if (!softmax) fused.attributes = attributes;
  if (x) {
    fused.attributes["x_scale"] = x->grid.scale;
    fused.attributes["x_zero_point"] = int64_t{x->grid.zero_point};
  }
  if (grid) {
    fused.attributes["y_scale"] = grid->scale;
    fused.attributes["y_zero_point"] = int64_t{grid->zero_point};
  }
  edges.add(fused);
  return true;
}

}  // namespace

bool fuse_rows(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    if (is_op(&node, "Softmax") || is_op(&node, "LayerNormalization"))
      changed |= fuse(graph, edges, node);
  }
  return changed;
}

}  // namespace wia
