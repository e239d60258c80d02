// SPDX-License-Identifier: Apache-2.0
// Folding, passes, folding of what the passes left.
#include "runtime/simplify.h"

#include "graph/passes/passes.h"
#include "runtime/fold.h"

namespace wia {

void simplify(Graph& graph, const KernelContext& context, bool optimize) {
  fold_constants(graph, context, true);
  if (optimize) {
    run_passes(graph, {context.isa, context.n_threads,
                       [&](const Node& node, const std::vector<Tensor>& inputs) {
                         return evaluate_node(node, inputs, context);
                       }});
  }
  fold_constants(graph, context, false);
}

}  // namespace wia
