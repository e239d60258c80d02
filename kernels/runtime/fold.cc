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

bool fold(Graph& graph, const Node& node, const KernelContext& context) {
  size_t n_bytes = 0;
  std::vector<Tensor> inputs;
  for (ValueId v : node.inputs) {
    inputs.push_back(v == kNoValue ? Tensor{} : *graph.values[v].constant);
    if (v != kNoValue) n_bytes += inputs.back().n_bytes();
  }
  std::vector<Tensor> results = evaluate_node(node, inputs, context);
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

// The branch of an If whose condition is known takes the node's place.
bool inline_branch(Graph& graph, Node& node) {
  if (node.op_type != "If" || !node.domain.empty() || node.inputs.empty() ||
      !graph.is_constant(node.inputs[0]))
    return false;
  const Tensor& condition = *graph.values[node.inputs[0]].constant;
  if (condition.dtype != DType::kBool || condition.numel() != 1 || !condition.data) return false;
  const auto branch = node.graph(*condition.as<uint8_t>() ? "then_branch" : "else_branch");
  if (!branch || !branch->inputs.empty() || branch->outputs.size() < node.outputs.size())
    return false;
  const size_t n_own = node.inputs.size() - std::min(node.inputs.size(), branch->captures.size());
  if (n_own != 1) return false;

  std::vector<ValueId> outer(branch->values.size(), kNoValue);
  for (size_t i = 0; i < branch->captures.size(); ++i)
    if (branch->captures[i] != kNoValue) outer[branch->captures[i]] = node.inputs[n_own + i];
  std::vector<char> made(branch->values.size(), 0);
  for (const auto& inner : branch->nodes)
    for (ValueId v : inner->outputs)
      if (v != kNoValue) made[v] = 1;
  std::vector<std::pair<ValueId, ValueId>> copies;  // branch value, output of the node
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const ValueId v = branch->outputs[o];
    if (node.outputs[o] == kNoValue) continue;
    if (made[v] && outer[v] == kNoValue)
      outer[v] = node.outputs[o];
    else
      copies.emplace_back(v, node.outputs[o]);
  }
  for (size_t v = 0; v < branch->values.size(); ++v) {
    if (outer[v] != kNoValue) continue;
    Value value = branch->values[v];
    value.name = node.name + "/" + value.name;
    graph.values.push_back(std::move(value));
    outer[v] = static_cast<ValueId>(graph.values.size()) - 1;
  }
  auto to_outer = [&](std::vector<ValueId> ids) {
    for (ValueId& v : ids)
      if (v != kNoValue) v = outer[v];
    return ids;
  };
  const std::string prefix = node.name + "/";
  const int opset = node.opset;
  node.outputs.clear();  // dead; `node` is not read below, as adding nodes may move the list
  for (auto& inner : branch->nodes) {
    Node& copy = graph.add_node(inner->op_type, inner->domain, prefix + inner->name,
                                to_outer(inner->inputs), to_outer(inner->outputs));
    copy.opset = inner->opset;
    copy.attributes = inner->attributes;
  }
  for (auto [from, to] : copies)
    graph.add_node("Identity", "", prefix + graph.values[to].name, {outer[from]}, {to}).opset =
        opset;
  return true;
}

bool inline_branches(Graph& graph) {
  bool any = false;
  const size_t n_nodes = graph.nodes.size();
  for (size_t n = 0; n < n_nodes; ++n) any |= inline_branch(graph, *graph.nodes[n]);
  if (!any) return false;
  graph.remove_dead();
  graph.sort();
  return true;
}

}  // namespace

// The node alone in a graph of its own, run once.
std::vector<Tensor> evaluate_node(const Node& node, const std::vector<Tensor>& inputs,
                                  const KernelContext& context) {
  Graph alone;
  alone.name = "constants";
  std::vector<ValueId> feeds, outputs;
  for (const Tensor& input : inputs)
    feeds.push_back(input.dtype == DType::kUndefined ? kNoValue : alone.add_constant("", input));
  for (ValueId v : node.outputs) {
    outputs.push_back(v == kNoValue ? kNoValue : alone.add_value(""));
    if (v != kNoValue) alone.outputs.push_back(outputs.back());
  }
  Node& copy = alone.add_node(node.op_type, node.domain, node.name, feeds, outputs);
  copy.opset = node.opset;
  copy.attributes = node.attributes;
  Program program(alone, context);
  std::vector<Tensor> results(alone.outputs.size());
  ThreadPool pool(1);
  program.run({}, results, pool);
  return results;
}

void fold_constants(Graph& graph, const KernelContext& context, bool keep_dequantize) {
  // A branch that takes its node's place can make further conditions known. A chain of them longer
  // than any exporter writes is left for the run.
  constexpr int kMaxRounds = 32;
  for (int round = 0; round < kMaxRounds; ++round) {
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
    if (!inline_branches(graph)) break;
  }
}

}  // namespace wia
