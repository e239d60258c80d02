// SPDX-License-Identifier: Apache-2.0
#include "onnx/reader.h"

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "base/testing.h"
#include "onnx/testing.h"
#include "onnx/wire.h"

using namespace wia;
using namespace wia::onnx::testing;

namespace {

Graph read(const Proto& model, const std::string& folder = "") {
  return onnx::read_model(
      {reinterpret_cast<const uint8_t*>(model.bytes().data()), model.bytes().size()}, folder);
}

Proto identity_graph() {
  return Proto()
      .message(kNode, node("Identity", {"x"}, {"y"}))
      .text(2, "g")
      .message(kInput, value_info("x", 1, {-1, 3}))
      .message(kOutput, value_info("y", 1, {-1, 3}));
}

// A model whose one output is an initializer.
Graph constant_model(const Proto& initializer, const std::string& folder = "") {
  return read(
      model(Proto().message(kInitializer, initializer).message(kOutput, Proto().text(1, "w"))),
      folder);
}

Tensor only(const Graph& graph) { return *graph.values[graph.outputs[0]].constant; }

template <class T>
T element(const Graph& graph, size_t i) {
  return only(graph).as<T>()[i];
}

// A folder with one file of float32 0, 1, 2, 3; gone at the end.
struct Folder {
  Folder()
      : path(std::filesystem::temp_directory_path() /
             ("wia_reader_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path / "model");
    const std::vector<float> values{0, 1, 2, 3};
    std::ofstream(path / "model" / "w.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), 16);
    std::ofstream(path / "outside.bin", std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()), 16);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string model() const { return (path / "model").string(); }
  std::filesystem::path path;
};

Proto external(const std::string& location, const std::string& offset = "",
               const std::string& length = "") {
  Proto t = tensor("w", 1, {2});
  t.integer(14, 1).message(13, Proto().text(1, "location").text(2, location));
  if (!offset.empty()) t.message(13, Proto().text(1, "offset").text(2, offset));
  if (!length.empty()) t.message(13, Proto().text(1, "length").text(2, length));
  return t;
}

Proto subgraph_attribute(const std::string& name, const Proto& graph) {
  return Proto().text(1, name).message(6, graph).integer(20, 5);
}

}  // namespace

TEST(names_types_and_symbolic_dimensions_are_kept) {
  const Graph g = read(model(identity_graph()));
  CHECK_EQ(g.inputs.size(), size_t{1});
  const Value& x = g.values[g.inputs[0]];
  CHECK_EQ(x.name, "x");
  CHECK(x.dtype == DType::kFloat32 && x.has_shape && x.shape == (Shape{-1, 3}));
  CHECK_EQ(g.dim_names.at(g.inputs[0])[0], "d0");
  CHECK_EQ(g.nodes.size(), size_t{1});
  CHECK_EQ(g.nodes[0]->opset, 17);
  CHECK_EQ(g.nodes[0]->name, "Identity_0");
}

TEST(metadata_is_read) {
  Proto m = model(identity_graph());
  m.message(14, Proto().text(1, "wia.format").text(2, "1"));
  CHECK_EQ(read(m).metadata.at("wia.format"), "1");
}

TEST(raw_and_typed_elements_are_the_same) {
  const Graph raw = constant_model(tensor("w", 1, {2}).raw<float>(9, {1.5f, -2.0f}));
  const Graph typed = constant_model(tensor("w", 1, {2}).float32(4, 1.5f).float32(4, -2.0f));
  const Graph packed = constant_model(tensor("w", 1, {2}).raw<float>(4, {1.5f, -2.0f}));
  for (const Graph* g : {&raw, &typed, &packed}) {
    CHECK_EQ(element<float>(*g, 0), 1.5f);
    CHECK_EQ(element<float>(*g, 1), -2.0f);
  }
}

TEST(every_integer_type_is_read_from_int32_data) {
  for (int type : {2, 3, 4, 5, 6, 9, 10, 16, 17, 19}) {
    const Graph g = constant_model(tensor("w", type, {3}).packed(5, {1, 0, 1}));
    const Tensor t = only(g);
    CHECK_EQ(t.numel(), 3);
    CHECK_EQ(t.as<uint8_t>()[0], 1);
    CHECK_EQ(t.as<uint8_t>()[2 * dtype_size(t.dtype)], 1);
  }
  CHECK_EQ(element<int8_t>(constant_model(tensor("w", 3, {1}).packed(5, {-128})), 0), -128);
  CHECK_EQ(element<int64_t>(constant_model(tensor("w", 7, {1}).packed(7, {INT64_MIN})), 0),
           INT64_MIN);
  CHECK_EQ(element<uint32_t>(constant_model(tensor("w", 12, {1}).packed(11, {0xffffffff})), 0),
           0xffffffffu);
  CHECK_EQ(element<uint64_t>(constant_model(tensor("w", 13, {1}).packed(11, {-1})), 0), UINT64_MAX);
}

TEST(four_bit_elements_are_unpacked_low_half_first) {
  const Graph s = constant_model(tensor("w", 22, {3}).raw<uint8_t>(9, {0x81, 0x0f}));
  CHECK_EQ(element<int8_t>(s, 0), 1);
  CHECK_EQ(element<int8_t>(s, 1), -8);
  CHECK_EQ(element<int8_t>(s, 2), -1);
  const Graph u = constant_model(tensor("w", 21, {3}).packed(5, {0x81, 0x0f}));
  CHECK_EQ(element<uint8_t>(u, 0), 1);
  CHECK_EQ(element<uint8_t>(u, 1), 8);
  CHECK_EQ(element<uint8_t>(u, 2), 15);
}

TEST(empty_tensors_and_scalars_are_read) {
  CHECK_EQ(only(constant_model(tensor("w", 1, {0, 3}).text(9, ""))).numel(), 0);
  CHECK_EQ(only(constant_model(tensor("w", 1, {0}))).numel(), 0);
  const Graph g = constant_model(tensor("w", 1, {}).float32(4, 3.0f));
  CHECK_EQ(only(g).shape.rank(), 0);
  CHECK_EQ(element<float>(g, 0), 3.0f);
}

TEST(data_that_does_not_fit_the_shape_is_named) {
  CHECK_THROWS(constant_model(tensor("w", 1, {3}).raw<float>(9, {1, 2})),
               "tensor 'w': 8 bytes of data, but shape [3]");
  CHECK_THROWS(constant_model(tensor("w", 1, {1}).raw<float>(4, {1, 2})), "more");
  CHECK_THROWS(constant_model(tensor("w", 6, {8}).packed(5, {1, 2})), "fewer");
  CHECK_THROWS(constant_model(tensor("w", 1, {2}).packed(7, {1, 2})),
               "not in the field of float32");
  CHECK_THROWS(constant_model(tensor("w", 1, {-1})), "negative dimension");
  CHECK_THROWS(constant_model(tensor("w", 1, {1, 1, 1, 1, 1, 1, 1, 1, 1})),
               "more than 8 dimensions");
  CHECK_THROWS(constant_model(tensor("w", 1, {int64_t{1} << 40, int64_t{1} << 40})), "2^40");
}

TEST(types_we_do_not_have_are_named) {
  CHECK_THROWS(constant_model(tensor("w", 8, {1}).text(6, "a")),
               "tensor 'w': elements of type string are not supported");
  CHECK_THROWS(constant_model(tensor("w", 14, {1})), "complex64");
  CHECK_THROWS(constant_model(tensor("w", 99, {1})), "99 is no ONNX element type");
  CHECK_THROWS(read(model(identity_graph().message(15, Proto()))), "sparse initializers");
}

TEST(external_data_is_read_beside_the_model) {
  const Folder folder;
  CHECK_EQ(element<float>(constant_model(external("w.bin", "8", "8"), folder.model()), 1), 3.0f);
  CHECK_EQ(element<float>(constant_model(external("w.bin"), folder.model()), 1), 1.0f);
}

TEST(external_data_cannot_leave_the_folder) {
  const Folder folder;
  std::filesystem::create_symlink(folder.path / "outside.bin", folder.path / "model" / "link.bin");
  CHECK_THROWS(constant_model(external("../outside.bin"), folder.model()), "without '..'");
  CHECK_THROWS(constant_model(external("a/../../outside.bin"), folder.model()), "without '..'");
  CHECK_THROWS(constant_model(external((folder.path / "outside.bin").string()), folder.model()),
               "must be a file name");
  CHECK_THROWS(constant_model(external("link.bin"), folder.model()), "leaves the model's folder");
  CHECK_THROWS(constant_model(external("."), folder.model()), "not a regular file");
  CHECK_THROWS(constant_model(external(""), folder.model()), "without a location");
  CHECK_THROWS(constant_model(external("w.bin")), "model in memory");
}

TEST(external_data_that_is_short_or_missing_is_named) {
  const Folder folder;
  CHECK_THROWS(constant_model(external("none.bin"), folder.model()),
               "tensor 'w': external data 'none.bin': no such file");
  CHECK_THROWS(constant_model(external("w.bin", "12"), folder.model()),
               "has 16 bytes, but 8 are wanted from byte 12");
  CHECK_THROWS(constant_model(external("w.bin", "18446744073709551615"), folder.model()),
               "has 16 bytes");
  CHECK_THROWS(constant_model(external("w.bin", "-1"), folder.model()), "is no number");
  CHECK_THROWS(constant_model(external("w.bin", "0", "4"), folder.model()), "needs 8");
}

TEST(initializers_that_are_also_inputs_are_no_inputs) {
  Proto g = identity_graph();
  g.message(kInput, value_info("w", 1, {1}))
      .message(kInitializer, tensor("w", 1, {1}).raw<float>(9, {1}));
  const Graph graph = read(model(g, 8, 3));
  CHECK_EQ(graph.inputs.size(), size_t{1});
}

TEST(nodes_in_any_order_are_sorted) {
  Proto g = Proto()
                .message(kNode, node("Relu", {"b"}, {"y"}, "last"))
                .message(kNode, node("Relu", {"a"}, {"b"}, "middle"))
                .message(kNode, node("Relu", {"x"}, {"a"}, "first"))
                .message(kInput, value_info("x", 1, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  const Graph graph = read(model(g));
  CHECK_EQ(graph.nodes[0]->name, "first");
  CHECK_EQ(graph.nodes[2]->name, "last");
}

TEST(a_cycle_is_an_error) {
  Proto g = Proto()
                .message(kNode, node("Relu", {"b"}, {"a"}))
                .message(kNode, node("Relu", {"a"}, {"b"}))
                .message(kOutput, value_info("b", 1, {1}));
  CHECK_THROWS(read(model(g)), "cycle");
}

TEST(a_name_defined_twice_is_an_error) {
  Proto g = identity_graph();
  g.message(kNode, node("Relu", {"x"}, {"y"}, "again"));
  CHECK_THROWS(read(model(g)), "'y' is defined twice");
}

TEST(an_input_nobody_makes_is_named) {
  Proto g = Proto()
                .message(kNode, node("Relu", {"ghost"}, {"y"}, "n"))
                .message(kOutput, value_info("y", 1, {1}));
  CHECK_THROWS(read(model(g)), "Relu 'n': input 'ghost' is made by no node");
  CHECK_THROWS(read(model(Proto().message(kOutput, value_info("ghost", 1, {1})))),
               "output 'ghost'");
}

TEST(empty_and_duplicate_node_names_become_unique) {
  Proto g = Proto()
                .message(kNode, node("Relu", {"x"}, {"a"}, "same"))
                .message(kNode, node("Relu", {"a"}, {"b"}, "same"))
                .message(kNode, node("Relu", {"b"}, {"y"}))
                .message(kInput, value_info("x", 1, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  const Graph graph = read(model(g));
  CHECK_EQ(graph.nodes[0]->name, "same");
  CHECK_EQ(graph.nodes[1]->name, "same_1");
  CHECK_EQ(graph.nodes[2]->name, "Relu_2");
}

TEST(optional_inputs_that_are_absent_are_no_value) {
  Proto g = identity_graph();
  g.message(kNode, node("Clip", {"x", "", "x"}, {"z"}, "c"));
  const Graph graph = read(model(g));
  CHECK_EQ(graph.nodes[1]->inputs[1], kNoValue);
}

TEST(constant_nodes_become_constants) {
  Proto floats = node("Constant", {}, {"w"});
  floats.message(kAttribute,
                 Proto().text(1, "value_floats").float32(7, 1.0f).float32(7, 2.0f).integer(20, 6));
  const Graph g =
      read(model(Proto().message(kNode, floats).message(kOutput, Proto().text(1, "w"))));
  CHECK_EQ(g.nodes.size(), size_t{0});
  CHECK_EQ(element<float>(g, 1), 2.0f);
  Proto text = node("Constant", {}, {"w"}, "c");
  text.message(kAttribute, Proto().text(1, "value_string").text(4, "s").integer(20, 3));
  CHECK_THROWS(read(model(Proto().message(kNode, text).message(kOutput, Proto().text(1, "w")))),
               "Constant 'c': attribute 'value_string' is not supported");
}

TEST(outer_values_of_subgraphs_are_lifted_into_the_node) {
  // Both branches read "x"; only one reads "k"; "w" is a constant and needs no lifting.
  Proto then_graph = Proto()
                         .message(kNode, node("Add", {"x", "w"}, {"t"}))
                         .message(kOutput, value_info("t", 1, {1}));
  Proto else_graph = Proto()
                         .message(kNode, node("Sub", {"k", "x"}, {"e"}))
                         .message(kOutput, value_info("e", 1, {1}));
  Proto branch = node("If", {"c"}, {"y"}, "if");
  branch.message(kAttribute, subgraph_attribute("then_branch", then_graph));
  branch.message(kAttribute, subgraph_attribute("else_branch", else_graph));
  Proto g = Proto()
                .message(kNode, branch)
                .message(kInput, value_info("c", 9, {}))
                .message(kInput, value_info("x", 1, {1}))
                .message(kInput, value_info("k", 1, {1}))
                .message(kInitializer, tensor("w", 1, {1}).raw<float>(9, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  const Graph graph = read(model(g));
  const Node& node = *graph.nodes[0];
  CHECK_EQ(node.inputs.size(), size_t{3});
  CHECK_EQ(graph.values[node.inputs[1]].name, "x");
  CHECK_EQ(graph.values[node.inputs[2]].name, "k");
  const auto then_branch = node.graph("then_branch"), else_branch = node.graph("else_branch");
  CHECK_EQ(then_branch->captures.size(), size_t{2});
  CHECK_EQ(then_branch->captures[1], kNoValue);
  CHECK_EQ(else_branch->values[else_branch->captures[0]].name, "x");
  CHECK_EQ(else_branch->values[else_branch->captures[1]].name, "k");
  CHECK(then_branch->is_constant(then_branch->nodes[0]->inputs[1]));
}

TEST(a_value_two_graphs_out_is_lifted_through_both) {
  Proto inner =
      Proto().message(kNode, node("Relu", {"x"}, {"i"})).message(kOutput, value_info("i", 1, {1}));
  Proto inner_if = node("If", {"c"}, {"m"}, "inner");
  inner_if.message(kAttribute, subgraph_attribute("then_branch", inner));
  inner_if.message(kAttribute, subgraph_attribute("else_branch", inner));
  Proto middle = Proto().message(kNode, inner_if).message(kOutput, value_info("m", 1, {1}));
  Proto outer_if = node("If", {"c"}, {"y"}, "outer");
  outer_if.message(kAttribute, subgraph_attribute("then_branch", middle));
  outer_if.message(kAttribute, subgraph_attribute("else_branch", middle));
  Proto g = Proto()
                .message(kNode, outer_if)
                .message(kInput, value_info("c", 9, {}))
                .message(kInput, value_info("x", 1, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  const Graph graph = read(model(g));
  CHECK_EQ(graph.nodes[0]->inputs.size(), size_t{3});  // c, and c and x for inside
}

TEST(functions_are_inlined_with_their_attributes) {
  Proto body_node = node("LeakyRelu", {"a"}, {"t"}, "leak");
  body_node.message(kAttribute, Proto().text(1, "alpha").text(21, "slope").integer(20, 1));
  Proto function = Proto()
                       .text(1, "Twice")
                       .text(10, "mine")
                       .text(4, "a")
                       .text(5, "b")
                       .text(6, "slope")
                       .message(7, body_node)
                       .message(7, node("Add", {"t", "t"}, {"b"}, "add"))
                       .message(9, opset("", 13));
  Proto call = node("Twice", {"x"}, {"y"}, "call");
  call.text(7, "mine").message(kAttribute,
                               Proto().text(1, "slope").float32(2, 0.25f).integer(20, 1));
  Proto g = Proto()
                .message(kNode, call)
                .message(kInput, value_info("x", 1, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  const Graph graph = read(model(g).message(25, function));
  CHECK_EQ(graph.nodes.size(), size_t{2});
  CHECK_EQ(graph.nodes[0]->name, "call/leak");
  CHECK_EQ(graph.nodes[0]->f("alpha", 0), 0.25f);
  CHECK_EQ(graph.nodes[0]->opset, 13);
  CHECK_EQ(graph.values[graph.nodes[1]->outputs[0]].name, "y");
}

TEST(functions_that_call_themselves_are_an_error) {
  Proto inner = node("F", {"a"}, {"b"});
  inner.text(7, "mine");
  Proto function =
      Proto().text(1, "F").text(10, "mine").text(4, "a").text(5, "b").message(7, inner);
  Proto call = node("F", {"x"}, {"y"});
  call.text(7, "mine");
  Proto g = Proto()
                .message(kNode, call)
                .message(kInput, value_info("x", 1, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  CHECK_THROWS(read(model(g).message(25, function)), "more than 32 deep");
}

TEST(functions_that_double_at_each_level_end_in_an_error) {
  // 30 levels of two calls each would be 2^30 nodes.
  Proto m = Proto().integer(1, 8).message(8, opset("", 17)).message(8, opset("mine", 1));
  for (int level = 0; level < 30; ++level) {
    const std::string callee = level == 29 ? "Relu" : "F" + std::to_string(level + 1);
    Proto first = node(callee, {"a"}, {"t"}), second = node(callee, {"t"}, {"b"});
    if (level != 29) first.text(7, "mine"), second.text(7, "mine");
    m.message(25, Proto()
                      .text(1, "F" + std::to_string(level))
                      .text(10, "mine")
                      .text(4, "a")
                      .text(5, "b")
                      .message(7, first)
                      .message(7, second));
  }
  Proto call = node("F0", {"x"}, {"y"});
  call.text(7, "mine");
  m.message(7, Proto()
                   .message(kNode, call)
                   .message(kInput, value_info("x", 1, {1}))
                   .message(kOutput, value_info("y", 1, {1})));
  CHECK_THROWS(read(m), "nodes");
}

TEST(subgraphs_nested_without_end_are_an_error) {
  Proto g = Proto()
                .message(kNode, node("Identity", {"x"}, {"y"}))
                .message(kOutput, value_info("y", 1, {1}));
  for (int i = 0; i < 100; ++i) {
    Proto n = node("If", {"x"}, {"y"});
    n.message(kAttribute, subgraph_attribute("then_branch", g));
    g = Proto().message(kNode, n).message(kOutput, value_info("y", 1, {1}));
  }
  g.message(kInput, value_info("x", 1, {1}));
  CHECK_THROWS(read(model(g)), "nested more than 32 deep");
}

TEST(inputs_that_are_no_tensors_are_named) {
  Proto sequence = Proto().text(1, "s").message(2, Proto().message(4, Proto().message(1, Proto())));
  CHECK_THROWS(read(model(identity_graph().message(kInput, sequence))), "input 's' is no tensor");
}

TEST(an_opset_that_is_not_imported_is_named) {
  Proto g = identity_graph();
  Proto foreign = node("Magic", {"x"}, {"m"}, "n");
  foreign.text(7, "com.example");
  CHECK_THROWS(read(model(g.message(kNode, foreign))), "imports no opset of domain 'com.example'");
}

TEST(what_is_no_model_is_an_error) {
  CHECK_THROWS(read(Proto()), "no graph");
  CHECK_THROWS(read(Proto().integer(1, 8).text(7, "\x0a")), "ends inside a number");
  CHECK_THROWS(read(Proto().integer(1, 8).text(7, "\x0a\x7f")), "is it truncated?");
  CHECK_THROWS(read(Proto().integer(1, 8).text(7, "\x0b")), "wire type 3");
  CHECK_THROWS(read(Proto().integer(7, 1)), "another wire type");
  CHECK_THROWS(onnx::read_model_file("/nowhere.onnx"), "'/nowhere.onnx': no such file");
  CHECK_THROWS(onnx::read_model_file("/"), "is not a file");
}

TEST(names_that_are_not_utf8_are_an_error) {
  for (const char* bad :
       {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    Proto g = Proto().message(kNode, node("Relu", {"x"}, {"y"}, bad));
    CHECK_THROWS(read(model(g.message(kOutput, value_info("y", 1, {1})))), "not UTF-8");
  }
  Proto g = Proto()
                .message(kNode, node("Relu", {"x"}, {"y"}, "\xe5\xb1\xa4\xf0\x9f\x99\x82\xc3\xa9"))
                .message(kInput, value_info("x", 1, {1}))
                .message(kOutput, value_info("y", 1, {1}));
  CHECK_EQ(read(model(g)).nodes.size(), size_t{1});
}

TEST(every_truncation_is_an_error_or_a_model_and_never_a_crash) {
  Proto m =
      model(identity_graph().message(kInitializer, tensor("w", 1, {2}).raw<float>(9, {1, 2})));
  const std::string whole = m.bytes();
  int n_errors = 0;
  for (size_t n = 0; n < whole.size(); ++n) {
    try {
      (void)onnx::read_model({reinterpret_cast<const uint8_t*>(whole.data()), n}, "");
    } catch (const Error&) {
      ++n_errors;
    }
  }
  CHECK(n_errors > static_cast<int>(whole.size()) / 2);
}

WIA_TEST_MAIN
