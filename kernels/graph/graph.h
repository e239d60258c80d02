// SPDX-License-Identifier: Apache-2.0
// A model as values and nodes. Passes rewrite it; the runtime makes one kernel of each node.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/tensor.h"

namespace wia {

struct Graph;

using ValueId = int;
inline constexpr ValueId kNoValue = -1;  // an optional input or output that is absent

using Attribute =
    std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>,
                 std::vector<std::string>, Tensor, std::shared_ptr<Graph>>;

struct Value {
  std::string name;
  DType dtype = DType::kUndefined;  // kUndefined: not known
  bool has_shape = false;
  Shape shape;                       // -1: not known
  std::shared_ptr<Tensor> constant;  // an initializer, or a node's folded output
};

// The domain of the operators that passes make; "" is ai.onnx.
inline constexpr const char* kWiaDomain = "wia";

struct Node {
  std::string op_type;
  std::string domain;  // "" for ai.onnx
  std::string name;    // never empty once read: "<op_type>_<index>" where the file has none
  int opset = 0;       // of its domain, in the file
  std::vector<ValueId>
      inputs;  // a node with subgraphs lists the outer values they use after its own inputs
  std::vector<ValueId> outputs;
  std::map<std::string, Attribute> attributes;

  // Attribute look-ups; the type must match or Error names the node.
  bool has(const std::string& key) const { return attributes.count(key) != 0; }
  int64_t i(const std::string& key, int64_t otherwise) const;
  float f(const std::string& key, float otherwise) const;
  std::string s(const std::string& key, const std::string& otherwise) const;
  std::vector<int64_t> ints(const std::string& key, std::vector<int64_t> otherwise = {}) const;
  std::vector<float> floats(const std::string& key, std::vector<float> otherwise = {}) const;
  const Tensor* tensor(const std::string& key) const;          // nullptr when absent
  std::shared_ptr<Graph> graph(const std::string& key) const;  // nullptr when absent
  std::string where() const;                                   // "Conv 'stem/conv'"
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<std::unique_ptr<Node>> nodes;  // in an order that can be run
  std::vector<ValueId> inputs;               // without initializers
  std::vector<ValueId> outputs;
  std::vector<ValueId>
      captures;  // subgraphs: values that stand for the outer values, in the node's order
  std::map<std::string, std::string> metadata;
  std::map<ValueId, std::vector<std::string>>
      dim_names;  // of inputs and outputs: "batch"; "" where there is none

  ValueId add_value(std::string value_name, DType dtype = DType::kUndefined);
  ValueId add_constant(std::string value_name, Tensor tensor);
  Node& add_node(std::string op_type, std::string domain, std::string node_name,
                 std::vector<ValueId> node_inputs,
                 std::vector<ValueId> node_outputs);  // appended; call sort() after a pass
  bool is_constant(ValueId v) const { return v != kNoValue && values[v].constant != nullptr; }
  bool is_output(ValueId v) const;
  void replace_uses(ValueId from, ValueId to);  // in node inputs and graph outputs
  void remove_dead();                           // nodes whose outputs nobody uses
  void sort();                                  // stable topological order; Error on a cycle
};

// A copy that can be rewritten by itself; the memory of constants is shared.
Graph clone(const Graph& graph);

// Who makes and who reads each value; a snapshot, remade after edits.
class Uses {
 public:
  explicit Uses(const Graph& graph);
  Node* producer(ValueId v) const { return v == kNoValue ? nullptr : producer_[v]; }
  const std::vector<Node*>& consumers(ValueId v) const { return consumers_[v]; }
  // True when exactly one node input reads v and v is no graph output.
  bool single_use(ValueId v) const;

 private:
  std::vector<Node*> producer_;
  std::vector<std::vector<Node*>> consumers_;
  std::vector<int> n_uses_;
};

}  // namespace wia
