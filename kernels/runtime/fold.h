// SPDX-License-Identifier: Apache-2.0
// Constant folding at load: nodes whose inputs are all constants become constants.
#pragma once

#include "runtime/kernel.h"

namespace wia {

// keep_dequantize: leave DequantizeLinear nodes, and so all that follows from them, for the passes
// to match.
void fold_constants(Graph& graph, const KernelContext& context, bool keep_dequantize);

// What the node's kernel makes of these inputs, one a node input (no type: absent): its outputs,
// absent ones left out.
std::vector<Tensor> evaluate_node(const Node& node, const std::vector<Tensor>& inputs,
                                  const KernelContext& context);

}  // namespace wia
