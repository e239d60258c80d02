// SPDX-License-Identifier: Apache-2.0
// Layer normalization as exporters wrote it before opset 17 becomes LayerNormalization:
//
//   d = x - ReduceMean(x);  v = ReduceMean(d ^ 2  or  d * d)
//   y = d / Sqrt(v + eps) [* scale] [+ bias]
//
// over the last axes, keepdims 1, eps a constant of one element, scale and bias constants of the
// normalized shape.
#include <algorithm>
#include <optional>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int kLayerNormOpset = 17;

// The first axis of a ReduceMean over the last axes with keepdims; nullopt otherwise.
std::optional<int64_t> last_axes(const Graph& graph, const Node* node) {
  if (!is_op(node, "ReduceMean") || node->i("keepdims", 1) != 1) return std::nullopt;
  const Value& x = graph.values[node->inputs[0]];
  if (!x.has_shape) return std::nullopt;
  const int64_t rank = x.shape.rank();
  std::vector<int64_t> axes = node->ints("axes");
  if (!node->has("axes")) {
    const auto list =
        node->inputs.size() > 1 ? integer_constant(graph, node->inputs[1]) : std::nullopt;
    if (!list) return std::nullopt;
    axes = *list;
  }
  for (int64_t& a : axes) a = a < 0 ? a + rank : a;
  std::sort(axes.begin(), axes.end());
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != rank - static_cast<int64_t>(axes.size()) + static_cast<int64_t>(i))
      return std::nullopt;
  if (axes.empty()) return std::nullopt;
  return axes[0];
}

// The node that alone reads v and is this operator.
Node* next(const Edges& edges, ValueId v, const char* op_type) {
  if (!edges.single_use(v)) return nullptr;
  Node* node = edges.consumers(v)[0];
  return is_op(node, op_type) ? node : nullptr;
}

ValueId other_input(const Node& node, ValueId v) {
  return node.inputs.size() == 2 ? node.inputs[node.inputs[0] == v ? 1 : 0] : kNoValue;
}

// A constant of the shape of x from `axis` on; its leading dimensions may be 1.
bool is_affine(const Graph& graph, ValueId c, const Shape& x, int64_t axis) {
  if (!graph.is_constant(c) || graph.values[c].constant->dtype != DType::kFloat32) return false;
  const Shape& shape = graph.values[c].constant->shape;
  const int normalized = x.rank() - static_cast<int>(axis);
  if (shape.rank() < normalized) return false;
  for (int d = 0; d < shape.rank(); ++d) {
    const int back = shape.rank() - d;
    const int64_t wanted = back > normalized ? 1 : x[x.rank() - back];
    if (shape[d] != wanted) return false;
  }
  return true;
}

ValueId reshaped(Graph& graph, ValueId c, const Shape& x, int64_t axis) {
  Tensor t = *graph.values[c].constant;
  Shape shape;
  for (int d = static_cast<int>(axis); d < x.rank(); ++d) shape.push_back(x[d]);
  t.shape = shape;
  return graph.add_constant(graph.values[c].name + "/normalized", std::move(t));
}

bool fuse(Graph& graph, Edges& edges, Node& sub) {
  const ValueId x = sub.inputs[0], d = sub.outputs[0];
  Node* mean = edges.producer(sub.inputs[1]);
  const std::optional<int64_t> axis = last_axes(graph, mean);
  if (!axis || mean->inputs[0] != x || !edges.single_use(mean->outputs[0])) return false;
  const Shape shape = graph.values[x].shape;
  for (int64_t i = *axis; i < shape.rank(); ++i)
    if (shape[static_cast<int>(i)] < 0) return false;

  Node *square = nullptr, *divide = nullptr;
  for (Node* reader : edges.consumers(d)) {
    const bool pow = is_op(reader, "Pow") && reader->inputs[0] == d &&
                     scalar_constant(graph, reader->inputs[1]) == 2.0f;
    const bool mul = is_op(reader, "Mul") && reader->inputs[0] == d && reader->inputs[1] == d;
    if (pow || mul) {
      square = reader;
    } else if (is_op(reader, "Div") && reader->inputs[0] == d) {
      divide = reader;
    } else {
      return false;
    }
  }
  if (!square || !divide || edges.is_output(d)) return false;
  Node* variance = next(edges, square->outputs[0], "ReduceMean");
  if (!variance || last_axes(graph, variance) != axis) return false;
  Node* plus = next(edges, variance->outputs[0], "Add");
  const std::optional<float> epsilon =
      plus ? scalar_constant(graph, other_input(*plus, variance->outputs[0])) : std::nullopt;
  if (!epsilon) return false;
  Node* root = next(edges, plus->outputs[0], "Sqrt");
  if (!root || divide->inputs[1] != root->outputs[0] || !edges.single_use(root->outputs[0]))
    return false;

  std::vector<Node*> absorbed = {&sub, mean, square, variance, plus, root, divide};
  ValueId out = divide->outputs[0];
  ValueId scale = kNoValue, bias = kNoValue;
  if (Node* mul = next(edges, out, "Mul");
      mul && is_affine(graph, other_input(*mul, out), shape, *axis)) {
    scale = reshaped(graph, other_input(*mul, out), shape, *axis);
    absorbed.push_back(mul);
    out = mul->outputs[0];
    if (Node* add = next(edges, out, "Add");
        add && is_affine(graph, other_input(*add, out), shape, *axis)) {
      bias = reshaped(graph, other_input(*add, out), shape, *axis);
      absorbed.push_back(add);
      out = add->outputs[0];
    }
  }
  if (scale == kNoValue) {
    Shape normalized;
    for (int i = static_cast<int>(*axis); i < shape.rank(); ++i) normalized.push_back(shape[i]);
    Tensor ones = Tensor::allocate(DType::kFloat32, normalized);
    std::fill_n(ones.as<float>(), ones.numel(), 1.0f);
    scale = graph.add_constant(sub.name + "/ones", std::move(ones));
  }
  const std::string name = divide->name;
  for (Node* node : absorbed) edges.detach(*node);
  std::vector<ValueId> inputs = {x, scale};
  if (bias != kNoValue) inputs.push_back(bias);
  Node& norm = graph.add_node("LayerNormalization", "", name, std::move(inputs), {out});
  norm.opset = kLayerNormOpset;
  norm.attributes["axis"] = *axis;
  norm.attributes["epsilon"] = *epsilon;
  edges.add(norm);
  return true;
}

}  // namespace

bool fuse_layer_norm(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    if (is_op(&node, "Sub") && node.inputs.size() == 2) changed |= fuse(graph, edges, node);
  }
  return changed;
}

}  // namespace wia
