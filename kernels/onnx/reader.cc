// SPDX-License-Identifier: Apache-2.0
// ModelProto -> Graph.
#include "onnx/reader.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "onnx/tensor_proto.h"

namespace wia::onnx {
namespace {

constexpr int kMaxDepth = 32;          // of subgraphs and of functions in functions
constexpr size_t kMaxNodes = 200'000;  // after functions are inlined
constexpr size_t kMaxInlined = size_t{256}
                               << 20;  // bytes of functions, counted each time they are called
constexpr size_t kMaxCallName = 256;

std::string plain_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

// AttributeProto.type
enum AttributeType : int64_t {
  kTypeFloat = 1,
  kTypeInt = 2,
  kTypeString = 3,
  kTypeTensor = 4,
  kTypeGraph = 5,
  kTypeFloats = 6,
  kTypeInts = 7,
  kTypeStrings = 8,
};

// New names for the values of a function's body; shared with the subgraphs in it.
struct Renaming {
  std::unordered_map<std::string, std::string>
      formal;          // formal parameter -> the caller's value; "" is absent
  std::string prefix;  // of every other name
  std::unordered_map<std::string, Bytes> attributes;  // the caller's, for ref_attr_name
  std::shared_ptr<const Renaming>
      outer;  // the caller's own renaming, which its attributes refer to

  std::string operator()(const std::string& name) const {
    if (name.empty()) return name;
    auto it = formal.find(name);
    return it == formal.end() ? prefix + name : it->second;
  }
};
using RenamingPtr = std::shared_ptr<const Renaming>;

struct AttributeProto {
  std::string name, reference;
  int64_t type = 0;
  float f = 0;
  int64_t i = 0;
  Bytes s, t, g;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
};

AttributeProto parse_attribute(Bytes message) {
  AttributeProto a;
  int64_t seen = 0;  // the type by the field that is present, for files that leave `type` out
  Field field;
  for (Message m(message); m.next(field);) {
    switch (field.number) {
      case 1:
        a.name = field.string();
        break;
      case 2:
        a.f = field.float32();
        seen = kTypeFloat;
        break;
      case 3:
        a.i = field.integer();
        seen = kTypeInt;
        break;
      case 4:
        a.s = field.message();
        seen = kTypeString;
        break;
      case 5:
        a.t = field.message();
        seen = kTypeTensor;
        break;
      case 6:
        a.g = field.message();
        seen = kTypeGraph;
        break;
      case 7:
        each_fixed(field, 4, [&](uint64_t bits) {
          const uint32_t low = static_cast<uint32_t>(bits);
          float value;
          std::memcpy(&value, &low, sizeof(value));
          a.floats.push_back(value);
        });
        seen = kTypeFloats;
        break;
      case 8:
        each_varint(field, [&](uint64_t v) { a.ints.push_back(static_cast<int64_t>(v)); });
        seen = kTypeInts;
        break;
      case 9:
        a.strings.push_back(field.string());
        seen = kTypeStrings;
        break;
      case 20:
        a.type = field.integer();
        break;
      case 21:
        a.reference = field.string();
        break;
      default:
        break;
    }
  }
  if (a.type == 0) a.type = seen;
  return a;
}

struct NodeProto {
  std::string op_type, domain, overload, name;
  std::vector<std::string> inputs, outputs;
  std::vector<Bytes> attributes;
};

NodeProto parse_node(Bytes message) {
  NodeProto node;
  Field field;
  for (Message m(message); m.next(field);) {
    switch (field.number) {
      case 1:
        node.inputs.push_back(field.string());
        break;
      case 2:
        node.outputs.push_back(field.string());
        break;
      case 3:
        node.name = field.string();
        break;
      case 4:
        node.op_type = field.string();
        break;
      case 5:
        node.attributes.push_back(field.message());
        break;
      case 7:
        node.domain = plain_domain(field.string());
        break;
      case 8:
        node.overload = field.string();
        break;
      default:
        break;
    }
  }
  return node;
}

struct ValueInfo {
  std::string name;
  bool is_tensor = false, has_shape = false, any = false;
  int64_t elem_type = 0;
  std::vector<int64_t> dims;
  std::vector<std::string> dim_names;
};

ValueInfo parse_value_info(Bytes message) {
  ValueInfo info;
  Field field, type, tensor, dim, part;
  for (Message m(message); m.next(field);) {
    if (field.number == 1) info.name = field.string();
    if (field.number != 2) continue;
    for (Message m2(field.message()); m2.next(type);) {
      if (type.type == WireType::kLength && type.number != 6) info.any = true;
      if (type.number != 1) continue;
      info.is_tensor = true;
      for (Message m3(type.message()); m3.next(tensor);) {
        if (tensor.number == 1) info.elem_type = tensor.integer();
        if (tensor.number != 2) continue;
        info.has_shape = true;
        for (Message m4(tensor.message()); m4.next(dim);) {
          if (dim.number != 1) continue;
          int64_t value = -1;
          std::string name;
          for (Message m5(dim.message()); m5.next(part);) {
            if (part.number == 1) value = part.integer();
            if (part.number == 2) name = part.string();
          }
          info.dims.push_back(value < 0 ? -1 : value);
          info.dim_names.push_back(std::move(name));
        }
      }
    }
  }
  return info;
}

struct FunctionProto {
  std::vector<std::string> inputs, outputs;
  std::vector<Bytes> nodes, attribute_defaults;
  std::map<std::string, int64_t> opsets;
};

std::pair<std::string, int64_t> parse_opset(Bytes message) {
  std::pair<std::string, int64_t> opset{"", 1};
  Field field;
  for (Message m(message); m.next(field);) {
    if (field.number == 1) opset.first = plain_domain(field.string());
    if (field.number == 2) opset.second = field.integer();
  }
  require(opset.second >= 1 && opset.second <= INT32_MAX, "opset_import of a version that is none");
  return opset;
}

using FunctionKey = std::tuple<std::string, std::string, std::string>;  // domain, name, overload
using Opsets = std::map<std::string, int64_t>;

struct GraphProto {
  std::string name;
  std::vector<Bytes> nodes, initializers, inputs, outputs, value_infos;
};

GraphProto parse_graph(Bytes message) {
  GraphProto graph;
  Field field;
  for (Message m(message); m.next(field);) {
    switch (field.number) {
      case 1:
        graph.nodes.push_back(field.message());
        break;
      case 2:
        graph.name = field.string();
        break;
      case 5:
        graph.initializers.push_back(field.message());
        break;
      case 11:
        graph.inputs.push_back(field.message());
        break;
      case 12:
        graph.outputs.push_back(field.message());
        break;
      case 13:
        graph.value_infos.push_back(field.message());
        break;
      case 15:
        fail(WIA_ERROR_NOT_SUPPORTED, "graph '" + graph.name +
                                          "' has sparse initializers, which are not supported; "
                                          "store them dense");
      default:
        break;
    }
  }
  return graph;
}

// What the whole model shares while it is read.
struct ModelState {
  explicit ModelState(const std::string& folder) : external(folder) {}
  ExternalData external;
  Opsets opsets;
  std::map<FunctionKey, FunctionProto> functions;
  size_t n_nodes = 0;
  size_t n_calls = 0;
  size_t inlined = 0;
  void count_inlined(size_t n_bytes) {
    inlined += n_bytes;
    require(inlined <= kMaxInlined, "its functions come to more than 256 MB when inlined");
  }
};

// A node of the graph after functions are inlined: its names are final.
struct FlatNode {
  NodeProto proto;
  RenamingPtr renaming;  // of the function it came from; null in a graph's own nodes
  const Opsets* opsets;
  std::string where() const { return proto.op_type + " '" + proto.name + "'"; }
};

class GraphReader {
 public:
  GraphReader(ModelState& model, GraphReader* parent, RenamingPtr renaming, const Opsets* opsets,
              int depth)
      : model_(model),
        parent_(parent),
        renaming_(std::move(renaming)),
        opsets_(opsets),
        depth_(depth) {
    require(depth <= kMaxDepth,
            "subgraphs nested more than " + std::to_string(kMaxDepth) + " deep");
  }

  Graph read(Bytes message) {
    const GraphProto proto = parse_graph(message);
    graph_.name = proto.name;
    read_initializers(proto);
    read_inputs(proto);
    for (Bytes bytes : proto.nodes) flatten({parse_node(bytes), renaming_, opsets_}, 0);
    name_nodes();
    for (FlatNode& node : flat_) declare_outputs(node);
    for (FlatNode& node : flat_) add_node(node);
    read_outputs(proto);
    read_value_infos(proto);
    for (const std::string& name : captured_) graph_.captures.push_back(values_.at(name));
    graph_.sort();
    return std::move(graph_);
  }

  // Names that this graph uses and its outer graphs own, in the order of graph_.captures.
  const std::vector<std::string>& captured() const { return captured_; }

 private:
  std::string rename(const std::string& name) const {
    return renaming_ ? (*renaming_)(name) : name;
  }

  ValueId declare(const std::string& name, DType dtype, const std::string& what) {
    const ValueId v = graph_.add_value(name, dtype);
    require(values_.emplace(name, v).second, what + " '" + name + "' is defined twice");
    return v;
  }

  void read_initializers(const GraphProto& proto) {
    for (Bytes bytes : proto.initializers) {
      NamedTensor named =
          read_tensor(bytes, model_.external, "an initializer of graph '" + graph_.name + "'");
      named.name = rename(named.name);
      require(!named.name.empty(), "graph '" + graph_.name + "' has an initializer without a name");
      set_constant(declare(named.name, named.tensor.dtype, "initializer"), std::move(named.tensor));
    }
  }

  void set_constant(ValueId v, Tensor tensor) {
    Value& value = graph_.values[v];
    value.dtype = tensor.dtype;
    value.has_shape = true;
    value.shape = tensor.shape;
    value.constant = std::make_shared<Tensor>(std::move(tensor));
  }

  void read_inputs(const GraphProto& proto) {
    for (Bytes bytes : proto.inputs) {
      ValueInfo info = parse_value_info(bytes);
      info.name = rename(info.name);
      require(!info.name.empty(), "graph '" + graph_.name + "' has an input without a name");
      auto it = values_.find(info.name);
      if (it != values_.end() && graph_.is_constant(it->second))
        continue;  // an input that the file fills
      const ValueId v = declare(info.name, DType::kUndefined, "input");
      graph_.inputs.push_back(v);
      if (info.any && !info.is_tensor) {
        fail(WIA_ERROR_NOT_SUPPORTED,
             "input '" + info.name +
                 "' is no tensor; sequences, maps and optionals are not supported");
      }
      apply(info, v, "input");
    }
  }

  // The declared type and shape of a value, for inputs and outputs with the names of the
  // dimensions.
  void apply(const ValueInfo& info, ValueId v, const char* what) {
    Value& value = graph_.values[v];
    if (info.is_tensor && info.elem_type != 0) {
      const DType dtype = to_dtype(info.elem_type, std::string(what) + " '" + info.name + "'");
      if (value.dtype == DType::kUndefined) value.dtype = dtype;
    }
    if (info.has_shape && !value.has_shape) {
      require(info.dims.size() <= static_cast<size_t>(Shape::kMaxRank),
              std::string(what) + " '" + info.name + "' has more than 8 dimensions");
      value.has_shape = true;
      value.shape = Shape(std::span<const int64_t>(info.dims));
    }
    if (info.has_shape) graph_.dim_names[v] = info.dim_names;
  }

  const FunctionProto* function_of(const NodeProto& node) const {
    auto it = model_.functions.find({node.domain, node.op_type, node.overload});
    return it == model_.functions.end() ? nullptr : &it->second;
  }

  // Appends the node, or the nodes of the function that it calls.
  void flatten(FlatNode node, int depth) {
    require(++model_.n_nodes <= kMaxNodes, "more than " + std::to_string(kMaxNodes) + " nodes");
    if (node.renaming) {
      for (std::string& name : node.proto.inputs) name = (*node.renaming)(name);
      for (std::string& name : node.proto.outputs) name = (*node.renaming)(name);
    }
    const FunctionProto* function = function_of(node.proto);
    if (!function) {
      flat_.push_back(std::move(node));
      return;
    }
    require(depth < kMaxDepth, node.where() + ": functions call each other more than " +
                                   std::to_string(kMaxDepth) + " deep");
    require(node.proto.inputs.size() <= function->inputs.size() &&
                node.proto.outputs.size() <= function->outputs.size(),
            node.where() + ": more inputs or outputs than the function has");
    auto renaming = std::make_shared<Renaming>();
    std::string call = node.proto.name.empty() ? node.proto.op_type : node.proto.name;
    if (call.size() > kMaxCallName) call.resize(kMaxCallName);
    renaming->prefix = call + "/" + std::to_string(model_.n_calls++) + "/";
    for (size_t i = 0; i < function->inputs.size(); ++i)
      renaming->formal[function->inputs[i]] =
          i < node.proto.inputs.size() ? node.proto.inputs[i] : "";
    std::vector<std::pair<std::string, std::string>>
        copies;  // outputs that are also inputs: formal, actual
    for (size_t i = 0; i < node.proto.outputs.size(); ++i) {
      if (node.proto.outputs[i].empty()) continue;
      const bool fresh =
          renaming->formal.emplace(function->outputs[i], node.proto.outputs[i]).second;
      if (!fresh)
        copies.emplace_back(renaming->formal[function->outputs[i]], node.proto.outputs[i]);
    }
    auto keep = [&](Bytes bytes) {
      renaming->attributes.emplace(parse_attribute(bytes).name, bytes);
    };
    for (Bytes bytes : node.proto.attributes) keep(bytes);
    for (Bytes bytes : function->attribute_defaults) keep(bytes);
    renaming->outer = node.renaming;
    for (Bytes bytes : function->nodes) {
      model_.count_inlined(bytes.size() + renaming->prefix.size());
      NodeProto inner = parse_node(bytes);
      inner.name = call + "/" + (inner.name.empty() ? inner.op_type : inner.name);
      flatten({std::move(inner), renaming, &function->opsets}, depth + 1);
    }
    for (auto& [from, to] : copies) {
      NodeProto copy;
      copy.op_type = "Identity";
      copy.name = call + "/" + to;
      copy.inputs = {from};
      copy.outputs = {to};
      flat_.push_back({std::move(copy), nullptr, &function->opsets});
    }
  }

  // Every node has a name, and no two the same: tools and messages refer to nodes by name.
  void name_nodes() {
    std::unordered_set<std::string> taken;
    for (const FlatNode& node : flat_) taken.insert(node.proto.name);
    std::unordered_set<std::string> used;
    size_t index = 0;
    for (FlatNode& node : flat_) {
      std::string& name = node.proto.name;
      if (name.empty() || used.count(name)) {
        std::string base = name.empty() ? node.proto.op_type : name;
        std::string fresh = base + "_" + std::to_string(index);
        while (taken.count(fresh)) fresh += "_";
        name = fresh;
        taken.insert(name);
      }
      used.insert(name);
      ++index;
    }
  }

  void declare_outputs(const FlatNode& node) {
    for (const std::string& name : node.proto.outputs) {
      if (!name.empty()) declare(name, DType::kUndefined, node.where() + ": output");
    }
    if (node.proto.op_type != "Constant" || !node.proto.domain.empty()) return;
    require(node.proto.outputs.size() == 1 && node.proto.inputs.empty(),
            node.where() + ": not one output and no input");
    if (node.proto.outputs[0].empty()) return;
    set_constant(values_.at(node.proto.outputs[0]), constant_of(node));
  }

  Tensor constant_of(const FlatNode& node) {
    for (Bytes bytes : node.proto.attributes) {
      const AttributeProto a = resolve(parse_attribute(bytes), node).first;
      auto fill = [&](DType dtype, const Shape& shape, const void* data) {
        Tensor tensor = Tensor::allocate(dtype, shape);
        if (tensor.n_bytes()) std::memcpy(tensor.data, data, tensor.n_bytes());
        return tensor;
      };
      if (a.name == "value" && a.type == kTypeTensor)
        return read_tensor(a.t, model_.external, node.where()).tensor;
      if (a.name == "value_float") return fill(DType::kFloat32, {}, &a.f);
      if (a.name == "value_int") return fill(DType::kInt64, {}, &a.i);
      if (a.name == "value_floats")
        return fill(DType::kFloat32, {static_cast<int64_t>(a.floats.size())}, a.floats.data());
      if (a.name == "value_ints")
        return fill(DType::kInt64, {static_cast<int64_t>(a.ints.size())}, a.ints.data());
      if (!a.name.empty())
        fail(WIA_ERROR_NOT_SUPPORTED, node.where() + ": attribute '" + a.name +
                                          "' is not supported; use a dense tensor of numbers");
    }
    fail(WIA_ERROR_INVALID_ARGUMENT, node.where() + " has no value");
  }

  // The attribute itself, or the caller's that it refers to inside a function (type 0: the caller
  // has none), and the renaming that its subgraph's names need.
  std::pair<AttributeProto, RenamingPtr> resolve(AttributeProto a, const FlatNode& node) {
    RenamingPtr renaming = node.renaming;
    for (int depth = 0; !a.reference.empty(); ++depth) {
      require(renaming != nullptr && depth <= kMaxDepth, node.where() + ": attribute '" + a.name +
                                                             "' refers to '" + a.reference +
                                                             "' outside a function");
      auto it = renaming->attributes.find(a.reference);
      if (it == renaming->attributes.end()) return {AttributeProto{}, nullptr};
      model_.count_inlined(it->second.size());
      AttributeProto actual = parse_attribute(it->second);
      actual.name = a.name;
      a = std::move(actual);
      renaming = renaming->outer;
    }
    return {std::move(a), std::move(renaming)};
  }

  // The value of that name here, or one that stands for an outer graph's; kNoValue when nobody has
  // it.
  ValueId find(const std::string& name) {
    auto it = values_.find(name);
    if (it != values_.end()) return it->second;
    if (!parent_) return kNoValue;
    const ValueId outer = parent_->find(name);
    if (outer == kNoValue) return kNoValue;
    const Value& from = parent_->graph_.values[outer];
    const ValueId v = graph_.add_value(name, from.dtype);
    Value& value = graph_.values[v];
    value.has_shape = from.has_shape;
    value.shape = from.shape;
    value.constant = from.constant;
    values_.emplace(name, v);
    if (!from.constant) captured_.push_back(name);
    return v;
  }

  ValueId look_up(const std::string& name, const FlatNode& node) {
    if (name.empty()) return kNoValue;
    const ValueId v = find(name);
    require(v != kNoValue, node.where() + ": input '" + name +
                               "' is made by no node and is no input or initializer");
    return v;
  }

  void add_node(const FlatNode& flat) {
    const NodeProto& proto = flat.proto;
    if (proto.op_type == "Constant" && proto.domain.empty()) return;
    require(!proto.op_type.empty(), "node '" + proto.name + "' has no op_type");
    std::vector<ValueId> inputs, outputs;
    for (const std::string& name : proto.inputs) inputs.push_back(look_up(name, flat));
    for (const std::string& name : proto.outputs)
      outputs.push_back(name.empty() ? kNoValue : values_.at(name));
    Node& node = graph_.add_node(proto.op_type, proto.domain, proto.name, std::move(inputs),
                                 std::move(outputs));
    auto opset = flat.opsets->find(proto.domain);
    require(opset != flat.opsets->end(), flat.where() + ": the model imports no opset of domain '" +
                                             (proto.domain.empty() ? "ai.onnx" : proto.domain) +
                                             "'");
    node.opset = static_cast<int>(opset->second);
    std::vector<std::pair<std::shared_ptr<Graph>, std::vector<std::string>>> subgraphs;
    for (Bytes bytes : proto.attributes)
      add_attribute(parse_attribute(bytes), flat, node, subgraphs);
    lift_captures(node, subgraphs);
  }

  using Subgraphs = std::vector<std::pair<std::shared_ptr<Graph>, std::vector<std::string>>>;

  void add_attribute(AttributeProto given, const FlatNode& flat, Node& node, Subgraphs& subgraphs) {
    require(!given.name.empty(), flat.where() + " has an attribute without a name");
    auto [a, renaming] = resolve(std::move(given), flat);
    if (a.name.empty()) return;
    Attribute& slot = node.attributes[a.name];
    switch (a.type) {
      case kTypeFloat:
        slot = a.f;
        break;
      case kTypeInt:
        slot = a.i;
        break;
      case kTypeString:
        slot = std::string(reinterpret_cast<const char*>(a.s.data()), a.s.size());
        break;
      case kTypeFloats:
        slot = std::move(a.floats);
        break;
      case kTypeInts:
        slot = std::move(a.ints);
        break;
      case kTypeStrings:
        slot = std::move(a.strings);
        break;
      case kTypeTensor:
        slot =
            read_tensor(a.t, model_.external, flat.where() + ": attribute '" + a.name + "'").tensor;
        break;
      case kTypeGraph: {
        GraphReader reader(model_, this, renaming, flat.opsets, depth_ + 1);
        auto graph = std::make_shared<Graph>(reader.read(a.g));
        slot = graph;
        subgraphs.emplace_back(graph, reader.captured());
        break;
      }
      default:
        fail(WIA_ERROR_NOT_SUPPORTED,
             flat.where() + ": attribute '" + a.name + "' is of a kind (" + std::to_string(a.type) +
                 ") that is not supported: sparse tensors, types, lists of tensors or graphs");
    }
  }

  // Appends the outer values that the subgraphs use to the node's inputs; each subgraph's captures
  // then stand for them in that order, kNoValue where it does not use one.
  void lift_captures(Node& node, const Subgraphs& subgraphs) {
    std::vector<std::string> names;
    std::unordered_map<std::string, size_t> position;
    for (const auto& [graph, captured] : subgraphs)
      for (const std::string& name : captured)
        if (position.emplace(name, names.size()).second) names.push_back(name);
    for (const std::string& name : names) node.inputs.push_back(find(name));
    for (const auto& [graph, captured] : subgraphs) {
      std::vector<ValueId> aligned(names.size(), kNoValue);
      for (size_t i = 0; i < captured.size(); ++i)
        aligned[position.at(captured[i])] = graph->captures[i];
      graph->captures = std::move(aligned);
    }
  }

  void read_outputs(const GraphProto& proto) {
    for (Bytes bytes : proto.outputs) {
      ValueInfo info = parse_value_info(bytes);
      info.name = rename(info.name);
      require(!info.name.empty(), "graph '" + graph_.name + "' has an output without a name");
      const ValueId v = find(info.name);
      require(v != kNoValue,
              "output '" + info.name + "' is made by no node and is no input or initializer");
      if (info.any && !info.is_tensor) {
        fail(WIA_ERROR_NOT_SUPPORTED,
             "output '" + info.name +
                 "' is no tensor; sequences, maps and optionals are not supported");
      }
      graph_.outputs.push_back(v);
      apply(info, v, "output");
    }
    require(!graph_.outputs.empty(), "graph '" + graph_.name + "' has no outputs");
  }

  void read_value_infos(const GraphProto& proto) {
    for (Bytes bytes : proto.value_infos) {
      ValueInfo info = parse_value_info(bytes);
      auto it = values_.find(rename(info.name));
      if (it == values_.end() || !info.has_shape || info.dims.size() > Shape::kMaxRank) continue;
      Value& value = graph_.values[it->second];
      if (value.has_shape) continue;
      value.has_shape = true;
      value.shape = Shape(std::span<const int64_t>(info.dims));
    }
  }

  ModelState& model_;
  GraphReader* parent_;
  RenamingPtr renaming_;
  const Opsets* opsets_;
  int depth_;
  Graph graph_;
  std::unordered_map<std::string, ValueId> values_;
  std::vector<FlatNode> flat_;
  std::vector<std::string> captured_;
};

std::pair<FunctionKey, FunctionProto> parse_function(Bytes message, const Opsets& model_opsets) {
  FunctionProto f;
  std::string name, domain, overload;
  Field field;
  for (Message m(message); m.next(field);) {
    switch (field.number) {
      case 1:
        name = field.string();
        break;
      case 4:
        f.inputs.push_back(field.string());
        break;
      case 5:
        f.outputs.push_back(field.string());
        break;
      case 7:
        f.nodes.push_back(field.message());
        break;
      case 9:
        f.opsets.insert(parse_opset(field.message()));
        break;
      case 10:
        domain = plain_domain(field.string());
        break;
      case 11:
        f.attribute_defaults.push_back(field.message());
        break;
      case 13:
        overload = field.string();
        break;
      default:
        break;
    }
  }
  for (const auto& [key, version] : model_opsets) f.opsets.emplace(key, version);
  return {{domain, name, overload}, std::move(f)};
}

}  // namespace

Graph read_model(std::span<const uint8_t> bytes, const std::string& folder) {
  ModelState model(folder);
  std::vector<Bytes> functions;
  Bytes graph_bytes;
  bool has_graph = false, has_version = false;
  std::map<std::string, std::string> metadata;
  Field field;
  for (Message m(bytes); m.next(field);) {
    switch (field.number) {
      case 1:
        field.expect(WireType::kVarint);
        has_version = true;
        break;
      case 7:
        graph_bytes = field.message();
        has_graph = true;
        break;
      case 8:
        model.opsets.insert(parse_opset(field.message()));
        break;
      case 14: {
        std::string key, value;
        Field part;
        for (Message entry(field.message()); entry.next(part);) {
          if (part.number == 1) key = part.string();
          if (part.number == 2) value = part.string();
        }
        metadata[key] = value;
        break;
      }
      case 25:
        functions.push_back(field.message());
        break;
      default:
        break;
    }
  }
  if (!has_graph || !has_version) Field::malformed("it has no graph or no ir_version");
  for (Bytes function : functions) {
    auto [key, body] = parse_function(function, model.opsets);
    require(model.functions.emplace(key, std::move(body)).second,
            "function '" + std::get<1>(key) + "' is defined twice");
  }
  Graph graph = GraphReader(model, nullptr, nullptr, &model.opsets, 0).read(graph_bytes);
  graph.metadata = std::move(metadata);
  return graph;
}

Graph read_model_file(const std::string& path) {
  const std::string bytes = read_file(path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return read_model({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                    folder.empty() ? "." : folder);
}

}  // namespace wia::onnx
