// SPDX-License-Identifier: Apache-2.0
// Passes that bring QDQ graphs onto integers: one rule a test.
#include <cmath>

#include "base/testing.h"
#include "graph/passes/graph_builder.h"

using namespace wia;

namespace {

const Grid kU8{DType::kUint8, 0.5f, 100};
const Grid kOther{DType::kUint8, 0.25f, 7};
const Grid kI8{DType::kInt8, 0.5f, -28};

// Relu, LeakyRelu (0.5), Mul and Sigmoid, as their kernels would.
PassContext evaluating() {
  PassContext context{};
  context.evaluate = [](const Node& node, const std::vector<Tensor>& inputs) {
    Tensor out = Tensor::allocate(DType::kFloat32, inputs[0].shape);
    for (int64_t i = 0; i < out.numel(); ++i) {
      const float x = inputs[0].as<float>()[i];
      float y = x;
      if (node.op_type == "Relu") y = std::max(x, 0.0f);
      if (node.op_type == "LeakyRelu") y = x < 0 ? x * 0.5f : x;
      if (node.op_type == "Sigmoid") y = 1.0f / (1.0f + std::exp(-x));
      if (node.op_type == "Mul") y = x * inputs[1].as<float>()[inputs[1].numel() == 1 ? 0 : i];
      out.as<float>()[i] = y;
    }
    return std::vector<Tensor>{out};
  };
  return context;
}

ValueId weights(GraphBuilder& b, const Shape& shape, float scale = 0.01f) {
  const ValueId q = b.levels(DType::kInt8, shape, {-3, 100, 0, 57, -127});
  return b.dequantize(q, {DType::kInt8, scale, 0});
}

// DQ(x) -> Conv -> ... built up to the convolution's output.
ValueId conv(GraphBuilder& b, ValueId x, const Shape& w, const Shape& y) {
  return b.op("Conv", {x, weights(b, w)}, y);
}

}  // namespace

TEST(int8_becomes_uint8_behind_the_same_reals) {
  GraphBuilder b;
  b.output(b.activation({2, 3}, kI8));
  b.run(canonical_qdq);
  CHECK_EQ(b.ops(), "QuantizeLinear DequantizeLinear");
  const std::optional<Grid> grid = grid_of(b.graph, b.only("DequantizeLinear"));
  CHECK(grid.has_value());
  CHECK_EQ(grid->zero_point, kI8.zero_point + 128);
  CHECK(grid->dtype == DType::kUint8);
}

TEST(an_int8_output_of_the_model_keeps_its_type) {
  GraphBuilder b;
  b.output(b.quantize(b.input("x", {4}), kI8));
  b.run(canonical_qdq);
  CHECK_EQ(b.ops(), "QuantizeLinear FlipSign");
  b.run(lower_qdq);
  CHECK_EQ(b.ops(), "Quantize");
  CHECK_EQ(b.only("Quantize").i("flip", 0), 1);
}

TEST(equal_quantizations_of_one_value_are_merged) {
  GraphBuilder b;
  const ValueId x = b.input("x", {4});
  const ValueId a = b.dequantize(b.quantize(x, kU8), kU8),
                c = b.dequantize(b.quantize(x, kU8), kU8);
  b.output(b.op("Max", {a, c}, {4}));
  b.run(canonical_qdq);
  CHECK_EQ(b.ops(), "QuantizeLinear DequantizeLinear Max");
}

TEST(a_mover_on_integers_is_seen_as_one_on_reals) {
  GraphBuilder b;
  const ValueId q = b.quantize(b.input("x", {2, 3}), kI8);
  b.output(b.dequantize(b.transpose(q, {1, 0}), kI8));
  b.run(canonical_qdq);
  CHECK_EQ(b.ops(), "QuantizeLinear DequantizeLinear Transpose");
}

TEST(dequantize_sinks_below_movers) {
  GraphBuilder b;
  b.output(b.transpose(b.activation({2, 3}, kU8), {1, 0}));
  CHECK(b.run(sink_dequantize));
  CHECK_EQ(b.ops(), "QuantizeLinear Transpose DequantizeLinear");
}

TEST(dequantize_does_not_sink_below_a_concat_of_two_grids) {
  GraphBuilder b;
  const ValueId a = b.activation({2, 3}, kU8), c = b.activation({2, 3}, kOther);
  Node& concat = b.node("Concat", {a, c}, {2, 6});
  concat.attributes["axis"] = int64_t{1};
  b.output(concat.outputs[0]);
  CHECK(!b.run(sink_dequantize));
}

TEST(a_pad_with_zero_pads_with_the_zero_point) {
  GraphBuilder b;
  b.output(b.op("Pad", {b.activation({4}, kU8), b.integers({1, 1})}, {6}));
  CHECK(b.run(sink_dequantize));
  const Node& pad = b.only("Pad");
  CHECK_EQ(static_cast<int>(b.graph.values[pad.inputs[2]].constant->as<uint8_t>()[0]),
           kU8.zero_point);
}

TEST(a_pad_with_a_real_between_levels_stays_float) {
  GraphBuilder b;
  b.output(b.op("Pad", {b.activation({4}, kU8), b.integers({1, 1}), b.floats({}, {0.3f})}, {6}));
  CHECK(!b.run(sink_dequantize));
}

TEST(quantize_rises_above_a_concat_and_is_repeated_on_each_input) {
  GraphBuilder b;
  const ValueId a = b.activation({2, 3}, kU8), c = b.activation({2, 3}, kOther);
  Node& concat = b.node("Concat", {a, c}, {2, 6});
  concat.attributes["axis"] = int64_t{1};
  b.output(b.dequantize(b.quantize(concat.outputs[0], kU8), kU8));
  CHECK(b.run(raise_quantize));
  CHECK(b.only("Concat").inputs.size() == 2);
  CHECK(b.run(make_tables, evaluating()));
  CHECK_EQ(b.ops(), "QuantizeLinear QuantizeLinear Table Concat DequantizeLinear");
}

TEST(quantize_does_not_rise_above_a_slice_of_something_cheap) {
  GraphBuilder b;
  const ValueId x = b.op("Softmax", {b.input("x", {8, 4})}, {8, 4});
  const ValueId s = b.op("Slice", {x, b.integers({0}), b.integers({1}), b.integers({0})}, {1, 4});
  b.output(b.dequantize(b.quantize(s, kU8), kU8));
  CHECK(!b.run(raise_quantize));
}

TEST(a_function_of_one_tensor_is_a_table) {
  GraphBuilder b;
  const ValueId x = b.activation({2, 3}, kU8);
  const ValueId silu = b.op("Mul", {x, b.op("Sigmoid", {x}, {2, 3})}, {2, 3});
  b.output(b.dequantize(b.quantize(silu, kOther), kOther));
  CHECK(b.run(make_tables, evaluating()));
  CHECK_EQ(b.ops(), "QuantizeLinear Table DequantizeLinear");
  const uint8_t* table = b.only("Table").tensor("table")->as<uint8_t>();
  for (int q = 0; q < 256; ++q) {
    const float real = dequantize_level(q, kU8);
    const float y = real * (1.0f / (1.0f + std::exp(-real)));
    CHECK_EQ(static_cast<int>(table[q]), quantize_level(y, kOther));
  }
}

TEST(a_function_of_two_tensors_is_no_table) {
  GraphBuilder b;
  const ValueId a = b.activation({2, 3}, kU8), c = b.activation({2, 3}, kU8);
  b.output(b.quantize(b.op("Mul", {a, c}, {2, 3}), kOther));
  CHECK(!b.run(make_tables, evaluating()));
}

TEST(a_constant_that_raises_the_rank_is_no_part_of_a_table) {
  GraphBuilder b;
  const ValueId x = b.activation({3}, kU8);
  b.output(b.quantize(b.op("Mul", {x, b.floats({1, 1}, {2.0f})}, {1, 3}), kOther));
  CHECK(!b.run(make_tables, evaluating()));
}

TEST(requantizing_to_the_same_grid_is_nothing) {
  GraphBuilder b;
  b.output(b.dequantize(b.quantize(b.activation({4}, kU8), kU8), kU8));
  CHECK(b.run(make_tables, evaluating()));
  CHECK_EQ(b.ops(), "QuantizeLinear DequantizeLinear");
}

TEST(a_float_end_of_a_table_is_a_table_of_floats) {
  GraphBuilder b;
  b.output(b.op("Sigmoid", {b.activation({4}, kU8)}, {4}));
  CHECK(b.run(make_tables, evaluating()));
  CHECK_EQ(b.ops(), "QuantizeLinear Table");
  CHECK(b.only("Table").tensor("table")->dtype == DType::kFloat32);
}

TEST(conv_between_dequantize_and_quantize_is_one_integer_conv) {
  GraphBuilder b;
  const ValueId y = b.op(
      "Relu", {conv(b, b.activation({1, 2, 5, 5}, kU8), {4, 2, 3, 3}, {1, 4, 3, 3})}, {1, 4, 3, 3});
  b.output(b.dequantize(b.quantize(y, kOther), kOther));
  CHECK(b.run(fuse_products));
  CHECK_EQ(b.ops(), "QuantizeLinear Transpose QConv Transpose DequantizeLinear");
  const Node& fused = b.only("QConv");
  CHECK_EQ(fused.i("qmin", -1), kOther.zero_point);  // Relu
  CHECK_EQ(fused.i("qmax", -1), 255);
  CHECK_EQ(fused.i("x_zero_point", -1), kU8.zero_point);
  CHECK_EQ(fused.tensor("multiplier")->as<float>()[0], kU8.scale * 0.01f / kOther.scale);
}

TEST(conv_whose_output_is_read_as_float_too_ends_in_float) {
  GraphBuilder b;
  const ValueId y = conv(b, b.activation({1, 2, 5, 5}, kU8), {4, 2, 3, 3}, {1, 4, 3, 3});
  b.output(y);
  b.output(b.quantize(y, kOther));
  CHECK(b.run(fuse_products));
  CHECK_EQ(b.only("QConv").i("quantized", -1), 0);
}

TEST(a_float_bias_goes_to_the_grid_of_the_accumulator) {
  GraphBuilder b;
  const ValueId x = b.activation({3, 8}, kU8);
  const double grid = double{kU8.scale} * double{0.01f};
  const ValueId bias =
      b.floats({4}, {static_cast<float>(grid * 7.4), static_cast<float>(grid * -2.6)});
  const ValueId y = b.op("Gemm", {x, weights(b, {8, 4}), bias}, {3, 4});
  b.output(b.quantize(y, kOther));
  CHECK(b.run(fuse_products));
  const int32_t* levels = b.only("QGemm").tensor("bias")->as<int32_t>();
  CHECK_EQ(levels[0], 7);
  CHECK_EQ(levels[1], -3);
}

TEST(an_accumulator_that_may_leave_int32_is_summed_in_int64) {
  GraphBuilder b;
  const int64_t k = 70000;
  const ValueId x = b.activation({1, k}, {DType::kUint8, 0.5f, 0});
  const ValueId w = b.dequantize(b.levels(DType::kInt8, {k, 1}, {127}), {DType::kInt8, 0.01f, 0});
  b.output(b.quantize(b.op("MatMul", {x, w}, {1, 1}), kOther));
  CHECK(b.run(fuse_products));
  CHECK_EQ(b.ops(), "QuantizeLinear QMatMul");  // wide beyond K = 33025
}

TEST(a_bias_too_large_for_its_grid_makes_the_grid_coarser) {
  GraphBuilder b;
  const double grid = double{kU8.scale} * double{0.01f};
  const ValueId bias = b.floats({4}, {static_cast<float>(grid * 1e10), 0.0f});
  const ValueId y = b.op("Gemm", {b.activation({3, 8}, kU8), weights(b, {8, 4}), bias}, {3, 4});
  b.output(b.quantize(y, kOther));
  CHECK(b.run(fuse_products));
  const Node& gemm = b.only("QGemm");
  const float* m = gemm.tensor("multiplier")->as<float>();
  CHECK_EQ(m[0], 8 * m[1]);  // 1e10 / 8 is below 2^31
  const int8_t* w = b.graph.values[gemm.inputs[1]].constant->as<int8_t>();
  CHECK_EQ(+w[0], 0);    // -3 / 8, column 0
  CHECK_EQ(+w[1], 100);  // column 1 is as it was
  CHECK_EQ(+w[4], -16);  // -127 / 8
  CHECK(std::abs(gemm.tensor("bias")->as<int32_t>()[0] - 1.25e9) < 1e3);
}

TEST(a_bias_without_end_is_left_to_float) {
  GraphBuilder b;
  const ValueId y = b.op(
      "Gemm", {b.activation({3, 8}, kU8), weights(b, {8, 4}), b.floats({4}, {INFINITY})}, {3, 4});
  b.output(b.quantize(y, kOther));
  CHECK(!b.run(fuse_products));
}

TEST(add_of_two_grids_is_one_integer_add) {
  GraphBuilder b;
  const ValueId y = b.op("Add", {b.activation({2, 3}, kU8), b.activation({2, 3}, kOther)}, {2, 3});
  b.output(b.dequantize(b.quantize(b.op("Relu", {y}, {2, 3}), kU8), kU8));
  CHECK(b.run(fuse_elementwise));
  CHECK_EQ(b.only("QAdd").f("b_multiplier", 0), 0.5f);
  CHECK_EQ(b.only("QAdd").i("qmin", 0), kU8.zero_point);
}

TEST(sub_is_add_with_the_second_multiplier_negated) {
  GraphBuilder b;
  const ValueId y = b.op("Sub", {b.activation({2, 3}, kU8), b.activation({2, 3}, kOther)}, {2, 3});
  b.output(b.quantize(y, kU8));
  CHECK(b.run(fuse_elementwise));
  CHECK_EQ(b.only("QAdd").f("b_multiplier", 0), -0.5f);
}

TEST(a_residual_goes_into_the_product) {
  GraphBuilder b;
  const ValueId x = b.activation({3, 8}, kU8);
  const ValueId c =
      b.dequantize(b.quantize(b.op("MatMul", {x, weights(b, {8, 8})}, {3, 8}), kOther), kOther);
  b.output(b.dequantize(b.quantize(b.op("Add", {x, c}, {3, 8}), kU8), kU8));
  b.run(fuse_products);
  b.run(fuse_elementwise);
  CHECK(b.run(fuse_epilogues));
  CHECK_EQ(b.ops(), "QuantizeLinear QGemm DequantizeLinear");
  const Node& gemm = b.only("QGemm");
  CHECK_EQ(gemm.inputs.size(), size_t{3});
  CHECK_EQ(gemm.i("sum_a_zero_point", -1), kOther.zero_point);  // a is the product
  CHECK_EQ(gemm.f("sum_a_multiplier", 0), 0.5f);
}

TEST(one_column_for_all_stays_an_add) {
  GraphBuilder b;
  const ValueId x = b.activation({3, 8}, kU8), r = b.activation({3, 1}, kU8);
  const ValueId c =
      b.dequantize(b.quantize(b.op("MatMul", {x, weights(b, {8, 8})}, {3, 8}), kOther), kOther);
  b.output(b.quantize(b.op("Add", {c, r}, {3, 8}), kU8));
  b.run(fuse_products);
  b.run(fuse_elementwise);
  CHECK(!b.run(fuse_epilogues));
}

TEST(one_row_for_all_goes_into_the_product) {
  GraphBuilder b;
  const ValueId x = b.activation({3, 8}, kU8), r = b.activation({1, 8}, kU8);
  const ValueId c =
      b.dequantize(b.quantize(b.op("MatMul", {x, weights(b, {8, 8})}, {3, 8}), kOther), kOther);
  b.output(b.quantize(b.op("Add", {c, r}, {3, 8}), kU8));
  b.run(fuse_products);
  b.run(fuse_elementwise);
  CHECK(b.run(fuse_epilogues));
  CHECK_EQ(b.only("QGemm").inputs.size(), size_t{3});
}

TEST(a_table_that_only_clips_becomes_bounds_of_the_product) {
  GraphBuilder b;
  const ValueId c = b.dequantize(
      b.quantize(b.op("MatMul", {b.activation({3, 8}, kU8), weights(b, {8, 8})}, {3, 8}), kOther),
      kOther);
  b.output(b.dequantize(b.quantize(b.op("Relu", {c}, {3, 8}), kOther), kOther));
  b.run(make_tables, evaluating());
  b.run(fuse_products);
  CHECK(b.run(fuse_epilogues));
  CHECK(!b.only("QGemm").has("table"));
  CHECK_EQ(b.only("QGemm").i("qmin", -1), kOther.zero_point);
}

TEST(tables_of_one_product_are_chained_so_that_the_first_goes_into_it) {
  GraphBuilder b;
  const ValueId c = b.dequantize(
      b.quantize(b.op("MatMul", {b.activation({3, 8}, kU8), weights(b, {8, 8})}, {3, 8}), kOther),
      kOther);
  const ValueId leaky = b.dequantize(b.quantize(b.op("LeakyRelu", {c}, {3, 8}), kOther), kOther);
  b.output(leaky);
  b.output(b.quantize(b.op("Relu", {leaky}, {3, 8}), kU8));
  b.run(make_tables, evaluating());
  b.run(fuse_products);
  CHECK(b.run(chain_tables));
  CHECK(b.run(fuse_epilogues));
  CHECK(b.only("QGemm").has("table"));
}

TEST(softmax_between_levels_is_one_operator) {
  GraphBuilder b;
  Node& softmax = b.node("Softmax", {b.activation({4, 9}, kU8)}, {4, 9});
  softmax.attributes["axis"] = int64_t{-1};
  b.output(b.dequantize(b.quantize(softmax.outputs[0], kOther), kOther));
  CHECK(b.run(fuse_rows));
  CHECK_EQ(b.ops(), "QuantizeLinear QSoftmax DequantizeLinear");
}

TEST(softmax_over_another_axis_stays_float) {
  GraphBuilder b;
  Node& softmax = b.node("Softmax", {b.activation({4, 9}, kU8)}, {4, 9});
  softmax.attributes["axis"] = int64_t{0};
  b.output(b.quantize(softmax.outputs[0], kOther));
  CHECK(!b.run(fuse_rows));
}

WIA_TEST_MAIN
