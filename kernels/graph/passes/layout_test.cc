// SPDX-License-Identifier: Apache-2.0
// Passes that move Transposes, and those that recognise float operators: one rule a test.
#include <cmath>

#include "base/testing.h"
#include "graph/passes/graph_builder.h"
#include "graph/permute.h"

using namespace wia;

namespace {

const std::vector<int64_t> kToFirst = {0, 3, 1, 2}, kToLast = {0, 2, 3, 1};

// A channels-last value made channels-first.
ValueId first(GraphBuilder& b, const Shape& shape, DType dtype = DType::kUint8) {
  return b.transpose(b.input("x" + std::to_string(b.graph.inputs.size()), shape, dtype), kToFirst);
}

ValueId table(GraphBuilder& b, ValueId x) {
  return b.node("Table", {x}, b.graph.values[x].shape, DType::kUint8, kWiaDomain).outputs[0];
}

}  // namespace

TEST(a_transpose_and_its_inverse_cancel_through_what_is_elementwise) {
  GraphBuilder b;
  b.output(table(b, b.transpose(table(b, first(b, {1, 5, 6, 3})), kToLast)));
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "Table Table");
}

TEST(transposes_are_composed) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 3, 4, 5});
  b.output(b.transpose(b.transpose(x, {1, 0, 2, 3}), {0, 1, 3, 2}));
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "Transpose");
  CHECK(b.only("Transpose").ints("perm") == (std::vector<int64_t>{1, 0, 3, 2}));
}

TEST(the_axis_of_a_concat_follows_its_inputs) {
  GraphBuilder b;
  Node& concat = b.node("Concat", {first(b, {1, 5, 6, 3}), first(b, {1, 5, 6, 2})}, {1, 5, 5, 6},
                        DType::kUint8);
  concat.attributes["axis"] = int64_t{1};
  b.output(b.transpose(concat.outputs[0], kToLast));
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "Concat Identity");  // the output keeps its name
  CHECK_EQ(b.only("Concat").i("axis", 0), 3);
}

TEST(a_concat_with_a_stranger_keeps_its_transposes) {
  GraphBuilder b;
  Node& concat =
      b.node("Concat", {first(b, {1, 5, 6, 3}), b.input("y", {1, 2, 5, 6}, DType::kUint8)},
             {1, 5, 5, 6}, DType::kUint8);
  concat.attributes["axis"] = int64_t{1};
  b.output(concat.outputs[0]);
  CHECK(!b.run(sink_transposes));
}

TEST(a_constant_operand_is_transposed_at_load) {
  GraphBuilder b;
  const ValueId c = b.floats({3, 1, 1}, {1.0f, 2.0f, 3.0f});
  b.output(b.transpose(b.op("Mul", {first(b, {1, 5, 6, 3}, DType::kFloat32), c}, {1, 3, 5, 6}),
                       kToLast));
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "Mul Identity");
  CHECK_EQ(b.graph.values[b.only("Mul").inputs[1]].constant->shape.str(), "[1, 1, 1, 3]");
}

TEST(pads_and_reductions_follow_the_permutation) {
  GraphBuilder b;
  const ValueId padded = b.op("Pad", {first(b, {1, 5, 6, 3}), b.integers({0, 0, 1, 2, 0, 0, 3, 4})},
                              {1, 3, 9, 12}, DType::kUint8);
  Node& max = b.node("ReduceMax", {padded}, {1, 3, 1, 1}, DType::kUint8);
  max.attributes["axes"] = std::vector<int64_t>{2, 3};
  b.output(b.transpose(max.outputs[0], kToLast));
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "Pad ReduceMax Identity");
  CHECK(*integer_constant(b.graph, b.only("Pad").inputs[1]) ==
        (std::vector<int64_t>{0, 1, 2, 0, 0, 3, 4, 0}));
  CHECK(b.only("ReduceMax").ints("axes") == (std::vector<int64_t>{1, 2}));
}

TEST(a_reduction_that_drops_the_pixels_needs_no_transpose) {
  GraphBuilder b;
  Node& max = b.node("ReduceMax", {first(b, {1, 5, 6, 3})}, {1, 3}, DType::kUint8);
  max.attributes["axes"] = std::vector<int64_t>{2, 3};
  max.attributes["keepdims"] = int64_t{0};
  b.output(max.outputs[0]);
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "ReduceMax");
}

TEST(merging_the_pixels_of_a_picture_then_transposing_is_a_reshape) {
  GraphBuilder b;
  const ValueId merged =
      b.op("Reshape", {first(b, {1, 5, 6, 3}), b.integers({1, 3, 30})}, {1, 3, 30}, DType::kUint8);
  b.output(b.transpose(merged, {0, 2, 1}));
  CHECK(b.run(sink_transposes));
  CHECK_EQ(b.ops(), "Reshape Identity");
}

TEST(a_transpose_of_one_pixel_is_a_reshape) {
  GraphBuilder b;
  b.output(first(b, {-1, 1, 1, 8}));
  CHECK(b.run(settle_transposes));
  CHECK_EQ(b.ops(), "Reshape");
  CHECK(*integer_constant(b.graph, b.only("Reshape").inputs[1]) ==
        (std::vector<int64_t>{0, 8, 1, 1}));
}

TEST(a_transpose_of_floats_rises_to_their_levels) {
  GraphBuilder b;
  const ValueId q = b.input("x", {1, 5, 6, 3}, DType::kUint8);
  const ValueId x = b.dequantize(q, {DType::kUint8, 0.5f, 3});
  b.output(b.transpose(x, kToFirst));
  CHECK(b.run(settle_transposes));
  CHECK_EQ(b.ops(), "Transpose DequantizeLinear");
}

TEST(attention_reads_and_writes_through_strides) {
  GraphBuilder b;
  const ValueId q = b.transpose(b.input("q", {1, 7, 2, 4}, DType::kUint8), {0, 2, 1, 3});
  const ValueId k = b.transpose(b.input("k", {1, 9, 2, 4}, DType::kUint8), {0, 2, 3, 1});
  const ValueId y = b.node("QMatMul", {q, k}, {1, 2, 7, 9}, DType::kUint8, kWiaDomain).outputs[0];
  b.output(b.transpose(y, {0, 2, 1, 3}));
  CHECK(b.run(absorb_transposes));
  CHECK_EQ(b.ops(), "QMatMul");
  CHECK(b.only("QMatMul").ints("perm_b") == (std::vector<int64_t>{0, 2, 3, 1}));
  CHECK(b.only("QMatMul").ints("perm_y") == (std::vector<int64_t>{0, 2, 1, 3}));
}

TEST(an_operand_whose_last_axis_moves_keeps_its_transpose) {
  GraphBuilder b;
  const ValueId a = b.transpose(b.input("a", {1, 2, 4, 7}, DType::kUint8), {0, 1, 3, 2});
  const ValueId c = b.input("c", {1, 2, 4, 9}, DType::kUint8);
  b.output(b.node("QMatMul", {a, c}, {1, 2, 7, 9}, DType::kUint8, kWiaDomain).outputs[0]);
  CHECK(!b.run(absorb_transposes));
}

TEST(layer_normalization_is_recognised) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 3, 8});
  auto mean = [&](ValueId v) {
    Node& node = b.node("ReduceMean", {v}, {2, 3, 1});
    node.attributes["axes"] = std::vector<int64_t>{-1};
    return node.outputs[0];
  };
  const ValueId d = b.op("Sub", {x, mean(x)}, {2, 3, 8});
  const ValueId v = mean(b.op("Pow", {d, b.floats({}, {2.0f})}, {2, 3, 8}));
  const ValueId root =
      b.op("Sqrt", {b.op("Add", {v, b.floats({}, {1e-5f})}, {2, 3, 1})}, {2, 3, 1});
  const ValueId y = b.op("Div", {d, root}, {2, 3, 8});
  const ValueId scaled = b.op("Mul", {y, b.floats({8}, {1.0f, 2.0f})}, {2, 3, 8});
  b.output(b.op("Add", {scaled, b.floats({8}, {0.5f})}, {2, 3, 8}));
  CHECK(b.run(fuse_layer_norm));
  CHECK_EQ(b.ops(), "LayerNormalization");
  CHECK_EQ(b.only("LayerNormalization").i("axis", 0), 2);
  CHECK_EQ(b.only("LayerNormalization").f("epsilon", 0), 1e-5f);
}

TEST(a_variance_that_something_else_reads_is_no_layer_normalization) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 8});
  auto mean = [&](ValueId v) {
    Node& node = b.node("ReduceMean", {v}, {2, 1});
    node.attributes["axes"] = std::vector<int64_t>{-1};
    return node.outputs[0];
  };
  const ValueId d = b.op("Sub", {x, mean(x)}, {2, 8});
  const ValueId v = mean(b.op("Mul", {d, d}, {2, 8}));
  b.output(v);
  const ValueId root = b.op("Sqrt", {b.op("Add", {v, b.floats({}, {1e-5f})}, {2, 1})}, {2, 1});
  b.output(b.op("Div", {d, root}, {2, 8}));
  CHECK(!b.run(fuse_layer_norm));
}

TEST(gelu_is_recognised_whatever_the_order_of_its_factors) {
  for (int order = 0; order < 3; ++order) {
    GraphBuilder b;
    const Shape s{2, 8};
    const ValueId x = b.input("x", s), half = b.floats({}, {0.5f});
    const ValueId erf = b.op("Erf", {b.op("Div", {x, b.floats({}, {std::sqrt(2.0f)})}, s)}, s);
    const ValueId e = b.op("Add", {erf, b.floats({}, {1.0f})}, s);
    const ValueId factors[] = {x, e, half};
    const ValueId two = b.op("Mul", {factors[order], factors[(order + 1) % 3]}, s);
    b.output(b.op("Mul", {two, factors[(order + 2) % 3]}, s));
    CHECK(b.run(fuse_activations));
    CHECK_EQ(b.ops(), "Gelu");
  }
}

TEST(a_product_with_another_sigmoid_is_no_swish) {
  GraphBuilder b;
  const ValueId x = b.input("x", {8}), y = b.input("y", {8});
  b.output(b.op("Mul", {x, b.op("Sigmoid", {y}, {8})}, {8}));
  CHECK(!b.run(fuse_activations));
}

TEST(batch_normalization_goes_into_the_weights) {
  GraphBuilder b;
  const ValueId x = b.input("x", {1, 1, 4, 4});
  const ValueId y = b.op("Conv", {x, b.floats({2, 1, 1, 1}, {3.0f, 5.0f})}, {1, 2, 4, 4});
  Node& norm = b.node("BatchNormalization",
                      {y, b.floats({2}, {2.0f}), b.floats({2}, {1.0f}), b.floats({2}, {4.0f}),
                       b.floats({2}, {0.25f})},
                      {1, 2, 4, 4});
  norm.attributes["epsilon"] = 0.0f;
  b.output(norm.outputs[0]);
  CHECK(b.run(fold_batch_norm));
  CHECK_EQ(b.ops(), "Conv");
  const Node& conv = b.only("Conv");
  CHECK_EQ(b.graph.values[conv.inputs[1]].constant->as<float>()[1], 20.0f);   // 5 * 2 / 0.5
  CHECK_EQ(b.graph.values[conv.inputs[2]].constant->as<float>()[0], -15.0f);  // (0 - 4) * 4 + 1
}

namespace {

// x * (0.5 * (1 + tanh(argument))).
void tanh_gelu(GraphBuilder& b, ValueId x, ValueId argument) {
  const Shape s{2, 4};
  const ValueId plus = b.op("Add", {b.op("Tanh", {argument}, s), b.floats({}, {1.0f})}, s);
  b.output(b.op("Mul", {x, b.op("Mul", {b.floats({}, {0.5f}), plus}, s)}, s));
}

}  // namespace

TEST(gelu_by_tanh_is_found_however_its_polynomial_is_written) {
  const Shape s{2, 4};
  {
    GraphBuilder b;  // c * (x + k * (x * (x * x)))
    const ValueId x = b.input("x", s);
    const ValueId cube = b.op("Mul", {x, b.op("Mul", {x, x}, s)}, s);
    const ValueId sum = b.op("Add", {x, b.op("Mul", {b.floats({}, {0.044715f}), cube}, s)}, s);
    tanh_gelu(b, x, b.op("Mul", {sum, b.floats({}, {0.7978846f})}, s));
    CHECK(b.run(fuse_activations));
    CHECK_EQ(b.ops(), "Gelu");
    CHECK_EQ(b.only("Gelu").s("approximate", ""), "tanh");
  }
  {
    GraphBuilder b;  // (c * x) * (1 + k * x^2)
    const ValueId x = b.input("x", s);
    const ValueId square = b.op("Pow", {x, b.floats({}, {2.0f})}, s);
    const ValueId factor =
        b.op("Add", {b.floats({}, {1.0f}), b.op("Mul", {b.floats({}, {0.044715f}), square}, s)}, s);
    tanh_gelu(b, x, b.op("Mul", {b.op("Mul", {x, b.floats({}, {0.7978846f})}, s), factor}, s));
    CHECK(b.run(fuse_activations));
    CHECK_EQ(b.ops(), "Gelu");
  }
}

TEST(what_is_not_quite_gelu_by_tanh_stays) {
  const Shape s{2, 4};
  const auto built = [&](float k, float power, bool read_again) {
    GraphBuilder b;
    const ValueId x = b.input("x", s);
    const ValueId cube = b.op("Pow", {x, b.floats({}, {power})}, s);
    const ValueId sum = b.op("Add", {x, b.op("Mul", {b.floats({}, {k}), cube}, s)}, s);
    const ValueId argument = b.op("Mul", {sum, b.floats({}, {0.7978846f})}, s);
    tanh_gelu(b, x, argument);
    if (read_again) b.output(b.only("Tanh").outputs[0]);
    return b.run(fuse_activations);
  };
  CHECK(built(0.044715f, 3.0f, false));
  CHECK(!built(0.05f, 3.0f, false));
  CHECK(!built(0.044715f, 2.0f, false));
  CHECK(!built(0.044715f, 3.5f, false));
  CHECK(!built(0.044715f, 3.0f, true));
}

WIA_TEST_MAIN
