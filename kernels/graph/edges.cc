// SPDX-License-Identifier: Apache-2.0
// Who makes and who reads each value, kept true while a pass edits the graph through it.
#include "graph/edges.h"

#include <algorithm>

namespace wia {

Edges::Edges(Graph& graph) : graph_(graph) {
  grow(static_cast<ValueId>(graph.values.size()) - 1);
  for (const auto& node : graph.nodes) add(*node);
  for (ValueId v : graph.outputs)
    if (v != kNoValue) output_[v] = 1;
}

void Edges::grow(ValueId v) {
  const size_t n = std::max<size_t>(static_cast<size_t>(v + 1), graph_.values.size());
  if (n <= producer_.size()) return;
  producer_.resize(n, nullptr);
  consumers_.resize(n);
  output_.resize(n, 0);
}

size_t Edges::n_uses(ValueId v) const {
  if (v < 0 || v >= size()) return 0;
  return consumers_[v].size() + (output_[v] ? 1 : 0);
}

void Edges::forget_use(ValueId v, const Node& node) {
  if (v == kNoValue) return;
  auto& readers = consumers_[v];
  auto it = std::find(readers.begin(), readers.end(), &node);
  if (it != readers.end()) readers.erase(it);
}

void Edges::set_input(Node& node, size_t input, ValueId to) {
  if (input >= node.inputs.size()) node.inputs.resize(input + 1, kNoValue);
  forget_use(node.inputs[input], node);
  node.inputs[input] = to;
  if (to == kNoValue) return;
  grow(to);
  consumers_[to].push_back(&node);
}

void Edges::set_inputs(Node& node, std::vector<ValueId> inputs) {
  for (ValueId v : node.inputs) forget_use(v, node);
  node.inputs = std::move(inputs);
  for (ValueId v : node.inputs) {
    if (v == kNoValue) continue;
    grow(v);
    consumers_[v].push_back(&node);
  }
}

void Edges::set_output(Node& node, size_t output, ValueId v) {
  grow(v);
  const ValueId old = node.outputs.at(output);
  if (old != kNoValue && producer_[old] == &node) producer_[old] = nullptr;
  node.outputs[output] = v;
  producer_[v] = &node;
}

Node& Edges::add(Node& node) {
  for (ValueId v : node.outputs) {
    if (v == kNoValue) continue;
    grow(v);
    producer_[v] = &node;
  }
  for (ValueId v : node.inputs) {
    if (v == kNoValue) continue;
    grow(v);
    consumers_[v].push_back(&node);
  }
  return node;
}

void Edges::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  grow(std::max(from, to));
  for (Node* node : consumers_[from]) {
    auto it = std::find(node->inputs.begin(), node->inputs.end(), from);
    if (it == node->inputs.end()) continue;
    *it = to;
    consumers_[to].push_back(node);
  }
  consumers_[from].clear();
  if (!output_[from]) return;
  // A graph output keeps its value, and so its name; the copy is an alias at run time.
  if (Node* old = producer_[from]) {
    for (ValueId& v : old->outputs)
      if (v == from)
        v = graph_.add_value(graph_.values[from].name + "/replaced", graph_.values[from].dtype);
    grow(static_cast<ValueId>(graph_.values.size()) - 1);
    for (ValueId v : old->outputs)
      if (v != kNoValue) producer_[v] = old;
  }
  Node& identity =
      graph_.add_node("Identity", "", graph_.values[from].name + "/output", {to}, {from});
  identity.opset = 13;
  add(identity);
}

void Edges::detach(Node& node) {
  for (ValueId v : node.inputs) forget_use(v, node);
  for (ValueId v : node.outputs)
    if (v != kNoValue && producer_[v] == &node) producer_[v] = nullptr;
  node.inputs.clear();
  node.outputs.clear();
}

}  // namespace wia
