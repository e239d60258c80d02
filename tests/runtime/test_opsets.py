# SPDX-License-Identifier: Apache-2.0
"""Operators as older opsets have them: attributes that became inputs, defaults that changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

from wia_quant.errors import WiaError
from wia_quant.runtime import Session

Array = npt.NDArray[Any]
RNG = np.random.default_rng(7)


def model_of(
    op_type: str,
    opset: int,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    n_outputs: int = 1,
    **attributes: Any,
) -> bytes:
    """A model of one node at this opset."""
    constants = constants or {}
    names = [*inputs, *constants]
    outputs = [f"y{i}" for i in range(n_outputs)]
    node = helper.make_node(op_type, names, outputs, name=op_type.lower(), **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opset_ids = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opset_ids, ir_version=4).SerializeToString()


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@dataclass(frozen=True)
class Old:
    """An operator at an old opset and the numpy expression of what it means."""

    op_type: str
    opset: int
    inputs: Mapping[str, Array]
    expected: Callable[..., Array]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op_type}-{self.opset}" + "".join(f"-{k}={v}" for k, v in self.attributes.items())


X = {"x": floats(2, 3, 4, 5)}
OLD = [
    Old("Squeeze", 11, {"x": floats(1, 3, 1, 5)}, lambda x: x.reshape(3, 5), {"axes": [0, -2]}),
    Old("Squeeze", 7, {"x": floats(1, 3, 1, 5)}, lambda x: x.reshape(3, 5)),
    Old("Unsqueeze", 11, {"x": floats(3, 4)}, lambda x: x.reshape(1, 3, 4, 1), {"axes": [0, 3]}),
    Old("Clip", 6, X, lambda x: np.clip(x, -0.5, 0.25), {"min": -0.5, "max": 0.25}),
    Old("Clip", 7, X, lambda x: np.maximum(x, 0.0), {"min": 0.0}),
    Old("Slice", 9, X, lambda x: x[:, 1:3, :, 1:-1], {"starts": [1, 1], "ends": [3, -1], "axes": [1, 3]}),
    Old("Slice", 7, X, lambda x: x[1:, :2], {"starts": [1, 0], "ends": [2**62, 2]}),
    Old("Softmax", 12, X, lambda x: softmax(x.reshape(2, -1)).reshape(x.shape)),
    Old("Softmax", 9, X, lambda x: softmax(x.reshape(6, 20)).reshape(x.shape), {"axis": 2}),
    Old("Softmax", 11, {"x": floats(4)}, lambda x: np.ones_like(x), {"axis": 1}),
    Old("LogSoftmax", 11, X, lambda x: np.log(softmax(x.reshape(2, -1))).reshape(x.shape)),
    Old("Hardmax", 11, X, lambda x: np.eye(60)[x.reshape(2, -1).argmax(1)].reshape(x.shape).astype(np.float32)),
    Old("Pad", 2, X, lambda x: np.pad(x, ((0, 0), (1, 0), (0, 2), (1, 1)), constant_values=1.5),
        {"pads": [0, 1, 0, 1, 0, 0, 2, 1], "value": 1.5}),
    Old("Pad", 10, X, lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), mode="reflect"),
        {"pads": [0, 0, 1, 2, 0, 0, 2, 1], "mode": "reflect"}),
    Old("Dropout", 7, X, lambda x: x, {"ratio": 0.5}),
    Old("Dropout", 10, X, lambda x: x, {"ratio": 0.5}),
    Old("ReduceSum", 11, X, lambda x: x.sum((1, 3), keepdims=True), {"axes": [1, 3]}),
    Old("ReduceMean", 13, X, lambda x: x.mean((2, 3)), {"axes": [-2, -1], "keepdims": 0}),
    Old("ReduceMax", 11, X, lambda x: x.max(keepdims=True)),
    Old("ReduceL2", 11, X, lambda x: np.sqrt((x * x).sum(0)), {"axes": [0], "keepdims": 0}),
    Old("Upsample", 9, X, lambda x: x.repeat(2, 2).repeat(3, 3), {"mode": "nearest"},
        {"scales": np.array([1, 1, 2, 3], np.float32)}),
    Old("Upsample", 7, X, lambda x: x.repeat(2, 2).repeat(2, 3), {"scales": [1.0, 1.0, 2.0, 2.0]}),
    Old("Resize", 10, X, lambda x: x.repeat(2, 2).repeat(2, 3), {}, {"scales": np.array([1, 1, 2, 2], np.float32)}),
    Old("Gemm", 7, {"a": floats(3, 4), "b": floats(5, 4), "c": floats(5)}, lambda a, b, c: 0.5 * a @ b.T + 2 * c,
        {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    Old("Flatten", 9, X, lambda x: x.reshape(6, 20), {"axis": 2}),
    Old("Cast", 9, X, lambda x: x.astype(np.int32), {"to": TensorProto.INT32}),
    Old("Scatter", 9, {"x": floats(3, 3)}, lambda x: np.vstack([[9.0, x[0, 1], x[0, 2]], x[1:]]).astype(np.float32), {},
        {"i": np.array([[0]]), "u": np.array([[9.0]], np.float32)}),
    Old("BatchNormalization", 9, {"x": floats(2, 3, 4)},
        lambda x: (x - 0.5) / np.sqrt(np.float32(4 + 1e-5)) * 2 + 1, {},
        {"s": np.full(3, 2, np.float32), "b": np.ones(3, np.float32), "m": np.full(3, 0.5, np.float32),
         "v": np.full(3, 4, np.float32)}),
    Old("ArgMax", 11, X, lambda x: x.argmax(1, keepdims=True), {"axis": 1}),
    Old("AveragePool", 7, X, lambda x: x.reshape(2, 3, 2, 2, 5).mean(3), {"kernel_shape": [2, 1], "strides": [2, 1]}),
    Old("GroupNormalization", 18, {"x": floats(1, 4, 3)},
        lambda x: ((x.reshape(2, 6) - x.reshape(2, 6).mean(1, keepdims=True))
                   / np.sqrt(x.reshape(2, 6).var(1, keepdims=True) + 1e-5)
                   * np.array([[2], [3]], np.float32) + np.array([[0], [1]], np.float32)).reshape(x.shape),
        {"num_groups": 2}, {"s": np.array([2, 3], np.float32), "b": np.array([0, 1], np.float32)}),
]  # fmt: skip


@pytest.mark.parametrize("case", OLD, ids=str)
def test_old_opset_means_what_it_meant(case: Old) -> None:
    model = model_of(case.op_type, case.opset, case.inputs, case.constants, **case.attributes)
    (got,) = Session(model).run(None, dict(case.inputs))
    expected = case.expected(*case.inputs.values())
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


def test_top_k_takes_its_k_from_the_attribute_before_opset_10() -> None:
    x = {"x": floats(3, 7)}
    values, indices = Session(model_of("TopK", 9, x, n_outputs=2, k=3)).run(None, x)
    order = np.argsort(-x["x"], axis=1)[:, :3]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x["x"], order, 1))


def test_split_takes_its_sizes_from_the_attribute_before_opset_13() -> None:
    x = {"x": floats(6, 2)}
    parts = Session(model_of("Split", 11, x, n_outputs=3, axis=0, split=[1, 2, 3])).run(None, x)
    for part, expected in zip(parts, np.split(x["x"], [1, 3]), strict=True):
        np.testing.assert_array_equal(part, expected)


HOSTILE = [
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 3, 3, 3)}, {}),
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 4, 3, 3)}, {"strides": [0, 1]}),
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 4, 3, 3)}, {"pads": [-1, 0, 0, 0]}),
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 4, 3, 3)}, {"dilations": [2**40, 1]}),
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 4, 7, 7)}, {}),
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 2, 3, 3)}, {"group": 3}),
    ("Conv", {"x": floats(1, 4, 5, 5), "w": floats(6, 4, 3, 3), "b": floats(5)}, {}),
    ("ConvTranspose", {"x": floats(1, 4, 5, 5), "w": floats(3, 4, 3, 3)}, {}),
    ("ConvTranspose", {"x": floats(1, 4, 5, 5), "w": floats(4, 2, 3, 3)}, {"output_shape": [-3, 4]}),
    ("MaxPool", X, {"kernel_shape": [2, 2], "strides": [1, 0]}),
    ("MaxPool", X, {"kernel_shape": [9, 9]}),
    ("MaxPool", X, {"kernel_shape": [2]}),
    ("MaxPool", X, {"kernel_shape": [2**30, 2**30], "pads": [2**30, 2**30, 0, 0]}),
    ("AveragePool", X, {"kernel_shape": [2**30, 1], "auto_pad": "SAME_UPPER"}),
    ("Pad", {"x": floats(0, 3), "p": np.array([0, 0, 0, 2**30])}, {}),
    ("MatMul", {"a": floats(3, 4), "b": floats(5, 6)}, {}),
    ("Gemm", {"a": floats(3, 4), "b": floats(4, 5), "c": floats(4)}, {}),
    ("Add", {"a": floats(3, 4), "b": floats(5)}, {}),
    ("Concat", {"a": floats(3, 4), "b": floats(3, 5)}, {"axis": 0}),
    ("Concat", {"a": floats(3, 4), "b": floats(3, 4)}, {"axis": 2}),
    ("Transpose", X, {"perm": [0, 0, 1, 2]}),
    ("Transpose", X, {"perm": [0, 1, 2, 4]}),
    ("Flatten", X, {"axis": 5}),
    ("Softmax", X, {"axis": 4}),
    ("LayerNormalization", {"x": floats(2, 3), "s": floats(4)}, {}),
    ("Reshape", {"x": floats(2, 3), "s": np.array([4, -1])}, {}),
    ("Reshape", {"x": floats(2, 3), "s": np.array([-1, -1])}, {}),
    ("Reshape", {"x": floats(2, 3), "s": np.array([2**62, 2**62])}, {}),
    ("Reshape", {"x": floats(2, 3), "s": np.array([-5])}, {}),
    ("Expand", {"x": floats(2, 3), "s": np.array([2**40, 2**40, 3])}, {}),
    ("Tile", {"x": floats(2, 3), "r": np.array([2**61, 1])}, {}),
    ("Pad", {"x": floats(2, 3), "p": np.array([0, 0, -9, 0])}, {}),
    ("Pad", {"x": floats(2, 3), "p": np.array([0, 0, 2**62, 0])}, {}),
    ("Slice", {"x": floats(2, 3), "s": np.array([0]), "e": np.array([2]), "a": np.array([2])}, {}),
    ("Slice", {"x": floats(2, 3), "s": np.array([0]), "e": np.array([2]), "a": np.array([1]), "t": np.array([0])}, {}),
    ("Gather", {"x": floats(2, 3), "i": np.array([0, 2])}, {}),
    ("Gather", {"x": floats(2, 3), "i": np.array([-3])}, {}),
    ("GatherND", {"x": floats(2, 3), "i": np.array([[0, 3]])}, {}),
    ("GatherElements", {"x": floats(2, 3), "i": np.array([[5]])}, {}),
    ("ScatterND", {"x": floats(2, 3), "i": np.array([[2]]), "u": floats(1, 3)}, {}),
    ("ScatterElements", {"x": floats(2, 3), "i": np.array([[-4]]), "u": floats(1, 1)}, {}),
    ("Div", {"a": np.array([1, 2]), "b": np.array([1, 0])}, {}),
    ("Mod", {"a": np.array([1, 2]), "b": np.array([1, 0])}, {}),
    ("Range", {"a": np.array(0), "b": np.array(5), "c": np.array(0)}, {}),
    ("Range", {"a": np.array(0), "b": np.array(2**62), "c": np.array(1)}, {}),
    ("ConstantOfShape", {"s": np.array([2**40, 2**40])}, {}),
    ("ConstantOfShape", {"s": np.array([-1])}, {}),
    ("OneHot", {"i": np.array([1]), "d": np.array(-2), "v": floats(2)}, {}),
    ("TopK", {"x": floats(2, 3), "k": np.array([4])}, {}),
    ("CumSum", {"x": floats(2, 3), "a": np.array(2)}, {}),
    ("Resize", {"x": floats(1, 1, 2, 2), "r": floats(0), "s": np.array([1, 1, -2, 1], np.float32)}, {}),
    ("Resize", {"x": floats(1, 1, 2, 2), "r": floats(0), "s": np.array([1, 1, 1e9, 1e9], np.float32)}, {}),
    ("QuantizeLinear", {"x": floats(2, 3), "s": floats(2)}, {"axis": 1}),
    ("QuantizeLinear", {"x": floats(2, 3), "s": floats(3), "z": np.zeros(2, np.uint8)}, {"axis": 1}),
    ("DequantizeLinear", {"x": np.zeros((2, 3), np.int8), "s": floats(1, 3)}, {"axis": 0, "block_size": 1}),
    ("LSTM", {"x": floats(2, 1, 3), "w": floats(1, 16, 3), "r": floats(1, 16, 5)}, {"hidden_size": 4}),
    ("Einsum", {"a": floats(2, 3), "b": floats(4, 5)}, {"equation": "ij,jk->ik"}),
    ("Einsum", {"a": floats(2, 3)}, {"equation": "i1->i"}),
    ("DepthToSpace", {"x": floats(1, 3, 2, 2)}, {"blocksize": 2}),
    ("Split", {"x": floats(6, 2), "s": np.array([1, 2])}, {}),
    ("Squeeze", {"x": floats(2, 3), "a": np.array([0])}, {}),
    ("Unsqueeze", {"x": floats(2, 3), "a": np.array([0, 0])}, {}),
    ("NonMaxSuppression", {"b": floats(1, 3, 4), "s": floats(1, 1, 4)}, {}),
    ("RoiAlign", {"x": floats(1, 1, 4, 4), "r": floats(1, 4), "i": np.array([3])}, {}),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"), HOSTILE, ids=[f"{i}-{h[0]}" for i, h in enumerate(HOSTILE)]
)
@pytest.mark.parametrize("constant", [False, True], ids=["fed", "constant"])
def test_what_makes_no_sense_is_one_clear_error(
    op_type: str, inputs: Mapping[str, Array], attributes: Mapping[str, Any], constant: bool
) -> None:
    names = list(inputs)
    fed = {n: inputs[n] for n in (names[:1] if constant else names)}
    model = model_of(op_type, 17, fed, {n: inputs[n] for n in names if n not in fed}, **attributes)
    with pytest.raises(WiaError) as refusal:
        Session(model, memory_limit=1 << 28).run(None, fed)
    text = str(refusal.value)
    assert text
    assert "\n" not in text
