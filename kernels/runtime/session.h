// SPDX-License-Identifier: Apache-2.0
// A loaded model, ready to run: what the C API and Python stand on.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/budget.h"
#include "runtime/program.h"

namespace wia {

struct SessionOptions {
  size_t n_threads = 1;
  std::string
      isa;  // cap of the instruction set; empty: the environment's WIA_ISA, else the CPU's best
  size_t memory_limit = 0;  // bytes of all tensors of the session; 0: the machine's memory
  int64_t max_loop_iterations =
      10'000'000;        // of a Loop or Scan node in one run, with those inside it
  bool optimize = true;  // run the graph passes; off, every node of the file runs as it stands
  std::shared_ptr<MemoryBudget> budget = nullptr;  // shared with others; null: its own
};

// An input or output of the model.
struct Port {
  std::string name;
  DType dtype = DType::kUndefined;  // kUndefined: the file does not say
  bool has_shape = false;
  Shape shape;                         // -1: any size
  std::vector<std::string> dim_names;  // "batch"; "" for a number or an unnamed dimension
};

class Session {
 public:
  static std::unique_ptr<Session> from_file(const std::string& path, const SessionOptions& options);
  static std::unique_ptr<Session> from_bytes(std::span<const uint8_t> bytes,
                                             const SessionOptions& options);
  static std::unique_ptr<Session> from_graph(Graph graph, const SessionOptions& options);

  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  const std::map<std::string, std::string>& metadata() const { return graph_->metadata; }

  // inputs: in the order of inputs(), dense, any alignment. Returns every output, in order. Callers
  // take turns.
  std::vector<Tensor> run(std::span<const Tensor> inputs);

  // Plans for the declared shapes, when they are all numbers, so that report() knows shapes before
  // the first run.
  void plan_declared();
  void set_profiling(bool on);
  std::vector<NodeReport> report();
  size_t arena_bytes();
  size_t weight_bytes();
  const char* isa() const;
  size_t n_threads() const { return pool_.size(); }

 private:
  Session(const SessionOptions& options, uint32_t isa);
  void compile(Graph graph);
  std::vector<Tensor> checked(std::span<const Tensor> inputs);

  std::mutex mutex_;
  SessionOptions options_;
  uint32_t isa_;
  ThreadPool pool_;
  std::shared_ptr<MemoryBudget> budget_;
  std::unique_ptr<Graph> graph_;
  std::vector<Port> inputs_, outputs_;
  std::vector<Tensor> aligned_;  // copies of inputs that are not aligned
  std::unique_ptr<Program> program_;
};

}  // namespace wia
