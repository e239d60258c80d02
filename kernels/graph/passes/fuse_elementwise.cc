// SPDX-License-Identifier: Apache-2.0
// Operators between levels that are no products: Add, Sub, Mul, means, pools.
//
//   DQ(a) + DQ(b) -> [Relu, Clip] -> Q        QAdd, (12); Sub with the second multiplier negated
//   DQ(a) * DQ(b) -> [Relu, Clip] -> Q        QMul, (13)
//   AveragePool, GlobalAveragePool, ReduceMean of DQ(x) -> Q      QAveragePool, QMean, (14)
//   MaxPool, GlobalMaxPool of levels          QMaxPool, ReduceMax
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/edges.h"
#include "graph/ending.h"
#include "graph/grid.h"
#include "graph/levels.h"
#include "graph/passes/passes.h"
#include "graph/permute.h"

namespace wia {
namespace {

constexpr float kLargestMultiplier = 1e30f;
constexpr int kOpset = 13;

bool fuse_binary(Graph& graph, Edges& edges, Node& node) {
  const bool mul = node.op_type == "Mul", sub = node.op_type == "Sub";
  if (node.inputs.size() != 2 || node.outputs.size() != 1) return false;
  const std::optional<Levels> a = levels_of(graph, edges, node.inputs[0]);
  const std::optional<Levels> b = levels_of(graph, edges, node.inputs[1]);
  if (!a || !b) return false;
  ProductEnd end;
  follow(graph, edges, node.outputs[0], &end);
  if (!end.grid) return false;
  const float scale_a = a->grid.scale, scale_b = b->grid.scale, scale_y = end.grid->scale;
  const float of_acc = mul ? scale_a * scale_b : scale_a;
  const float ma = of_acc / scale_y, mb = mul ? 1.0f : scale_b / scale_y;
  if (!(of_acc >= std::numeric_limits<float>::min()) || !(ma > 0 && ma < kLargestMultiplier) ||
      !(mb > 0 && mb < kLargestMultiplier))
    return false;
  const std::string name = node.name;
  for (Node* absorbed : end.absorbed) edges.detach(*absorbed);
  edges.detach(node);
  Node& fused = graph.add_node(mul ? "QMul" : "QAdd", kWiaDomain, name, {a->q, b->q}, {end.out});
  fused.opset = 1;
  fused.attributes["a_zero_point"] = int64_t{a->grid.zero_point};
  fused.attributes["b_zero_point"] = int64_t{b->grid.zero_point};
  fused.attributes["a_multiplier"] = ma;
  fused.attributes["b_multiplier"] = sub ? -mb : mb;
  fused.attributes["zero_point"] = int64_t{end.grid->zero_point};
  fused.attributes["qmin"] = int64_t{end.qmin};
  fused.attributes["qmax"] = int64_t{end.qmax};
  edges.add(fused);
  return true;
}

// The axes a ReduceMean or GlobalAveragePool averages, all >= 0; empty when they are not known.
std::vector<int64_t> mean_axes(const Graph& graph, const Node& node) {
  const Value& x = graph.values[node.inputs[0]];
  if (!x.has_shape || x.shape.rank() == 0) return {};
  const int rank = x.shape.rank();
  std::vector<int64_t> axes;
  if (node.op_type == "GlobalAveragePool") {
    for (int64_t d = 2; d < rank; ++d) axes.push_back(d);
    return axes;
  }
  if (node.has("axes")) {
    axes = node.ints("axes");
  } else if (node.inputs.size() > 1 && node.inputs[1] != kNoValue) {
    const auto list = integer_constant(graph, node.inputs[1]);
    if (!list) return {};
    axes = *list;
  }
  if (axes.empty()) {
    if (node.i("noop_with_empty_axes", 0)) return {};
    for (int64_t d = 0; d < rank; ++d) axes.push_back(d);
  }
  for (int64_t& a : axes) {
    if (a < 0) a += rank;
    if (a < 0 || a >= rank) return {};
  }
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  if (axes.back() - axes.front() + 1 != static_cast<int64_t>(axes.size()))
    return {};  // not neighbours
  return axes;
}

void set_grids(Node& node, const Grid& x, const Grid& y) {
  node.opset = 1;
  node.attributes["x_scale"] = x.scale;
  node.attributes["x_zero_point"] = int64_t{x.zero_point};
  node.attributes["y_scale"] = y.scale;
  node.attributes["y_zero_point"] = int64_t{y.zero_point};
}

// The Q that reads y and nothing else does.
Node* only_quantize(const Graph& graph, const Edges& edges, ValueId y, std::optional<Grid>* grid) {
  if (!edges.single_use(y)) return nullptr;
  Node* q = edges.consumers(y)[0];
  *grid = is_quantize(q) ? grid_of(graph, *q) : std::nullopt;
  return *grid && (*grid)->dtype == DType::kUint8 ? q : nullptr;
}

bool fuse_mean(Graph& graph, Edges& edges, Node& node) {
  const std::optional<Levels> x = levels_of(graph, edges, node.inputs[0]);
  if (!x) return false;
  std::optional<Grid> grid;
  Node* q = only_quantize(graph, edges, node.outputs[0], &grid);
  const std::vector<int64_t> axes = mean_axes(graph, node);
  if (!q || axes.empty()) return false;
  const std::string name = node.name;
  const ValueId out = q->outputs[0];
  const int64_t keepdims = node.op_type == "ReduceMean" ? node.i("keepdims", 1) : 1;
  edges.detach(*q);
  edges.detach(node);
  Node& fused = graph.add_node("QMean", kWiaDomain, name, {x->q}, {out});
  set_grids(fused, x->grid, *grid);
  fused.attributes["axes"] = axes;
  fused.attributes["keepdims"] = keepdims;
  edges.add(fused);
  return true;
}

bool fuse_average_pool(Graph& graph, Edges& edges, Node& node) {
  const std::optional<Levels> x = levels_of(graph, edges, node.inputs[0]);
  const size_t dims = node.ints("kernel_shape").size();
  if (!x || dims < 1 || dims > 2) return false;
  std::optional<Grid> grid;
  Node* q = only_quantize(graph, edges, node.outputs[0], &grid);
  if (!q) return false;
  const std::string name = node.name;
  const auto attributes = node.attributes;
  const ValueId out = q->outputs[0];
  const int rank = static_cast<int>(dims) + 2;
  edges.detach(*q);
  edges.detach(node);
  const ValueId last = channels_last(graph, edges, x->q, rank, name);
  const ValueId y = channels_first(graph, edges, out, rank, DType::kUint8, name);
  Node& fused = graph.add_node("QAveragePool", kWiaDomain, name, {last}, {y});
  fused.attributes = attributes;
  set_grids(fused, x->grid, *grid);
  edges.add(fused);
  return true;
}

bool is_levels(const Graph& graph, ValueId v) { return graph.values[v].dtype == DType::kUint8; }

bool fuse_max_pool(Graph& graph, Edges& edges, Node& node) {
  const size_t dims = node.ints("kernel_shape").size();
  if (!is_levels(graph, node.inputs[0]) || dims < 1 || dims > 2 || node.i("storage_order", 0) != 0)
    return false;
  if (node.outputs.size() > 1 && node.outputs[1] != kNoValue) return false;
  const std::string name = node.name;
  const auto attributes = node.attributes;
  const ValueId x = node.inputs[0], out = node.outputs[0];
  const int rank = static_cast<int>(dims) + 2;
  edges.detach(node);
  const ValueId last = channels_last(graph, edges, x, rank, name);
  const ValueId y = channels_first(graph, edges, out, rank, DType::kUint8, name);
  Node& fused = graph.add_node("QMaxPool", kWiaDomain, name, {last}, {y});
  fused.attributes = attributes;
  fused.opset = 1;
  edges.add(fused);
  return true;
}

// GlobalMaxPool(DQ(x)) = DQ(ReduceMax(x)); of floats it is ReduceMax, which Transposes pass.
bool fuse_global_max_pool(Graph& graph, Edges& edges, Node& node) {
  const std::optional<Levels> x = levels_of(graph, edges, node.inputs[0]);
  if (!graph.values[node.inputs[0]].has_shape) return false;
  std::vector<int64_t> axes;
  for (int64_t d = 2; d < graph.values[node.inputs[0]].shape.rank(); ++d) axes.push_back(d);
  if (axes.empty()) return false;
  if (!x) {
    node.op_type = "ReduceMax";
    node.opset = kOpset;
    node.attributes = {{"axes", axes}, {"keepdims", int64_t{1}}};
    return true;
  }
  const std::string name = node.name;
  const ValueId out = node.outputs[0];
  edges.detach(node);
  const ValueId q = add_value_like(graph, out, name + "/levels", DType::kUint8);
  Node& max = graph.add_node("ReduceMax", "", name, {x->q}, {q});
  max.opset = kOpset;
  max.attributes["axes"] = axes;
  max.attributes["keepdims"] = int64_t{1};
  edges.add(max);
  edges.add(add_dequantize(graph, q, out, x->grid, name + "/dequantize"));
  return true;
}

}  // namespace

// GlobalMaxPool has no integer form in ONNX; run before the tables so that a requantization behind
// it becomes one.
bool lower_global_max(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i)
    if (is_op(graph.nodes[i].get(), "GlobalMaxPool"))
      changed |= fuse_global_max_pool(graph, edges, *graph.nodes[i]);
  return changed;
}

bool fuse_elementwise(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    if (!node.domain.empty() || node.inputs.empty()) continue;
    if (node.op_type == "Add" || node.op_type == "Sub" || node.op_type == "Mul") {
      changed |= fuse_binary(graph, edges, node);
    } else if (node.op_type == "GlobalAveragePool" || node.op_type == "ReduceMean") {
      changed |= fuse_mean(graph, edges, node);
    } else if (node.op_type == "AveragePool") {
      changed |= fuse_average_pool(graph, edges, node);
    } else if (node.op_type == "MaxPool") {
      changed |= fuse_max_pool(graph, edges, node);
    }
  }
  return changed;
}

}  // namespace wia
