// SPDX-License-Identifier: Apache-2.0
// One call of the C API as a small graph.
#include "capi/op_graph.h"

#include <cstring>

#include "runtime/simplify.h"

namespace wia::capi {
namespace {

constexpr int kOpset = 21;
constexpr size_t kMaxCached = 64;
constexpr int64_t kMaxLoopIterations = 1;  // no operator here has a loop

bool is_quantized_type(DType dtype) { return dtype == DType::kInt8 || dtype == DType::kUint8; }

template <class T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

ValueId OpGraph::constant(Tensor tensor) {
  return graph_.add_constant("c" + std::to_string(graph_.values.size()), std::move(tensor));
}

ValueId OpGraph::feed(const View& view) {
  const ValueId v = graph_.add_value("x" + std::to_string(graph_.values.size()), view.dtype);
  graph_.values[v].has_shape = true;
  graph_.values[v].shape = view.shape;
  graph_.inputs.push_back(v);
  feeds_.push_back(to_dense(view));
  return v;
}

ValueId OpGraph::raw(const View& view) { return feed(view); }

ValueId OpGraph::quantizer(const char* op_type, ValueId value, const Quantization& quantization,
                           DType dtype) {
  const int64_t n = static_cast<int64_t>(quantization.scales.size());
  const Shape shape = quantization.axis < 0 ? Shape{} : Shape{n};
  Tensor scales = Tensor::allocate(DType::kFloat32, shape);
  std::memcpy(scales.data, quantization.scales.data(), scales.n_bytes());
  std::vector<ValueId> inputs{value, constant(std::move(scales))};
  if (is_quantized_type(dtype)) {
    Tensor zero_points = Tensor::allocate(dtype, shape);
    for (int64_t i = 0; i < n; ++i)
      zero_points.as<uint8_t>()[i] =
          static_cast<uint8_t>(quantization.zero_points[static_cast<size_t>(i)]);
    inputs.push_back(constant(std::move(zero_points)));
  }
  Node& q = node(op_type, std::move(inputs));
  if (quantization.axis >= 0) q.attributes["axis"] = int64_t{quantization.axis};
  return result(q);
}

ValueId OpGraph::real(const View& view, bool is_constant) {
  if (!view.quantization.none()) {
    ValueId v;
    if (is_constant) {
      Tensor dense = to_dense(view);
      if (!dense.owner) {  // the graph keeps it as long as its kernels do
        Tensor copy = Tensor::allocate(dense.dtype, dense.shape);
        std::memcpy(copy.data, dense.data, dense.n_bytes());
        dense = std::move(copy);
      }
      v = constant(std::move(dense));
      cacheable_ = false;
    } else {
      v = feed(view);
    }
    if (view.dtype == DType::kInt32) {
      for (int32_t zero_point : view.quantization.zero_points)
        require(zero_point == 0, "an INT32 tensor must have zero points of 0");
    }
    return quantizer("DequantizeLinear", v, view.quantization, view.dtype);
  }
  require(!is_quantized_type(view.dtype),
          std::string(dtype_name(view.dtype)) +
              " without quantization has no values to compute with; describe it in the tensor");
  const ValueId v = feed(view);
  if (view.dtype != DType::kBFloat16) return v;
  Node& cast = node("Cast", {v});
  cast.attributes["to"] = int64_t{static_cast<int>(DType::kFloat32)};
  return result(cast);
}

ValueId OpGraph::scalar(float value, DType dtype) {
  Tensor tensor = Tensor::allocate(DType::kFloat32, {});
  *tensor.as<float>() = value;
  const ValueId v = constant(std::move(tensor));
  if (dtype == DType::kFloat32) return v;
  Node& cast = node("Cast", {v});
  cast.attributes["to"] = int64_t{static_cast<int>(dtype)};
  return result(cast);
}

ValueId OpGraph::ints(const std::vector<int64_t>& values) {
  Tensor tensor = Tensor::allocate(DType::kInt64, {static_cast<int64_t>(values.size())});
  if (!values.empty()) std::memcpy(tensor.data, values.data(), tensor.n_bytes());
  return constant(std::move(tensor));
}

Node& OpGraph::node(const char* op_type, std::vector<ValueId> inputs) {
  const ValueId out = graph_.add_value("y" + std::to_string(graph_.values.size()));
  Node& node = graph_.add_node(op_type, "", op_type, std::move(inputs), {out});
  node.opset = kOpset;
  return node;
}

// Everything that the compiled graph depends on.
std::string OpGraph::signature() const {
  std::string text;
  for (ValueId v : graph_.inputs) {
    append(text, graph_.values[v].dtype);
    append(text, graph_.values[v].shape.rank());
    for (int64_t d : graph_.values[v].shape) append(text, d);
  }
  for (const auto& node : graph_.nodes) {
    text += node->op_type + "(";
    for (ValueId v : node->inputs) append(text, v);
    for (const auto& [key, attribute] : node->attributes) {
      text += key + "=";
      if (const auto* i = std::get_if<int64_t>(&attribute)) append(text, *i);
      if (const auto* list = std::get_if<std::vector<int64_t>>(&attribute))
        for (int64_t i : *list) append(text, i);
    }
    text += ")";
  }
  for (const Value& value : graph_.values) {
    if (!value.constant) continue;
    append(text, value.dtype);
    text.append(value.constant->as<char>(), value.constant->n_bytes());
  }
  return text;
}

void OpGraph::run(ValueId value, const View& output, bool is_raw) {
  ValueId result_value = value;
  DType made = output.dtype;
  if (!is_raw) {
    if (!output.quantization.none()) {
      result_value = quantizer("QuantizeLinear", value, output.quantization, output.dtype);
    } else if (output.dtype == DType::kBFloat16) {
      Node& cast = node("Cast", {value});
      cast.attributes["to"] = int64_t{static_cast<int>(DType::kBFloat16)};
      result_value = result(cast);
    } else {
      require(!is_quantized_type(output.dtype), std::string("an output of ") +
                                                    dtype_name(output.dtype) +
                                                    " needs quantization to be written in");
    }
  }
  graph_.outputs.push_back(result_value);
  const std::string key = cacheable_ ? signature() : std::string();
  auto it = context_.operators.find(key);
  Context::Operator own;
  Context::Operator* op = &own;
  if (!key.empty() && it != context_.operators.end()) {
    op = &it->second;
  } else {
    own.graph = std::make_unique<Graph>(std::move(graph_));
    const KernelContext kernel_context{context_.isa, own.graph.get(), context_.pool->size(),
                                       kMaxLoopIterations};
    simplify(*own.graph, kernel_context);
    own.program = std::make_unique<Program>(*own.graph, kernel_context);
    if (!key.empty()) {
      if (context_.operators.size() >= kMaxCached) context_.operators.clear();
      op = &(context_.operators[key] = std::move(own));
    }
  }
  Tensor result_tensor;
  op->program->run(feeds_, {&result_tensor, 1}, *context_.pool);
  require(result_tensor.dtype == made && result_tensor.shape == output.shape,
          std::string("the result is ") + dtype_name(result_tensor.dtype) + " " +
              result_tensor.shape.str() + ", but the output tensor is " + dtype_name(made) + " " +
              output.shape.str());
  from_dense(result_tensor, output);
}

}  // namespace wia::capi
