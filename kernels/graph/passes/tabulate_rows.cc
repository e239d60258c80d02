// SPDX-License-Identifier: Apache-2.0
// Whatever is computed of one-hot rows alone, row by row, is a table with a row for each class:
//
//   h = Equal(x, [first, first + 1, ...])  or  OneHot(x)     h[i, :] = H[c(x[i]), :]
//   y = f(h), every row of y from the same row of h          y[i, :] = f(H)[c(x[i]), :]
//
// c(x) is the class: x - first where that is one of the n classes, n (a row of zeros) where it is
// not. f is any graph of elementwise operators and of products with constants (QGemm, MatMul, Gemm)
// in which every path starts at the same x. f(H) is made by running the nodes' own kernels on the
// n + 1 rows, docs/quantization.md (26), so y has the bytes that the graph would have computed.
// Runs last, when the nodes are those that would run; done only where f has a product.
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

constexpr int64_t kMostClasses = 4096;
constexpr int64_t kMostElements = 4 << 20;         // of one table
constexpr int64_t kMostInAll = 4 * kMostElements;  // of all tables of a graph, so of the work

// What c(x) is, and the shape of what has a row for each x.
struct Classes {
  ValueId x = kNoValue;
  int64_t first = 0, n = 0;
  bool wraps = false;    // negative ones count from n
  bool appends = false;  // rows are a new last dimension; otherwise they take the place of x's
                         // last, which is 1
  bool operator==(const Classes&) const = default;
};

struct Rows {
  Classes classes;
  Tensor table;  // [n + 1, width]
  bool product = false;
};

bool is_ours(const Node& node, std::initializer_list<const char*> ops) {
  return node.domain == kWiaDomain &&
         std::any_of(ops.begin(), ops.end(), [&](const char* op) { return node.op_type == op; });
}

class Tabulator {
 public:
  Tabulator(Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}

  const Rows* of(ValueId v) const {
    const auto it = rows_.find(v);
    return it == rows_.end() ? nullptr : &it->second;
  }

  void visit(const Node& node) {
    if (node.outputs.size() != 1 || node.outputs[0] == kNoValue) return;
    if (is_op(&node, "Equal") && from_equal(node)) return;
    if (is_op(&node, "OneHot") && from_one_hot(node)) return;
    if (is_product(node)) return evaluate(node, true);
    if (is_elementwise(node) ||
        is_ours(node, {"Quantize", "Dequantize", "Table", "FlipSign", "QAdd", "QMul"}) ||
        ((is_quantize(&node) || is_dequantize(&node)) && grid_of(graph_, node)))
      evaluate(node, false);
  }

 private:
  // Rows times a constant matrix.
  bool is_product(const Node& node) const {
    if (node.inputs.size() < 2 || !graph_.is_constant(node.inputs[1]) ||
        graph_.values[node.inputs[1]].constant->shape.rank() != 2)
      return false;
    if (is_op(&node, "Gemm")) return node.i("transA", 0) == 0;
    return is_op(&node, "MatMul") || is_ours(node, {"QGemm"});
  }

  bool is_index(ValueId v) const {
    const DType dtype = v == kNoValue ? DType::kUndefined : graph_.values[v].dtype;
    return dtype == DType::kInt32 || dtype == DType::kInt64;
  }

  bool from_equal(const Node& node) {
    for (size_t i = 0; i < 2 && node.inputs.size() == 2; ++i) {
      const ValueId x = node.inputs[1 - i], c = node.inputs[i];
      if (!graph_.is_constant(c) || graph_.is_constant(x) || !is_index(x)) continue;
      const Tensor& t = *graph_.values[c].constant;
      const Value& value = graph_.values[x];
      const int rank = t.shape.rank(), x_rank = value.has_shape ? value.shape.rank() : 0;
      if (rank < 1 || rank > x_rank || value.shape[x_rank - 1] != 1) continue;
      const int64_t n = t.shape[rank - 1];
      if (n < 2 || n > kMostClasses || t.numel() != n || t.dtype != value.dtype || !t.data)
        continue;
      const auto at = [&](int64_t j) {
        return t.dtype == DType::kInt32 ? int64_t{t.as<int32_t>()[j]} : t.as<int64_t>()[j];
      };
      bool counts = at(0) >= INT32_MIN && at(0) <= INT32_MAX;
      for (int64_t j = 1; j < n && counts; ++j) counts = at(j) == at(0) + j;
      if (!counts || !afford((n + 1) * n)) continue;
      Tensor table = Tensor::allocate(DType::kBool, {n + 1, n});
      std::fill_n(table.as<uint8_t>(), table.n_bytes(), uint8_t{0});
      for (int64_t j = 0; j < n; ++j) table.as<uint8_t>()[j * n + j] = 1;
      rows_[node.outputs[0]] = {{x, at(0), n, false, false}, std::move(table), false};
      return true;
    }
    return false;
  }

  bool from_one_hot(const Node& node) {
    if (node.inputs.size() != 3 || !is_index(node.inputs[0]) ||
        graph_.is_constant(node.inputs[0]) || !graph_.is_constant(node.inputs[2]) ||
        node.i("axis", -1) != -1)
      return false;
    const auto depth = integer_constant(graph_, node.inputs[1]);
    const Value& x = graph_.values[node.inputs[0]];
    if (!depth || depth->size() != 1 || !x.has_shape || x.shape.rank() >= Shape::kMaxRank)
      return false;
    const int64_t n = (*depth)[0];
    if (n < 2 || n > kMostClasses || !afford((n + 1) * n)) return false;
    Tensor classes = Tensor::allocate(DType::kInt64, {n + 1});
    for (int64_t j = 0; j <= n; ++j) classes.as<int64_t>()[j] = j;
    std::vector<Tensor> made =
        context_.evaluate(node, {std::move(classes), *graph_.values[node.inputs[1]].constant,
                                 *graph_.values[node.inputs[2]].constant});
    if (made.size() != 1 || made[0].shape.rank() != 2) return false;
    rows_[node.outputs[0]] = {{node.inputs[0], 0, n, true, true}, std::move(made[0]), false};
    return true;
  }

  // A constant that is the same for every row, as a row.
  std::optional<Tensor> same_for_all(ValueId v, int rank) const {
    if (!graph_.is_constant(v)) return std::nullopt;
    Tensor t = *graph_.values[v].constant;
    const int own = t.shape.rank();
    if (own > rank || t.numel() == 0 || !t.data) return std::nullopt;
    const int64_t width = own == 0 ? 1 : t.shape[own - 1];
    if (t.numel() != width) return std::nullopt;
    if (own > 0) t.shape = {width};
    return t;
  }

  void evaluate(const Node& node, bool product) {
    const Rows* from = nullptr;
    for (ValueId v : node.inputs) {
      const Rows* rows = of(v);
      if (!rows) continue;
      if (from && !(rows->classes == from->classes)) return;
      from = rows;
    }
    if (!from || (product && !of(node.inputs[0]))) return;
    const Classes classes = from->classes;
    const int rank = graph_.values[classes.x].shape.rank() + (classes.appends ? 1 : 0);
    std::vector<Tensor> inputs;
    bool has_product = product;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      if (v == kNoValue) {
        inputs.emplace_back();
      } else if (const Rows* rows = of(v)) {
        if (product && i != 0) return;
        inputs.push_back(rows->table);
        has_product |= rows->product;
      } else if (product && i == 1) {
        inputs.push_back(*graph_.values[v].constant);
        if (!inputs.back().data) return;
      } else if (std::optional<Tensor> row = same_for_all(v, rank)) {
        inputs.push_back(std::move(*row));
      } else {
        return;
      }
    }
    int64_t width = 1;
    for (const Tensor& input : inputs)
      if (input.shape.rank() > 0) width = std::max(width, input.shape[input.shape.rank() - 1]);
    if (product) width = inputs[1].numel() / std::max<int64_t>(1, inputs[0].shape[1]);
    if (width > kMostElements || !afford((classes.n + 1) * width)) return;
    std::vector<Tensor> made = context_.evaluate(node, inputs);
    if (made.size() != 1 || made[0].shape.rank() != 2 || made[0].shape[0] != classes.n + 1) return;
    rows_[node.outputs[0]] = {classes, std::move(made[0]), has_product};
  }

  // Takes so many elements from what all tables may have; false when one or all have too many.
  bool afford(int64_t elements) {
    if (elements > kMostElements || elements > left_) return false;
    left_ -= elements;
    return true;
  }

  Graph& graph_;
  const PassContext& context_;
  std::map<ValueId, Rows> rows_;
  int64_t left_ = kMostInAll;
};

}  // namespace

bool tabulate_rows(Graph& graph, const PassContext& context) {
  if (!context.evaluate) return false;
  Edges edges(graph);
  Tabulator tabulator(graph, context);
  for (auto& node : graph.nodes) tabulator.visit(*node);
  std::vector<Node*> ends;  // what something reads that is no function of the classes
  for (auto& node : graph.nodes) {
    const Rows* rows = node->outputs.size() == 1 ? tabulator.of(node->outputs[0]) : nullptr;
    if (!rows || !rows->product) continue;
    const std::vector<Node*> readers = edges.consumers(node->outputs[0]);
    if (edges.is_output(node->outputs[0]) ||
        std::any_of(readers.begin(), readers.end(), [&](Node* reader) {
          return reader->outputs.size() != 1 || !tabulator.of(reader->outputs[0]);
        }))
      ends.push_back(node.get());
  }
  for (Node* end : ends) {
    const ValueId out = end->outputs[0];
    const Rows& rows = *tabulator.of(out);
    const std::string name = end->name;
    edges.detach(*end);
    Node& table = graph.add_node("RowTable", kWiaDomain, name, {rows.classes.x}, {out});
    table.opset = 1;
    table.attributes["table"] = rows.table;
    table.attributes["first"] = rows.classes.first;
    table.attributes["wraps"] = int64_t{rows.classes.wraps};
    table.attributes["appends"] = int64_t{rows.classes.appends};
    edges.add(table);
  }
  return !ends.empty();
}

}  // namespace wia
