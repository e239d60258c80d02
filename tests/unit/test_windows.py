# SPDX-License-Identifier: Apache-2.0
"""Convolutions, pools and products that no input can fit are refused in one line before anything is measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import wia_quant
from wia_quant.errors import ModelError
from wia_quant.prepare import prepare

BAD_CONVOLUTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "strides of nothing": ({"strides": [0, 0]}, "'strides' is"),
    "a stride backwards": ({"strides": [-1, 1]}, "'strides' is"),
    "a stride of 2^40": ({"strides": [2**40, 1]}, "'strides' is"),
    "one stride for two axes": ({"strides": [1]}, "needs 2 numbers"),
    "pads of 2^31": ({"pads": [2**31] * 4}, "'pads' is"),
    "pads of 2^62": ({"pads": [2**62] * 4}, "'pads' is"),
    "pads that take away": ({"pads": [-20] * 4}, "'pads' is"),
    "three pads": ({"pads": [1, 1, 1]}, "needs 4 numbers"),
    "dilations of nothing": ({"dilations": [0, 0]}, "'dilations' is"),
    "dilations of 2^62": ({"dilations": [2**62, 2**62]}, "'dilations' is"),
    "dilations beyond the input": ({"dilations": [2**20, 1]}, "reaches over"),
    "no group": ({"group": 0}, "'group' is 0"),
    "a negative group": ({"group": -3}, "'group' is -3"),
    "a group that does not divide": ({"group": 7}, "does not divide"),
    "more channels than the input has": ({"group": 2}, "take 6 channels"),
    "another kernel than the weight's": ({"kernel_shape": [5, 5]}, "'kernel_shape' is"),
    "a kernel of one axis": ({"kernel_shape": [1]}, "'kernel_shape' is"),
    "an unknown auto_pad": ({"auto_pad": "FOO"}, "'auto_pad' is 'FOO'"),
    "strides that are one number": ({"strides": 2}, "no list of integers"),
}


def net(node: onnx.NodeProto, weight: tuple[int, ...] | None, *, as_node: bool = False) -> onnx.ModelProto:
    """One node on x [1, 3, 8, 8]; the weight is an initializer, or a Constant node."""
    nodes, constants = [node], []
    if weight is not None:
        w = numpy_helper.from_array(np.ones(weight, np.float32), "w")
        if as_node:
            nodes.insert(0, helper.make_node("Constant", [], ["w"], value=w))
        else:
            constants.append(w)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("case", BAD_CONVOLUTIONS)
def test_a_convolution_that_cannot_run_ended_in_a_traceback_or_was_quantized(case: str, as_node: bool) -> None:
    attributes, message = BAD_CONVOLUTIONS[case]
    node = helper.make_node("Conv", ["x", "w"], ["y"], "bad", **attributes)
    with pytest.raises(ModelError, match=r"Conv 'bad': .*correct the node, or export the model again") as error:
        wia_quant.quantize(net(node, (4, 3, 3, 3), as_node=as_node), [{"x": np.ones((1, 3, 8, 8), np.float32)}])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("attributes", [{"strides": [0, 1]}, {"pads": [2**62] * 4}, {"kernel_shape": [0, 2]}])
def test_a_pool_that_cannot_run_is_refused_like_a_convolution(op_type: str, attributes: dict[str, Any]) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], "bad", **({"kernel_shape": [2, 2]} | attributes))
    with pytest.raises(ModelError, match=f"{op_type} 'bad': attribute '{next(iter(attributes))}' is"):
        prepare(net(node, None), opset=21)


@pytest.mark.parametrize("attributes", [{"group": 2}, {"strides": [-1, 1]}, {"output_padding": [-1, 0]}])
def test_a_transposed_convolution_that_cannot_run_is_refused(attributes: dict[str, Any]) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "bad", **attributes)
    with pytest.raises(ModelError, match=f"ConvTranspose 'bad': attribute '{next(iter(attributes))}' is"):
        prepare(net(node, (3, 4, 3, 3)), opset=21)


@pytest.mark.parametrize(("op_type", "weight"), [("MatMul", (8, 0)), ("Conv", (0, 3, 1, 1))])
def test_an_empty_weight_ended_in_a_traceback(op_type: str, weight: tuple[int, ...]) -> None:
    node = helper.make_node(op_type, ["x", "w"], ["y"], "bad")
    with pytest.raises(ModelError, match=rf"{op_type} 'bad': weight 'w' is empty: its shape is \[{weight[0]}, "):
        prepare(net(node, weight), opset=21)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Conv", ["x", "w"], ["y"], "ok", strides=[3, 1], dilations=[2, 1], pads=[0, 1, 2, 3]),
        helper.make_node("Conv", ["x", "w"], ["y"], "ok", auto_pad="SAME_LOWER", kernel_shape=[3, 3], dilations=[9, 9]),
        helper.make_node("ConvTranspose", ["x", "w3"], ["y"], "ok", pads=[9, 9, 0, 0], strides=[4, 4], group=3),
        helper.make_node("MaxPool", ["x"], ["y"], "ok", kernel_shape=[8, 8], ceil_mode=1),
    ],
)
def test_what_can_run_is_not_refused(node: onnx.NodeProto) -> None:
    proto = net(node, (4, 3, 3, 3))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2, 3, 3), np.float32), "w3"))
    assert wia_quant.Session(proto.SerializeToString()).run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})[0].size
    assert prepare(proto, opset=21).model.main.nodes
