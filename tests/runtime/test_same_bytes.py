# SPDX-License-Identifier: Apache-2.0
"""Float operators give the same bytes on every instruction set and number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from wia_quant._native import usable_isas
from wia_quant.runtime import Session

Array = npt.NDArray[Any]
RNG = np.random.default_rng(11)
OPSET = 20


def floats(*shape: int) -> Array:
    return (RNG.standard_normal(shape) * 2).astype(np.float32)


def model_of(op_type: str, inputs: Mapping[str, Array], constants: Mapping[str, Array], **attributes: Any) -> bytes:
    node = helper.make_node(op_type, [*inputs, *constants], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9).SerializeToString()


IMAGE = {"x": floats(2, 16, 37, 29)}
FAMILIES: list[tuple[str, dict[str, Array], dict[str, Array], dict[str, Any]]] = [
    ("Conv", IMAGE, {"w": floats(33, 16, 3, 3), "b": floats(33)}, {"pads": [1, 1, 1, 1]}),
    ("Conv", IMAGE, {"w": floats(40, 16, 1, 1)}, {}),
    ("Conv", IMAGE, {"w": floats(24, 8, 3, 5), "b": floats(24)}, {"group": 2, "strides": [2, 2], "pads": [0, 1, 2, 3]}),
    ("Conv", IMAGE, {"w": floats(16, 16, 3, 3)}, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ("Conv", IMAGE, {"w": floats(16, 1, 3, 3), "b": floats(16)}, {"group": 16, "pads": [1, 1, 1, 1]}),
    ("Conv", IMAGE, {"w": floats(32, 1, 5, 5), "b": floats(32)}, {"group": 16, "strides": [2, 2], "pads": [2] * 4}),
    ("Conv", IMAGE, {"w": floats(16, 1, 7, 3)}, {"group": 16, "dilations": [2, 1]}),
    ("Conv", {"x": floats(1, 7, 301)}, {"w": floats(19, 7, 9), "b": floats(19)}, {"strides": [3]}),
    ("Conv", {"x": floats(1, 3, 9, 10, 11)}, {"w": floats(5, 3, 3, 3, 3)}, {"pads": [1, 0, 1, 0, 1, 0]}),
    ("ConvTranspose", IMAGE, {"w": floats(16, 9, 3, 3), "b": floats(9)}, {"strides": [2, 2], "output_padding": [1, 1]}),
    ("MatMul", {"a": floats(3, 67, 300)}, {"b": floats(300, 131)}, {}),
    ("MatMul", {"a": floats(4, 3, 33, 64), "b": floats(4, 3, 64, 45)}, {}, {}),
    ("Gemm", {"a": floats(65, 129)}, {"b": floats(77, 129), "c": floats(77)}, {"transB": 1}),
    ("Softmax", {"x": floats(37, 1001)}, {}, {}),
    ("Softmax", {"x": floats(5, 37, 11)}, {}, {"axis": 1}),
    ("LogSoftmax", {"x": floats(37, 1001)}, {}, {}),
    ("LayerNormalization", {"x": floats(37, 385)}, {"s": floats(385), "b": floats(385)}, {}),
    ("InstanceNormalization", IMAGE, {"s": floats(16), "b": floats(16)}, {}),
    ("BatchNormalization", IMAGE, {"s": floats(16), "b": floats(16), "m": floats(16), "v": np.abs(floats(16))}, {}),
    ("ReduceMean", IMAGE, {"a": np.array([2, 3])}, {}),
    ("ReduceSum", IMAGE, {"a": np.array([1])}, {}),
    ("ReduceL2", IMAGE, {"a": np.array([3])}, {}),
    ("GlobalAveragePool", IMAGE, {}, {}),
    ("AveragePool", IMAGE, {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", IMAGE, {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("Resize", IMAGE, {"r": floats(0), "s": np.array([1, 1, 1.7, 2.3], np.float32)}, {"mode": "linear"}),
    ("QuantizeLinear", IMAGE, {"s": np.float32(0.013), "z": np.uint8(117)}, {}),
    *[(op, IMAGE, {}, {}) for op in ("Exp", "Tanh", "Erf", "Sigmoid", "Softplus", "Gelu", "Mish", "HardSwish", "Elu")],
    *[(op, IMAGE, {"b": floats(16, 1, 1)}, {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "PRelu")],
    ("LSTM", {"x": floats(9, 3, 17)}, {"w": floats(1, 92, 17), "r": floats(1, 92, 23), "b": floats(1, 184)},
     {"hidden_size": 23}),
    ("GRU", {"x": floats(9, 3, 17)}, {"w": floats(1, 69, 17), "r": floats(1, 69, 23)}, {"hidden_size": 23}),
]  # fmt: skip


@pytest.fixture(params=range(len(FAMILIES)), ids=[f"{i}-{f[0]}" for i, f in enumerate(FAMILIES)])
def family(request: pytest.FixtureRequest) -> tuple[bytes, dict[str, Array]]:
    op_type, inputs, constants, attributes = FAMILIES[request.param]
    return model_of(op_type, inputs, constants, **attributes), inputs


def test_every_isa_and_thread_count_gives_the_reference_bytes(family: tuple[bytes, dict[str, Array]]) -> None:
    model, inputs = family
    expected = Session(model, isa="reference").run(None, inputs)[0].tobytes()
    for isa in usable_isas():
        for threads in (1, 2, 4):
            assert Session(model, isa=isa, threads=threads).run(None, inputs)[0].tobytes() == expected, (isa, threads)


def test_float_operators_agree_with_onnxruntime(family: tuple[bytes, dict[str, Array]]) -> None:
    model, inputs = family
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (expected,) = peer.run(None, inputs)
    (got,) = Session(model).run(None, inputs)
    # Chains of n float32 terms of size s differ by about sqrt(n) * s * 2^-24; the longest here has 300.
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=3e-5, atol=3e-5)


def test_float16_runs_through_float32_and_rounds_once() -> None:
    x = floats(3, 50).astype(np.float16)
    w = floats(50, 40).astype(np.float16)
    (got,) = Session(model_of("MatMul", {"x": x}, {"w": w})).run(None, {"x": x})
    wide = Session(model_of("MatMul", {"x": x.astype(np.float32)}, {"w": w.astype(np.float32)}))
    (expected,) = wide.run(None, {"x": x.astype(np.float32)})
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, expected.astype(np.float16))
