// SPDX-License-Identifier: Apache-2.0
// What follows an integer product and nothing else reads goes into it, as the epilogue's table and
// residual:
//
//   Table(product)            the product's table, (11); bounds where the table only clips, (10)
//   QAdd(product, r)          the product with a residual, (12): both roundings stay as they were;
//                             r has the product's shape or is one row for all
//   Table(product + residual) its sum_table
//   Table(QAdd), Table(QMul)  their table;  Table(Table) one Table
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int kLevels = 256;
constexpr int kReshapeOpset = 13;

bool is_wia(const Node* node, const char* op_type) {
  return node && node->domain == kWiaDomain && node->op_type == op_type;
}

bool takes_residual(const Node* node) {
  return (is_wia(node, "QConv") || is_wia(node, "QConvTranspose") || is_wia(node, "QGemm") ||
          (is_wia(node, "QMatMul") && !node->has("perm_y"))) &&
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

// Moves its values one by one and has one input of them: a table before it is a table behind it.
bool is_rearrangement(const Node* node) {
  static const std::set<std::string> moving = {"DepthToSpace", "Flatten",  "Identity",
                                               "Reshape",      "Squeeze",  "SpaceToDepth",
                                               "Transpose",    "Unsqueeze"};
  return node && node->domain.empty() && moving.count(node->op_type);
}

// The operator that makes v, seen through rearrangements that nothing else reads.
Node* maker(const Edges& edges, ValueId v) {
  while (edges.single_use(v) && is_rearrangement(edges.producer(v)))
    v = edges.producer(v)->inputs[0];
  return edges.single_use(v) ? edges.producer(v) : nullptr;
}

bool fuse_table(Graph& graph, Edges& edges, Node& table) {
  const ValueId x = table.inputs[0], out = table.outputs[0];
  Node* product = maker(edges, x);
  if (!takes_table(product)) return false;
  const Tensor values = *table.tensor("table");
  const bool directly = product == edges.producer(x);
  // Only a Table node may end in floats, and only where no rearrangement of levels stands between.
  if (values.dtype != DType::kUint8 && !(is_wia(product, "Table") && directly)) return false;
  if (is_wia(product, "Table") && !levels_table(*product, "table")) return false;
  put_table(*product, values);
  edges.detach(table);
  edges.set_output(*edges.producer(x), 0, out);
  graph.values[out].dtype = values.dtype;
  return true;
}

// How the other operand of an Add lies on the rows and columns of a product's output.
enum class Operand { kNone, kSame, kRow, kBatches };

// Known to be of one shape (a dimension both leave open is taken to be the same), or one row for
// all; of a QMatMul, rows that repeat in any way.
Operand operand_of(const Graph& graph, const Node& node, ValueId product, ValueId other,
                   ValueId sum) {
  const Value &p = graph.values[product], &r = graph.values[other], &y = graph.values[sum];
  if (!p.has_shape || !r.has_shape || !y.has_shape || !(p.shape == y.shape)) return Operand::kNone;
  if (r.shape == p.shape) return Operand::kSame;
  const int rank = r.shape.rank();
  if (rank < 1 || rank > p.shape.rank()) return Operand::kNone;
  const int64_t n = p.shape[p.shape.rank() - 1];
  if (n < 1 || r.shape[rank - 1] != n) return Operand::kNone;
  bool row = true;
  for (int d = 0; d + 1 < rank; ++d) {
    if (r.shape[d] == 1) continue;
    row = false;
    if (r.shape[d] != p.shape[p.shape.rank() - rank + d]) return Operand::kNone;
  }
  if (row) return Operand::kRow;
  return is_wia(&node, "QMatMul") ? Operand::kBatches : Operand::kNone;
}

// The residual as the product itself has its output, when a Reshape stands between product and Add.
ValueId reshaped_like(Graph& graph, Edges& edges, ValueId residual, ValueId like) {
  const Shape& shape = graph.values[like].shape;
  std::vector<int64_t> target(shape.begin(), shape.end());
  if (std::count_if(target.begin(), target.end(), [](int64_t d) { return d < 1; }) > 1)
    return kNoValue;
  for (int64_t& d : target)
    if (d < 1) d = -1;
  const std::string name = graph.values[residual].name + "/like_product";
  const ValueId v = add_value_like(graph, like, name, DType::kUint8);
  Node& reshape =
      graph.add_node("Reshape", "", name,
                     {residual, graph.add_constant(name + "/shape", int64_tensor(target))}, {v});
  reshape.opset = kReshapeOpset;
  edges.add(reshape);
  return v;
}

bool fuse_residual(Graph& graph, Edges& edges, Node& add,
                   const std::map<const Node*, size_t>& order) {
  if (add.inputs[0] == add.inputs[1]) return false;
  int side = -1;
  auto product_at = [&](int i) -> Node* {
    ValueId v = add.inputs[static_cast<size_t>(i)];
    if (!edges.single_use(v)) return nullptr;
    Node* made = edges.producer(v);
    if (is_op(made, "Reshape") && edges.single_use(made->inputs[0]))
      made = edges.producer(made->inputs[0]);
    return takes_residual(made) ? made : nullptr;
  };
  for (int i = 0; i < 2; ++i) {
    const Node* product = product_at(i);
    if (!product ||
        operand_of(graph, *product, add.inputs[static_cast<size_t>(i)],
                   add.inputs[static_cast<size_t>(1 - i)], add.outputs[0]) == Operand::kNone)
      continue;
    // Of two products the later one: its other operand is then ready.
    if (side < 0 || order.at(product) > order.at(product_at(side))) side = i;
  }
  if (side < 0) return false;
  Node& product = *product_at(side);
  const ValueId mine_value = add.inputs[static_cast<size_t>(side)];
  ValueId residual = add.inputs[static_cast<size_t>(1 - side)];
  const ValueId out = add.outputs[0];
  Node* reshape = edges.producer(mine_value) == &product ? nullptr : edges.producer(mine_value);
  if (operand_of(graph, product, mine_value, residual, out) == Operand::kRow) {
    const int64_t n = graph.values[mine_value].shape[graph.values[mine_value].shape.rank() - 1];
    const Value& y = graph.values[product.outputs[0]];
    if (!y.has_shape || y.shape.rank() < 1 || y.shape[y.shape.rank() - 1] != n) return false;
  } else if (reshape) {
    if (!graph.values[product.outputs[0]].has_shape || is_wia(&product, "QMatMul")) return false;
    residual = reshaped_like(graph, edges, residual, product.outputs[0]);
    if (residual == kNoValue) return false;
  }
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
  edges.set_output(reshape ? *reshape : product, 0, out);
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
    if (is_wia(node, "Table")) changed |= fuse_table(graph, edges, *node);
    if (is_wia(node, "QAdd")) changed |= fuse_residual(graph, edges, *node, order);
  }
  return changed;
}

}  // namespace wia
