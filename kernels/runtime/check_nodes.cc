// SPDX-License-Identifier: Apache-2.0
// Operators that exist, with as many inputs and outputs as ONNX gives them.
#include "runtime/check_nodes.h"

#include <algorithm>
#include <climits>
#include <map>

#include "runtime/kernel.h"

namespace wia {
namespace {

constexpr size_t kNamesShown = 5;
constexpr int kAny = INT_MAX;

struct Arity {
  const char* op_type;
  int n_inputs_needed, n_inputs_most, n_outputs_needed, n_outputs_most;
};
constexpr Arity kArities[] = {
#define WIA_ARITY(op, needed, most, out_needed, out_most) {#op, needed, most, out_needed, out_most},
#include "runtime/arity.inc"
#undef WIA_ARITY
};

template <class Visit>
void each_node(const Graph& graph, Visit visit) {
  for (const auto& node : graph.nodes) {
    visit(*node);
    for (const auto& [key, attribute] : node->attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute))
        each_node(**inner, visit);
  }
}

using Missing = std::map<std::pair<std::string, std::string>,
                         std::vector<std::string>>;  // domain, op_type -> nodes

void refuse_missing(const Missing& missing) {
  if (missing.empty()) return;
  std::string list;
  for (const auto& [key, names] : missing) {
    list += (list.empty() ? "" : "; ") + key.second + " of domain '" +
            (key.first.empty() ? "ai.onnx" : key.first) + "' (" + std::to_string(names.size()) +
            (names.size() == 1 ? " node: " : " nodes: ");
    for (size_t i = 0; i < std::min(names.size(), kNamesShown); ++i)
      list += (i ? ", '" : "'") + names[i] + "'";
    list += names.size() > kNamesShown ? ", ...)" : ")";
  }
  fail(WIA_ERROR_NOT_SUPPORTED, "the model needs operators that libwia does not have: " + list);
}

size_t n_captured(const Node& node) {
  for (const auto& [key, attribute] : node.attributes)
    if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute))
      return (*inner)->captures.size();
  return 0;
}

void check_count(const Node& node, const char* what, const std::vector<ValueId>& ids, size_t n,
                 int needed, int most) {
  bool all_there = n >= static_cast<size_t>(needed);
  for (int i = 0; all_there && i < needed; ++i) all_there = ids[static_cast<size_t>(i)] != kNoValue;
  require(all_there, node.where() + ": its first " + std::to_string(needed) + " " + what +
                         " must be there; it has " + std::to_string(n) +
                         (n >= static_cast<size_t>(needed) ? ", some of them empty" : ""));
  require(n <= static_cast<size_t>(most), node.where() + ": has " + std::to_string(n) + " " + what +
                                              ", at most " + std::to_string(most) + " are known");
}

void check_arity(const Node& node) {
  if (!node.domain.empty()) return;
  const auto* arity = std::find_if(std::begin(kArities), std::end(kArities),
                                   [&](const Arity& a) { return node.op_type == a.op_type; });
  if (arity == std::end(kArities)) return;
  const size_t n_inputs = node.inputs.size() - n_captured(node);
  check_count(node, "inputs", node.inputs, n_inputs, arity->n_inputs_needed, arity->n_inputs_most);
  check_count(node, "outputs", node.outputs, node.outputs.size(), arity->n_outputs_needed,
              arity->n_outputs_most);
}

}  // namespace

void check_nodes(const Graph& graph) {
  Missing missing;
  each_node(graph, [&](const Node& node) {
    require(
        node.domain != kWiaDomain,
        node.where() + ": operators of domain 'wia' are made by libwia and may not be in a file");
    if (!find_op(node.domain, node.op_type))
      missing[{node.domain, node.op_type}].push_back(node.name);
  });
  refuse_missing(missing);
  each_node(graph, check_arity);
}

}  // namespace wia
