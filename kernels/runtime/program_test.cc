// SPDX-License-Identifier: Apache-2.0
// Plans and runs of small graphs made by hand.
#include "runtime/program.h"

#include "base/budget.h"
#include "base/testing.h"

using namespace wia;

namespace {

constexpr int64_t kSize = 1000;
constexpr size_t kBytes = 4032;  // of kSize float32, in whole lines of 64

struct Builder {
  Graph graph;
  ValueId input() {
    graph.inputs.push_back(
        graph.add_value("x" + std::to_string(graph.values.size()), DType::kFloat32));
    return graph.inputs.back();
  }
  ValueId node(const char* op, std::vector<ValueId> inputs) {
    const ValueId out = graph.add_value("v" + std::to_string(graph.values.size()));
    graph.add_node(op, "", op + std::to_string(out), std::move(inputs), {out}).opset = 21;
    return out;
  }
  Program program() { return Program(graph, {0, &graph, 1}); }
};

Tensor ramp(int64_t n) {
  Tensor t = Tensor::allocate(DType::kFloat32, {n});
  for (int64_t i = 0; i < n; ++i) t.as<float>()[i] = static_cast<float>(i + 1);
  return t;
}

std::vector<Tensor> run(Program& program, size_t n_outputs, const Tensor& input) {
  ThreadPool pool(1);
  std::vector<Tensor> outputs(n_outputs);
  program.run({&input, 1}, outputs, pool);
  return outputs;
}

}  // namespace

TEST(a_chain_of_elementwise_operators_is_written_in_place) {
  Builder b;
  ValueId v = b.input();
  for (int i = 0; i < 10; ++i) v = b.node("Neg", {v});
  b.graph.outputs = {b.node("Abs", {v})};
  Program p = b.program();
  CHECK_EQ(run(p, 1, ramp(kSize))[0].as<float>()[6], 7.0f);
  CHECK_EQ(p.arena_bytes(), kBytes);
}

TEST(a_value_that_is_read_again_is_not_written_over) {
  Builder b;
  const ValueId x = b.input(), a = b.node("Neg", {x}), n = b.node("Neg", {a}),
                s = b.node("Abs", {n});
  b.graph.outputs = {b.node("Add", {a, s})};
  Program p = b.program();
  for (int64_t i = 0; i < 5; ++i) CHECK_EQ(run(p, 1, ramp(kSize))[0].as<float>()[i], 0.0f);
  CHECK_EQ(p.arena_bytes(), 2 * kBytes);
}

TEST(the_callers_input_is_never_written) {
  Builder b;
  b.graph.outputs = {b.node("Neg", {b.input()})};
  Program p = b.program();
  const Tensor x = ramp(kSize);
  CHECK_EQ(run(p, 1, x)[0].as<float>()[2], -3.0f);
  CHECK_EQ(x.as<float>()[2], 3.0f);
}

TEST(both_inputs_of_one_memory_may_be_overwritten_at_once) {
  Builder b;
  const ValueId n = b.node("Neg", {b.input()});
  b.graph.outputs = {b.node("Abs", {b.node("Add", {n, n})})};
  Program p = b.program();
  CHECK_EQ(run(p, 1, ramp(kSize))[0].as<float>()[3], 8.0f);
  CHECK_EQ(p.arena_bytes(), kBytes);
}

TEST(shapes_alternate_beyond_the_plans_that_are_kept) {
  Builder b;
  const ValueId x = b.input();
  b.graph.outputs = {b.node("Add", {b.node("Neg", {x}), x})};
  Program p = b.program();
  for (int round = 0; round < 3; ++round)
    for (int64_t n = 1; n <= 12; ++n) {
      const std::vector<Tensor> out = run(p, 1, ramp(n));
      CHECK_EQ(out[0].numel(), n);
      CHECK_EQ(out[0].as<float>()[n - 1], 0.0f);
    }
}

TEST(running_again_allocates_the_outputs_alone) {
  auto budget = std::make_shared<MemoryBudget>(size_t{1} << 30);
  const BudgetScope scope(budget);
  Builder b;
  ValueId v = b.input();
  for (int i = 0; i < 4; ++i) v = b.node("Sigmoid", {b.node("Neg", {v})});
  b.graph.outputs = {v};
  Program p = b.program();
  const Tensor x = ramp(kSize);
  (void)run(p, 1, x);
  const size_t before = budget->used();
  const std::vector<Tensor> kept = run(p, 1, x);
  CHECK_EQ(budget->used() - before, kBytes);
}

TEST(every_unsupported_form_is_listed) {
  Builder b;
  ValueId v = b.input();
  for (const char* name : {"first", "second"}) {
    const ValueId out = b.graph.add_value(name);
    Node& node = b.graph.add_node("ScatterND", "", name, {v, v, v}, {out});
    node.opset = 21;
    node.attributes["reduction"] = std::string("odd");
    v = out;
  }
  b.graph.outputs = {v};
  CHECK_THROWS(b.program(), "ScatterND 'first'");
  CHECK_THROWS(b.program(), "ScatterND 'second'");
}

TEST(the_node_is_named_in_what_goes_wrong) {
  Builder b;
  const ValueId x = b.input(), three = b.graph.add_constant("three", ramp(3));
  b.graph.outputs = {b.node("Add", {x, three})};
  Program p = b.program();
  CHECK_THROWS(run(p, 1, ramp(4)), b.graph.nodes[0]->where());
  CHECK_EQ(run(p, 1, ramp(3))[0].as<float>()[2], 6.0f);  // and it goes on
}

WIA_TEST_MAIN
