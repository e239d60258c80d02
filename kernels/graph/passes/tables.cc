// SPDX-License-Identifier: Apache-2.0
// Any function of one 8-bit tensor is a table of 256 values, docs/quantization.md (11):
//
//   Q_y(f(DQ_x(q)))  =  T[q],   T[i] = Q_y(f(DQ_x(i)))
//
// f is any graph of elementwise operators, constants of one element, and inner Q/DQ pairs, however
// it branches and joins, so long as every path starts at the same levels: SiLU as x * Sigmoid(x),
// Gelu written with Erf, HardSwish, a chain of requantizations. T is made by running the operators'
// own kernels on the 256 levels, so it equals what the graph would have computed. An f that stays
// float becomes a table of floats. T that is the identity is removed.
#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "graph/edges.h"
#include "graph/elementwise.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int64_t kLevels = 256;

// A value that is a function of the levels of `source`: its 256 values.
struct Region {
  ValueId source = kNoValue;
  Tensor values;
  bool function = false;  // something happened to the levels besides DQ
};

class Regions {
 public:
  Regions(Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}

  const Region* of(ValueId v) const {
    return v >= 0 && v < static_cast<ValueId>(regions_.size()) && regions_[v] ? &*regions_[v]
                                                                              : nullptr;
  }

  // Works out the region of the node's output from its inputs', where there is one.
  void visit(const Node& node) {
    regions_.resize(graph_.values.size());
    if (node.outputs.size() != 1 || node.outputs[0] == kNoValue) return;
    const std::optional<Grid> grid = grid_of(graph_, node);
    if (grid && is_dequantize(&node)) return dequantize(node, *grid);
    if (grid && grid->dtype == DType::kUint8) return quantize(node, *grid);
    if (is_elementwise(node)) evaluate(node);
  }

 private:
  void dequantize(const Node& node, const Grid& grid) {
    const ValueId q = node.inputs[0];
    if (graph_.is_constant(q)) {
      const Tensor& t = *graph_.values[q].constant;
      if (t.numel() != 1 || t.dtype != grid.dtype) return;
      Tensor x = Tensor::allocate(DType::kFloat32, t.shape);
      const int32_t level = grid.dtype == DType::kInt8 ? t.as<int8_t>()[0] : t.as<uint8_t>()[0];
      x.as<float>()[0] = dequantize_level(level, grid);
      scalars_[node.outputs[0]] = std::move(x);
      return;
    }
    if (grid.dtype != DType::kUint8) return;
    const Region* before = of(q);
    Region region{before ? before->source : q, Tensor::allocate(DType::kFloat32, {kLevels}),
                  before != nullptr};
    for (int64_t i = 0; i < kLevels; ++i)
      region.values.as<float>()[i] = dequantize_level(
          before ? before->values.as<uint8_t>()[i] : static_cast<int32_t>(i), grid);
    regions_[node.outputs[0]] = std::move(region);
  }

  void quantize(const Node& node, const Grid& grid) {
    const Region* x = of(node.inputs[0]);
    if (!x || x->values.dtype != DType::kFloat32) return;
    Region region{x->source, Tensor::allocate(DType::kUint8, {kLevels}), true};
    for (int64_t i = 0; i < kLevels; ++i)
      region.values.as<uint8_t>()[i] =
          static_cast<uint8_t>(quantize_level(x->values.as<float>()[i], grid));
    regions_[node.outputs[0]] = std::move(region);
  }

  // The constant of one element that v is, as a scalar; nullopt when there is none or it would
  // raise the rank of the result.
  std::optional<Tensor> scalar_of(ValueId v, ValueId source) const {
    const int rank = graph_.values[source].has_shape ? graph_.values[source].shape.rank() : 0;
    const auto it = scalars_.find(v);
    if (it != scalars_.end()) {
      if (it->second.shape.rank() > rank) return std::nullopt;
    } else if (!graph_.is_constant(v) || graph_.values[v].constant->numel() != 1 ||
               graph_.values[v].constant->shape.rank() > rank) {
      return std::nullopt;
    }
    Tensor t = it != scalars_.end() ? it->second : *graph_.values[v].constant;
    t.shape = {};
    return t;
  }
  bool is_constant(ValueId v) const { return graph_.is_constant(v) || scalars_.count(v) != 0; }

  void evaluate(const Node& node) {
    ValueId source = kNoValue;
    for (ValueId v : node.inputs) {
      if (v == kNoValue || is_constant(v)) continue;
      const Region* region = of(v);
      if (!region || (source != kNoValue && region->source != source)) return;
      source = region->source;
    }
    if (source == kNoValue) return;
    std::vector<Tensor> inputs;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) {
        inputs.push_back({});
      } else if (const Region* region = of(v)) {
        inputs.push_back(region->values);
      } else if (std::optional<Tensor> scalar = scalar_of(v, source)) {
        inputs.push_back(std::move(*scalar));
      } else {
        return;
      }
    }
    std::vector<Tensor> outputs = context_.evaluate(node, inputs);
    if (outputs.size() != 1 || outputs[0].shape.rank() != 1 || outputs[0].shape[0] != kLevels)
      return;
    regions_[node.outputs[0]] = Region{source, std::move(outputs[0]), true};
  }

  Graph& graph_;
  const PassContext& context_;
  std::vector<std::optional<Region>> regions_;
  std::map<ValueId, Tensor> scalars_;  // dequantized constants of one element
};

bool is_identity(const Tensor& table) {
  for (int64_t i = 0; i < kLevels; ++i)
    if (table.as<uint8_t>()[i] != i) return false;
  return true;
}

void emit(Graph& graph, Edges& edges, Node& last, const Region& region) {
  const ValueId out = last.outputs[0];
  if (region.values.dtype == DType::kUint8 && is_identity(region.values)) {
    edges.replace_uses(out, region.source);
    return;
  }
  const std::string name = last.name;
  edges.detach(last);
  Node& table = graph.add_node("Table", kWiaDomain, name, {region.source}, {out});
  table.opset = 1;
  table.attributes["table"] = region.values;
  edges.add(table);
}

}  // namespace

bool make_tables(Graph& graph, const PassContext& context) {
  if (!context.evaluate) return false;
  Edges edges(graph);
  Regions regions(graph, context);
  std::vector<Node*> nodes;
  for (auto& node : graph.nodes) nodes.push_back(node.get());
  for (Node* node : nodes) regions.visit(*node);
  // Quantized ends first: what only they read is then dead, and is not made a table of floats as
  // well.
  bool changed = false;
  for (Node* node : nodes) {
    if (!is_quantize(node)) continue;
    if (const Region* region = regions.of(node->outputs[0])) {
      emit(graph, edges, *node, *region);
      changed = true;
    }
  }
  if (changed) {
    graph.remove_dead();
    graph.sort();
  }
  // Float ends: a value of a region that something outside the region reads.
  Edges left(graph);
  std::vector<Node*> ends;
  for (auto& node : graph.nodes) {
    if (node->outputs.size() != 1 || !node->domain.empty() || is_dequantize(node.get())) continue;
    const Region* region = regions.of(node->outputs[0]);
    if (!region || !region->function || region->values.dtype != DType::kFloat32) continue;
    const std::vector<Node*> readers = left.consumers(node->outputs[0]);
    const bool leaves = left.is_output(node->outputs[0]) ||
                        std::any_of(readers.begin(), readers.end(), [&](Node* reader) {
                          return reader->outputs.size() != 1 || !regions.of(reader->outputs[0]);
                        });
    if (leaves) ends.push_back(node.get());
  }
  for (Node* end : ends) emit(graph, left, *end, *regions.of(end->outputs[0]));
  return changed || !ends.empty();
}

// A requantization that follows another function of the same levels, T2[q] = U[T1[q]], reads T1's
// result instead of q: then q has one reader, and T1 can go into the operator that makes q.
bool chain_tables(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  for (ValueId q = 0, n = static_cast<ValueId>(graph.values.size()); q < n; ++q) {
    const std::vector<Node*> readers = edges.consumers(q);
    if (readers.size() < 2 || edges.is_output(q)) continue;
    auto is_table = [](const Node* node) {
      return node->domain == kWiaDomain && node->op_type == "Table";
    };
    if (!std::all_of(readers.begin(), readers.end(), is_table)) continue;
    for (Node* first : readers) {
      const Tensor& t1 = *first->tensor("table");
      if (t1.dtype != DType::kUint8) continue;
      std::vector<Tensor> through;  // for each other reader, U
      for (Node* other : readers) {
        if (other == first) continue;
        const Tensor& t2 = *other->tensor("table");
        const size_t size = dtype_size(t2.dtype);
        Tensor u = Tensor::allocate(t2.dtype, {kLevels});
        std::fill_n(u.as<uint8_t>(), u.n_bytes(), uint8_t{0});
        std::vector<char> known(kLevels, 0);
        bool agrees = true;
        for (int64_t i = 0; i < kLevels && agrees; ++i) {
          const size_t level = t1.as<uint8_t>()[i];
          uint8_t* to = u.as<uint8_t>() + level * size;
          const uint8_t* from = t2.as<uint8_t>() + static_cast<size_t>(i) * size;
          agrees = !known[level] || std::equal(from, from + size, to);
          std::copy(from, from + size, to);
          known[level] = 1;
        }
        if (!agrees) break;
        through.push_back(std::move(u));
      }
      if (through.size() + 1 != readers.size()) continue;
      size_t next = 0;
      for (Node* other : readers) {
        if (other == first) continue;
        other->attributes["table"] = std::move(through[next++]);
        edges.set_input(*other, 0, first->outputs[0]);
      }
      changed = true;
      break;
    }
  }
  return changed;
}

}  // namespace wia
