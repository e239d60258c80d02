// SPDX-License-Identifier: Apache-2.0
// A BatchNormalization behind a float Conv is other weights and another bias:
//
//   BN(Conv(x, w) + b) = Conv(x, w * k) + (b - mean) * k + bias,   k = scale / sqrt(var + eps), per
//   output channel
#include <cmath>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

// A constant float32 vector of n values.
const float* vector_of(const Graph& graph, ValueId v, int64_t n) {
  if (!graph.is_constant(v)) return nullptr;
  const Tensor& t = *graph.values[v].constant;
  return t.dtype == DType::kFloat32 && t.numel() == n ? t.as<float>() : nullptr;
}

bool fold(Graph& graph, Edges& edges, Node& norm) {
  Node* conv = edges.producer(norm.inputs[0]);
  if (!is_op(conv, "Conv") || !edges.single_use(norm.inputs[0]) || norm.inputs.size() < 5)
    return false;
  for (size_t o = 1; o < norm.outputs.size(); ++o)
    if (norm.outputs[o] != kNoValue) return false;
  if (norm.i("training_mode", 0) != 0 || !graph.is_constant(conv->inputs[1])) return false;
  const Tensor w = *graph.values[conv->inputs[1]].constant;
  if (w.dtype != DType::kFloat32 || w.shape.rank() < 1 || w.shape[0] < 1) return false;
  const int64_t n = w.shape[0];
  const float *scale = vector_of(graph, norm.inputs[1], n),
              *shift = vector_of(graph, norm.inputs[2], n),
              *mean = vector_of(graph, norm.inputs[3], n),
              *variance = vector_of(graph, norm.inputs[4], n);
  if (!scale || !shift || !mean || !variance) return false;
  const bool has_bias = conv->inputs.size() > 2 && conv->inputs[2] != kNoValue;
  const float* before = has_bias ? vector_of(graph, conv->inputs[2], n) : nullptr;
  if (has_bias && !before) return false;
  const double epsilon = norm.f("epsilon", 1e-5f);

  Tensor weights = Tensor::allocate(DType::kFloat32, w.shape),
         bias = Tensor::allocate(DType::kFloat32, {n});
  const int64_t each = w.numel() / n;
  for (int64_t o = 0; o < n; ++o) {
    const double k = double{scale[o]} / std::sqrt(double{variance[o]} + epsilon);
    if (!std::isfinite(k)) return false;
    for (int64_t i = 0; i < each; ++i)
      weights.as<float>()[o * each + i] =
          static_cast<float>(double{w.as<float>()[o * each + i]} * k);
    bias.as<float>()[o] = static_cast<float>(
        (double{before ? before[o] : 0.0f} - double{mean[o]}) * k + double{shift[o]});
  }
  const std::string name = conv->name;
  edges.set_input(*conv, 1, graph.add_constant(name + "/folded_weights", std::move(weights)));
  edges.set_input(*conv, 2, graph.add_constant(name + "/folded_bias", std::move(bias)));
  const ValueId out = norm.outputs[0];
  edges.detach(norm);
  edges.set_output(*conv, 0, out);
  return true;
}

}  // namespace

bool fold_batch_norm(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  for (auto& node : graph.nodes)
    if (is_op(node.get(), "BatchNormalization")) changed |= fold(graph, edges, *node);
  return changed;
}

}  // namespace wia
