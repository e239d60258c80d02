// SPDX-License-Identifier: Apache-2.0
// The graph passes, in the order they run. Adding one is a file here and a line in passes.inc.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace wia {

struct PassContext {
  uint32_t isa;  // cpu feature mask, already capped
  size_t n_threads;
  // What the node's own kernel computes of these inputs (one Tensor for each node input; an absent
  // one has no type). Empty where no kernel can be run.
  std::function<std::vector<Tensor>(const Node& node, const std::vector<Tensor>& inputs)> evaluate;
};

struct Pass {
  const char* name;
  // True when it changed the graph. Constants are folded before the first pass, except what comes
  // from a DequantizeLinear, so that patterns still see it; what is left is folded after the last.
  bool (*run)(Graph& graph, const PassContext& context);
};

// Other domains' operators that are an operator of ai.onnx get its name; not a pass: it comes
// before the look whether libwia has them all.
void adopt_operators(Graph& graph);

std::span<const Pass> all_passes();

// Every pass once, in order, on the graph and on the subgraphs of its nodes. Dead nodes are removed
// and the order is made runnable after each that changed something.
void run_passes(Graph& graph, const PassContext& context);

}  // namespace wia
