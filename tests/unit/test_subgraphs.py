# SPDX-License-Identifier: Apache-2.0
"""If and Loop: their bodies are walked, named, folded and their weights quantized; nothing in them breaks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.quantizing import Array, conv, conv_constants, decisions, model, quantized, run

RNG = np.random.default_rng(6)
W = RNG.standard_normal((2, 32, 32)).astype(np.float32) / 6


def with_if() -> onnx.ModelProto:
    """Conv, then one of two Gemm-like branches that read the Conv's result from outside, then another Conv."""

    def branch(i: int) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(np.float32(0.5))),
            helper.make_node("MatMul", ["a", "w"], ["m"]),
            helper.make_node("Mul", ["m", "half"], ["r"]),
        ]
        output = helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 4, 8, 32])
        return helper.make_graph(nodes, f"branch{i}", [], [output], [numpy_helper.from_array(W[i], "w")])

    nodes = [
        conv("c", "x", "a"),
        helper.make_node("If", ["flag"], ["b"], "if", then_branch=branch(0), else_branch=branch(1)),
        conv("d", "b", "y"),
    ]
    constants = conv_constants("c", (4, 3, 1, 1)) | conv_constants("d", (32, 4, 3, 3))
    inputs = {"x": [1, 3, 8, 32], "flag": []}
    return model(nodes, inputs, ["y"], constants, types={"flag": TensorProto.BOOL})


def with_loop() -> onnx.ModelProto:
    """A state that goes through the same MatMul three times."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 32]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 32]),
        ],
        [numpy_helper.from_array(W[0], "w")],
    )
    nodes = [
        helper.make_node("Gemm", ["x", "u"], ["s"], "g"),
        helper.make_node("Loop", ["n", "", "s"], ["y"], "loop", body=body),
    ]
    constants = {"u": W[1], "n": np.int64(3)}
    # Inference gives the result of a Loop no shape, and the checker asks for one.
    return model(nodes, {"x": [2, 32]}, ["y"], constants, shapes={"y": [2, 32]})


def feeds(proto: onnx.ModelProto, flag: bool) -> dict[str, Array]:
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    made: dict[str, Array] = {"x": np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)}
    return made | ({"flag": np.array(flag)} if len(proto.graph.input) > 1 else {})


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("make", [with_if, with_loop])
def test_a_model_with_subgraphs_is_quantized_and_close_to_float(make, flag: bool) -> None:  # type: ignore[no-untyped-def]
    proto = make()
    sample = feeds(proto, flag)
    written = quantized(proto, [feeds(proto, True), feeds(proto, False)])
    onnx.checker.check_model(written.model, full_check=True)
    floats, integers = run(proto, sample)[0], run(written.model, sample)[0]
    assert np.abs(floats - integers).max() < 0.05 * np.abs(floats).max()


def test_weights_inside_a_subgraph_are_int8_there_and_no_float_copy_remains() -> None:
    written = quantized(with_if(), [feeds(with_if(), True)])
    branches = [a.g for n in written.model.graph.node if n.op_type == "If" for a in n.attribute]
    for branch in branches:
        assert {t.data_type for t in branch.initializer if len(t.dims) == 2} == {TensorProto.INT8}
    assert sum("inside a subgraph" in d.reason and d.quantized for d in written.plan.decisions) == 2


def test_a_node_inside_a_subgraph_can_be_excluded() -> None:
    written = quantized(with_if(), [feeds(with_if(), True)], exclude=["type:MatMul"])
    assert not any(q for name, q in decisions(written).items() if name.startswith("MatMul"))
