// SPDX-License-Identifier: Apache-2.0
// Softmax and LayerNormalization next to Q or DQ, a row at a time with what surrounds them:
//
//   DQ(x), or x [/ c] [* c] [+ mask] -> Softmax over the last axis [-> Q]     QSoftmax, (25) where
//   Q ends it DQ(x), or x [+ residual] -> LayerNormalization [-> Q and floats]          QLayerNorm,
//   (23)
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

constexpr float kSmallestScale = 1e-30f;

// The one Q among the readers of y whose grid is uint8; nullptr when there is none or are several.
Node* quantizer_of(const Graph& graph, const Edges& edges, ValueId y) {
  Node* found = nullptr;
  for (Node* reader : edges.consumers(y)) {
    if (!is_quantize(reader)) continue;
    const std::optional<Grid> grid = grid_of(graph, *reader);
    if (!grid || grid->dtype != DType::kUint8 || grid->scale < kSmallestScale || found)
      return nullptr;
    found = reader;
  }
  return found;
}

bool is_float(const Graph& graph, ValueId v) { return graph.values[v].dtype == DType::kFloat32; }

// The producer of v that nothing else reads and that has this operator's two inputs.
Node* sole_maker(const Edges& edges, ValueId v, const char* op_type) {
  Node* node = edges.producer(v);
  return is_op(node, op_type) && edges.single_use(v) && node->inputs.size() == 2 ? node : nullptr;
}

// Softmax: absorbs x + mask, then x / c or x * c, from *x upwards.
void absorb_scores(Graph& graph, Edges& edges, Node& fused, ValueId* x) {
  if (Node* add = sole_maker(edges, *x, "Add")) {
    const ValueId a = add->inputs[0], b = add->inputs[1];
    auto rank = [&](ValueId v) {
      return graph.values[v].has_shape ? graph.values[v].shape.rank() : -1;
    };
    // The scores are the operand that something computes; the mask may be a constant.
    const bool first = !graph.is_constant(a) && rank(a) >= rank(b);
    const ValueId scores = first ? a : b, mask = first ? b : a;
    if (scores != mask && is_float(graph, scores) && is_float(graph, mask) &&
        !graph.is_constant(scores)) {
      edges.detach(*add);
      *x = scores;
      edges.set_input(fused, 0, scores);
      edges.set_input(fused, 1, mask);
    }
  }
  for (const char* op_type : {"Div", "Mul"}) {
    Node* scale = sole_maker(edges, *x, op_type);
    if (!scale) continue;
    const bool div = op_type[0] == 'D';
    const size_t at = !div && graph.is_constant(scale->inputs[0]) ? 0 : 1;
    const std::optional<float> c = scalar_constant(graph, scale->inputs[at]);
    const ValueId scores = scale->inputs[1 - at];
    if (!c || !is_float(graph, scores) || !graph.values[scores].has_shape ||
        graph.values[scale->inputs[at]].constant->shape.rank() > graph.values[scores].shape.rank())
      continue;
    edges.detach(*scale);
    *x = scores;
    fused.attributes[div ? "divide" : "multiply"] = *c;
    break;
  }
}

// LayerNormalization: absorbs the Add before it, when both operands have one shape.
void absorb_residual(Graph& graph, Edges& edges, Node& fused, ValueId* x) {
  Node* add = sole_maker(edges, *x, "Add");
  if (!add) return;
  const ValueId a = add->inputs[0], b = add->inputs[1];
  const Value &va = graph.values[a], &vb = graph.values[b];
  if (!va.has_shape || !vb.has_shape || !(va.shape == vb.shape)) return;
  if (!is_float(graph, a) || !is_float(graph, b) || graph.is_constant(a)) return;
  edges.detach(*add);
  *x = a;
  edges.set_input(fused, 3, b);
}

bool fuse(Graph& graph, Edges& edges, Node& node) {
  const bool softmax = node.op_type == "Softmax";
  if (softmax ? !last_axis(graph, node) : !row_affine(graph, edges, node)) return false;
  for (size_t o = 1; o < node.outputs.size(); ++o)
    if (node.outputs[o] != kNoValue) return false;
  if (!softmax && node.i("stash_type", 1) != 1) return false;
  std::optional<Levels> levels = levels_of(graph, edges, node.inputs[0]);
  if (levels && levels->grid.scale < kSmallestScale) return false;
  if (!levels && !is_float(graph, node.inputs[0])) return false;
  const ValueId y = node.outputs[0];
  Node* q = quantizer_of(graph, edges, y);
  const bool floats_too = q && !edges.single_use(y);
  if (floats_too && softmax) q = nullptr;
  if (!levels && !q) return false;

  const Grid grid = q ? grid_of(graph, *q).value_or(Grid{}) : Grid{};
  const bool quantized = q != nullptr;
  std::vector<ValueId> outputs = {q ? q->outputs[0] : y};
  if (q && floats_too) outputs.push_back(y);
  std::vector<ValueId> inputs = node.inputs;
  ValueId x = levels ? levels->q : inputs[0];
  inputs[0] = kNoValue;  // set below, once what is before it is settled
  const std::string name = node.name;
  const auto attributes = node.attributes;
  if (q) edges.detach(*q);
  edges.detach(node);
  Node& fused = graph.add_node(softmax ? "QSoftmax" : "QLayerNorm", kWiaDomain, name,
                               std::move(inputs), std::move(outputs));
  fused.opset = 1;
  if (!softmax) fused.attributes = attributes;
  edges.add(fused);
  if (levels) {
    fused.attributes["x_scale"] = levels->grid.scale;
    fused.attributes["x_zero_point"] = int64_t{levels->grid.zero_point};
  } else if (softmax) {
    // The node is gone, so nothing reads x until it is the input of the new one.
    edges.set_input(fused, 0, x);
    absorb_scores(graph, edges, fused, &x);
  } else {
    edges.set_input(fused, 0, x);
    absorb_residual(graph, edges, fused, &x);
  }
  edges.set_input(fused, 0, x);
  if (quantized) {
    fused.attributes["y_scale"] = grid.scale;
    fused.attributes["y_zero_point"] = int64_t{grid.zero_point};
  }
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
