# SPDX-License-Identifier: Apache-2.0
"""Where libwia and onnxruntime give different results, libwia does what the standard says (docs/operators.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from wia_quant import Session


def one_node(
    node: onnx.NodeProto, shape: tuple[int, ...], constants: dict[str, npt.NDArray[Any]], opset: int
) -> tuple[onnx.ModelProto, npt.NDArray[np.float32]]:
    """The node as a model, and an input for it."""
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def inferred_shape(model: onnx.ModelProto) -> tuple[int, ...]:
    """What onnx's shape inference says of the output."""
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0]
    return tuple(d.dim_value for d in found.type.tensor_type.shape.dim)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 2, 9, 8), {"dilations": [2, 1], "kernel_shape": [3, 1], "strides": [3, 1]}),
        ((1, 1, 5, 8), {"dilations": [1, 2], "kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1}),
        ((2, 8, 2, 7), {"dilations": [1, 2], "kernel_shape": [2, 3], "strides": [3, 1], "ceil_mode": 1}),
    ],
)
def test_maxpool_with_same_padding_and_dilations_has_another_size_in_onnxruntime(
    shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], auto_pad="SAME_LOWER", **attributes)
    model, x = one_node(node, shape, {}, 13)
    got = Session(model.SerializeToString()).run(None, {"x": x})[0]
    assert got.shape == inferred_shape(model)
    assert got.shape[2:] == tuple(-(-n // s) for n, s in zip(shape[2:], attributes["strides"], strict=True))
    if "ceil_mode" not in attributes:  # with it, the reference drops a window
        np.testing.assert_array_equal(got, ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_resize_to_a_size_that_is_not_whole_has_other_pixels_in_onnxruntime() -> None:
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], mode="nearest", coordinate_transformation_mode="align_corners",
        nearest_mode="round_prefer_ceil",
    )  # fmt: skip
    model, x = one_node(node, (1, 6, 9, 8), {"scales": np.array([1, 1, 1.5, 1.5], np.float32)}, 21)
    got = Session(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_convtranspose_with_same_padding_and_a_small_kernel_is_smaller_in_onnxruntime() -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_LOWER", strides=[3, 3])
    weight = np.random.default_rng(1).standard_normal((4, 2, 2, 3)).astype(np.float32)
    model, x = one_node(node, (3, 4, 9, 3), {"w": weight}, 22)
    got = Session(model.SerializeToString()).run(None, {"x": x})[0]
    assert got.shape == (3, 2, 9 * 3, 3 * 3)
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("strides", [3, 3]))
    unpadded, _ = one_node(node, (3, 4, 9, 3), {"w": weight}, 22)
    expected = ReferenceEvaluator(unpadded).run(None, {"x": x})[0]
    np.testing.assert_allclose(got[:, :, :26], expected, rtol=1e-4, atol=1e-5)
    assert not got[:, :, 26:].any()  # no tap reaches them
