// SPDX-License-Identifier: Apache-2.0
// Plans and runs a graph.
#include "runtime/program.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "runtime/planner.h"

namespace wia {
namespace {

constexpr size_t kMaxPlans = 8;
constexpr size_t kMaxFoldedBytes = 64 << 10;  // what a plan computes at once from shapes is small

Tensor copy_of(const Tensor& from) {
  Tensor to = Tensor::allocate(from.dtype, from.shape);
  if (from.n_bytes()) std::memcpy(to.data, from.data, from.n_bytes());
  return to;
}

std::string describe(const Tensor& t) {
  return std::string(dtype_name(t.dtype)) + " " + t.shape.str();
}

}  // namespace

bool is_random(const Node& node) {
  static constexpr std::array kRandom = {"RandomNormal",      "RandomNormalLike", "RandomUniform",
                                         "RandomUniformLike", "Bernoulli",        "Multinomial"};
  return std::any_of(kRandom.begin(), kRandom.end(),
                     [&](const char* op) { return node.op_type == op; });
}

bool has_subgraph(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& entry) {
    return std::holds_alternative<std::shared_ptr<Graph>>(entry.second);
  });
}

enum class Kind : uint8_t { kPlanned, kAtRun, kFolded, kAlias };
constexpr const char* kKindNames[] = {"planned", "at run", "folded", "alias"};

// Where the bytes of a value are.
enum class Home : uint8_t { kNowhere, kConstant, kInput, kOutput, kArena, kHeap };

struct Slot {
  Tensor tensor;
  bool shape_known = false;
  bool content_known = false;  // the same in every run of the plan
  Home home = Home::kNowhere;
  int index = 0;  // kInput, kOutput: which; kArena: which buffer
};

// What one node reads and writes.
class Program::Step final : public RunContext {
 public:
  Step(size_t n, std::vector<Slot>& slots, const Node& node) : node_index(n) {
    for (ValueId v : node.inputs) inputs_.push_back(v == kNoValue ? nullptr : &slots[v].tensor);
    for (ValueId v : node.outputs) outputs_.push_back(v == kNoValue ? nullptr : &slots[v].tensor);
  }
  const Tensor* input(size_t i) const override { return i < inputs_.size() ? inputs_[i] : nullptr; }
  Tensor* output(size_t i) override { return i < outputs_.size() ? outputs_[i] : nullptr; }
  std::byte* scratch() override { return scratch_bytes; }
  ThreadPool& pool() override { return *threads; }

  size_t node_index;
  bool at_run = false;
  int planned_alias = -1;  // at_run: the input whose memory the plan keeps for the output
  int scratch_buffer = -1;
  std::byte* scratch_bytes = nullptr;
  ThreadPool* threads = nullptr;
  std::vector<ValueId> release;  // heap values that nobody reads after this step

 private:
  std::vector<const Tensor*> inputs_;
  std::vector<Tensor*> outputs_;
};

struct Program::Plan {
  std::vector<std::pair<DType, Shape>> key;
  std::vector<Slot> slots;  // of graph.values
  std::vector<Kind> kinds;  // of graph.nodes
  std::vector<Step> steps;
  std::vector<Buffer> buffers;
  size_t arena_bytes = 0;
  std::vector<std::vector<ValueId>> input_values, output_values;  // that lie in the caller's memory
};

class Program::Infer final : public InferContext {
 public:
  Infer(const Node& node, std::vector<Slot>& slots, bool at_run)
      : node_(node), slots_(slots), at_run_(at_run) {}
  size_t n_inputs() const override { return node_.inputs.size(); }
  bool has(size_t i) const override {
    return i < node_.inputs.size() && node_.inputs[i] != kNoValue;
  }
  DType dtype(size_t i) const override { return slot(i).tensor.dtype; }
  const Shape& shape(size_t i) const override { return slot(i).tensor.shape; }
  const Tensor* value(size_t i) const override {
    if (!has(i)) return nullptr;
    const Slot& s = slot(i);
    return (at_run_ || s.content_known) && s.tensor.data ? &s.tensor : nullptr;
  }
  size_t n_outputs() const override { return node_.outputs.size(); }
  bool wants(size_t i) const override {
    return i < node_.outputs.size() && node_.outputs[i] != kNoValue;
  }
  void set(size_t i, DType dtype, const Shape& shape) override {
    if (!wants(i)) return;
    require(shape.known() && dtype_size(dtype) != 0, "output " + std::to_string(i) + " of type " +
                                                         dtype_name(dtype) + " and shape " +
                                                         shape.str() + " cannot be made");
    (void)shape.numel();
    Slot& s = slots_[node_.outputs[i]];
    s.tensor.dtype = dtype;
    s.tensor.shape = shape;
    s.shape_known = true;
  }

 private:
  const Slot& slot(size_t i) const {
    require(has(i), "input " + std::to_string(i) + " is missing");
    return slots_[node_.inputs[i]];
  }
  const Node& node_;
  std::vector<Slot>& slots_;
  bool at_run_;
};

Program::Program(Graph& graph, const KernelContext& context) : graph_(graph) {
  KernelContext own = context;
  own.graph = &graph;
  std::string missing;  // all of what is not supported, not the first
  for (auto& node : graph.nodes) {
    const OpEntry* op = find_op(node->domain, node->op_type);
    require(op != nullptr, node->where() + ": libwia has no such operator");
    try {
      kernels_.push_back(at_node(*node, [&] { return op->make(*node, own); }));
    } catch (const Error& e) {
      if (e.status() != WIA_ERROR_NOT_SUPPORTED) throw;
      missing += (missing.empty() ? "" : "; ") + std::string(e.what());
      kernels_.push_back(nullptr);
    }
  }
  if (!missing.empty()) fail(WIA_ERROR_NOT_SUPPORTED, missing);
  std::vector<char> needed(graph.values.size(), 0);
  for (ValueId v : graph.outputs) needed[v] = 1;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = *graph.nodes[n];
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (graph.is_constant(node.inputs[i]) && !kernels_[n]->consumed(i))
        needed[node.inputs[i]] = 1;
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (!graph.values[v].constant || needed[v]) continue;
    Tensor empty;  // a new one: a subgraph may share the old
    empty.dtype = graph.values[v].constant->dtype;
    empty.shape = graph.values[v].constant->shape;
    graph.values[v].constant = std::make_shared<Tensor>(std::move(empty));
  }
  feeds_ = graph.inputs;
  feeds_.insert(feeds_.end(), graph.captures.begin(), graph.captures.end());
  n_runs_.assign(graph.nodes.size(), 0);
  total_ns_.assign(graph.nodes.size(), 0);
}

Program::~Program() = default;

Inferred Program::infer(Plan& plan, size_t n, bool at_run) {
  const Node& node = *graph_.nodes[n];
  return at_node(node, [&] {
    Infer context(node, plan.slots, at_run);
    const Inferred inferred = kernels_[n]->infer(context);
    if (inferred == Inferred::kDone) {
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const ValueId v = node.outputs[i];
        require(v == kNoValue || plan.slots[v].shape_known,
                "it did not set output " + std::to_string(i));
      }
    }
    return inferred;
  });
}

// Computes what can be known before running: from shapes alone, or from known contents.
bool Program::fold_now(Plan& plan, size_t n, Inferred inferred) {
  const Node& node = *graph_.nodes[n];
  Kernel& kernel = *kernels_[n];
  if (inferred == Inferred::kNeedsValues || is_random(node) || has_subgraph(node)) return false;
  const bool from_shapes = inferred == Inferred::kDone && kernel.from_shapes_only();
  const bool known = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
    return v == kNoValue || plan.slots[v].content_known;
  });
  if (!from_shapes && (!known || node.inputs.empty())) return false;
  if (inferred == Inferred::kDone) {
    size_t n_bytes = 0;
    for (ValueId v : node.outputs) n_bytes += v == kNoValue ? 0 : plan.slots[v].tensor.n_bytes();
    if (n_bytes > kMaxFoldedBytes) return false;
    for (ValueId v : node.outputs) {
      if (v == kNoValue) continue;
      plan.slots[v].tensor =
          Tensor::allocate(plan.slots[v].tensor.dtype, plan.slots[v].tensor.shape);
    }
  }
  Step step(n, plan.slots, node);
  ThreadPool alone(1);
  step.threads = &alone;
  Tensor scratch = Tensor::allocate(DType::kUint8, {static_cast<int64_t>(kernel.scratch_bytes())});
  step.scratch_bytes = scratch.as<std::byte>();
  at_node(node, [&] { kernel.run(step); });
  for (ValueId v : node.outputs) {
    if (v == kNoValue) continue;
    Slot& slot = plan.slots[v];
    require(slot.tensor.data != nullptr, node.where() + ": it made no output");
    slot.shape_known = slot.content_known = true;
    slot.home = Home::kConstant;
  }
  return true;
}

// The shapes of all values as far as they follow from the inputs', and what each node becomes.
void Program::classify(Plan& plan) {
  plan.kinds.resize(graph_.nodes.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = *graph_.nodes[n];
    const bool shapes_known = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      return v == kNoValue || plan.slots[v].shape_known;
    });
    const Inferred inferred = shapes_known ? infer(plan, n, false) : Inferred::kNeedsValues;
    auto to_heap = [&] {
      plan.kinds[n] = Kind::kAtRun;
      for (ValueId v : node.outputs) {
        if (v == kNoValue) continue;
        plan.slots[v].shape_known = false;
        plan.slots[v].home = Home::kHeap;
      }
    };
    if (!shapes_known) {
      to_heap();
      continue;
    }
    const int alias = inferred == Inferred::kDone ? kernels_[n]->alias_of() : -1;
    if (alias >= 0 && node.outputs.size() == 1 && node.outputs[0] != kNoValue) {
      require(node.inputs.at(alias) != kNoValue,
              node.where() + ": input " + std::to_string(alias) + " is missing");
      const Slot& from = plan.slots[node.inputs[alias]];
      Slot& to = plan.slots[node.outputs[0]];
      require(from.tensor.n_bytes() == to.tensor.n_bytes() && from.tensor.dtype == to.tensor.dtype,
              node.where() + ": cannot give " + describe(from.tensor) + " the shape " +
                  to.tensor.shape.str());
      plan.kinds[n] = from.content_known ? Kind::kFolded : Kind::kAlias;
      if (from.content_known) {
        to.tensor.data = from.tensor.data;
        to.tensor.owner = from.tensor.owner;
        to.content_known = true;
        to.home = Home::kConstant;
      }
    } else if (fold_now(plan, n, inferred)) {
      plan.kinds[n] = Kind::kFolded;
    } else if (inferred == Inferred::kDone) {
      plan.kinds[n] = Kind::kPlanned;
      for (ValueId v : node.outputs)
        if (v != kNoValue) plan.slots[v].home = Home::kArena;
    } else {
      to_heap();
    }
  }
}

// Lifetimes, who shares whose memory, and offsets; then the steps.
void Program::place(Plan& plan) {
  const int n_nodes = static_cast<int>(graph_.nodes.size());
  std::vector<Slot>& slots = plan.slots;
  std::vector<int> last(slots.size(), -1), first(slots.size(), 0);
  std::vector<int> alias(graph_.nodes.size(), -1);
  for (int n = 0; n < n_nodes; ++n) {
    const Node& node = *graph_.nodes[n];
    for (ValueId v : node.inputs)
      if (v != kNoValue) last[v] = n;
    for (ValueId v : node.outputs)
      if (v != kNoValue) first[v] = last[v] = n;
    if (plan.kinds[n] == Kind::kAlias || plan.kinds[n] == Kind::kAtRun) {
      const int i = kernels_[n]->alias_of();
      if (i >= 0 && node.outputs.size() == 1 && i < static_cast<int>(node.inputs.size()) &&
          node.inputs[i] != kNoValue)
        alias[n] = i;
    }
  }
  for (ValueId v : graph_.outputs) last[v] = n_nodes;
  for (int n = n_nodes; n-- > 0;) {
    const Node& node = *graph_.nodes[n];
    if (alias[n] < 0 || node.outputs[0] == kNoValue) continue;
    int& source = last[node.inputs[alias[n]]];
    source = std::max(source, last[node.outputs[0]]);
  }

  // root: whose bytes a value's are. First through aliases alone, to find what the caller's output
  // memory can hold.
  std::vector<ValueId> root(slots.size());
  for (size_t v = 0; v < slots.size(); ++v) root[v] = static_cast<ValueId>(v);
  auto follow_aliases = [&](int n) {
    if (plan.kinds[n] == Kind::kAlias)
      root[graph_.nodes[n]->outputs[0]] = root[graph_.nodes[n]->inputs[alias[n]]];
  };
  for (int n = 0; n < n_nodes; ++n) follow_aliases(n);
  for (size_t o = 0; o < graph_.outputs.size(); ++o) {
    Slot& slot = slots[root[graph_.outputs[o]]];
    if (slot.home != Home::kArena) continue;
    slot.home = Home::kOutput;
    slot.index = static_cast<int>(o);
  }

  // Then with outputs written over inputs that nobody reads any more.
  for (int n = 0; n < n_nodes; ++n) {
    follow_aliases(n);
    if (plan.kinds[n] != Kind::kPlanned) continue;
    const Node& node = *graph_.nodes[n];
    const ValueId out = node.outputs.empty() ? kNoValue : node.outputs[0];
    if (out == kNoValue || slots[out].home != Home::kArena) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId in = node.inputs[i];
      if (in == kNoValue || !kernels_[n]->may_overwrite(i)) continue;
      const ValueId r = root[in];
      if (slots[r].home != Home::kArena || last[r] != n ||
          slots[r].tensor.n_bytes() != slots[out].tensor.n_bytes())
        continue;
      bool read_elsewhere = false;
      for (size_t j = 0; j < node.inputs.size(); ++j)
        read_elsewhere |= node.inputs[j] != kNoValue && root[node.inputs[j]] == r &&
                          !kernels_[n]->may_overwrite(j);
      if (read_elsewhere) continue;
      root[out] = r;
      last[r] = last[out];
      break;
    }
  }

  std::vector<int> buffer_of(slots.size(), -1);
  for (size_t v = 0; v < slots.size(); ++v) {
    if (root[v] != static_cast<ValueId>(v) || slots[v].home != Home::kArena) continue;
    buffer_of[v] = static_cast<int>(plan.buffers.size());
    plan.buffers.push_back({slots[v].tensor.n_bytes(), first[v], last[v]});
  }
  plan.input_values.resize(feeds_.size());
  plan.output_values.resize(graph_.outputs.size());
  for (size_t v = 0; v < slots.size(); ++v) {
    const Slot& from = slots[root[v]];
    Slot& slot = slots[v];
    slot.home = from.home;
    slot.index = from.home == Home::kArena ? buffer_of[root[v]] : from.index;
    if (slot.home == Home::kInput) plan.input_values[slot.index].push_back(static_cast<ValueId>(v));
    if (slot.home == Home::kOutput)
      plan.output_values[slot.index].push_back(static_cast<ValueId>(v));
    if (slot.home == Home::kConstant && root[v] != static_cast<ValueId>(v)) {
      slot.tensor.data = from.tensor.data;
      slot.tensor.owner = from.tensor.owner;
    }
  }

  for (int n = 0; n < n_nodes; ++n) {
    if (plan.kinds[n] == Kind::kFolded || plan.kinds[n] == Kind::kAlias) continue;
    Step& step = plan.steps.emplace_back(static_cast<size_t>(n), slots, *graph_.nodes[n]);
    step.at_run = plan.kinds[n] == Kind::kAtRun;
    step.planned_alias = alias[n];
    if (step.at_run) continue;
    const size_t scratch = kernels_[n]->scratch_bytes();
    if (scratch == 0) continue;
    step.scratch_buffer = static_cast<int>(plan.buffers.size());
    plan.buffers.push_back({scratch, n, n});
  }
  for (size_t v = 0; v < slots.size(); ++v) {
    if (slots[v].home != Home::kHeap || last[v] >= n_nodes) continue;
    auto step = std::lower_bound(plan.steps.begin(), plan.steps.end(), static_cast<size_t>(last[v]),
                                 [](const Step& s, size_t n) { return s.node_index < n; });
    if (step != plan.steps.end()) step->release.push_back(static_cast<ValueId>(v));
  }
  plan.arena_bytes = place_buffers(plan.buffers);
}

std::unique_ptr<Program::Plan> Program::make_plan(std::span<const Tensor> inputs) {
  auto plan = std::make_unique<Plan>();
  plan->slots.resize(graph_.values.size());
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const auto& constant = graph_.values[v].constant;
    if (!constant) continue;
    Slot& slot = plan->slots[v];
    slot.tensor = *constant;
    slot.shape_known = true;
    slot.content_known = constant->data != nullptr;
    slot.home = Home::kConstant;
  }
  for (size_t i = 0; i < feeds_.size(); ++i) {
    plan->key.emplace_back(inputs[i].dtype, inputs[i].shape);
    if (feeds_[i] == kNoValue) continue;
    Slot& slot = plan->slots[feeds_[i]];
    slot.tensor.dtype = inputs[i].dtype;
    slot.tensor.shape = inputs[i].shape;
    slot.shape_known = true;
    slot.home = Home::kInput;
    slot.index = static_cast<int>(i);
  }
  classify(*plan);
  place(*plan);
  return plan;
}

// Points every value and step of the plan at its memory. Kernels keep what their last infer() said,
// so a plan that comes back asks them again.
void Program::activate(Plan& plan) {
  if (arena_.data == nullptr || arena_.n_bytes() < plan.arena_bytes) {
    arena_ = Tensor();
    arena_ = Tensor::allocate(DType::kUint8, {static_cast<int64_t>(plan.arena_bytes)});
  }
  std::byte* base = arena_.as<std::byte>();
  for (Slot& slot : plan.slots)
    if (slot.home == Home::kArena) slot.tensor.data = base + plan.buffers[slot.index].offset;
  for (Step& step : plan.steps)
    if (step.scratch_buffer >= 0)
      step.scratch_bytes = base + plan.buffers[step.scratch_buffer].offset;
  current_ = &plan;
}

Program::Plan& Program::plan_for(std::span<const Tensor> inputs) {
  require(inputs.size() == feeds_.size(), "graph '" + graph_.name + "' takes " +
                                              std::to_string(feeds_.size()) + " inputs, not " +
                                              std::to_string(inputs.size()));
  auto fits = [&](const Plan& plan) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (plan.key[i].first != inputs[i].dtype || !(plan.key[i].second == inputs[i].shape))
        return false;
    return true;
  };
  if (current_ && fits(*current_)) return *current_;
  current_ = nullptr;  // until the new one is whole, kernels are between two states
  auto it =
      std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) { return fits(*plan); });
  if (it != plans_.end()) {
    std::rotate(plans_.begin(), it, it + 1);
    for (const Step& step : plans_.front()->steps)
      if (!step.at_run) infer(*plans_.front(), step.node_index, false);
  } else {
    plans_.insert(plans_.begin(), make_plan(inputs));
    if (plans_.size() > kMaxPlans) plans_.pop_back();
  }
  activate(*plans_.front());
  return *plans_.front();
}

void Program::plan(std::span<const Tensor> inputs) { plan_for(inputs); }

// A step whose output shapes are known only now: its outputs lie on the heap.
void Program::run_at_run(Plan& plan, Step& step, ThreadPool& pool) {
  const Node& node = *graph_.nodes[step.node_index];
  Kernel& kernel = *kernels_[step.node_index];
  (void)pool;
  for (ValueId v : node.outputs) {
    if (v == kNoValue) continue;
    plan.slots[v].tensor = Tensor();
    plan.slots[v].shape_known = false;
  }
  const Inferred inferred = infer(plan, step.node_index, true);
  require(inferred != Inferred::kNeedsValues, "its shapes do not follow from its inputs' contents");
  if (inferred == Inferred::kDone) {
    const int alias = node.outputs.size() == 1 ? kernel.alias_of() : -1;
    if (alias >= 0) {
      const ValueId from = node.inputs.at(alias);
      const Tensor& source = plan.slots[from].tensor;
      Tensor& target = plan.slots[node.outputs[0]].tensor;
      require(source.n_bytes() == target.n_bytes(),
              "cannot give " + describe(source) + " the shape " + target.shape.str());
      if (alias == step.planned_alias) {
        target.data = source.data;
        // Only heap memory may outlive the run through its owner; a constant's must not reach the
        // caller.
        target.owner = plan.slots[from].home == Home::kHeap ? source.owner : nullptr;
      } else {
        const Shape shape = target.shape;
        target = copy_of(source);
        target.shape = shape;
      }
      return;
    }
    for (ValueId v : node.outputs) {
      if (v == kNoValue) continue;
      Tensor& tensor = plan.slots[v].tensor;
      tensor = Tensor::allocate(tensor.dtype, tensor.shape);
    }
  }
  const size_t scratch = kernel.scratch_bytes();
  if (scratch && (!scratch_.data || scratch_.n_bytes() < scratch))
    scratch_ = Tensor::allocate(DType::kUint8, {static_cast<int64_t>(scratch)});
  step.scratch_bytes = scratch_.as<std::byte>();
  kernel.run(step);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    require(node.outputs[i] == kNoValue || plan.slots[node.outputs[i]].tensor.data != nullptr,
            "it made no output " + std::to_string(i));
  }
}

void Program::run_step(Plan& plan, Step& step, ThreadPool& pool) {
  step.threads = &pool;
  if (step.at_run) {
    run_at_run(plan, step, pool);
  } else {
    kernels_[step.node_index]->run(step);
  }
  for (ValueId v : step.release) {
    plan.slots[v].tensor.owner.reset();
    plan.slots[v].tensor.data = nullptr;
  }
}

void Program::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, ThreadPool& pool) {
  Plan& plan = plan_for(inputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    for (ValueId v : plan.input_values[i]) plan.slots[v].tensor.data = inputs[i].data;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (plan.output_values[o].empty()) continue;
    const Tensor& slot = plan.slots[graph_.outputs[o]].tensor;
    outputs[o] = Tensor::allocate(slot.dtype, slot.shape);
    for (ValueId v : plan.output_values[o]) plan.slots[v].tensor.data = outputs[o].data;
  }
  const Step* at = nullptr;
  try {
    if (profiling_) {
      for (Step& step : plan.steps) {
        at = &step;
        const auto start = std::chrono::steady_clock::now();
        run_step(plan, step, pool);
        const auto spent = std::chrono::steady_clock::now() - start;
        total_ns_[step.node_index] += static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
        ++n_runs_[step.node_index];
      }
    } else {
      for (Step& step : plan.steps) {
        at = &step;
        run_step(plan, step, pool);
      }
    }
  } catch (const Error&) {
    at_node(*graph_.nodes[at->node_index], [] { throw; });
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!plan.output_values[o].empty()) continue;
    const Slot& slot = plan.slots[graph_.outputs[o]];
    // Heap memory of this run is handed over; the caller's, the arena's and a constant's is copied.
    outputs[o] = slot.home == Home::kHeap && slot.tensor.owner.use_count() == 1
                     ? slot.tensor
                     : copy_of(slot.tensor);
  }
  for (ValueId v : graph_.outputs)
    if (plan.slots[v].home == Home::kHeap) plan.slots[v].tensor.owner.reset();
}

void Program::set_profiling(bool on) {
  profiling_ = on;
  if (!on) return;  // what was counted stays to be read
  std::fill(n_runs_.begin(), n_runs_.end(), 0);
  std::fill(total_ns_.begin(), total_ns_.end(), 0);
}

std::vector<NodeReport> Program::report() const {
  std::vector<NodeReport> reports;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = *graph_.nodes[n];
    NodeReport& r = reports.emplace_back();
    r.name = node.name;
    r.op_type = node.op_type;
    r.domain = node.domain;
    r.implementation = kernels_[n]->implementation();
    r.kind = current_ ? kKindNames[static_cast<int>(current_->kinds[n])] : "";
    auto list = [&](const std::vector<ValueId>& ids, std::vector<std::string>& names,
                    std::vector<std::string>& shapes) {
      for (ValueId v : ids) {
        names.push_back(v == kNoValue ? "" : graph_.values[v].name);
        const bool known = v != kNoValue && current_ && current_->slots[v].shape_known;
        shapes.push_back(known ? describe(current_->slots[v].tensor) : v == kNoValue ? "" : "?");
      }
    };
    list(node.inputs, r.inputs, r.input_shapes);
    list(node.outputs, r.outputs, r.output_shapes);
    r.n_runs = n_runs_[n];
    r.total_ns = total_ns_[n];
  }
  return reports;
}

size_t Program::arena_bytes() const { return current_ ? current_->arena_bytes : 0; }

size_t Program::owned_bytes() const {
  size_t n_bytes = 0;
  for (const Value& value : graph_.values)
    if (value.constant && value.constant->data) n_bytes += value.constant->n_bytes();
  for (const auto& kernel : kernels_)
    if (kernel) n_bytes += kernel->owned_bytes();
  return n_bytes;
}

}  // namespace wia
