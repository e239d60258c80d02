// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

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

WIA_TEST_MAIN
