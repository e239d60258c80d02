// SPDX-License-Identifier: Apache-2.0
// Loading, compiling and running a model.
#include "runtime/session.h"

#include <algorithm>
#include <cstring>

#include "base/cpu.h"
#include "graph/passes/passes.h"
#include "onnx/external_data.h"
#include "onnx/reader.h"
#include "runtime/check_nodes.h"
#include "runtime/simplify.h"

namespace wia {
namespace {

constexpr uintptr_t kAlignment = 64;
Port port_of(const Graph& graph, ValueId v) {
  const Value& value = graph.values[v];
  Port port{value.name, value.dtype, value.has_shape, value.shape, {}};
  auto names = graph.dim_names.find(v);
  if (names != graph.dim_names.end()) port.dim_names = names->second;
  port.dim_names.resize(static_cast<size_t>(value.shape.rank()));
  return port;
}

std::string expected_shape(const Port& port) {
  std::string text = "[";
  for (int i = 0; i < port.shape.rank(); ++i) {
    const std::string& name = port.dim_names[static_cast<size_t>(i)];
    text += (i ? ", " : "") + (port.shape[i] >= 0 ? std::to_string(port.shape[i])
                               : name.empty()     ? "?"
                                                  : name);
  }
  return text + "]";
}

void check_input(const Port& port, const Tensor& given) {
  const std::string what = "input '" + port.name + "': ";
  require(port.dtype == DType::kUndefined || given.dtype == port.dtype,
          what + "expected elements of " + dtype_name(port.dtype) + ", got " +
              dtype_name(given.dtype) + "; convert them first");
  if (!port.has_shape) return;
  bool fits = given.shape.rank() == port.shape.rank();
  for (int i = 0; fits && i < port.shape.rank(); ++i)
    fits = port.shape[i] < 0 || port.shape[i] == given.shape[i];
  require(fits, what + "expected shape " + expected_shape(port) + ", got " + given.shape.str());
}

}  // namespace

Session::Session(const SessionOptions& options, uint32_t isa)
    : options_(options), isa_(isa), pool_(options.n_threads), budget_(options.budget) {
  if (!budget_)
    budget_ = std::make_shared<MemoryBudget>(options.memory_limit ? options.memory_limit
                                                                  : physical_memory());
}

std::unique_ptr<Session> Session::from_file(const std::string& path,
                                            const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(options, cpu::mask_for(options.isa)));
  const BudgetScope scope(session->budget_);
  try {
    session->compile(onnx::read_model_file(path));
  } catch (const Error& e) {
    const std::string message = e.what();
    throw Error(e.status(),
                message.find(path) == std::string::npos ? path + ": " + message : message);
  }
  return session;
}

std::unique_ptr<Session> Session::from_bytes(std::span<const uint8_t> bytes,
                                             const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(options, cpu::mask_for(options.isa)));
  const BudgetScope scope(session->budget_);
  session->compile(onnx::read_model(bytes, ""));
  return session;
}

std::unique_ptr<Session> Session::from_graph(Graph graph, const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session(options, cpu::mask_for(options.isa)));
  const BudgetScope scope(session->budget_);
  session->compile(std::move(graph));
  return session;
}

void Session::compile(Graph graph) {
  graph_ = std::make_unique<Graph>(std::move(graph));
  for (ValueId v : graph_->inputs) inputs_.push_back(port_of(*graph_, v));
  for (ValueId v : graph_->outputs) outputs_.push_back(port_of(*graph_, v));
  graph_->remove_dead();
  adopt_operators(*graph_);
  check_nodes(*graph_);
  const KernelContext context{isa_, graph_.get(), options_.n_threads, options_.max_loop_iterations};
  simplify(*graph_, context, options_.optimize);
  program_ = std::make_unique<Program>(*graph_, context);
}

std::vector<Tensor> Session::checked(std::span<const Tensor> inputs) {
  require(inputs.size() == inputs_.size(), "the model takes " + std::to_string(inputs_.size()) +
                                               " inputs, got " + std::to_string(inputs.size()));
  std::vector<Tensor> feeds(inputs.begin(), inputs.end());
  aligned_.resize(inputs.size());
  for (size_t i = 0; i < feeds.size(); ++i) {
    check_input(inputs_[i], feeds[i]);
    const size_t n_bytes = feeds[i].n_bytes();
    auto* bytes = static_cast<uint8_t*>(feeds[i].data);
    // Kernels rely on a bool being 0 or 1; a caller's need not be.
    const bool odd = feeds[i].dtype == DType::kBool &&
                     std::any_of(bytes, bytes + n_bytes, [](uint8_t b) { return b > 1; });
    if (!odd && bytes && reinterpret_cast<uintptr_t>(bytes) % kAlignment == 0) continue;
    Tensor& copy = aligned_[i];
    if (!copy.data || copy.n_bytes() < n_bytes)
      copy = Tensor::allocate(DType::kUint8, {static_cast<int64_t>(n_bytes)});
    if (n_bytes) std::memcpy(copy.data, bytes, n_bytes);
    if (odd)
      std::transform(bytes, bytes + n_bytes, copy.as<uint8_t>(), [](uint8_t b) { return b != 0; });
    feeds[i].data = copy.data;
  }
  return feeds;
}

std::vector<Tensor> Session::run(std::span<const Tensor> inputs) {
  const std::lock_guard lock(mutex_);
  const BudgetScope scope(budget_);
  const std::vector<Tensor> feeds = checked(inputs);
  std::vector<Tensor> outputs(outputs_.size());
  program_->run(feeds, outputs, pool_);
  return outputs;
}

void Session::plan_declared() {
  const std::lock_guard lock(mutex_);
  const BudgetScope scope(budget_);
  std::vector<Tensor> feeds;
  for (const Port& port : inputs_) {
    if (port.dtype == DType::kUndefined || !port.has_shape || !port.shape.known()) return;
    Tensor& feed = feeds.emplace_back();
    feed.dtype = port.dtype;
    feed.shape = port.shape;
  }
  program_->plan(feeds);
}

void Session::set_profiling(bool on) {
  const std::lock_guard lock(mutex_);
  program_->set_profiling(on);
}

std::vector<NodeReport> Session::report() {
  const std::lock_guard lock(mutex_);
  return program_->report();
}

size_t Session::arena_bytes() {
  const std::lock_guard lock(mutex_);
  return program_->arena_bytes();
}

size_t Session::weight_bytes() {
  const std::lock_guard lock(mutex_);
  return program_->owned_bytes();
}

const char* Session::isa() const { return cpu::isa_name(isa_); }

}  // namespace wia
