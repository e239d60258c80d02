// SPDX-License-Identifier: Apache-2.0
// One form of quantization for every later pass: QuantizeLinear and DequantizeLinear per tensor on
// uint8.
//
//   QLinearConv(x, w, b)          = Q(Conv(DQ(x), DQ(w), DQ(b)))            likewise QLinearMatMul
//   DQ(M(q))                      = M(DQ(q))                                M moves values
//   DQ_int8(q; scale, z)          = DQ_uint8(q xor 0x80; scale, z + 128)    the same reals
//   Q_int8(x; scale, z)           = Q_uint8(x; scale, z + 128) xor 0x80
//   Q(x), Q(x)                    = one Q                                   likewise DQ
//   Shape(DQ(q))                  = Shape(q)
//
// int8 tensors that are inputs or outputs of the model, or that an integer operator reads, keep
// their type: a FlipSign node stands between.
#include <algorithm>
#include <map>
#include <tuple>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/movers.h"
#include "graph/passes/passes.h"
#include "graph/shapes.h"

namespace wia {
namespace {

constexpr int kOpset = 13;
constexpr int32_t kFlip = 128;

bool is_8bit(DType dtype) { return dtype == DType::kUint8 || dtype == DType::kInt8; }

ValueId dequantized(Graph& graph, Edges& edges, ValueId q, ValueId scale, ValueId zero_point,
                    int64_t axis, const std::string& name) {
  const ValueId x = add_value_like(graph, q, name, DType::kFloat32);
  std::vector<ValueId> inputs = {q, scale};
  if (zero_point != kNoValue) inputs.push_back(zero_point);
  Node& node = edges.add(graph.add_node("DequantizeLinear", "", name, std::move(inputs), {x}));
  node.opset = kOpset;
  node.attributes["axis"] = axis;
  return x;
}

// A float product between dequantized inputs, quantized: what the QLinear operators are defined as.
void qlinear_conv(Graph& graph, Edges& edges, Node& node) {
  auto in = node.inputs;
  in.resize(9, kNoValue);
  const std::string name = node.name;
  const ValueId x = dequantized(graph, edges, in[0], in[1], in[2], 1, name + "/x");
  const ValueId w = dequantized(graph, edges, in[3], in[4], in[5], 0, name + "/w");
  std::vector<ValueId> inputs = {x, w};
  if (in[8] != kNoValue) {
    // The bias has scale x_scale * w_scale and zero point 0 by definition.
    if (!graph.is_constant(in[1]) || !graph.is_constant(in[4]) || !graph.is_constant(in[8])) return;
    const Tensor &xs = *graph.values[in[1]].constant, &ws = *graph.values[in[4]].constant;
    if (xs.dtype != DType::kFloat32 || ws.dtype != DType::kFloat32 || xs.numel() != 1) return;
    Tensor scale = Tensor::allocate(DType::kFloat32, ws.shape);
    for (int64_t c = 0; c < ws.numel(); ++c)
      scale.as<float>()[c] =
          static_cast<float>(double{xs.as<float>()[0]} * double{ws.as<float>()[c]});
    const ValueId bias_scale = graph.add_constant(name + "/bias_scale", std::move(scale));
    inputs.push_back(dequantized(graph, edges, in[8], bias_scale, kNoValue, 0, name + "/bias"));
  }
  const ValueId y = add_value_like(graph, node.outputs[0], name + "/y", DType::kFloat32);
  Node& conv = graph.add_node("Conv", "", name, std::move(inputs), {y});
  conv.attributes = node.attributes;
  conv.opset = 11;
  edges.add(conv);
  const ValueId out = node.outputs[0];
  edges.detach(node);
  Node& quantize =
      graph.add_node("QuantizeLinear", "", name + "/quantize", {y, in[6], in[7]}, {out});
  quantize.opset = kOpset;
  edges.add(quantize);
}

void qlinear_matmul(Graph& graph, Edges& edges, Node& node) {
  auto in = node.inputs;
  in.resize(8, kNoValue);
  const std::string name = node.name;
  const Value& b_scale = graph.values[in[4]];
  if (b_scale.constant && b_scale.constant->numel() != 1 && !graph.is_constant(in[3])) return;
  const int64_t b_axis = graph.is_constant(in[3]) ? graph.values[in[3]].shape.rank() - 1 : 1;
  const ValueId a = dequantized(graph, edges, in[0], in[1], in[2], 1, name + "/a");
  const ValueId b = dequantized(graph, edges, in[3], in[4], in[5], b_axis, name + "/b");
  const ValueId y = add_value_like(graph, node.outputs[0], name + "/y", DType::kFloat32);
  Node& matmul = graph.add_node("MatMul", "", name, {a, b}, {y});
  matmul.opset = kOpset;
  edges.add(matmul);
  const ValueId out = node.outputs[0];
  edges.detach(node);
  Node& quantize =
      graph.add_node("QuantizeLinear", "", name + "/quantize", {y, in[6], in[7]}, {out});
  quantize.opset = kOpset;
  edges.add(quantize);
}

void expand_qlinear(Graph& graph) {
  Edges edges(graph);
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    if (is_op(&node, "QLinearConv") && node.inputs.size() >= 8) qlinear_conv(graph, edges, node);
    if (is_op(&node, "QLinearMatMul") && node.inputs.size() >= 8)
      qlinear_matmul(graph, edges, node);
  }
  graph.remove_dead();
  graph.sort();
}

// DQ(M(q)) -> M(DQ(q)), so that integer movers need no rule of their own in the passes that follow.
void raise_dequantize(Graph& graph) {
  Edges edges(graph);
  std::vector<Node*> work;
  for (auto& node : graph.nodes) work.push_back(node.get());
  while (!work.empty()) {
    Node& dq = *work.back();
    work.pop_back();
    if (!is_dequantize(&dq)) continue;
    const std::optional<Grid> grid = grid_of(graph, dq);
    Node* m = grid ? edges.producer(dq.inputs[0]) : nullptr;
    if (!m || m->outputs.size() != 1 || edges.consumers(m->outputs[0]).size() != 1) continue;
    if (is_op(m, "Pad") && (m->inputs.size() < 3 || m->inputs[2] == kNoValue)) continue;
    const Mover mover = mover_of(graph, *m);
    if (!mover.moves()) continue;
    if (!std::all_of(mover.data.begin(), mover.data.end(), [&](size_t i) {
          const Value& value = graph.values[m->inputs[i]];
          return value.dtype == grid->dtype || value.dtype == DType::kUndefined;
        }))
      continue;
    const ValueId out = dq.outputs[0];
    if (edges.is_output(m->outputs[0])) continue;
    const std::vector<ValueId> parameters(dq.inputs.begin() + 1, dq.inputs.end());
    const auto attributes = dq.attributes;
    const int opset = dq.opset;
    edges.detach(dq);
    for (size_t i : mover.data) {
      const ValueId q = m->inputs[i];
      const ValueId x = add_value_like(graph, q, m->name + "/dequantized", DType::kFloat32);
      std::vector<ValueId> inputs = {q};
      inputs.insert(inputs.end(), parameters.begin(), parameters.end());
      Node& above =
          edges.add(graph.add_node("DequantizeLinear", "", m->name + "/dequantize", inputs, {x}));
      above.attributes = attributes;
      above.opset = opset;
      edges.set_input(*m, i, x);
      work.push_back(&above);
    }
    edges.set_output(*m, 0, out);
  }
  graph.remove_dead();
  graph.sort();
}

ValueId flip_sign(Graph& graph, Edges& edges, ValueId from, ValueId to) {
  Node& node =
      graph.add_node("FlipSign", kWiaDomain, graph.values[to].name + "/flip_sign", {from}, {to});
  node.opset = 1;
  edges.add(node);
  return to;
}

void int8_to_uint8(Graph& graph) {
  Edges edges(graph);
  std::map<ValueId, ValueId> flipped;  // int8 value -> its uint8 twin
  auto as_uint8 = [](Grid grid) {
    grid.dtype = DType::kUint8;
    grid.zero_point += kFlip;
    return grid;
  };
  const size_t n = graph.nodes.size();
  for (size_t i = 0; i < n; ++i) {
    Node& node = *graph.nodes[i];
    const std::optional<Grid> grid = grid_of(graph, node);
    if (!grid || grid->dtype != DType::kInt8) continue;
    if (is_quantize(&node)) {
      const ValueId x = node.inputs[0], q8 = node.outputs[0];
      const ValueId q = add_value_like(graph, q8, graph.values[q8].name + "/uint8", DType::kUint8);
      const std::string name = node.name;
      edges.detach(node);
      edges.add(add_quantize(graph, x, q, as_uint8(*grid), name));
      flipped[q8] = q;
      flip_sign(graph, edges, q, q8);
    } else {
      const ValueId q8 = node.inputs[0], x = node.outputs[0];
      if (graph.is_constant(q8)) continue;  // weights stay int8
      if (!flipped.count(q8)) {
        const ValueId q =
            add_value_like(graph, q8, graph.values[q8].name + "/uint8", DType::kUint8);
        flipped[q8] = flip_sign(graph, edges, q8, q);
      }
      const std::string name = node.name;
      edges.detach(node);
      edges.add(add_dequantize(graph, flipped[q8], x, as_uint8(*grid), name));
    }
  }
  graph.remove_dead();
  graph.sort();
}

using Key = std::tuple<bool, ValueId, float, int32_t, DType>;

void merge_duplicates(Graph& graph) {
  Edges edges(graph);
  std::map<Key, ValueId> seen;
  for (auto& node : graph.nodes) {
    const std::optional<Grid> grid = grid_of(graph, *node);
    if (!grid) continue;
    const Key key{is_quantize(node.get()), node->inputs[0], grid->scale, grid->zero_point,
                  grid->dtype};
    auto [it, fresh] = seen.emplace(key, node->outputs[0]);
    if (!fresh) edges.replace_uses(node->outputs[0], it->second);
  }
  graph.remove_dead();
  graph.sort();
}

// Weights that the file keeps in float before a Q: Q(constant) is a constant of levels.
void quantize_constants(Graph& graph) {
  Edges edges(graph);
  for (auto& node : graph.nodes) {
    if (!is_quantize(node.get()) || node->inputs.size() < 2 || !graph.is_constant(node->inputs[0]))
      continue;
    if (node->i("block_size", 0) != 0 || !graph.is_constant(node->inputs[1])) continue;
    const Tensor& x = *graph.values[node->inputs[0]].constant;
    const Tensor& scale = *graph.values[node->inputs[1]].constant;
    if (x.dtype != DType::kFloat32 || scale.dtype != DType::kFloat32) continue;
    const Tensor* zero_point = nullptr;
    if (node->inputs.size() > 2 && node->inputs[2] != kNoValue) {
      zero_point = graph.values[node->inputs[2]].constant.get();
      if (!zero_point || zero_point->numel() != scale.numel()) continue;
    }
    const int64_t stated = node->i("output_dtype", 0);
    const DType dtype = zero_point ? zero_point->dtype
                        : stated   ? static_cast<DType>(stated)
                                   : DType::kUint8;
    if (!is_8bit(dtype)) continue;
    int64_t inner = 1, channels = 1;
    if (scale.numel() != 1) {
      int64_t axis = node->i("axis", 1);
      if (axis < 0) axis += x.shape.rank();
      if (axis < 0 || axis >= x.shape.rank() || x.shape[static_cast<int>(axis)] != scale.numel())
        continue;
      channels = scale.numel();
      for (int d = static_cast<int>(axis) + 1; d < x.shape.rank(); ++d) inner *= x.shape[d];
    }
    Tensor q = Tensor::allocate(dtype, x.shape);
    for (int64_t i = 0, count = x.numel(); i < count; ++i) {
      const int64_t c = channels == 1 ? 0 : i / inner % channels;
      Grid grid{dtype, scale.as<float>()[c], 0};
      if (zero_point)
        grid.zero_point =
            dtype == DType::kInt8 ? zero_point->as<int8_t>()[c] : zero_point->as<uint8_t>()[c];
      q.as<uint8_t>()[i] = static_cast<uint8_t>(quantize_level(x.as<float>()[i], grid));
    }
    edges.replace_uses(node->outputs[0], graph.add_constant(node->name + "/levels", std::move(q)));
  }
  graph.remove_dead();
  graph.sort();
}

// Shape and Size look at no contents: read them off the integers, so that the floats can go.
void shapes_of_levels(Graph& graph) {
  Edges edges(graph);
  for (auto& node : graph.nodes) {
    if (!is_op(node.get(), "Shape") && !is_op(node.get(), "Size")) continue;
    const ValueId x = node->inputs[0];
    if (x == kNoValue || graph.is_constant(x)) continue;
    if (is_dequantize(edges.producer(x))) {
      edges.set_input(*node, 0, edges.producer(x)->inputs[0]);
      continue;
    }
    for (Node* reader : edges.consumers(x)) {
      if (!grid_of(graph, *reader) || !is_quantize(reader)) continue;
      edges.set_input(*node, 0, reader->outputs[0]);
      break;
    }
  }
  graph.sort();
}

// The file need not say the types of values; these nodes do.
void state_types(Graph& graph) {
  for (auto& node : graph.nodes) {
    if (is_dequantize(node.get()) && node->inputs.size() > 1 && !node->has("output_dtype"))
      graph.values[node->outputs[0]].dtype = graph.values[node->inputs[1]].dtype;
    const std::optional<Grid> grid = grid_of(graph, *node);
    if (!grid) continue;
    const bool quantizes = is_quantize(node.get());
    graph.values[node->outputs[0]].dtype = quantizes ? grid->dtype : DType::kFloat32;
    if (quantizes) graph.values[node->inputs[0]].dtype = DType::kFloat32;
  }
}

}  // namespace

// com.microsoft's Q and DQ mean the same where the zero point is 8-bit.
void adopt_operators(Graph& graph) {
  for (auto& node : graph.nodes) {
    for (auto& [key, attribute] : node->attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute)) adopt_operators(**inner);
    if (node->domain != "com.microsoft") continue;
    if (node->op_type != "QuantizeLinear" && node->op_type != "DequantizeLinear") continue;
    node->domain.clear();
    node->opset = kOpset;
  }
}

bool canonical_qdq(Graph& graph, const PassContext&) {
  state_types(graph);
  fill_shapes(graph);
  expand_qlinear(graph);
  quantize_constants(graph);
  state_types(graph);
  raise_dequantize(graph);
  int8_to_uint8(graph);
  merge_duplicates(graph);
  shapes_of_levels(graph);
  state_types(graph);
  return true;
}

}  // namespace wia
