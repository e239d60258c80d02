// SPDX-License-Identifier: Apache-2.0
// What follows an integer product and nothing else reads goes into it, as the epilogue's table and
// residual:
//
//   Table(product)            the product's table, (11); bounds where the table only clips, (10)
//   QAdd(product, r)          the product with a residual, (12): both roundings stay as they were
//   Table(product + residual) its sum_table
//   Table(QAdd), Table(QMul)  their table;  Table(Table) one Table
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "graph/edges.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int kLevels = 256;

bool is_wia(const Node* node, const char* op_type) {
  return node && node->domain == kWiaDomain && node->op_type == op_type;
}

bool takes_residual(const Node* node) {
  return (is_wia(node, "QConv") || is_wia(node, "QConvTranspose") || is_wia(node, "QGemm")) &&
         node->i("quantized", 0) && !node->i("residual", 0);
}

bool takes_table(const Node* node) {
  if (is_wia(node, "QAdd") || is_wia(node, "QMul") || is_wia(node, "Table")) return true;
  return (is_wia(node, "QConv") || is_wia(node, "QConvTranspose") || is_wia(node, "QGemm") ||
          is_wia(node, "QMatMul")) &&
         node->i("quantized", 0);
}

const Tensor* levels_table(const Node& node, const std::string& key) {
  const Tensor* table = node.tensor(key);
  return table && table->dtype == DType::kUint8 ? table : nullptr;
}

// [lo, hi] when the table is q -> clip(q, lo, hi).
std::optional<std::pair<int, int>> as_clip(const Tensor& table) {
  const uint8_t* t = table.as<uint8_t>();
  const int lo = t[0], hi = t[kLevels - 1];
  for (int q = 0; q < kLevels; ++q)
    if (t[q] != std::clamp(q, lo, std::max(lo, hi))) return std::nullopt;
  return std::pair{lo, hi};
}

void put_table(Node& product, const Tensor& table) {
  const bool sum = product.i("residual", 0) != 0;
  const std::string key = sum ? "sum_table" : "table", lo = sum ? "sum_qmin" : "qmin",
                    hi = sum ? "sum_qmax" : "qmax";
  const Tensor* before = product.tensor(key);
  if (!before && !is_wia(&product, "Table")) {
    if (const auto clip = as_clip(table)) {
      product.attributes[lo] = std::clamp<int64_t>(product.i(lo, 0), clip->first, clip->second);
      product.attributes[hi] = std::clamp<int64_t>(product.i(hi, 255), clip->first, clip->second);
      return;
    }
    product.attributes[key] = table;
    return;
  }
  const size_t size = dtype_size(table.dtype);
  Tensor both = Tensor::allocate(table.dtype, {kLevels});
  for (size_t q = 0; q < kLevels; ++q)
    std::copy_n(table.as<std::byte>() + before->as<uint8_t>()[q] * size, size,
                both.as<std::byte>() + q * size);
  product.attributes[key] = std::move(both);
}

bool fuse_table(Edges& edges, Node& table) {
  Node* product = edges.producer(table.inputs[0]);
  if (!takes_table(product) || !edges.single_use(table.inputs[0])) return false;
  const Tensor values = *table.tensor("table");
  // Only a Table node may end in floats.
  if (values.dtype != DType::kUint8 && !is_wia(product, "Table")) return false;
  if (is_wia(product, "Table") && !levels_table(*product, "table")) return false;
  const ValueId out = table.outputs[0];
  put_table(*product, values);
  edges.detach(table);
  edges.set_output(*product, 0, out);
  return true;
}

// Known to be of one shape; a dimension both leave open is taken to be the same.
bool same_shape(const Graph& graph, ValueId a, ValueId b) {
  const Value &x = graph.values[a], &y = graph.values[b];
  return x.has_shape && y.has_shape && x.shape == y.shape;
}

bool fuse_residual(Graph& graph, Edges& edges, Node& add,
                   const std::map<const Node*, size_t>& order) {
  if (!same_shape(graph, add.inputs[0], add.inputs[1]) || add.inputs[0] == add.inputs[1])
    return false;
  int side = -1;
  for (int i = 0; i < 2; ++i) {
    const Node* product = edges.producer(add.inputs[static_cast<size_t>(i)]);
    if (!takes_residual(product) || !edges.single_use(add.inputs[static_cast<size_t>(i)])) continue;
    if (!same_shape(graph, add.inputs[static_cast<size_t>(i)], add.outputs[0])) continue;
    // Of two products the later one: its other operand is then ready.
    if (side < 0 ||
        order.at(product) > order.at(edges.producer(add.inputs[static_cast<size_t>(side)])))
      side = i;
  }
  if (side < 0) return false;
  Node& product = *edges.producer(add.inputs[static_cast<size_t>(side)]);
  const ValueId residual = add.inputs[static_cast<size_t>(1 - side)], out = add.outputs[0];
  const std::string mine = side == 0 ? "a" : "b", other = side == 0 ? "b" : "a";
  product.attributes["residual"] = int64_t{1};
  product.attributes["sum_a_zero_point"] = add.i(mine + "_zero_point", 0);
  product.attributes["sum_b_zero_point"] = add.i(other + "_zero_point", 0);
  product.attributes["sum_a_multiplier"] = add.f(mine + "_multiplier", 1.0f);
  product.attributes["sum_b_multiplier"] = add.f(other + "_multiplier", 1.0f);
  product.attributes["sum_zero_point"] = add.i("zero_point", 0);
  product.attributes["sum_qmin"] = add.i("qmin", 0);
  product.attributes["sum_qmax"] = add.i("qmax", 255);
  if (const Tensor* table = add.tensor("table")) product.attributes["sum_table"] = *table;
  edges.detach(add);
  edges.set_input(product, 2, residual);
  edges.set_output(product, 0, out);
  return true;
}

}  // namespace

bool fuse_epilogues(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  std::vector<Node*> nodes;
  std::map<const Node*, size_t> order;
  for (auto& node : graph.nodes) {
    order[node.get()] = nodes.size();
    nodes.push_back(node.get());
  }
  // In the order they run: the table between a product and its Add goes in first.
  for (Node* node : nodes) {
    if (is_wia(node, "Table")) changed |= fuse_table(edges, *node);
    if (is_wia(node, "QAdd")) changed |= fuse_residual(graph, edges, *node, order);
  }
  return changed;
}

}  // namespace wia
