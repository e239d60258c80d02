// SPDX-License-Identifier: Apache-2.0
// Constant folding at load.
#include "runtime/fold.h"

#include <algorithm>

#include "runtime/program.h"

namespace wia {
namespace {

// A folded value may be this much larger than what it is made of: a small constant must not become
// a large one.
constexpr size_t kAlwaysKeptBytes = 64 << 10;
constexpr size_t kMaxGrowth = 4;  // int8 -> float32

bool foldable(const Graph& graph, const Node& node, bool keep_dequantize) {
  if (node.inputs.empty() || is_random(node) || has_subgraph(node)) return false;
  if (keep_dequantize && node.op_type == "DequantizeLinear") return false;
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](ValueId v) { return v == kNoValue || graph.is_constant(v); });
}

// The node alone in a graph of its own, run once.
bool fold(Graph& graph, const Node& node, const KernelContext& context) {
  Graph alone;
  alone.name = graph.name;
  size_t n_bytes = 0;
  std::vector<ValueId> inputs, outputs;
  for (ValueId v : node.inputs) {
    if (v != kNoValue) n_bytes += graph.values[v].constant->n_bytes();
    inputs.push_back(v == kNoValue
                         ? kNoValue
                         : alone.add_constant(graph.values[v].name, *graph.values[v].constant));
  }
  for (ValueId v : node.outputs) {
    outputs.push_back(v == kNoValue ? kNoValue : alone.add_value(graph.values[v].name));
    if (v != kNoValue) alone.outputs.push_back(outputs.back());
  }
  Node& copy = alone.add_node(node.op_type, node.domain, node.name, inputs, outputs);
  copy.opset = node.opset;
  copy.attributes = node.attributes;
  Program program(alone, context);
  std::vector<Tensor> results(alone.outputs.size());
  ThreadPool pool(1);
  program.run({}, results, pool);
  size_t n_made = 0;
  for (const Tensor& result : results) n_made += result.n_bytes();
  if (n_made > kAlwaysKeptBytes && n_made > kMaxGrowth * n_bytes) return false;
  size_t r = 0;
  for (ValueId v : node.outputs) {
    if (v == kNoValue) continue;
    Value& value = graph.values[v];
    value.dtype = results[r].dtype;
    value.has_shape = true;
    value.shape = results[r].shape;
    value.constant = std::make_shared<Tensor>(std::move(results[r++]));
  }
  return true;
}

// Captured values that have become constants are constants inside as well.
void share_constants(Graph& graph, const Node& node) {
  for (const auto& [key, attribute] : node.attributes) {
    const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute);
    if (!inner) continue;
    const size_t own = node.inputs.size() - (*inner)->captures.size();
    for (size_t i = 0; i < (*inner)->captures.size(); ++i) {
      const ValueId v = (*inner)->captures[i];
      if (v != kNoValue && graph.is_constant(node.inputs[own + i])) {
        (*inner)->values[v].constant = graph.values[node.inputs[own + i]].constant;
        (*inner)->captures[i] = kNoValue;
      }
    }
  }
}

}  // namespace

void fold_constants(Graph& graph, const KernelContext& context, bool keep_dequantize) {
  for (auto& node : graph.nodes) {
    if (foldable(graph, *node, keep_dequantize) && fold(graph, *node, context)) {
      node->outputs.clear();  // dead: its outputs are constants now
      continue;
    }
    share_constants(graph, *node);
    for (auto& [key, attribute] : node->attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute))
        fold_constants(**inner, context, keep_dequantize);
  }
  graph.remove_dead();
}

}  // namespace wia
