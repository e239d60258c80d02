// SPDX-License-Identifier: Apache-2.0
// Integers as far as they go: quantizing and dequantizing commute with operators that only move or
// select values.
//
//   M(DQ(q))         = DQ(M(q))                   every data input on one grid; constants must be
//   levels of it Q(M(x))          = M(Q(x))                    so a Concat of different scales
//   requantizes each input
//
// Both are exact: DQ is increasing and Q is monotone, elementwise. Sinking DQ moves one byte
// instead of four; raising Q brings it next to the operator that makes the values.
#include <algorithm>
#include <optional>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/levels.h"
#include "graph/movers.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int kIntegerMovers =
    13;  // the opset from which MaxPool, ReduceMax and ReduceMin take 8-bit integers

void now_on_levels(Node& node) {
  if (node.op_type == "MaxPool" || node.op_type == "ReduceMax" || node.op_type == "ReduceMin")
    node.opset = std::max(node.opset, kIntegerMovers);
}

// The levels of one data input on `grid`, made a constant where the input is one; kNoValue when it
// has none exactly.
ValueId exact_levels(Graph& graph, const Edges& edges, ValueId x, const Grid& grid) {
  if (graph.is_constant(x)) {
    const Tensor& t = *graph.values[x].constant;
    if (t.dtype != DType::kFloat32) return kNoValue;
    return constant_levels(graph, x, grid, /*exactly=*/true);
  }
  const std::optional<Levels> levels = levels_of(graph, edges, x);
  return levels && levels->grid == grid ? levels->q : kNoValue;
}

}  // namespace

bool sink_dequantize(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    const Mover mover = mover_of(graph, node);
    if (!mover.moves() || !is_dequantize(edges.producer(node.inputs[mover.data[0]]))) {
      // A Where or Concat whose first input is a constant may still have a dequantized one.
      if (mover.data.size() < 2) continue;
    }
    std::optional<Grid> grid;
    for (size_t input : mover.data) {
      if (graph.is_constant(node.inputs[input])) continue;
      const std::optional<Levels> levels = levels_of(graph, edges, node.inputs[input]);
      grid = levels ? std::optional(levels->grid) : std::nullopt;
      break;
    }
    if (!grid) continue;
    std::vector<ValueId> levels;
    for (size_t input : mover.data)
      levels.push_back(exact_levels(graph, edges, node.inputs[input], *grid));
    if (std::count(levels.begin(), levels.end(), kNoValue)) continue;
    now_on_levels(node);
    for (size_t j = 0; j < levels.size(); ++j) edges.set_input(node, mover.data[j], levels[j]);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId x = node.outputs[o];
      if (x == kNoValue) continue;
      const ValueId q = add_value_like(graph, x, graph.values[x].name + "/levels", DType::kUint8);
      edges.set_output(node, o, q);
      edges.add(add_dequantize(graph, q, x, *grid, graph.values[x].name + "/dequantize"));
    }
    changed = true;
  }
  return changed;
}

namespace {

bool is_product(const Node* node) {
  return is_op(node, "Conv") || is_op(node, "ConvTranspose") || is_op(node, "Gemm") ||
         is_op(node, "MatMul");
}

// The one grid that every output of the mover is quantized to, and the Q nodes that do it.
std::optional<Grid> output_grid(const Graph& graph, const Edges& edges, const Node& mover,
                                std::vector<Node*>* quantizers) {
  std::optional<Grid> grid;
  for (ValueId x : mover.outputs) {
    if (x == kNoValue || edges.n_uses(x) == 0) continue;
    if (!edges.single_use(x)) return std::nullopt;
    Node* q = edges.consumers(x)[0];
    if (!is_quantize(q)) return std::nullopt;
    const std::optional<Grid> mine = grid_of(graph, *q);
    if (!mine || (grid && !(*grid == *mine))) return std::nullopt;
    grid = mine;
    quantizers->push_back(q);
  }
  return grid;
}

}  // namespace

bool raise_quantize(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  std::vector<Node*> work;
  for (auto& node : graph.nodes) work.push_back(node.get());
  while (!work.empty()) {
    Node& node = *work.back();
    work.pop_back();
    const Mover mover = mover_of(graph, node);
    if (!mover.moves()) continue;
    if (mover.reduces &&
        !(edges.single_use(node.inputs[0]) && is_product(edges.producer(node.inputs[0]))))
      continue;
    std::vector<Node*> quantizers;
    const std::optional<Grid> grid = output_grid(graph, edges, node, &quantizers);
    if (!grid || grid->dtype != DType::kUint8) continue;
    if (!std::all_of(mover.data.begin(), mover.data.end(), [&](size_t i) {
          const DType dtype = graph.values[node.inputs[i]].dtype;
          return dtype == DType::kFloat32 || dtype == DType::kUndefined;
        }))
      continue;
    now_on_levels(node);
    for (size_t i : mover.data) {
      const ValueId x = node.inputs[i];
      if (graph.is_constant(x)) {
        edges.set_input(node, i, constant_levels(graph, x, *grid, /*exactly=*/false));
        continue;
      }
      const ValueId q =
          add_value_like(graph, x, graph.values[x].name + "/quantized", DType::kUint8);
      edges.add(add_quantize(graph, x, q, *grid, graph.values[x].name + "/quantize"));
      edges.set_input(node, i, q);
      if (Node* above = edges.producer(x)) work.push_back(above);
    }
    for (Node* q : quantizers) {
      const ValueId levels = q->outputs[0], x = q->inputs[0];
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        if (node.outputs[o] != x) continue;
        edges.detach(*q);
        edges.set_output(node, o, levels);
        break;
      }
    }
    // Outputs nobody reads change type with the others.
    for (ValueId v : node.outputs)
      if (v != kNoValue) graph.values[v].dtype = DType::kUint8;
    changed = true;
  }
  return changed;
}

}  // namespace wia
