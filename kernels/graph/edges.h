// SPDX-License-Identifier: Apache-2.0
// Who makes and who reads each value, kept true while a pass edits the graph through it.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace wia {

class Edges {
 public:
  explicit Edges(Graph& graph);

  Node* producer(ValueId v) const { return v < 0 || v >= size() ? nullptr : producer_[v]; }
  // One entry for each input that reads v.
  std::vector<Node*> consumers(ValueId v) const {
    return v < 0 || v >= size() ? std::vector<Node*>{} : consumers_[v];
  }
  // The inputs that read v, a graph output counted too.
  size_t n_uses(ValueId v) const;
  // Exactly one node input reads v, and v is no graph output.
  bool single_use(ValueId v) const { return n_uses(v) == 1 && !is_output(v); }
  bool is_output(ValueId v) const {
    return v >= 0 && v < static_cast<int>(output_.size()) && output_[v];
  }

  // Makes `node` read `to` at this input (which may be kNoValue).
  void set_input(Node& node, size_t input, ValueId to);
  void set_inputs(Node& node, std::vector<ValueId> inputs);
  // Makes `node` produce `v` as this output; the old output is left without a producer.
  void set_output(Node& node, size_t output, ValueId v);
  // Tells of a node just appended to the graph.
  Node& add(Node& node);
  // Every reader of `from` reads `to`; a graph output keeps its name and becomes an Identity of
  // `to`.
  void replace_uses(ValueId from, ValueId to);
  // Forgets what the node reads and makes; remove_dead() takes it away when nothing uses it. A node
  // whose outputs are still read gets no producer: give them one.
  void detach(Node& node);

 private:
  int size() const { return static_cast<int>(producer_.size()); }
  void grow(ValueId v);
  void forget_use(ValueId v, const Node& node);

  Graph& graph_;
  std::vector<Node*> producer_;
  std::vector<std::vector<Node*>> consumers_;
  std::vector<char> output_;
};

}  // namespace wia
