// SPDX-License-Identifier: Apache-2.0
// Transpose nodes and what permutations do to shapes and constants.
#include "graph/permute.h"

#include <array>
#include <cstring>
#include <numeric>

#include "graph/grid.h"

namespace wia {
namespace {

constexpr int kOpset = 13;

Node& transpose_node(Graph& graph, Edges& edges, ValueId x, ValueId y, const Perm& perm,
                     const std::string& name) {
  Node& node = graph.add_node("Transpose", "", name, {x}, {y});
  node.opset = kOpset;
  node.attributes["perm"] = std::vector<int64_t>(perm.begin(), perm.end());
  return edges.add(node);
}

}  // namespace

std::optional<Perm> perm_of(const Graph& graph, const Node* node) {
  if (!is_op(node, "Transpose") || node->inputs.size() != 1 || node->outputs.size() != 1)
    return std::nullopt;
  const auto stated = node->ints("perm");
  Perm perm;
  if (stated.empty()) {
    const Value& x = graph.values[node->inputs[0]];
    if (!x.has_shape) return std::nullopt;
    for (int d = x.shape.rank() - 1; d >= 0; --d) perm.push_back(d);
    return perm;
  }
  if (stated.size() > Shape::kMaxRank) return std::nullopt;
  std::array<bool, Shape::kMaxRank> seen{};
  for (int64_t d : stated) {
    if (d < 0 || d >= static_cast<int64_t>(stated.size()) || seen[static_cast<size_t>(d)])
      return std::nullopt;
    seen[static_cast<size_t>(d)] = true;
    perm.push_back(static_cast<int>(d));
  }
  return perm;
}

Perm inverse(const Perm& perm) {
  Perm out(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) out[static_cast<size_t>(perm[d])] = static_cast<int>(d);
  return out;
}

Perm composed(const Perm& first, const Perm& then) {
  Perm out;
  for (int d : then) out.push_back(first[static_cast<size_t>(d)]);
  return out;
}

bool is_identity(const Perm& perm) {
  for (size_t d = 0; d < perm.size(); ++d)
    if (perm[d] != static_cast<int>(d)) return false;
  return true;
}

Shape permuted(const Shape& shape, const Perm& perm) {
  Shape out;
  for (int d : perm) out.push_back(shape[d]);
  return out;
}

Tensor permuted(const Tensor& tensor, const Perm& perm) {
  Tensor out = Tensor::allocate(tensor.dtype, permuted(tensor.shape, perm));
  const size_t size = dtype_size(tensor.dtype);
  const int rank = tensor.shape.rank();
  std::array<int64_t, Shape::kMaxRank> steps{}, index{};
  int64_t step = 1;
  for (int d = rank - 1; d >= 0; --d) {
    steps[static_cast<size_t>(d)] = step;
    step *= tensor.shape[d];
  }
  const auto* from = tensor.as<std::byte>();
  auto* to = out.as<std::byte>();
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i) {
    int64_t at = 0;
    for (int d = 0; d < rank; ++d)
      at +=
          index[static_cast<size_t>(d)] * steps[static_cast<size_t>(perm[static_cast<size_t>(d)])];
    std::memcpy(to + static_cast<size_t>(i) * size, from + static_cast<size_t>(at) * size, size);
    for (int d = rank - 1; d >= 0; --d) {
      if (++index[static_cast<size_t>(d)] < out.shape[d]) break;
      index[static_cast<size_t>(d)] = 0;
    }
  }
  return out;
}

ValueId add_transpose(Graph& graph, Edges& edges, ValueId x, const Perm& perm,
                      const std::string& name) {
  const ValueId y = graph.add_value(name, graph.values[x].dtype);
  if (graph.values[x].has_shape && graph.values[x].shape.rank() == static_cast<int>(perm.size())) {
    graph.values[y].has_shape = true;
    graph.values[y].shape = permuted(graph.values[x].shape, perm);
  }
  transpose_node(graph, edges, x, y, perm, name);
  return y;
}

ValueId add_transpose_to(Graph& graph, Edges& edges, ValueId y, const Perm& perm, DType dtype,
                         const std::string& name) {
  const ValueId x = graph.add_value(name + "/from", dtype);
  if (graph.values[y].has_shape && graph.values[y].shape.rank() == static_cast<int>(perm.size())) {
    graph.values[x].has_shape = true;
    graph.values[x].shape = permuted(graph.values[y].shape, inverse(perm));
  }
  transpose_node(graph, edges, x, y, perm, name);
  return x;
}

Perm to_channels_last(int rank) {
  Perm perm(static_cast<size_t>(rank));
  perm[0] = 0;
  for (int d = 2; d < rank; ++d) perm[static_cast<size_t>(d - 1)] = d;
  perm[static_cast<size_t>(rank - 1)] = 1;
  return perm;
}

Perm to_channels_first(int rank) { return inverse(to_channels_last(rank)); }

}  // namespace wia
