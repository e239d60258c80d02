// SPDX-License-Identifier: Apache-2.0
// For tests of passes: a small graph, node by node, and what a pass made of it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {

class GraphBuilder {
 public:
  Graph graph;

  ValueId input(const std::string& name, const Shape& shape, DType dtype = DType::kFloat32) {
    const ValueId v = shaped(name, shape, dtype);
    graph.inputs.push_back(v);
    return v;
  }

  ValueId floats(const Shape& shape, const std::vector<float>& values) {
    Tensor t = Tensor::allocate(DType::kFloat32, shape);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.as<float>()[i] = values[static_cast<size_t>(i) % values.size()];
    return graph.add_constant(next("c"), std::move(t));
  }

  ValueId levels(DType dtype, const Shape& shape, const std::vector<int>& values) {
    Tensor t = Tensor::allocate(dtype, shape);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.as<uint8_t>()[i] = static_cast<uint8_t>(values[static_cast<size_t>(i) % values.size()]);
    return graph.add_constant(next("c"), std::move(t));
  }

  ValueId integers(const std::vector<int64_t>& values) {
    return graph.add_constant(next("c"), int64_tensor(values));
  }

  Node& node(const std::string& op_type, const std::vector<ValueId>& inputs, const Shape& shape,
             DType dtype = DType::kFloat32, const std::string& domain = "") {
    const ValueId y = shaped(next(op_type), shape, dtype);
    Node& made = graph.add_node(op_type, domain, graph.values[y].name + "_node", inputs, {y});
    made.opset = domain.empty() ? kOpset : 1;
    return made;
  }
  ValueId op(const std::string& op_type, const std::vector<ValueId>& inputs, const Shape& shape,
             DType dtype = DType::kFloat32) {
    return node(op_type, inputs, shape, dtype).outputs[0];
  }

  ValueId quantize(ValueId x, const Grid& grid) {
    const ValueId q = shaped(next("q"), graph.values[x].shape, grid.dtype);
    add_quantize(graph, x, q, grid, next("quantize"));
    return q;
  }
  ValueId dequantize(ValueId q, const Grid& grid) {
    const ValueId x = shaped(next("d"), graph.values[q].shape, DType::kFloat32);
    add_dequantize(graph, q, x, grid, next("dequantize"));
    return x;
  }
  // An input, quantized and dequantized.
  ValueId activation(const Shape& shape, const Grid& grid) {
    return dequantize(quantize(input(next("x"), shape), grid), grid);
  }
  ValueId transpose(ValueId x, const std::vector<int64_t>& perm) {
    Shape shape;
    for (int64_t d : perm) shape.push_back(graph.values[x].shape[static_cast<int>(d)]);
    Node& made = node("Transpose", {x}, shape, graph.values[x].dtype);
    made.attributes["perm"] = perm;
    return made.outputs[0];
  }
  void output(ValueId v) { graph.outputs.push_back(v); }

  // Runs one pass as run_passes does.
  bool run(bool (*pass)(Graph&, const PassContext&), const PassContext& context = {}) {
    const bool changed = pass(graph, context);
    graph.remove_dead();
    graph.sort();
    return changed;
  }

  // The op types in the order they run: "Quantize QConv Dequantize".
  std::string ops() const {
    std::string text;
    for (const auto& n : graph.nodes) text += (text.empty() ? "" : " ") + n->op_type;
    return text;
  }
  const Node& only(const std::string& op_type) const {
    const auto it = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                 [&](const auto& n) { return n->op_type == op_type; });
    require(it != graph.nodes.end(), "no " + op_type + " in: " + ops());
    return **it;
  }

 private:
  static constexpr int kOpset = 17;

  std::string next(const std::string& stem) { return stem + "_" + std::to_string(count_++); }
  // By value: a shape of the graph's own values would move when a value is added.
  ValueId shaped(const std::string& name, Shape shape, DType dtype) {
    const ValueId v = graph.add_value(name, dtype);
    graph.values[v].has_shape = true;
    graph.values[v].shape = shape;
    return v;
  }

  int count_ = 0;
};

#define WIA_PASS(name, run) bool run(Graph& graph, const PassContext& context);
#include "graph/passes/passes.inc"
#undef WIA_PASS

}  // namespace wia
