// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"
#include "graph/shapes.h"

#include "base/testing.h"

using namespace wia;

namespace {

// x -> Neg a -> Abs b, b is the output.
Graph chain() {
  Graph g;
  const ValueId x = g.add_value("x"), a = g.add_value("a"), b = g.add_value("b");
  g.inputs = {x};
  g.outputs = {b};
  g.add_node("Neg", "", "n", {x}, {a});
  g.add_node("Abs", "", "m", {a}, {b}).attributes["k"] = int64_t{3};
  return g;
}

}  // namespace

TEST(attributes_of_another_type_are_an_error_that_names_the_node) {
  const Graph g = chain();
  CHECK_EQ(g.nodes[1]->i("k", 0), 3);
  CHECK_EQ(g.nodes[1]->i("none", 7), 7);
  CHECK_THROWS(g.nodes[1]->f("k", 0), "Abs 'm': attribute 'k' is not a float");
  CHECK(g.nodes[1]->tensor("none") == nullptr);
}

TEST(dead_nodes_go_and_live_ones_stay_in_order) {
  Graph g = chain();
  g.add_node("Sin", "", "dead", {g.inputs[0]}, {g.add_value("d")});
  g.remove_dead();
  CHECK_EQ(g.nodes.size(), size_t{2});
  CHECK_EQ(g.nodes[0]->name, "n");
}

TEST(sorting_is_stable_and_refuses_cycles) {
  Graph g = chain();
  std::swap(g.nodes[0], g.nodes[1]);
  g.sort();
  CHECK_EQ(g.nodes[0]->name, "n");
  g.nodes[0]->inputs = {g.outputs[0]};
  CHECK_THROWS(g.sort(), "cycle");
}

TEST(replaced_uses_include_the_graphs_outputs) {
  Graph g = chain();
  const ValueId other = g.add_value("other");
  g.replace_uses(g.outputs[0], other);
  CHECK_EQ(g.outputs[0], other);
  g.replace_uses(g.inputs[0], other);
  CHECK_EQ(g.nodes[0]->inputs[0], other);
}

TEST(uses_count_readers_and_outputs) {
  Graph g = chain();
  const ValueId a = g.nodes[0]->outputs[0];
  CHECK(Uses(g).single_use(a));
  CHECK(!Uses(g).single_use(g.outputs[0]));
  CHECK(Uses(g).producer(a) == g.nodes[0].get());
  g.nodes[1]->inputs = {a, a};
  CHECK(!Uses(g).single_use(a));
  CHECK_EQ(Uses(g).consumers(a).size(), size_t{1});
}

TEST(a_clone_is_rewritten_by_itself) {
  Graph g = chain();
  auto inner = std::make_shared<Graph>(chain());
  g.nodes[0]->attributes["body"] = inner;
  g.add_constant("c", Tensor::allocate(DType::kFloat32, {2}));
  Graph copy = clone(g);
  copy.nodes[0]->op_type = "Changed";
  copy.nodes[0]->graph("body")->nodes[0]->op_type = "Changed";
  CHECK_EQ(g.nodes[0]->op_type, "Neg");
  CHECK_EQ(inner->nodes[0]->op_type, "Neg");
  CHECK(copy.values.back().constant == g.values.back().constant);
}

TEST(shapes_follow_through_what_is_computed_of_shapes) {
  Graph graph;
  const ValueId x = graph.add_value("x", DType::kFloat32);
  graph.inputs.push_back(x);
  graph.values[x].has_shape = true;
  graph.values[x].shape = Shape{-1, 6, 1};
  const auto list = [&](const std::vector<int64_t>& values) {
    Tensor t = Tensor::allocate(DType::kInt64, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), t.as<int64_t>());
    return graph.add_constant("", std::move(t));
  };
  const auto add = [&](const std::string& op, std::vector<ValueId> inputs) -> Node& {
    Node& node = graph.add_node(op, "", op, std::move(inputs), {graph.add_value(op)});
    node.opset = 13;
    return node;
  };
  const ValueId shape = add("Shape", {x}).outputs[0];
  const ValueId batch = add("Slice", {shape, list({0}), list({1}), list({0})}).outputs[0];
  const ValueId six = add("Gather", {shape, list({-2})}).outputs[0];
  Node& concat = add("Concat", {batch, six, list({5})});
  concat.attributes["axis"] = int64_t{0};
  const ValueId y = add("Expand", {x, concat.outputs[0]}).outputs[0];
  const ValueId z = add("Reshape", {x, concat.outputs[0]}).outputs[0];
  fill_shapes(graph);
  CHECK_EQ(graph.values[y].shape.str(), (Shape{-1, 6, 5}).str());
  CHECK_EQ(graph.values[z].shape.str(), (Shape{-1, 6, 5}).str());
}

WIA_TEST_MAIN
