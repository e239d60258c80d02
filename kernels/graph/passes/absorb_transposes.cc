// SPDX-License-Identifier: Apache-2.0
// A product of two activations reads and writes through strides, so the Transposes around attention
// need no copy:
//
//   QMatMul(T_p(a), T_q(b)) = QMatMul(a, b; perm_a = p, perm_b = q)      p keeps the last axis last
//   T_r(QMatMul(a, b))      = QMatMul(a, b; perm_y = r)                  r keeps the last axis last
#include <optional>

#include "graph/edges.h"
#include "graph/passes/passes.h"
#include "graph/permute.h"

namespace wia {
namespace {

bool keeps_last(const Perm& perm) {
  return !perm.empty() && perm.back() == static_cast<int>(perm.size()) - 1;
}

std::vector<int64_t> list(const Perm& perm) { return {perm.begin(), perm.end()}; }

bool absorb(Graph& graph, Edges& edges, Node& node) {
  bool changed = false;
  const char* const keys[] = {"perm_a", "perm_b"};
  for (size_t i = 0; i < 2; ++i) {
    const Node* above = edges.producer(node.inputs[i]);
    const std::optional<Perm> perm = perm_of(graph, above);
    if (!perm || node.has(keys[i]) || perm->size() < 2 || (i == 0 && !keeps_last(*perm))) continue;
    node.attributes[keys[i]] = list(*perm);
    edges.set_input(node, i, above->inputs[0]);
    changed = true;
  }
  const ValueId y = node.outputs[0];
  if (!edges.single_use(y) || node.has("perm_y")) return changed;
  Node* below = edges.consumers(y)[0];
  const std::optional<Perm> perm = perm_of(graph, below);
  if (!perm || perm->size() < 3 || !keeps_last(*perm)) return changed;
  const ValueId out = below->outputs[0];
  edges.detach(*below);
  edges.set_output(node, 0, out);
  node.attributes["perm_y"] = list(*perm);
  return true;
}

}  // namespace

bool absorb_transposes(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  for (auto& node : graph.nodes)
    if (node->domain == kWiaDomain && node->op_type == "QMatMul")
      changed |= absorb(graph, edges, *node);
  return changed;
}

}  // namespace wia
