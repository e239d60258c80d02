// SPDX-License-Identifier: Apache-2.0
// QDQ graphs through whole sessions: every quantized operator, the passes on and off, one thread
// and three. The values are compared by tests/runtime/test_quantized.py; here the sanitizers watch,
// on tensors of exactly their size.
#include <cmath>
#include <cstring>

#include "base/testing.h"
#include "graph/passes/graph_builder.h"
#include "runtime/session.h"

using namespace wia;

namespace {

const Grid kX{DType::kUint8, 0.0517f, 117};
const Grid kY{DType::kInt8, 0.1103f, -27};

// int8 weights that repeat no short pattern.
ValueId weights(GraphBuilder& b, const Shape& shape, int zero_point = 0) {
  std::vector<int> levels;
  for (int i = 0; i < 997; ++i) levels.push_back(i * 37 % 255 - 127);
  const ValueId q = b.levels(DType::kInt8, shape, levels);
  return b.dequantize(q, {DType::kInt8, 0.01f, zero_point});
}

Node& with_pads(Node& node, std::vector<int64_t> pads, std::vector<int64_t> strides) {
  node.attributes["pads"] = std::move(pads);
  node.attributes["strides"] = std::move(strides);
  return node;
}

ValueId fake(GraphBuilder& b, ValueId x, const Grid& grid) {
  return b.dequantize(b.quantize(x, grid), grid);
}

std::vector<Tensor> run(const Graph& graph, bool optimize, size_t n_threads) {
  SessionOptions options;
  options.optimize = optimize;
  options.n_threads = n_threads;
  // The graph's nodes are owned: sessions get copies made node by node.
  Graph copy;
  copy.name = graph.name;
  copy.values = graph.values;
  copy.inputs = graph.inputs;
  copy.outputs = graph.outputs;
  for (const auto& node : graph.nodes) copy.nodes.push_back(std::make_unique<Node>(*node));
  auto session = Session::from_graph(std::move(copy), options);
  std::vector<Tensor> inputs;
  for (ValueId v : graph.inputs) {
    Tensor t = Tensor::allocate(graph.values[v].dtype, graph.values[v].shape);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.as<float>()[i] = static_cast<float>(i * 131 % 1009 - 504) * 0.011f;
    inputs.push_back(t);
  }
  return session->run(inputs);
}

// A level may differ by one between the passes on and off, a few may; threads change nothing.
void check(GraphBuilder& b, ValueId y) {
  b.output(fake(b, y, kY));
  const Tensor plain = run(b.graph, false, 1)[0], fused = run(b.graph, true, 1)[0],
               shared = run(b.graph, true, 3)[0];
  CHECK_EQ(plain.shape.str(), fused.shape.str());
  CHECK(std::memcmp(fused.data, shared.data, fused.n_bytes()) == 0);
  int64_t off = 0;
  for (int64_t i = 0; i < plain.numel(); ++i) {
    const float steps = std::fabs(plain.as<float>()[i] - fused.as<float>()[i]) / kY.scale;
    CHECK(steps < 1.5f);
    off += steps > 0.5f;
  }
  CHECK(off <= 1 + plain.numel() / 50);
}

}  // namespace

TEST(conv_of_every_kind) {
  struct Kind {
    Shape x, w;
    int64_t group;
    std::vector<int64_t> pads, strides;
    Shape y;
  };
  const Kind kinds[] = {
      {{2, 3, 9, 7}, {5, 3, 3, 3}, 1, {1, 1, 1, 1}, {2, 2}, {2, 5, 5, 4}},
      {{1, 20, 5, 5}, {33, 20, 1, 1}, 1, {0, 0, 0, 0}, {1, 1}, {1, 33, 5, 5}},
      {{1, 19, 8, 8}, {19, 1, 5, 5}, 19, {2, 2, 2, 2}, {1, 1}, {1, 19, 8, 8}},
      {{1, 8, 6, 6}, {12, 2, 3, 3}, 4, {1, 0, 0, 1}, {1, 1}, {1, 12, 5, 5}},
  };
  for (const Kind& kind : kinds) {
    for (int zero_point : {0, -90}) {
      GraphBuilder b;
      Node& conv = with_pads(
          b.node("Conv", {b.activation(kind.x, kX), weights(b, kind.w, zero_point)}, kind.y),
          kind.pads, kind.strides);
      conv.attributes["group"] = kind.group;
      check(b, b.op("Relu", {conv.outputs[0]}, kind.y));
    }
  }
}

TEST(conv_with_a_residual_and_a_table) {
  GraphBuilder b;
  const Shape s{1, 8, 6, 5};
  const ValueId x = b.activation(s, kX);
  Node& conv = with_pads(b.node("Conv", {x, weights(b, {8, 8, 3, 3})}, s), {1, 1, 1, 1}, {1, 1});
  const ValueId c = fake(b, b.op("HardSwish", {fake(b, conv.outputs[0], kY)}, s), kX);
  check(b, b.op("Add", {c, x}, s));
}

TEST(transposed_conv) {
  GraphBuilder b;
  Node& conv =
      with_pads(b.node("ConvTranspose", {b.activation({1, 8, 4, 5}, kX), weights(b, {8, 3, 3, 2})},
                       {1, 6, 8, 9}),
                {1, 0, 0, 1}, {2, 2});
  conv.attributes["group"] = int64_t{2};
  check(b, conv.outputs[0]);
}

TEST(gemm_and_attention) {
  GraphBuilder b;
  const Shape tokens{2, 7, 24};
  const ValueId x = b.activation(tokens, kX);
  auto heads = [&](std::vector<int64_t> perm) {
    const ValueId y = b.op("MatMul", {x, weights(b, {24, 24})}, tokens);
    const ValueId shape = b.integers({2, 7, 3, 8});
    return b.transpose(b.op("Reshape", {fake(b, y, kX), shape}, {2, 7, 3, 8}), perm);
  };
  const ValueId scores =
      fake(b, b.op("MatMul", {heads({0, 2, 1, 3}), heads({0, 2, 3, 1})}, {2, 3, 7, 7}), kX);
  Node& softmax = b.node("Softmax", {scores}, {2, 3, 7, 7});
  softmax.attributes["axis"] = int64_t{-1};
  const ValueId share = fake(b, softmax.outputs[0], {DType::kUint8, 1.0f / 256, 0});
  check(b, b.op("MatMul", {share, heads({0, 2, 1, 3})}, {2, 3, 7, 8}));
}

TEST(elementwise_with_every_broadcast) {
  const Shape full{2, 5, 3, 7};
  for (const Shape& other : {full, Shape{5, 1, 1}, Shape{7}, Shape{2, 1, 3, 1}, Shape{1}}) {
    for (const char* op : {"Add", "Sub", "Mul"}) {
      GraphBuilder b;
      check(b, b.op(op, {b.activation(full, kX), b.activation(other, kX)}, full));
    }
  }
}

TEST(pools_means_and_movers) {
  GraphBuilder b;
  const Shape s{1, 6, 7, 9};
  const ValueId x = b.activation(s, kX);
  auto pool = [&](const char* op) {
    Node& node = with_pads(b.node(op, {x}, {1, 6, 4, 5}), {1, 1, 1, 1}, {2, 2});
    node.attributes["kernel_shape"] = std::vector<int64_t>{3, 3};
    return fake(b, node.outputs[0], kX);
  };
  Node& concat = b.node("Concat", {pool("MaxPool"), pool("AveragePool")}, {1, 12, 4, 5});
  concat.attributes["axis"] = int64_t{1};
  check(b, concat.outputs[0]);
}

TEST(mean_of_the_pixels) {
  GraphBuilder b;
  const Shape s{2, 6, 5, 7};
  check(b, b.op("GlobalAveragePool", {b.activation(s, kX)}, {2, 6, 1, 1}));
}

TEST(rows_with_their_surroundings) {
  GraphBuilder b;
  const Shape s{3, 5, 33};
  const ValueId sum = b.op("Add", {b.input("a", s), b.input("b", s)}, s);
  Node& norm =
      b.node("LayerNormalization", {sum, b.floats({33}, {1.0f, 0.5f}), b.floats({33}, {0.1f})}, s);
  norm.attributes["axis"] = int64_t{-1};
  b.output(norm.outputs[0]);
  b.output(b.quantize(norm.outputs[0], kX));
  const ValueId scaled = b.op("Div", {b.input("c", s), b.floats({}, {3.0f})}, s);
  Node& softmax = b.node("Softmax", {b.op("Add", {scaled, b.input("mask", {5, 1})}, s)}, s);
  softmax.attributes["axis"] = int64_t{-1};
  b.output(b.quantize(softmax.outputs[0], {DType::kUint8, 1.0f / 256, 0}));
  const std::vector<Tensor> plain = run(b.graph, false, 1), fused = run(b.graph, true, 3);
  CHECK(std::memcmp(plain[0].data, fused[0].data, plain[0].n_bytes()) == 0);
  CHECK(std::memcmp(plain[1].data, fused[1].data, plain[1].n_bytes()) == 0);
  for (int64_t i = 0; i < plain[2].numel(); ++i)
    CHECK(std::abs(plain[2].as<uint8_t>()[i] - fused[2].as<uint8_t>()[i]) <= 1);
}

WIA_TEST_MAIN
