# SPDX-License-Identifier: Apache-2.0
"""Models as objects: private copies, unique names, order, constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.quantizing import conv, conv_constants, model
from wia_quant import quantize
from wia_quant.errors import ModelError
from wia_quant.graph import ir_version_of, load, save, source_sha256


def branches() -> onnx.ModelProto:
    """An If whose two branches both call their result ``r`` and their nodes nothing."""

    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(op, ["x"], ["r"])], op, [], [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2])]
        )

    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg")),
        helper.make_node("Identity", ["y"], ["r2"]),
    ]
    return model(nodes, {"c": [], "x": [2]}, ["r2"], types={"c": TensorProto.BOOL})


def test_every_node_gets_a_name_and_no_two_the_same() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"], "same"),
        helper.make_node("Abs", ["b"], ["y"], "same"),
    ]
    loaded = load(model(nodes, {"x": [2]}, ["y"]))
    assert [n.name for _, n in loaded.nodes()] == ["Relu_0", "same", "same_1"]


def test_values_of_sibling_branches_get_names_of_their_own() -> None:
    loaded = load(branches())
    made = [o for _, n in loaded.nodes() for o in n.outputs]
    assert len(made) == len(set(made))
    onnx.checker.check_model(loaded.to_proto(), full_check=True)


def test_the_given_model_is_left_as_it_is() -> None:
    proto = branches()
    before = proto.SerializeToString(deterministic=True)
    loaded = load(proto)
    loaded.main.nodes.clear()
    assert proto.SerializeToString(deterministic=True) == before


def test_reading_and_writing_changes_nothing_but_names() -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 4, 4]}, ["y"], conv_constants("c", (2, 3, 1, 1)))
    again = load(proto).to_proto()
    assert again.graph.node == proto.graph.node
    assert again.graph.initializer == proto.graph.initializer


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07" * 40], ids=["empty", "text", "noise"])
def test_a_file_that_is_no_model_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        load(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ModelError, match=r"nowhere\.onnx: no such file"):
        load("nowhere.onnx")


def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    proto = branches()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    assert source_sha256(path) == source_sha256(path.read_bytes()) == source_sha256(proto)


def test_sort_puts_producers_first_and_keeps_the_rest_of_the_order() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], "1"), helper.make_node("Neg", ["a"], ["y"], "2")]
    loaded = load(model(nodes, {"x": [2]}, ["y"]))
    loaded.main.nodes.reverse()
    loaded.index()
    loaded.sort()
    assert [n.name for n in loaded.main.nodes] == ["1", "2"]


def test_a_cycle_is_an_error() -> None:
    loaded = load(model([helper.make_node("Relu", ["x"], ["y"], "r")], {"x": [2]}, ["y"]))
    loaded.main.nodes[0].inputs = ["b"]
    other = load(model([helper.make_node("Neg", ["y"], ["b"], "n")], {"y": [2]}, ["b"])).main.nodes[0]
    loaded.main.nodes.append(other)
    loaded.index()
    with pytest.raises(ModelError, match="cycle"):
        loaded.sort()


def test_the_ir_version_is_the_lowest_that_the_opset_allows() -> None:
    assert [ir_version_of(o) for o in (7, 11, 13, 17, 21)] == [3, 6, 7, 8, 10]


def test_a_constant_without_data_is_an_empty_array() -> None:
    empty = TensorProto(name="e", data_type=TensorProto.FLOAT, dims=[0])
    proto = model(
        [helper.make_node("Concat", ["x", "e"], ["y"], "c", axis=0)], {"x": [2]}, ["y"], {"e": np.zeros(0, "f")}
    )
    proto.graph.initializer[0].CopyFrom(empty)
    array = load(proto).array("e")
    assert array is not None
    assert array.shape == (0,)


def test_external_data_is_read(tmp_path: Path) -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 4, 4]}, ["y"], conv_constants("c", (64, 3, 3, 3)))
    weight = numpy_helper.to_array(proto.graph.initializer[0])
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert np.array_equal(load(tmp_path / "m.onnx").floats("c.w"), weight)


def test_above_two_gibibytes_the_weights_go_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 4, 4]}, ["y"], conv_constants("c", (64, 3, 3, 3)))
    monkeypatch.setattr("wia_quant.graph.MAX_PROTO_BYTES", 1000)  # stands for 2 GiB
    save(proto, tmp_path / "part.tmp", name="m.onnx")
    (tmp_path / "part.tmp").rename(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size >= 64 * 27 * 4
    assert np.array_equal(load(tmp_path / "m.onnx").floats("c.w"), numpy_helper.to_array(proto.graph.initializer[0]))


def test_an_output_declared_without_a_shape_gets_the_inferred_one() -> None:
    proto = model([conv("c", "x", "y")], {"x": ["N", 3, 4, 4]}, ["y"], conv_constants("c", (2, 3, 1, 1)))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    loaded = load(proto)
    loaded.infer()
    onnx.checker.check_model(loaded.to_proto(), full_check=True)
    assert [d.dim_param or d.dim_value for d in loaded.main.outputs[0].type.tensor_type.shape.dim] == ["N", 2, 4, 4]
    assert not proto.graph.output[0].type.tensor_type.HasField("shape")


def test_an_initializer_that_nobody_reads_left_its_input_without_a_value() -> None:
    """Models from before IR 4 list every weight as an input too."""
    nodes = [conv("c", "x", "y"), helper.make_node("Relu", ["unread"], ["z"])]
    proto = model(nodes, {"x": [1, 3, 4, 4]}, ["y"], conv_constants("c", (2, 3, 1, 1)) | {"unread": np.ones(3, "f4")})
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    loaded = load(proto)
    loaded.drop_unused()
    assert [info.name for info in loaded.main.inputs] == ["x", "c.w", "c.b"]
    samples = [{"x": np.ones((1, 3, 4, 4), np.float32)}]
    written = quantize(proto, samples).model
    assert [info.name for info in written.graph.input] == ["x"]
