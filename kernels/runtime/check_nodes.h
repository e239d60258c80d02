// SPDX-License-Identifier: Apache-2.0
// What must hold of every node of a file before passes and kernels look at it.
#pragma once

#include "graph/graph.h"

namespace wia {

// Throws Error: for nodes of domain "wia", which only libwia makes; one that lists every operator
// libwia does not have; and for a node with too few or too many inputs or outputs. Subgraphs
// included.
void check_nodes(const Graph& graph);

}  // namespace wia
