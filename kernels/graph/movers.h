// SPDX-License-Identifier: Apache-2.0
// Operators that only move or select values: they commute with any increasing function of one
// value, so with quantizing and dequantizing by one grid.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace wia {

struct Mover {
  // The node inputs that carry values; empty: the node is no mover.
  std::vector<size_t> data;
  bool reduces = false;  // fewer values leave than enter, so work is better done behind it
  bool moves() const { return !data.empty(); }
};

// Pad's fill is a data input (2), added as a constant 0 where the node has none. An old form of Pad
// (attributes) is brought to the form with inputs.
Mover mover_of(Graph& graph, Node& node);

}  // namespace wia
