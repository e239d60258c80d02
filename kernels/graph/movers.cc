// SPDX-License-Identifier: Apache-2.0
// Operators that only move or select values.
#include "graph/movers.h"

#include <map>
#include <string>

#include "graph/grid.h"

namespace wia {
namespace {

constexpr size_t kAll = 0;  // every input is data
constexpr int kPadWithInputs = 11;

struct Entry {
  size_t first, last;  // data inputs [first, last); last kAll: to the end
  bool reduces;
  bool (*applies)(const Node&);
};

bool one_output(const Node& node) {
  return node.outputs.size() == 1 || node.outputs[1] == kNoValue;
}
bool nearest(const Node& node) { return node.s("mode", "nearest") == "nearest"; }
bool pads_values(const Node& node) {
  return node.opset < kPadWithInputs || node.inputs.size() >= 2;
}

const std::map<std::string, Entry>& entries() {
  static const auto* const table = new std::map<std::string, Entry>{
      {"Compress", {0, 1, true, nullptr}},         {"Concat", {0, kAll, false, nullptr}},
      {"DepthToSpace", {0, 1, false, nullptr}},    {"Dropout", {0, 1, false, one_output}},
      {"Expand", {0, 1, false, nullptr}},          {"Flatten", {0, 1, false, nullptr}},
      {"Gather", {0, 1, true, nullptr}},           {"GatherElements", {0, 1, true, nullptr}},
      {"GatherND", {0, 1, true, nullptr}},         {"Identity", {0, 1, false, nullptr}},
      {"MaxPool", {0, 1, false, one_output}},      {"Pad", {0, 1, false, pads_values}},
      {"ReduceMax", {0, 1, false, nullptr}},       {"ReduceMin", {0, 1, false, nullptr}},
      {"Reshape", {0, 1, false, nullptr}},         {"Resize", {0, 1, false, nearest}},
      {"ReverseSequence", {0, 1, false, nullptr}}, {"Slice", {0, 1, true, nullptr}},
      {"SpaceToDepth", {0, 1, false, nullptr}},    {"Split", {0, 1, false, nullptr}},
      {"Squeeze", {0, 1, false, nullptr}},         {"Tile", {0, 1, false, nullptr}},
      {"Transpose", {0, 1, false, nullptr}},       {"Unsqueeze", {0, 1, false, nullptr}},
      {"Upsample", {0, 1, false, nearest}},        {"Where", {1, 3, false, nullptr}},
  };
  return *table;
}

void pad_to_inputs(Graph& graph, Node& node) {
  const float fill = node.f("value", 0.0f);
  const ValueId pads = graph.add_constant(node.name + "/pads", int64_tensor(node.ints("pads")));
  node.inputs = {node.inputs.at(0), pads,
                 graph.add_constant(node.name + "/fill", scalar_tensor(fill))};
  node.attributes.erase("pads");
  node.attributes.erase("value");
  node.opset = kPadWithInputs;
}

}  // namespace

Mover mover_of(Graph& graph, Node& node) {
  Mover mover;
  if (!node.domain.empty() || node.inputs.empty()) return mover;
  auto it = entries().find(node.op_type);
  if (it == entries().end()) return mover;
  const Entry& entry = it->second;
  if (entry.applies && !entry.applies(node)) return mover;
  const size_t last = entry.last == kAll ? node.inputs.size() : entry.last;
  if (node.inputs.size() < last) return mover;
  if (node.op_type == "Pad") {
    const bool constant_fill = node.s("mode", "constant") == "constant";
    if (node.opset < kPadWithInputs) pad_to_inputs(graph, node);
    if (constant_fill && (node.inputs.size() < 3 || node.inputs[2] == kNoValue)) {
      if (graph.values[node.inputs[0]].dtype != DType::kFloat32 &&
          graph.values[node.inputs[0]].dtype != DType::kUndefined)
        return mover;
      node.inputs.resize(std::max<size_t>(node.inputs.size(), 3), kNoValue);
      node.inputs[2] = graph.add_constant(node.name + "/fill", scalar_tensor(0.0f));
    }
    mover.data = {0};
    if (constant_fill) mover.data.push_back(2);
    return mover;
  }
  for (size_t i = entry.first; i < last; ++i) {
    if (node.inputs[i] == kNoValue) return Mover{};
    mover.data.push_back(i);
  }
  mover.reduces = entry.reduces;
  return mover;
}

}  // namespace wia
