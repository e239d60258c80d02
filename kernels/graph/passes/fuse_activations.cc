// SPDX-License-Identifier: Apache-2.0
// Activations written out in float become one operator:
//
//   x * 0.5 * (1 + Erf(x / sqrt 2))                              Gelu, whatever the order of the
//                                                                factors
//   x * 0.5 * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))    Gelu by tanh, however the
//                                                                polynomial is written
//   x * Sigmoid(x)                                               Swish
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"

namespace wia {
namespace {

constexpr int kGeluOpset = 20;
constexpr int kSwishOpset = 24;
constexpr float kClose = 1e-4f;

bool close(std::optional<float> c, float wanted) { return c && std::fabs(*c - wanted) < kClose; }

// v = Erf(x / sqrt 2): the x; kNoValue otherwise.
ValueId erf_argument(const Graph& graph, const Edges& edges, ValueId v,
                     std::vector<Node*>* absorbed) {
  Node* erf = edges.producer(v);
  if (!is_op(erf, "Erf") || !edges.single_use(v) || !edges.single_use(erf->inputs[0]))
    return kNoValue;
  Node* scaled = edges.producer(erf->inputs[0]);
  if (!scaled || scaled->inputs.size() != 2) return kNoValue;
  ValueId x = kNoValue;
  if (is_op(scaled, "Div") && close(scalar_constant(graph, scaled->inputs[1]), std::sqrt(2.0f)))
    x = scaled->inputs[0];
  for (size_t i = 0; i < 2 && is_op(scaled, "Mul"); ++i)
    if (close(scalar_constant(graph, scaled->inputs[i]), std::sqrt(0.5f)))
      x = scaled->inputs[1 - i];
  absorbed->push_back(erf);
  absorbed->push_back(scaled);
  return x;
}

// The factors of a product of Muls that nothing else reads.
void factors_of(const Edges& edges, ValueId v, std::vector<ValueId>* factors,
                std::vector<Node*>* absorbed) {
  Node* mul = edges.producer(v);
  if (!is_op(mul, "Mul") || mul->inputs.size() != 2 || !edges.single_use(v) ||
      factors->size() > 4) {
    factors->push_back(v);
    return;
  }
  absorbed->push_back(mul);
  factors_of(edges, mul->inputs[0], factors, absorbed);
  factors_of(edges, mul->inputs[1], factors, absorbed);
}

// The rank of a constant factor must not raise that of the result.
bool harmless(const Graph& graph, ValueId constant, ValueId x) {
  const int rank = graph.values[constant].constant->shape.rank();
  return rank == 0 || (graph.values[x].has_shape && rank <= graph.values[x].shape.rank());
}

// c[0] + c[1] x + c[2] x^2 + c[3] x^3.
using Cubic = std::array<double, 4>;
constexpr int kMostTerms = 16;

// v as a cubic of x, where it is one written with Add, Sub, Mul, Div and Pow.
std::optional<Cubic> cubic_of(const Graph& graph, const Edges& edges, ValueId v, ValueId x,
                              int* budget) {
  if (v == kNoValue || --*budget < 0) return std::nullopt;
  if (v == x) return Cubic{0, 1, 0, 0};
  if (const auto c = scalar_constant(graph, v)) {
    if (!harmless(graph, v, x)) return std::nullopt;
    return Cubic{*c, 0, 0, 0};
  }
  const Node* node = edges.producer(v);
  if (!node || node->inputs.size() != 2 || node->outputs.size() != 1) return std::nullopt;
  const bool sum = is_op(node, "Add"), difference = is_op(node, "Sub"),
             product = is_op(node, "Mul"), quotient = is_op(node, "Div"),
             power = is_op(node, "Pow");
  if (!sum && !difference && !product && !quotient && !power) return std::nullopt;
  const auto a = cubic_of(graph, edges, node->inputs[0], x, budget);
  if (!a) return std::nullopt;
  const auto b = cubic_of(graph, edges, node->inputs[1], x, budget);
  if (!b) return std::nullopt;
  const auto times = [](const Cubic& p, const Cubic& q) -> std::optional<Cubic> {
    Cubic out{};
    for (size_t i = 0; i < 4; ++i)
      for (size_t j = 0; j < 4; ++j) {
        const double c = p[i] * q[j];
        if (c == 0.0) continue;
        if (i + j > 3) return std::nullopt;
        out[i + j] += c;
      }
    return out;
  };
  const bool b_constant = (*b)[1] == 0 && (*b)[2] == 0 && (*b)[3] == 0;
  if (product) return times(*a, *b);
  if (quotient) {
    if (!b_constant || (*b)[0] == 0) return std::nullopt;
    return times(*a, Cubic{1 / (*b)[0], 0, 0, 0});
  }
  if (power) {
    if (!b_constant || ((*b)[0] != 2 && (*b)[0] != 3)) return std::nullopt;
    const auto square = times(*a, *a);
    return square && (*b)[0] == 3 ? times(*square, *a) : square;
  }
  Cubic out;
  for (size_t i = 0; i < 4; ++i) out[i] = sum ? (*a)[i] + (*b)[i] : (*a)[i] - (*b)[i];
  return out;
}

// v is sqrt(2 / pi) * (x + 0.044715 * x^3).
bool is_gelu_argument(const Graph& graph, const Edges& edges, ValueId v, ValueId x) {
  int budget = kMostTerms;
  const auto c = cubic_of(graph, edges, v, x, &budget);
  constexpr double kScale = 0.79788456080286536, kCube = 0.044715;
  return c && (*c)[0] == 0 && (*c)[2] == 0 && std::fabs((*c)[1] - kScale) < kClose &&
         std::fabs((*c)[3] - kScale * kCube) < kClose * kCube;
}

bool fuse_tanh_gelu_at(Graph& graph, Edges& edges, Node& last) {
  std::vector<Node*> products = {&last};
  std::vector<ValueId> factors;
  factors_of(edges, last.inputs[0], &factors, &products);
  factors_of(edges, last.inputs[1], &factors, &products);
  if (factors.size() != 3) return false;
  for (size_t e = 0; e < 3; ++e) {
    Node* plus = edges.producer(factors[e]);
    if (!is_op(plus, "Add") || !edges.single_use(factors[e]) || plus->inputs.size() != 2) continue;
    const size_t one = close(scalar_constant(graph, plus->inputs[0]), 1.0f) ? 0 : 1;
    Node* tanh = edges.producer(plus->inputs[1 - one]);
    if (!close(scalar_constant(graph, plus->inputs[one]), 1.0f) || !is_op(tanh, "Tanh") ||
        !edges.single_use(tanh->outputs[0]))
      continue;
    for (size_t h = 0; h < 3; ++h) {
      if (h == e) continue;
      const ValueId half = factors[h], x = factors[3 - e - h];
      if (!close(scalar_constant(graph, half), 0.5f) || !harmless(graph, half, x) ||
          !harmless(graph, plus->inputs[one], x) ||
          !is_gelu_argument(graph, edges, tanh->inputs[0], x))
        continue;
      const ValueId out = last.outputs[0];
      const std::string name = last.name;
      edges.detach(last);  // what only it read is dead
      Node& gelu = graph.add_node("Gelu", "", name, {x}, {out});
      gelu.opset = kGeluOpset;
      gelu.attributes["approximate"] = std::string("tanh");
      edges.add(gelu);
      return true;
    }
  }
  return false;
}

bool fuse_gelu_at(Graph& graph, Edges& edges, Node& last) {
  std::vector<Node*> absorbed = {&last};
  std::vector<ValueId> factors;
  factors_of(edges, last.inputs[0], &factors, &absorbed);
  factors_of(edges, last.inputs[1], &factors, &absorbed);
  if (factors.size() != 3) return false;
  for (size_t e = 0; e < 3; ++e) {
    Node* plus = edges.producer(factors[e]);
    if (!is_op(plus, "Add") || !edges.single_use(factors[e]) || plus->inputs.size() != 2) continue;
    const size_t one = close(scalar_constant(graph, plus->inputs[0]), 1.0f) ? 0 : 1;
    if (!close(scalar_constant(graph, plus->inputs[one]), 1.0f)) continue;
    std::vector<Node*> inner = {plus};
    const ValueId x = erf_argument(graph, edges, plus->inputs[1 - one], &inner);
    if (x == kNoValue) continue;
    const ValueId a = factors[(e + 1) % 3], b = factors[(e + 2) % 3];
    const ValueId half = a == x ? b : a;
    if ((a != x && b != x) || !close(scalar_constant(graph, half), 0.5f)) continue;
    if (!harmless(graph, half, x) || !harmless(graph, plus->inputs[one], x)) continue;
    absorbed.insert(absorbed.end(), inner.begin(), inner.end());
    const ValueId out = last.outputs[0];
    const std::string name = last.name;
    for (Node* node : absorbed) edges.detach(*node);
    Node& gelu = graph.add_node("Gelu", "", name, {x}, {out});
    gelu.opset = kGeluOpset;
    edges.add(gelu);
    return true;
  }
  return false;
}

bool fuse_swish_at(Graph& graph, Edges& edges, Node& mul) {
  for (size_t i = 0; i < 2; ++i) {
    Node* sigmoid = edges.producer(mul.inputs[i]);
    if (!is_op(sigmoid, "Sigmoid") || sigmoid->inputs[0] != mul.inputs[1 - i] ||
        !edges.single_use(mul.inputs[i]))
      continue;
    const ValueId x = sigmoid->inputs[0], out = mul.outputs[0];
    const std::string name = mul.name;
    edges.detach(*sigmoid);
    edges.detach(mul);
    Node& swish = graph.add_node("Swish", "", name, {x}, {out});
    swish.opset = kSwishOpset;
    edges.add(swish);
    return true;
  }
  return false;
}

}  // namespace

bool fuse_activations(Graph& graph, const PassContext&) {
  Edges edges(graph);
  bool changed = false;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    Node& node = *graph.nodes[i];
    if (!is_op(&node, "Mul") || node.inputs.size() != 2 || node.outputs.size() != 1) continue;
    changed |= fuse_swish_at(graph, edges, node) || fuse_gelu_at(graph, edges, node) ||
               fuse_tanh_gelu_at(graph, edges, node);
  }
  return changed;
}

}  // namespace wia
