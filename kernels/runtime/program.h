// SPDX-License-Identifier: Apache-2.0
// A graph made executable: one kernel a node, one plan a set of input shapes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace wia {

// What a node became under the current plan, for `inspect`.
struct NodeReport {
  std::string name, op_type, domain, implementation;
  std::string kind;  // "planned", "at run", "folded", "alias"
  std::vector<std::string> inputs, outputs;
  std::vector<std::string> input_shapes,
      output_shapes;                  // "float32 [1, 3, 224, 224]", "?" when unknown
  uint64_t n_runs = 0, total_ns = 0;  // while profiling
};

class Program {
 public:
  // Makes the kernels; `graph` must outlive the program. Frees constants that the kernels have
  // taken over.
  Program(Graph& graph, const KernelContext& context);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // inputs: of graph.inputs, then of graph.captures; dense, 64-byte aligned; a capture without a
  // value is skipped. outputs: of graph.outputs; set to tensors that own their memory. One caller
  // at a time.
  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, ThreadPool& pool);

  // Plans for these shapes without running; data is not read.
  void plan(std::span<const Tensor> inputs);

  void set_profiling(bool on);
  std::vector<NodeReport> report() const;
  size_t arena_bytes() const;  // of the current plan
  size_t owned_bytes() const;  // of the constants the graph still holds

 private:
  struct Plan;
  class Step;
  class Infer;
  Plan& plan_for(std::span<const Tensor> inputs);
  std::unique_ptr<Plan> make_plan(std::span<const Tensor> inputs);
  void classify(Plan& plan);
  void place(Plan& plan);
  void activate(Plan& plan);
  void run_step(Plan& plan, Step& step, ThreadPool& pool);
  void run_at_run(Plan& plan, Step& step, ThreadPool& pool);
  bool fold_now(Plan& plan, size_t n, Inferred inferred);
  Inferred infer(Plan& plan, size_t n, bool at_run);

  Graph& graph_;
  std::vector<std::unique_ptr<Kernel>> kernels_;  // of graph_.nodes
  std::vector<ValueId> feeds_;                    // inputs, then captures
  std::vector<std::unique_ptr<Plan>> plans_;      // most recently used first
  Plan* current_ = nullptr;
  Tensor arena_;    // shared by the plans: one is active at a time
  Tensor scratch_;  // of steps whose shapes are known at run time only
  bool profiling_ = false;
  std::vector<uint64_t> n_runs_, total_ns_;
};

// Runs `body` and names the node in what it throws.
template <class Body>
auto at_node(const Node& node, Body body) {
  try {
    return body();
  } catch (const Error& e) {
    const std::string message = e.what(), where = node.where();
    throw Error(e.status(),
                message.find(where) == std::string::npos ? where + ": " + message : message);
  }
}

// True for an operator whose results are not a function of its inputs.
bool is_random(const Node& node);
bool has_subgraph(const Node& node);

}  // namespace wia
