// SPDX-License-Identifier: Apache-2.0
// The table of passes, made from passes.inc, and the loop over it.
#include "graph/passes/passes.h"

#include <iterator>

namespace wia {

#define WIA_PASS(name, run) bool run(Graph& graph, const PassContext& context);
#include "graph/passes/passes.inc"
#undef WIA_PASS

namespace {

const Pass kPasses[] = {
#define WIA_PASS(name, run) {name, run},
#include "graph/passes/passes.inc"
#undef WIA_PASS
    {"", nullptr},
};

}  // namespace

std::span<const Pass> all_passes() { return {kPasses, std::size(kPasses) - 1}; }

void run_passes(Graph& graph, const PassContext& context) {
  for (auto& node : graph.nodes)
    for (auto& [key, attribute] : node->attributes)
      if (auto* subgraph = std::get_if<std::shared_ptr<Graph>>(&attribute))
        run_passes(**subgraph, context);
  for (const Pass& pass : all_passes()) {
    if (!pass.run(graph, context)) continue;
    graph.remove_dead();
    graph.sort();
  }
}

}  // namespace wia
