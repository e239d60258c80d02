// SPDX-License-Identifier: Apache-2.0
// Transpose nodes and what permutations do to shapes and constants.
#pragma once

#include <optional>
#include <vector>

#include "graph/edges.h"
#include "graph/graph.h"

namespace wia {

using Perm = std::vector<int>;  // output dimension d is input dimension perm[d]

// The permutation of a Transpose node; nullopt for another node, or when it states none and the
// rank is unknown.
std::optional<Perm> perm_of(const Graph& graph, const Node* node);
Perm inverse(const Perm& perm);
Perm composed(const Perm& first, const Perm& then);  // of Transpose(Transpose(x, first), then)
bool is_identity(const Perm& perm);

Shape permuted(const Shape& shape, const Perm& perm);
Tensor permuted(const Tensor& tensor, const Perm& perm);

// A Transpose of x, its result a new value.
ValueId add_transpose(Graph& graph, Edges& edges, ValueId x, const Perm& perm,
                      const std::string& name);
// Makes an existing value the Transpose of a new one, which has the inverse shape and this type:
// returns the new one.
ValueId add_transpose_to(Graph& graph, Edges& edges, ValueId y, const Perm& perm, DType dtype,
                         const std::string& name);

Perm to_channels_last(int rank);   // [N, C, ...] -> [N, ..., C]
Perm to_channels_first(int rank);  // and back
inline ValueId channels_last(Graph& graph, Edges& edges, ValueId x, int rank,
                             const std::string& name) {
  return add_transpose(graph, edges, x, to_channels_last(rank), name + "/channels_last");
}
// The new value that, made channels-first, is y.
inline ValueId channels_first(Graph& graph, Edges& edges, ValueId y, int rank, DType dtype,
                              const std::string& name) {
  return add_transpose_to(graph, edges, y, to_channels_first(rank), dtype,
                          name + "/channels_first");
}

}  // namespace wia
