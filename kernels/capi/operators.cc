// SPDX-License-Identifier: Apache-2.0
// The tensor operators of the C API.
#include <cmath>
#include <numeric>

#include "capi/op_graph.h"

using namespace wia;
using namespace wia::capi;

namespace {

// What every operator begins with: its context checked and held, its tensors found.
class Call {
 public:
  Call(const char* name, wia_context_t ctx, wia_stream_t stream)
      : context_(get<Context>(ctx, "ctx")),
        lock_(context_->running),
        timed_(*context_, name),
        scope_(context_->budget),
        graph_(*context_) {
    check_stream(*context_, stream);
  }
  View view(wia_tensor_t tensor, const char* parameter) {
    tensors_.push_back(get_in<TensorObject>(*context_, tensor, parameter));
    return View(*tensors_.back());
  }
  wia_layout_t layout() const { return tensors_.back()->layout; }  // of the last view
  OpGraph& graph() { return graph_; }

 private:
  std::shared_ptr<Context> context_;
  std::lock_guard<std::mutex> lock_;
  Timed timed_;
  BudgetScope scope_;
  std::vector<std::shared_ptr<TensorObject>> tensors_;  // alive through the call
  OpGraph graph_;
};

void require_one_type(const View& a, const View& b, const char* names) {
  const bool both_quantized = !a.quantization.none() && !b.quantization.none();
  require(a.dtype == b.dtype || both_quantized,
          std::string(names) + " must have one element type, not " + dtype_name(a.dtype) + " and " +
              dtype_name(b.dtype));
}

// The type that operators compute in.
DType real_dtype(const View& view) {
  return !view.quantization.none() || view.dtype == DType::kBFloat16 ? DType::kFloat32 : view.dtype;
}

wia_status_t unary(const char* name, const char* op_type, wia_context_t ctx, wia_tensor_t input,
                   wia_tensor_t output, wia_stream_t stream) {
  return guard(name, [&] {
    Call call(name, ctx, stream);
    const View x = call.view(input, "input"), y = call.view(output, "output");
    require_one_type(x, y, "input and output");
    OpGraph& g = call.graph();
    g.run(OpGraph::result(g.node(op_type, {g.real(x)})), y);
  });
}

wia_status_t binary(const char* name, const char* op_type, wia_context_t ctx, wia_tensor_t a,
                    wia_tensor_t b, wia_tensor_t output, wia_stream_t stream) {
  return guard(name, [&] {
    Call call(name, ctx, stream);
    const View x = call.view(a, "a"), w = call.view(b, "b"), y = call.view(output, "output");
    require_one_type(x, w, "a and b");
    require_one_type(x, y, "a and output");
    OpGraph& g = call.graph();
    const ValueId left = g.real(x), right = g.real(w);
    g.run(OpGraph::result(g.node(op_type, {left, right})), y);
  });
}

// An operator that only moves elements: on the levels themselves where both sides share one grid.
template <class Add>
void move(Call& call, const View& x, const View& y, Add add_node) {
  OpGraph& g = call.graph();
  require_one_type(x, y, "input and output");
  const bool same_grid =
      x.dtype == y.dtype && (x.quantization == y.quantization || x.quantization.none());
  const bool is_raw = same_grid && x.quantization.axis < 0;
  g.run(add_node(g, is_raw ? g.raw(x) : g.real(x)), y, is_raw);
}

// The dimensions of a layout in the order N, C, H, W.
std::vector<int> to_nchw(wia_layout_t layout) {
  switch (layout) {
    case WIA_LAYOUT_NHWC:
      return {0, 3, 1, 2};
    case WIA_LAYOUT_CHWN:
      return {3, 0, 1, 2};
    default:
      return {0, 1, 2, 3};
  }
}

View picture(Call& call, wia_tensor_t tensor, const char* parameter) {
  View view = call.view(tensor, parameter);
  require(view.shape.rank() == 4,
          std::string(parameter) + " must have 4 dimensions, not " + view.shape.str());
  view.permute(to_nchw(call.layout()));
  return view;
}

View matrix(Call& call, wia_tensor_t tensor, const char* parameter, bool transpose) {
  View view = call.view(tensor, parameter);
  const int rank = view.shape.rank();
  require(rank >= 2,
          std::string(parameter) + " must have 2 dimensions or more, not " + view.shape.str());
  if (transpose) {
    std::vector<int> order(static_cast<size_t>(rank));
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[static_cast<size_t>(rank) - 1], order[static_cast<size_t>(rank) - 2]);
    view.permute(order);
  }
  return view;
}

int checked(int value, int otherwise, int least, const std::string& what) {
  const int result = value == 0 ? otherwise : value;
  require(result >= least, what + " must not be negative");
  return result;
}

}  // namespace

extern "C" wia_status_t wia_matmul(wia_context_t ctx, wia_tensor_t A, wia_tensor_t B,
                                   wia_tensor_t C, const wia_matmul_config_t* config,
                                   wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_matmul", ctx, stream);
    const wia_matmul_config_t how =
        config ? *config : wia_matmul_config_t{false, false, 1.0f, 0.0f};
    const View a = matrix(call, A, "A", how.transpose_a), b = matrix(call, B, "B", how.transpose_b),
               c = call.view(C, "C");
    require_one_type(a, b, "A and B");
    require_one_type(a, c, "A and C");
    require(std::isfinite(how.alpha) && std::isfinite(how.beta),
            "config->alpha and beta must be finite");
    OpGraph& g = call.graph();
    const ValueId left = g.real(a), right = g.real(b, true);
    ValueId product = OpGraph::result(g.node("MatMul", {left, right}));
    const DType dtype = real_dtype(a);
    if (how.alpha != 1.0f)
      product = OpGraph::result(g.node("Mul", {product, g.scalar(how.alpha, dtype)}));
    if (how.beta != 0.0f) {
      ValueId before = g.real(c);
      if (how.beta != 1.0f)
        before = OpGraph::result(g.node("Mul", {before, g.scalar(how.beta, dtype)}));
      product = OpGraph::result(g.node("Add", {product, before}));
    }
    g.run(product, c);
  });
}

extern "C" wia_status_t wia_conv2d(wia_context_t ctx, wia_tensor_t input, wia_tensor_t weight,
                                   wia_tensor_t bias, wia_tensor_t output,
                                   const wia_conv2d_config_t* config, wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_conv2d", ctx, stream);
    const wia_conv2d_config_t how = config ? *config : wia_conv2d_config_t{};
    const View x = picture(call, input, "input"), w = picture(call, weight, "weight"),
               y = picture(call, output, "output");
    require_one_type(x, w, "input and weight");
    require_one_type(x, y, "input and output");
    OpGraph& g = call.graph();
    std::vector<ValueId> inputs{g.real(x), g.real(w, true)};
    if (bias) {
      const View b = call.view(bias, "bias");
      require(b.shape.rank() == 1 && b.shape[0] == w.shape[0],
              "bias must have shape [" + std::to_string(w.shape[0]) + "], not " + b.shape.str());
      if (x.quantization.none())
        require_one_type(x, b, "input and bias");
      else
        require(b.dtype == DType::kInt32 && !b.quantization.none(),
                "bias of a quantized convolution must be INT32 with quantization");
      inputs.push_back(g.real(b, true));
    }
    Node& conv = g.node("Conv", std::move(inputs));
    std::vector<int64_t> strides, pads, dilations;
    for (int d = 0; d < 2; ++d) {
      strides.push_back(checked(how.stride[d], 1, 1, "config->stride"));
      pads.push_back(checked(how.padding[d], 0, 0, "config->padding"));
      dilations.push_back(checked(how.dilation[d], 1, 1, "config->dilation"));
    }
    pads.insert(pads.end(), {pads[0], pads[1]});
    conv.attributes["strides"] = strides;
    conv.attributes["pads"] = pads;
    conv.attributes["dilations"] = dilations;
    conv.attributes["kernel_shape"] = std::vector<int64_t>{w.shape[2], w.shape[3]};
    conv.attributes["group"] = int64_t{checked(how.groups, 1, 1, "config->groups")};
    g.run(OpGraph::result(conv), y);
  });
}

extern "C" wia_status_t wia_relu(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                 wia_stream_t stream) {
  return unary(__func__, "Relu", ctx, input, output, stream);
}
extern "C" wia_status_t wia_gelu(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                 wia_stream_t stream) {
  return unary(__func__, "Gelu", ctx, input, output, stream);
}
extern "C" wia_status_t wia_sigmoid(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                    wia_stream_t stream) {
  return unary(__func__, "Sigmoid", ctx, input, output, stream);
}

extern "C" wia_status_t wia_softmax(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                    const wia_softmax_config_t* config, wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_softmax", ctx, stream);
    const View x = call.view(input, "input"), y = call.view(output, "output");
    require_one_type(x, y, "input and output");
    const int axis = config ? config->axis : -1;
    const float temperature = config && config->temperature != 0.0f ? config->temperature : 1.0f;
    const int rank = x.shape.rank();
    require(axis >= -rank && axis < rank,
            "config->axis " + std::to_string(axis) + " is out of range for " + x.shape.str());
    require(std::isfinite(temperature) && temperature > 0, "config->temperature must be > 0");
    OpGraph& g = call.graph();
    ValueId v = g.real(x);
    if (temperature != 1.0f) {
      const ValueId divisor = g.scalar(temperature, real_dtype(x));
      v = OpGraph::result(g.node("Div", {v, divisor}));
    }
    Node& softmax = g.node("Softmax", {v});
    softmax.attributes["axis"] = int64_t{axis};
    g.run(OpGraph::result(softmax), y);
  });
}

extern "C" wia_status_t wia_add(wia_context_t ctx, wia_tensor_t a, wia_tensor_t b,
                                wia_tensor_t output, wia_stream_t stream) {
  return binary(__func__, "Add", ctx, a, b, output, stream);
}
extern "C" wia_status_t wia_multiply(wia_context_t ctx, wia_tensor_t a, wia_tensor_t b,
                                     wia_tensor_t output, wia_stream_t stream) {
  return binary(__func__, "Mul", ctx, a, b, output, stream);
}
extern "C" wia_status_t wia_div(wia_context_t ctx, wia_tensor_t a, wia_tensor_t b,
                                wia_tensor_t output, wia_stream_t stream) {
  return binary(__func__, "Div", ctx, a, b, output, stream);
}

extern "C" wia_status_t wia_reduce(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                   const wia_reduce_config_t* config, wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_reduce", ctx, stream);
    const View x = call.view(input, "input"), y = call.view(output, "output");
    require_one_type(x, y, "input and output");
    require(config != nullptr, "config must not be NULL");
    static constexpr const char* kOps[] = {"ReduceSum", "ReduceProd", "ReduceMin", "ReduceMax",
                                           "ReduceMean"};
    require(config->op >= WIA_REDUCE_SUM && config->op <= WIA_REDUCE_AVG,
            "config->op is no wia_reduce_op_t");
    require(config->n_axes >= 0 && config->n_axes <= WIA_MAX_DIMS, "config->n_axes must be 0 to 8");
    std::vector<int64_t> axes;
    for (int i = 0; i < (config->n_axes ? config->n_axes : x.shape.rank()); ++i)
      axes.push_back(config->n_axes ? config->axes[i] : i);
    OpGraph& g = call.graph();
    const ValueId v = g.real(x), axes_value = g.ints(axes);
    Node& reduce = g.node(kOps[config->op], {v, axes_value});
    reduce.attributes["keepdims"] = int64_t{config->keep_dims};
    g.run(OpGraph::result(reduce), y);
  });
}

extern "C" wia_status_t wia_reshape(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                    wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_reshape", ctx, stream);
    const View x = call.view(input, "input"), y = call.view(output, "output");
    require(x.shape.numel() == y.shape.numel(),
            "cannot reshape " + x.shape.str() + " to " + y.shape.str());
    move(call, x, y, [&](OpGraph& g, ValueId v) {
      const ValueId shape = g.ints({y.shape.begin(), y.shape.end()});
      Node& reshape = g.node("Reshape", {v, shape});
      reshape.attributes["allowzero"] = int64_t{1};
      return OpGraph::result(reshape);
    });
  });
}

extern "C" wia_status_t wia_transpose(wia_context_t ctx, wia_tensor_t input, wia_tensor_t output,
                                      const wia_transpose_config_t* config, wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_transpose", ctx, stream);
    const View x = call.view(input, "input"), y = call.view(output, "output");
    require(config != nullptr, "config must not be NULL");
    std::vector<int64_t> permutation(config->permutation, config->permutation + x.shape.rank());
    std::vector<int> seen(permutation.size(), 0);
    for (int64_t p : permutation) {
      require(p >= 0 && p < x.shape.rank() && !seen[static_cast<size_t>(p)]++,
              "config->permutation must name each of the " + std::to_string(x.shape.rank()) +
                  " dimensions once");
    }
    move(call, x, y, [&](OpGraph& g, ValueId v) {
      Node& transpose = g.node("Transpose", {v});
      transpose.attributes["perm"] = permutation;
      return OpGraph::result(transpose);
    });
  });
}

extern "C" wia_status_t wia_concatenate(wia_context_t ctx, const wia_tensor_t* inputs, int count,
                                        wia_tensor_t output, const wia_concatenate_config_t* config,
                                        wia_stream_t stream) {
  return guard(__func__, [&] {
    Call call("wia_concatenate", ctx, stream);
    require(inputs != nullptr && count >= 1, "inputs must not be NULL, and count at least 1");
    const View y = call.view(output, "output");
    std::vector<View> views;
    bool is_raw = true;
    for (int i = 0; i < count; ++i) {
      views.push_back(call.view(inputs[i], ("inputs[" + std::to_string(i) + "]").c_str()));
      require_one_type(views.back(), y, "inputs and output");
      is_raw &= views.back().dtype == y.dtype && views.back().quantization == y.quantization &&
                y.quantization.axis < 0;
    }
    OpGraph& g = call.graph();
    std::vector<ValueId> values;
    for (const View& view : views) values.push_back(is_raw ? g.raw(view) : g.real(view));
    Node& concat = g.node("Concat", std::move(values));
    concat.attributes["axis"] = int64_t{config ? config->axis : 0};
    g.run(OpGraph::result(concat), y, is_raw);
  });
}
