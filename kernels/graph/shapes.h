// SPDX-License-Identifier: Apache-2.0
// Shapes as far as they follow from the inputs' shapes and the constants; -1 where they do not.
#pragma once

#include "graph/graph.h"

namespace wia {

// Fills values[v].shape (and an undefined dtype) of every value that a rule below can tell. The
// kernels' infer() remains the authority at plan time: a pass may use these for what to do, never
// for the bounds of memory.
void fill_shapes(Graph& graph);

// numpy's broadcast with unknown dimensions; false when either rank is unknown or the dimensions
// disagree.
bool broadcast_shape(const Shape& a, const Shape& b, Shape* out);

}  // namespace wia
