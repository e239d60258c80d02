// SPDX-License-Identifier: Apache-2.0
// A model as values and nodes.
#include "graph/graph.h"

#include <algorithm>
#include <queue>

namespace wia {
namespace {

template <class T>
const T* get(const Node& node, const std::string& key, const char* kind) {
  auto it = node.attributes.find(key);
  if (it == node.attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  require(value != nullptr, node.where() + ": attribute '" + key + "' is not " + kind);
  return value;
}

template <class T>
T get_or(const Node& node, const std::string& key, const char* kind, T otherwise) {
  const T* value = get<T>(node, key, kind);
  return value ? *value : otherwise;
}

}  // namespace

int64_t Node::i(const std::string& key, int64_t otherwise) const {
  return get_or(*this, key, "an integer", otherwise);
}
float Node::f(const std::string& key, float otherwise) const {
  return get_or(*this, key, "a float", otherwise);
}
std::string Node::s(const std::string& key, const std::string& otherwise) const {
  return get_or(*this, key, "a string", otherwise);
}
std::vector<int64_t> Node::ints(const std::string& key, std::vector<int64_t> otherwise) const {
  return get_or(*this, key, "a list of integers", std::move(otherwise));
}
std::vector<float> Node::floats(const std::string& key, std::vector<float> otherwise) const {
  return get_or(*this, key, "a list of floats", std::move(otherwise));
}
const Tensor* Node::tensor(const std::string& key) const {
  return get<Tensor>(*this, key, "a tensor");
}
std::shared_ptr<Graph> Node::graph(const std::string& key) const {
  return get_or(*this, key, "a graph", std::shared_ptr<Graph>());
}
std::string Node::where() const { return op_type + " '" + name + "'"; }

ValueId Graph::add_value(std::string value_name, DType dtype) {
  values.push_back({std::move(value_name), dtype, false, {}, nullptr});
  return static_cast<ValueId>(values.size()) - 1;
}

ValueId Graph::add_constant(std::string value_name, Tensor tensor) {
  const ValueId v = add_value(std::move(value_name), tensor.dtype);
  values[v].has_shape = true;
  values[v].shape = tensor.shape;
  values[v].constant = std::make_shared<Tensor>(std::move(tensor));
  return v;
}

Node& Graph::add_node(std::string op_type, std::string domain, std::string node_name,
                      std::vector<ValueId> node_inputs, std::vector<ValueId> node_outputs) {
  auto node = std::make_unique<Node>();
  node->op_type = std::move(op_type);
  node->domain = std::move(domain);
  node->name = std::move(node_name);
  node->inputs = std::move(node_inputs);
  node->outputs = std::move(node_outputs);
  nodes.push_back(std::move(node));
  return *nodes.back();
}

bool Graph::is_output(ValueId v) const {
  return std::find(outputs.begin(), outputs.end(), v) != outputs.end();
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (auto& node : nodes) std::replace(node->inputs.begin(), node->inputs.end(), from, to);
  std::replace(outputs.begin(), outputs.end(), from, to);
}

void Graph::remove_dead() {
  std::vector<int> producer(values.size(), -1);
  for (size_t n = 0; n < nodes.size(); ++n)
    for (ValueId v : nodes[n]->outputs)
      if (v != kNoValue) producer[v] = static_cast<int>(n);
  std::vector<char> keep(nodes.size(), 0);
  std::vector<ValueId> needed(outputs.begin(), outputs.end());
  while (!needed.empty()) {
    const ValueId v = needed.back();
    needed.pop_back();
    if (v == kNoValue || producer[v] < 0 || keep[producer[v]]) continue;
    keep[producer[v]] = 1;
    const auto& inputs_of = nodes[producer[v]]->inputs;
    needed.insert(needed.end(), inputs_of.begin(), inputs_of.end());
  }
  size_t kept = 0;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (keep[n]) std::swap(nodes[kept++], nodes[n]);
  nodes.resize(kept);
}

void Graph::sort() {
  std::vector<int> producer(values.size(), -1);
  for (size_t n = 0; n < nodes.size(); ++n)
    for (ValueId v : nodes[n]->outputs)
      if (v != kNoValue) producer[v] = static_cast<int>(n);
  std::vector<int> waiting(nodes.size(), 0);
  std::vector<std::vector<int>> readers(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (ValueId v : nodes[n]->inputs)
      if (v != kNoValue && producer[v] >= 0) {
        ++waiting[n];
        readers[producer[v]].push_back(static_cast<int>(n));
      }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (waiting[n] == 0) ready.push(static_cast<int>(n));
  std::vector<std::unique_ptr<Node>> sorted;
  sorted.reserve(nodes.size());
  while (!ready.empty()) {
    const int n = ready.top();
    ready.pop();
    sorted.push_back(std::move(nodes[n]));
    for (int reader : readers[n])
      if (--waiting[reader] == 0) ready.push(reader);
  }
  require(sorted.size() == nodes.size(), "graph '" + name + "' has a cycle");
  nodes = std::move(sorted);
}

Graph clone(const Graph& graph) {
  Graph copy;
  copy.name = graph.name;
  copy.values = graph.values;
  copy.inputs = graph.inputs;
  copy.outputs = graph.outputs;
  copy.captures = graph.captures;
  copy.metadata = graph.metadata;
  copy.dim_names = graph.dim_names;
  for (const auto& node : graph.nodes) {
    copy.nodes.push_back(std::make_unique<Node>(*node));
    for (auto& [key, attribute] : copy.nodes.back()->attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute))
        *inner = std::make_shared<Graph>(clone(**inner));
  }
  return copy;
}

Uses::Uses(const Graph& graph)
    : producer_(graph.values.size()),
      consumers_(graph.values.size()),
      n_uses_(graph.values.size()) {
  for (const auto& node : graph.nodes) {
    for (ValueId v : node->outputs)
      if (v != kNoValue) producer_[v] = node.get();
    for (ValueId v : node->inputs)
      if (v != kNoValue) {
        if (consumers_[v].empty() || consumers_[v].back() != node.get())
          consumers_[v].push_back(node.get());
        ++n_uses_[v];
      }
  }
  for (ValueId v : graph.outputs) n_uses_[v] += 2;
}

bool Uses::single_use(ValueId v) const { return v != kNoValue && n_uses_[v] == 1; }

}  // namespace wia
