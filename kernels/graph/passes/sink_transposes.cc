// SPDX-License-Identifier: Apache-2.0
// Transposes move down until they meet their inverse, so that a channels-last region converts at
// its borders only.
//
//   T_q(T_p(x))              = T_{q o p}(x); nothing when that is the identity
//   f(T_p(x))                = T_p(f(x))                     f elementwise
//   f(T_p(x), T_p(y))        = T_p(f(x, y))                  a constant c becomes T_p^-1(c)
//   f_axes(T_p(x))           = T_p'(f_p[axes](x))            Concat, Slice, Split, Pad, Resize,
//   reductions, Softmax, Gather Reshape(T(x))            = Reshape(x), T_(0, 2, 1)       where it
//   only merges the pixels of a channels-last picture T_p(x)                   = Reshape(x) where p
//   moves dimensions of size 1 only
//
// What has not cancelled then rises again to where elements are one byte: above Dequantize and
// tables of floats.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "graph/edges.h"
#include "graph/grid.h"
#include "graph/passes/passes.h"
#include "graph/permute.h"
#include "graph/shapes.h"

namespace wia {
namespace {

constexpr int kMostSweeps = 8;
constexpr int kOpset = 13;

// One input, one output, element i of the output from element i of the input alone.
bool is_unary(const Node& node) {
  static const std::set<std::string> onnx = {
      "Abs",        "Acos",     "Acosh",       "Asin",
      "Asinh",      "Atan",     "Atanh",       "Cast",
      "Ceil",       "Celu",     "Clip",        "Cos",
      "Cosh",       "Elu",      "Erf",         "Exp",
      "Floor",      "Gelu",     "HardSigmoid", "HardSwish",
      "Identity",   "IsInf",    "IsNaN",       "LeakyRelu",
      "Log",        "Mish",     "Neg",         "Not",
      "Reciprocal", "Relu",     "Round",       "Selu",
      "Shrink",     "Sigmoid",  "Sign",        "Sin",
      "Sinh",       "Softplus", "Softsign",    "Sqrt",
      "Swish",      "Tan",      "Tanh",        "ThresholdedRelu"};
  static const std::set<std::string> ours = {"Dequantize", "FlipSign", "Quantize", "Table"};
  return node.outputs.size() == 1 &&
         (node.domain.empty() ? onnx.count(node.op_type)
                              : node.domain == kWiaDomain && ours.count(node.op_type));
}

bool is_nary(const Node& node) {
  static const std::set<std::string> onnx = {
      "Add",   "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max",
      "Mean",  "Min", "Mod", "Mul",   "Or",      "PRelu",          "Pow",  "Sub",         "Sum",
      "Where", "Xor"};
  static const std::set<std::string> ours = {"QAdd", "QMul"};
  if (node.domain.empty() && node.opset < 7 && node.has("broadcast")) return false;
  return node.domain.empty() ? onnx.count(node.op_type) != 0
                             : node.domain == kWiaDomain && ours.count(node.op_type) != 0;
}

// Q and DQ of one scale: elementwise in input 0.
bool is_per_tensor_linear(const Graph& graph, const Node& node) {
  return (is_quantize(&node) || is_dequantize(&node)) && grid_of(graph, node).has_value();
}

class Sinker {
 public:
  explicit Sinker(Graph& graph) : graph_(graph), edges_(graph) {}

  bool sweep() {
    bool changed = false;
    const size_t n = graph_.nodes.size();
    for (size_t i = 0; i < n; ++i) {
      Node& node = *graph_.nodes[i];
      if (node.inputs.empty() || node.outputs.empty()) continue;
      changed |= visit(node);
    }
    return changed;
  }

 private:
  // The Transpose that makes v.
  const Node* transpose_of(ValueId v, Perm* perm) const {
    const Node* node = edges_.producer(v);
    const std::optional<Perm> p = perm_of(graph_, node);
    if (!p) return nullptr;
    *perm = *p;
    return node;
  }

  bool visit(Node& node) {
    if (is_op(&node, "Transpose")) return cancel(node);
    if (is_unary(node) || is_per_tensor_linear(graph_, node)) return sink(node, {0});
    if (is_nary(node)) return sink_nary(node);
    if (!node.domain.empty())
      return node.op_type == "QMean" && sink_reduce(node, node.ints("axes"));
    if (node.op_type == "Concat") return sink_concat(node);
    if (node.op_type == "Softmax" || node.op_type == "LogSoftmax" || node.op_type == "Hardmax")
      return sink_axis(node);
    if (node.op_type == "Split") return sink_split(node);
    if (node.op_type == "Slice") return sink_slice(node);
    if (node.op_type == "Pad") return sink_pad(node);
    if (node.op_type == "Resize" || node.op_type == "Upsample") return sink_resize(node);
    if (node.op_type == "Gather") return sink_gather(node);
    if (node.op_type.rfind("Reduce", 0) == 0) return sink_onnx_reduce(node);
    if (node.op_type == "Reshape" || node.op_type == "Flatten") return sink_reshape(node);
    if (node.op_type == "Squeeze") return sink_squeeze(node);
    return false;
  }

  bool cancel(Node& node) {
    const std::optional<Perm> own = perm_of(graph_, &node);
    if (!own) return false;
    if (is_identity(*own)) {
      edges_.replace_uses(node.outputs[0], node.inputs[0]);
      return edges_.n_uses(node.outputs[0]) == 0;
    }
    Perm p;
    const Node* above = transpose_of(node.inputs[0], &p);
    if (!above || p.size() != own->size()) return false;
    const Perm both = composed(p, *own);
    const ValueId x = above->inputs[0];
    if (is_identity(both) && !edges_.is_output(node.outputs[0])) {
      edges_.replace_uses(node.outputs[0], x);
      return true;
    }
    edges_.set_input(node, 0, x);
    node.attributes["perm"] = std::vector<int64_t>(both.begin(), both.end());
    return true;
  }

  // Makes every output of `node` the Transpose by `perm` of a new output.
  void transpose_outputs(Node& node, const Perm& perm) {
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId y = node.outputs[o];
      if (y == kNoValue) continue;
      const DType dtype = graph_.values[y].dtype;
      edges_.set_output(node, o,
                        graph_.add_value("", DType::kUndefined));  // frees y of its producer
      const ValueId from =
          add_transpose_to(graph_, edges_, y, perm, dtype, graph_.values[y].name + "/transpose");
      edges_.set_output(node, o, from);
    }
  }

  // The common permutation of these inputs; all must come from Transposes.
  std::optional<Perm> common(const Node& node, const std::vector<size_t>& inputs) const {
    std::optional<Perm> perm;
    for (size_t i : inputs) {
      Perm p;
      if (i >= node.inputs.size() || !transpose_of(node.inputs[i], &p)) return std::nullopt;
      if (perm && *perm != p) return std::nullopt;
      perm = p;
    }
    return perm;
  }

  void untranspose(Node& node, size_t input) {
    edges_.set_input(node, input, edges_.producer(node.inputs[input])->inputs[0]);
  }

  bool sink(Node& node, const std::vector<size_t>& inputs) {
    const std::optional<Perm> perm = common(node, inputs);
    if (!perm) return false;
    for (size_t i : inputs) untranspose(node, i);
    transpose_outputs(node, *perm);
    return true;
  }

  // What T_perm of exists already: the input of such a Transpose is v's untransposed twin.
  // kNoValue: there is none.
  ValueId twin(ValueId v, const Perm& perm) const {
    for (const Node* reader : edges_.consumers(v))
      if (const std::optional<Perm> p = perm_of(graph_, reader); p && *p == inverse(perm))
        return reader->outputs[0];
    return kNoValue;
  }

  // A tensor that costs nothing to transpose: at most one dimension beyond the first is not 1.
  bool is_slight(ValueId v) const {
    const Value& value = graph_.values[v];
    if (!value.has_shape) return false;
    int wide = 0;
    for (int d = 1; d < value.shape.rank(); ++d) wide += value.shape[d] != 1;
    return wide <= 1;
  }

  bool sink_nary(Node& node) {
    std::optional<Perm> perm;
    for (ValueId v : node.inputs) {
      Perm p;
      if (v != kNoValue && !graph_.is_constant(v) && !is_slight(v) && transpose_of(v, &p)) {
        if (perm && *perm != p) return false;
        perm = p;
      }
    }
    if (!perm) return false;
    const int rank = static_cast<int>(perm->size());
    for (ValueId v : node.inputs) {
      if (v == kNoValue) return false;
      const Value& value = graph_.values[v];
      if (graph_.is_constant(v)) {
        if (value.constant->shape.rank() > rank) return false;
        continue;
      }
      Perm p;
      if (transpose_of(v, &p) && p == *perm) continue;
      if (twin(v, *perm) != kNoValue) continue;
      if (!is_slight(v) || value.shape.rank() != rank) return false;
    }
    if (!graph_.values[node.outputs[0]].has_shape ||
        graph_.values[node.outputs[0]].shape.rank() != rank)
      return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      Perm p;
      if (graph_.is_constant(v)) {
        edges_.set_input(node, i, untransposed_constant(v, *perm));
      } else if (transpose_of(v, &p) && p == *perm) {
        untranspose(node, i);
      } else if (const ValueId other = twin(v, *perm); other != kNoValue) {
        edges_.set_input(node, i, other);
      } else {
        edges_.set_input(node, i,
                         add_transpose(graph_, edges_, v, inverse(*perm),
                                       graph_.values[v].name + "/untranspose"));
      }
    }
    transpose_outputs(node, *perm);
    return true;
  }

  // c such that T_perm(c) broadcasts as the constant did.
  ValueId untransposed_constant(ValueId v, const Perm& perm) {
    Tensor t = *graph_.values[v].constant;
    if (t.numel() == 1 && t.shape.rank() <= 1) return v;
    Shape shape;
    for (int d = t.shape.rank(); d < static_cast<int>(perm.size()); ++d) shape.push_back(1);
    for (int64_t d : t.shape) shape.push_back(d);
    t.shape = shape;
    return graph_.add_constant(graph_.values[v].name + "/untransposed", permuted(t, inverse(perm)));
  }

  static std::optional<int> axis_in(int64_t axis, const Perm& perm) {
    const int64_t rank = static_cast<int64_t>(perm.size());
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return std::nullopt;
    return perm[static_cast<size_t>(axis)];
  }

  bool sink_concat(Node& node) {
    std::optional<Perm> perm;
    size_t transposed = 0, others = 0;
    for (ValueId v : node.inputs) {
      Perm p;
      if (v == kNoValue) return false;
      if (graph_.is_constant(v)) continue;
      if (transpose_of(v, &p) && (!perm || *perm == p)) {
        perm = p;
        ++transposed;
      } else {
        ++others;
      }
    }
    if (!perm || others > 0 || transposed == 0) return false;
    for (ValueId v : node.inputs)
      if (graph_.is_constant(v) &&
          graph_.values[v].constant->shape.rank() != static_cast<int>(perm->size()))
        return false;
    const std::optional<int> axis = axis_in(node.i("axis", 1), *perm);
    if (!axis) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (graph_.is_constant(node.inputs[i])) {
        edges_.set_input(
            node, i,
            graph_.add_constant(graph_.values[node.inputs[i]].name + "/untransposed",
                                permuted(*graph_.values[node.inputs[i]].constant, inverse(*perm))));
      } else {
        untranspose(node, i);
      }
    }
    node.attributes["axis"] = int64_t{*axis};
    transpose_outputs(node, *perm);
    return true;
  }

  bool sink_axis(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm || node.opset < 13)
      return false;  // older ones flatten the dimensions from the axis on
    const std::optional<int> axis = axis_in(node.i("axis", -1), *perm);
    if (!axis) return false;
    node.attributes["axis"] = int64_t{*axis};
    return sink(node, {0});
  }

  bool sink_split(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm) return false;
    const std::optional<int> axis = axis_in(node.i("axis", 0), *perm);
    if (!axis) return false;
    node.attributes["axis"] = int64_t{*axis};
    return sink(node, {0});
  }

  // Axes that are an attribute or a constant input: rewritten in place. False when they are not
  // known.
  bool remap_axes(Node& node, size_t input, const Perm& perm, std::vector<int64_t>* axes_out) {
    std::vector<int64_t> axes;
    if (node.has("axes")) {
      axes = node.ints("axes");
    } else if (input < node.inputs.size() && node.inputs[input] != kNoValue) {
      const auto list = integer_constant(graph_, node.inputs[input]);
      if (!list) return false;
      axes = *list;
    } else {
      return false;
    }
    for (int64_t& a : axes) {
      const std::optional<int> to = axis_in(a, perm);
      if (!to) return false;
      a = *to;
    }
    *axes_out = axes;
    return true;
  }

  void set_axes(Node& node, size_t input, const std::vector<int64_t>& axes) {
    if (node.has("axes")) {
      node.attributes["axes"] = axes;
    } else {
      edges_.set_input(node, input, graph_.add_constant(node.name + "/axes", int64_tensor(axes)));
    }
  }

  bool sink_slice(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm) return false;
    std::vector<int64_t> axes;
    if (!remap_axes(node, 3, *perm, &axes)) {
      // No axes: they are 0, 1, ... as many as there are starts.
      const bool none = !node.has("axes") && (node.inputs.size() < 4 || node.inputs[3] == kNoValue);
      if (!none || node.inputs.size() < 2) return false;
      const auto starts = integer_constant(graph_, node.inputs[1]);
      if (!starts || starts->size() > perm->size()) return false;
      for (size_t d = 0; d < starts->size(); ++d) axes.push_back((*perm)[d]);
    }
    if (node.has("starts")) {
      node.attributes["axes"] = axes;
    } else {
      set_axes(node, 3, axes);
    }
    return sink(node, {0});
  }

  bool sink_pad(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm) return false;
    const size_t rank = perm->size();
    if (node.inputs.size() > 3 && node.inputs[3] != kNoValue) {
      std::vector<int64_t> axes;
      if (!remap_axes(node, 3, *perm, &axes)) return false;
      set_axes(node, 3, axes);
      return sink(node, {0});
    }
    const bool attribute = node.has("pads");
    std::vector<int64_t> pads;
    if (attribute) {
      pads = node.ints("pads");
    } else {
      const auto list =
          node.inputs.size() > 1 ? integer_constant(graph_, node.inputs[1]) : std::nullopt;
      if (!list) return false;
      pads = *list;
    }
    if (pads.size() != 2 * rank) return false;
    std::vector<int64_t> moved(2 * rank);
    for (size_t d = 0; d < rank; ++d) {
      moved[static_cast<size_t>((*perm)[d])] = pads[d];
      moved[static_cast<size_t>((*perm)[d]) + rank] = pads[d + rank];
    }
    if (attribute) {
      node.attributes["pads"] = moved;
    } else {
      edges_.set_input(node, 1, graph_.add_constant(node.name + "/pads", int64_tensor(moved)));
    }
    return sink(node, {0});
  }

  bool sink_resize(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm || node.has("axes") || node.has("scales")) return false;
    const size_t rank = perm->size();
    if (node.s("coordinate_transformation_mode", "") == "tf_crop_and_resize") return false;
    std::vector<std::pair<size_t, ValueId>> moved;
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      const ValueId v = node.inputs[i];
      if (v == kNoValue) continue;
      if (!graph_.is_constant(v)) return false;
      const Tensor& t = *graph_.values[v].constant;
      if (t.numel() == 0) continue;
      if (i == 1 && node.op_type == "Resize" && node.opset >= 11)
        continue;  // roi: read by tf_crop_and_resize only
      if (t.shape.rank() != 1 || t.shape[0] != static_cast<int64_t>(rank)) return false;
      Tensor to = Tensor::allocate(t.dtype, t.shape);
      const size_t size = dtype_size(t.dtype);
      for (size_t d = 0; d < rank; ++d)
        std::copy_n(t.as<std::byte>() + d * size, size,
                    to.as<std::byte>() + static_cast<size_t>((*perm)[d]) * size);
      moved.emplace_back(i, graph_.add_constant(node.name + "/sizes", std::move(to)));
    }
    for (const auto& [i, v] : moved) edges_.set_input(node, i, v);
    return sink(node, {0});
  }

  // What is left of perm when the dimensions of x at `gone` (axes of x, before the Transpose)
  // disappear.
  static Perm without(const Perm& perm, const std::vector<int64_t>& gone) {
    Perm out;
    for (int from : perm) {
      if (std::count(gone.begin(), gone.end(), from)) continue;
      int shift = 0;
      for (int64_t g : gone) shift += g < from;
      out.push_back(from - shift);
    }
    return out;
  }

  void sink_without(Node& node, const Perm& perm, const std::vector<int64_t>& gone) {
    untranspose(node, 0);
    const Perm rest = without(perm, gone);
    if (!is_identity(rest)) return transpose_outputs(node, rest);
  }

  bool sink_reduce(Node& node, const std::vector<int64_t>& axes) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm || axes.empty()) return false;
    std::vector<int64_t> moved;
    for (int64_t a : axes) {
      const std::optional<int> to = axis_in(a, *perm);
      if (!to) return false;
      moved.push_back(*to);
    }
    std::sort(moved.begin(), moved.end());
    if (node.op_type == "QMean" &&
        moved.back() - moved.front() + 1 != static_cast<int64_t>(moved.size()))
      return false;
    node.attributes["axes"] = moved;
    if (node.i("keepdims", 1)) return sink(node, {0});
    sink_without(node, *perm, moved);
    return true;
  }

  bool sink_onnx_reduce(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm) return false;
    std::vector<int64_t> moved;
    if (!remap_axes(node, 1, *perm, &moved) || moved.empty()) return false;
    set_axes(node, 1, moved);
    if (node.i("keepdims", 1)) return sink(node, {0});
    sink_without(node, *perm, moved);
    return true;
  }

  bool sink_gather(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm) return false;
    const Value& indices = graph_.values[node.inputs[1]];
    if (!indices.has_shape || indices.shape.rank() > 1) return false;
    const std::optional<int> axis = axis_in(node.i("axis", 0), *perm);
    if (!axis) return false;
    node.attributes["axis"] = int64_t{*axis};
    if (indices.shape.rank() == 1) return sink(node, {0});
    sink_without(node, *perm, {*axis});
    return true;
  }

  bool sink_squeeze(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    if (!perm) return false;
    std::vector<int64_t> moved;
    if (!remap_axes(node, 1, *perm, &moved)) return false;
    set_axes(node, 1, moved);
    sink_without(node, *perm, moved);
    return true;
  }

  // [N, C, H, W] made of channels-last, reshaped to [N, C, H * W]: reshape channels-last to [N, H *
  // W, C] instead. And where the pixels are one, flattening needs no Transpose at all.
  bool sink_reshape(Node& node) {
    const std::optional<Perm> perm = common(node, {0});
    const Value& y = graph_.values[node.outputs[0]];
    const Value& x = graph_.values[node.inputs[0]];
    if (!perm || !y.has_shape || !x.has_shape || x.shape.rank() != static_cast<int>(perm->size()))
      return false;
    const int rank = x.shape.rank();
    if (*perm != to_channels_first(rank) || rank < 3) return false;
    if (y.shape.rank() != 3 || x.shape[1] < 0 || y.shape[1] != x.shape[1]) return false;
    const bool same_batch = x.shape[0] == y.shape[0] && (x.shape[0] >= 0 || keeps_first(node));
    if (!same_batch || (rank == 3)) return false;
    const Node* above = edges_.producer(node.inputs[0]);
    const ValueId from = above->inputs[0];
    const ValueId out = node.outputs[0];
    const DType dtype = graph_.values[out].dtype;
    const std::string name = node.name;
    const std::vector<int64_t> target = {0, -1, x.shape[1]};
    edges_.detach(node);
    const ValueId merged =
        add_transpose_to(graph_, edges_, out, {0, 2, 1}, dtype, name + "/transpose");
    const ValueId shape = graph_.add_constant(name + "/shape", int64_tensor(target));
    Node& reshape = graph_.add_node("Reshape", "", name, {from, shape}, {merged});
    reshape.opset = kOpset;
    edges_.add(reshape);
    return true;
  }

  // The first dimension of a Reshape is that of its input.
  bool keeps_first(const Node& node) const {
    if (node.op_type != "Reshape" || node.inputs.size() < 2) return false;
    const auto target = integer_constant(graph_, node.inputs[1]);
    return target && !target->empty() && (*target)[0] == 0 && node.i("allowzero", 0) == 0;
  }

  Graph& graph_;
  Edges edges_;
};

// A Transpose of dimensions of size 1 moves nothing: a Reshape, which is an alias at run time.
bool reshape_instead(Graph& graph) {
  Edges edges(graph);
  bool changed = false;
  for (auto& node : graph.nodes) {
    const std::optional<Perm> perm = perm_of(graph, node.get());
    if (!perm) continue;
    const Value& x = graph.values[node->inputs[0]];
    if (!x.has_shape || x.shape.rank() != static_cast<int>(perm->size())) continue;
    std::vector<int> moved;
    for (int d : *perm)
      if (x.shape[d] != 1) moved.push_back(d);
    if (!std::is_sorted(moved.begin(), moved.end())) continue;
    std::vector<int64_t> target;
    int unknown = 0;
    for (size_t d = 0; d < perm->size(); ++d) {
      const int64_t size = x.shape[(*perm)[d]];
      const bool copied = size < 0 && (*perm)[d] == static_cast<int>(d);
      target.push_back(copied ? 0 : size);
      unknown += size < 0 && !copied;
      if (size == 0) unknown = 2;
    }
    if (unknown > 1) continue;
    const ValueId from = node->inputs[0], out = node->outputs[0];
    const ValueId shape = graph.add_constant(node->name + "/shape", int64_tensor(target));
    node->op_type = "Reshape";
    node->opset = kOpset;
    node->attributes.clear();
    edges.set_inputs(*node, {from, shape});
    (void)out;
    changed = true;
  }
  return changed;
}

// T(f(x)) -> f(T(x)) where f makes floats of levels: a quarter of the bytes to move.
bool raise_to_levels(Graph& graph) {
  Edges edges(graph);
  bool changed = false;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    Node& node = *graph.nodes[i];
    const std::optional<Perm> perm = perm_of(graph, &node);
    if (!perm || graph.values[node.inputs[0]].dtype == DType::kUint8) continue;
    // The chain of elementwise nodes that only this Transpose reads, up to levels.
    std::vector<Node*> chain;
    ValueId at = node.inputs[0];
    bool found = false;
    while (edges.single_use(at)) {
      Node* above = edges.producer(at);
      if (!above || !(is_unary(*above) || is_per_tensor_linear(graph, *above))) break;
      chain.push_back(above);
      at = above->inputs[0];
      if (graph.values[at].dtype == DType::kUint8 || graph.values[at].dtype == DType::kInt8) {
        found = true;
        break;
      }
    }
    if (!found || graph.is_constant(at)) continue;
    const ValueId out = node.outputs[0];
    const std::string name = node.name;
    edges.detach(node);
    ValueId v = add_transpose(graph, edges, at, *perm, name);
    for (size_t c = chain.size(); c-- > 0;) {
      edges.set_input(*chain[c], 0, v);
      if (c == 0) {
        edges.set_output(*chain[c], 0, out);
        break;
      }
      const ValueId made = chain[c]->outputs[0];
      Value& value = graph.values[made];
      if (value.has_shape && value.shape.rank() == static_cast<int>(perm->size()))
        value.shape = permuted(value.shape, *perm);
      v = made;
    }
    changed = true;
  }
  return changed;
}

bool merge_equal(Graph& graph) {
  Edges edges(graph);
  bool changed = false;
  std::map<std::pair<ValueId, Perm>, ValueId> seen;
  for (auto& node : graph.nodes) {
    const std::optional<Perm> perm = perm_of(graph, node.get());
    if (!perm || edges.is_output(node->outputs[0])) continue;
    auto [it, fresh] = seen.emplace(std::pair{node->inputs[0], *perm}, node->outputs[0]);
    if (fresh) continue;
    edges.replace_uses(node->outputs[0], it->second);
    changed = true;
  }
  return changed;
}

}  // namespace

bool sink_transposes(Graph& graph, const PassContext&) {
  bool any = false;
  for (int i = 0; i < kMostSweeps; ++i) {
    bool changed = false;
    {
      Sinker sinker(graph);
      changed = sinker.sweep();
    }
    graph.remove_dead();
    graph.sort();
    if (!changed) break;
    any = true;
  }
  return any;
}

bool settle_transposes(Graph& graph, const PassContext&) {
  bool changed = raise_to_levels(graph);
  graph.remove_dead();
  graph.sort();
  changed |= merge_equal(graph);
  changed |= reshape_instead(graph);
  return changed;
}

}  // namespace wia
