// SPDX-License-Identifier: Apache-2.0
// If, Loop, Scan: subgraphs as programs of their own, run inside the node.
#include <algorithm>
#include <cstring>

#include "runtime/program.h"

namespace wia {
namespace {

// A subgraph of a node, compiled.
class Body {
 public:
  Body(const Node& node, const std::string& attribute, const KernelContext& context)
      : graph_(node.graph(attribute)) {
    require(graph_ != nullptr, node.where() + ": attribute '" + attribute + "' is missing");
    require(graph_->captures.size() <= node.inputs.size(),
            node.where() + ": subgraph captures more values than the node has inputs");
    program_ = std::make_unique<Program>(*graph_, context);
  }

  const Graph& graph() const { return *graph_; }
  size_t n_captures() const { return graph_->captures.size(); }
  size_t n_inputs() const { return graph_->inputs.size(); }
  size_t n_outputs() const { return graph_->outputs.size(); }
  size_t owned_bytes() const { return program_->owned_bytes(); }

  // inputs: those of the subgraph; the captured values are the last inputs of the node.
  std::vector<Tensor> run(std::vector<Tensor> inputs, RunContext& node, size_t n_node_inputs) {
    for (size_t i = n_node_inputs - n_captures(); i < n_node_inputs; ++i)
      inputs.push_back(node.input(i) ? *node.input(i) : Tensor());
    std::vector<Tensor> outputs(n_outputs());
    program_->run(inputs, outputs, node.pool());
    return outputs;
  }

 private:
  std::shared_ptr<Graph> graph_;
  std::unique_ptr<Program> program_;
};

Tensor copy_of(const Tensor& from) {
  Tensor to = Tensor::allocate(from.dtype, from.shape);
  if (from.n_bytes()) std::memcpy(to.data, from.data, from.n_bytes());
  return to;
}

// A tensor that owns its memory: the node's outputs may not be its inputs' memory.
Tensor owned(const Tensor& tensor) { return tensor.owner ? tensor : copy_of(tensor); }

// Counts the iterations of a Loop or Scan and of those inside it, so that nesting does not multiply
// the limit.
class Iterations {
 public:
  explicit Iterations(int64_t limit) : limit_(limit) {
    if (t_depth++ == 0) t_count = 0;
  }
  ~Iterations() { --t_depth; }
  Iterations(const Iterations&) = delete;
  Iterations& operator=(const Iterations&) = delete;
  void next() const {
    require(t_count++ < limit_, "more than " + std::to_string(limit_) +
                                    " iterations; raise max_loop_iterations if the model means it");
  }

 private:
  static thread_local int64_t t_count;
  static thread_local int t_depth;
  int64_t limit_;
};
thread_local int64_t Iterations::t_count = 0;
thread_local int Iterations::t_depth = 0;

bool truth(const Tensor& tensor, const std::string& what) {
  require(tensor.dtype == DType::kBool && tensor.numel() == 1,
          what + " must be one bool, not " + dtype_name(tensor.dtype) + " " + tensor.shape.str());
  return *tensor.as<uint8_t>() != 0;
}

void require_bool(const InferContext& context, size_t input, const char* what) {
  require(context.dtype(input) == DType::kBool && context.shape(input).numel() == 1,
          std::string(what) + " must be one bool, not " + dtype_name(context.dtype(input)) + " " +
              context.shape(input).str());
}

void hand_over(RunContext& context, size_t i, const Tensor& tensor) {
  if (Tensor* output = context.output(i)) *output = tensor;
}

// How a tensor's bytes lie around one axis.
struct AxisView {
  size_t n_outer, length, n_inner_bytes;
  AxisView(const Tensor& tensor, int axis) : n_outer(1), n_inner_bytes(dtype_size(tensor.dtype)) {
    for (int d = 0; d < axis; ++d) n_outer *= static_cast<size_t>(tensor.shape[d]);
    for (int d = axis + 1; d < tensor.shape.rank(); ++d)
      n_inner_bytes *= static_cast<size_t>(tensor.shape[d]);
    length = static_cast<size_t>(tensor.shape[axis]);
  }
};

int checked_axis(int64_t axis, int rank, const char* what) {
  require(axis >= -rank && axis < rank, std::string(what) + " " + std::to_string(axis) +
                                            " is out of range for rank " + std::to_string(rank));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

// Element `index` along the axis, without that axis.
Tensor slice(const Tensor& from, int axis, size_t index) {
  Shape shape;
  for (int d = 0; d < from.shape.rank(); ++d)
    if (d != axis) shape.push_back(from.shape[d]);
  Tensor to = Tensor::allocate(from.dtype, shape);
  const AxisView view(from, axis);
  for (size_t o = 0; o < view.n_outer && view.n_inner_bytes; ++o) {
    std::memcpy(to.as<uint8_t>() + o * view.n_inner_bytes,
                from.as<uint8_t>() + (o * view.length + index) * view.n_inner_bytes,
                view.n_inner_bytes);
  }
  return to;
}

// The parts along a new axis; their type and shape are those of the first, or `none` when there is
// none.
Tensor stack(const std::vector<Tensor>& parts, int64_t axis_in, const Tensor& none) {
  const Tensor& like = parts.empty() ? none : parts[0];
  require(like.dtype != DType::kUndefined,
          "no iteration ran, and the model does not say of what type its output is");
  const int axis = checked_axis(axis_in, like.shape.rank() + 1, "scan axis");
  Shape shape;
  for (int d = 0; d <= like.shape.rank(); ++d) {
    if (d == axis) shape.push_back(static_cast<int64_t>(parts.size()));
    if (d < like.shape.rank()) shape.push_back(std::max<int64_t>(like.shape[d], 0));
  }
  Tensor to = Tensor::allocate(like.dtype, shape);
  const AxisView view(to, axis);
  for (size_t i = 0; i < parts.size(); ++i) {
    require(parts[i].dtype == like.dtype && parts[i].shape == like.shape,
            "iteration " + std::to_string(i) + " made " + dtype_name(parts[i].dtype) + " " +
                parts[i].shape.str() + ", the first " + dtype_name(like.dtype) + " " +
                like.shape.str() + "; they cannot be stacked");
    for (size_t o = 0; o < view.n_outer && view.n_inner_bytes; ++o) {
      std::memcpy(to.as<uint8_t>() + (o * view.length + i) * view.n_inner_bytes,
                  parts[i].as<uint8_t>() + o * view.n_inner_bytes, view.n_inner_bytes);
    }
  }
  return to;
}

// What the model says of a subgraph's output, for one that never ran.
Tensor declared(const Graph& graph, size_t output) {
  const Value& value = graph.values[graph.outputs[output]];
  Tensor tensor;
  tensor.dtype = value.dtype;
  if (value.has_shape) tensor.shape = value.shape;
  return tensor;
}

class If final : public Kernel {
 public:
  If(const Node& node, const KernelContext& context)
      : then_(node, "then_branch", context),
        else_(node, "else_branch", context),
        n_inputs_(node.inputs.size()) {
    require(n_inputs_ == 1 + then_.n_captures() && then_.n_captures() == else_.n_captures() &&
                node.inputs[0] != kNoValue,
            node.where() + ": takes one input, the condition");
    for (const Body* body : {&then_, &else_}) {
      require(body->n_inputs() == 0 && body->n_outputs() >= node.outputs.size(),
              node.where() + ": its branches must take no inputs and make " +
                  std::to_string(node.outputs.size()) + " outputs");
    }
  }

  Inferred infer(InferContext& context) override {
    require_bool(context, 0, "the condition");
    return Inferred::kAtRun;
  }

  void run(RunContext& context) override {
    Body& body = truth(*context.input(0), "the condition") ? then_ : else_;
    const std::vector<Tensor> outputs = body.run({}, context, n_inputs_);
    for (size_t i = 0; i < outputs.size(); ++i) hand_over(context, i, outputs[i]);
  }
  size_t owned_bytes() const override { return then_.owned_bytes() + else_.owned_bytes(); }
  std::string implementation() const override { return "subgraph"; }

 private:
  Body then_, else_;
  size_t n_inputs_;
};

class Loop final : public Kernel {
 public:
  Loop(const Node& node, const KernelContext& context)
      : body_(node, "body", context),
        n_inputs_(node.inputs.size()),
        max_iterations_(context.max_loop_iterations) {
    const size_t n_own = n_inputs_ - body_.n_captures();
    require(n_own >= 2, node.where() + ": takes a trip count and a condition, possibly omitted");
    n_carried_ = n_own - 2;
    require(body_.n_inputs() == 2 + n_carried_ && body_.n_outputs() >= 1 + n_carried_ &&
                node.outputs.size() <= body_.n_outputs() - 1,
            node.where() + ": its body takes " + std::to_string(body_.n_inputs()) +
                " inputs and makes " + std::to_string(body_.n_outputs()) +
                " outputs, which does not fit " + std::to_string(n_carried_) + " carried values");
    for (size_t i = 2; i < n_own; ++i)
      require(node.inputs[i] != kNoValue,
              node.where() + ": carried value " + std::to_string(i - 2) + " is missing");
  }

  Inferred infer(InferContext& context) override {
    if (context.has(0)) {
      require(context.dtype(0) == DType::kInt64 && context.shape(0).numel() == 1,
              "the trip count must be one int64");
    }
    if (context.has(1)) require_bool(context, 1, "the condition");
    return Inferred::kAtRun;
  }

  void run(RunContext& context) override {
    const int64_t n_trips = context.input(0) ? *context.input(0)->as<int64_t>() : INT64_MAX;
    bool go_on = !context.input(1) || truth(*context.input(1), "the condition");
    std::vector<Tensor> carried;
    for (size_t i = 0; i < n_carried_; ++i) {
      carried.push_back(*context.input(2 + i));
      carried.back().owner = nullptr;
    }
    const size_t n_scans = body_.n_outputs() - 1 - n_carried_;
    std::vector<std::vector<Tensor>> scans(n_scans);
    const Iterations iterations(max_iterations_);
    Tensor iteration = Tensor::allocate(DType::kInt64, {});
    Tensor condition = Tensor::allocate(DType::kBool, {});
    for (int64_t i = 0; go_on && i < n_trips; ++i) {
      iterations.next();
      *iteration.as<int64_t>() = i;
      *condition.as<uint8_t>() = 1;
      std::vector<Tensor> feeds{iteration, condition};
      feeds.insert(feeds.end(), carried.begin(), carried.end());
      std::vector<Tensor> outputs = body_.run(std::move(feeds), context, n_inputs_);
      go_on = truth(outputs[0], "the body's condition");
      for (size_t c = 0; c < n_carried_; ++c) carried[c] = std::move(outputs[1 + c]);
      for (size_t s = 0; s < n_scans; ++s)
        scans[s].push_back(std::move(outputs[1 + n_carried_ + s]));
    }
    for (size_t c = 0; c < n_carried_; ++c)
      if (context.output(c)) hand_over(context, c, owned(carried[c]));
    for (size_t s = 0; s < n_scans; ++s) {
      if (!context.output(n_carried_ + s)) continue;
      hand_over(context, n_carried_ + s,
                stack(scans[s], 0, declared(body_.graph(), 1 + n_carried_ + s)));
    }
  }
  size_t owned_bytes() const override { return body_.owned_bytes(); }
  std::string implementation() const override { return "subgraph"; }

 private:
  Body body_;
  size_t n_inputs_, n_carried_ = 0;
  int64_t max_iterations_;
};

class Scan final : public Kernel {
 public:
  Scan(const Node& node, const KernelContext& context)
      : body_(node, "body", context),
        n_inputs_(node.inputs.size()),
        batched_(node.opset < 9),
        max_iterations_(context.max_loop_iterations) {
    first_ = batched_ ? 1 : 0;  // opset 8 begins with sequence_lens
    const size_t n_own = n_inputs_ - body_.n_captures();
    const int64_t n_scan = node.i("num_scan_inputs", 0);
    require(n_scan >= 1 && n_own >= first_ && static_cast<size_t>(n_scan) <= n_own - first_,
            node.where() + ": num_scan_inputs does not fit its inputs");
    n_scan_ = static_cast<size_t>(n_scan);
    n_state_ = n_own - first_ - n_scan_;
    require(body_.n_inputs() == n_state_ + n_scan_ && body_.n_outputs() >= n_state_ &&
                node.outputs.size() <= body_.n_outputs(),
            node.where() + ": its body's inputs and outputs do not fit its own");
    n_made_ = body_.n_outputs() - n_state_;
    for (size_t i = first_; i < n_own; ++i)
      require(node.inputs[i] != kNoValue,
              node.where() + ": input " + std::to_string(i) + " is missing");
    auto list = [&](const char* key, size_t n) {
      std::vector<int64_t> values = node.ints(key, std::vector<int64_t>(n, 0));
      require(values.size() == n, node.where() + ": attribute '" + key + "' must have " +
                                      std::to_string(n) + " values");
      return values;
    };
    in_axes_ = list("scan_input_axes", n_scan_);
    in_reversed_ = list(batched_ ? "directions" : "scan_input_directions", n_scan_);
    out_axes_ = list("scan_output_axes", n_made_);
    out_reversed_ = list("scan_output_directions", n_made_);
  }

  Inferred infer(InferContext& context) override {
    if (batched_ && context.has(0))
      fail(WIA_ERROR_NOT_SUPPORTED, "sequence_lens of opset 8 is not supported");
    for (size_t s = 0; s < n_scan_; ++s) {
      const Shape& shape = context.shape(first_ + n_state_ + s);
      if (batched_)
        require(shape.rank() >= 2, "a scan input of opset 8 has a batch and a sequence");
      else
        checked_axis(in_axes_[s], shape.rank(), "scan_input_axes");
    }
    return Inferred::kAtRun;
  }

  void run(RunContext& context) override {
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < n_state_ + n_scan_; ++i) {
      inputs.push_back(*context.input(first_ + i));
      inputs.back().owner = nullptr;
    }
    std::vector<Tensor> outputs =
        batched_ ? run_batches(inputs, context) : run_once(inputs, context);
    for (size_t i = 0; i < outputs.size(); ++i) hand_over(context, i, owned(outputs[i]));
  }
  size_t owned_bytes() const override { return body_.owned_bytes(); }
  std::string implementation() const override { return "subgraph"; }

 private:
  std::vector<Tensor> run_once(const std::vector<Tensor>& inputs, RunContext& context) {
    std::vector<Tensor> states(inputs.begin(),
                               inputs.begin() + static_cast<std::ptrdiff_t>(n_state_));
    std::vector<int> axes;
    size_t length = 0;
    for (size_t s = 0; s < n_scan_; ++s) {
      const Tensor& scanned = inputs[n_state_ + s];
      axes.push_back(checked_axis(in_axes_[s], scanned.shape.rank(), "scan_input_axes"));
      const size_t own = static_cast<size_t>(scanned.shape[axes[s]]);
      require(s == 0 || own == length, "its scan inputs are of different lengths");
      length = own;
    }
    const Iterations iterations(max_iterations_);
    std::vector<std::vector<Tensor>> made(n_made_);
    for (size_t t = 0; t < length; ++t) {
      iterations.next();
      std::vector<Tensor> feeds = states;
      for (size_t s = 0; s < n_scan_; ++s)
        feeds.push_back(slice(inputs[n_state_ + s], axes[s], in_reversed_[s] ? length - 1 - t : t));
      std::vector<Tensor> outputs = body_.run(std::move(feeds), context, n_inputs_);
      for (size_t i = 0; i < n_state_; ++i) states[i] = std::move(outputs[i]);
      for (size_t i = 0; i < n_made_; ++i) made[i].push_back(std::move(outputs[n_state_ + i]));
    }
    std::vector<Tensor> results = std::move(states);
    for (size_t i = 0; i < n_made_; ++i) {
      if (out_reversed_[i]) std::reverse(made[i].begin(), made[i].end());
      results.push_back(stack(made[i], out_axes_[i], declared(body_.graph(), n_state_ + i)));
    }
    return results;
  }

  // Opset 8: every input and output has a batch in front, each element of which is scanned by
  // itself.
  std::vector<Tensor> run_batches(const std::vector<Tensor>& inputs, RunContext& context) {
    const int64_t n_batch = inputs.back().shape[0];
    std::vector<std::vector<Tensor>> results(body_.n_outputs());
    for (int64_t b = 0; b < n_batch; ++b) {
      std::vector<Tensor> own;
      for (const Tensor& input : inputs) {
        require(input.shape.rank() >= 1 && input.shape[0] == n_batch,
                "its inputs have different batch sizes");
        own.push_back(slice(input, 0, static_cast<size_t>(b)));
      }
      const std::vector<Tensor> outputs = run_once(own, context);
      for (size_t i = 0; i < outputs.size(); ++i) results[i].push_back(outputs[i]);
    }
    std::vector<Tensor> stacked;
    for (size_t i = 0; i < results.size(); ++i)
      stacked.push_back(stack(results[i], 0, declared(body_.graph(), i)));
    return stacked;
  }

  Body body_;
  size_t n_inputs_, first_ = 0, n_scan_ = 0, n_state_ = 0, n_made_ = 0;
  bool batched_;
  int64_t max_iterations_;
  std::vector<int64_t> in_axes_, in_reversed_, out_axes_, out_reversed_;
};

}  // namespace

std::unique_ptr<Kernel> make_if(const Node& node, const KernelContext& context) {
  return std::make_unique<If>(node, context);
}
std::unique_ptr<Kernel> make_loop(const Node& node, const KernelContext& context) {
  return std::make_unique<Loop>(node, context);
}
std::unique_ptr<Kernel> make_scan(const Node& node, const KernelContext& context) {
  return std::make_unique<Scan>(node, context);
}

}  // namespace wia
