# SPDX-License-Identifier: Apache-2.0
"""Quantized files as other tools write them run on the same integer operators."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests import oracle
from tests.oracle import Grid, Ints
from tests.qdq_models import Builder
from wia_quant.runtime import Session

X, Y = Grid(0.0517, 117), Grid(0.1103, 101)


def fused(model: onnx.ModelProto) -> Counter[str]:
    nodes = Session(model.SerializeToString()).describe()["nodes"]
    return Counter(n["op_type"] for n in nodes if n["kind"] != "folded")


def run(model: onnx.ModelProto, feeds: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return Session(model.SerializeToString()).run(None, feeds)[0]


def conv_levels(b: Builder, w: npt.NDArray[np.int8], scales: npt.NDArray[Any], bias: Ints) -> Ints:
    q = oracle.quantize(next(iter(b.feeds.values())), X) - X.zero_point
    acc = oracle.conv(q, w.astype(np.int64), (1, 1), (1, 1, 1, 1), (1, 1), 1) + bias.reshape(1, -1, 1, 1)
    m = oracle.multiplier(float(X.step) * scales.astype(np.float64), Y.scale).reshape(1, -1, 1, 1)
    return oracle.requantize(acc, m, Y)


def test_qlinear_conv_is_the_integer_conv() -> None:
    b = Builder()
    q = b.quantize(b.input((1, 4, 6, 6), 4.0), X)
    w = b.rng.integers(-127, 128, (5, 4, 3, 3)).astype(np.int8)
    scales, bias = b.rng.uniform(0.002, 0.02, 5).astype(np.float32), b.rng.integers(-999, 999, 5)
    y = b.node("QLinearConv", [
        q, b.constant(X.scale), b.constant(X.zero_point, "uint8"), b.constant(w, np.int8), b.constant(scales),
        b.constant(np.zeros(5), np.int8), b.constant(Y.scale), b.constant(Y.zero_point, "uint8"),
        b.constant(bias, np.int32),
    ], pads=[1, 1, 1, 1])  # fmt: skip
    b.output(y, TensorProto.UINT8)
    assert np.array_equal(run(b.model(), b.feeds), conv_levels(b, w, scales, bias))
    assert fused(b.model()) == {"Quantize": 1, "QConv": 1, "Transpose": 2}


def test_qlinear_matmul_is_the_integer_gemm() -> None:
    b = Builder()
    q = b.quantize(b.input((3, 20), 4.0), X)
    w = b.rng.integers(-127, 128, (20, 7)).astype(np.int8)
    y = b.node("QLinearMatMul", [
        q, b.constant(X.scale), b.constant(X.zero_point, "uint8"), b.constant(w, np.int8), b.constant(0.01),
        b.constant(0, np.int8), b.constant(Y.scale), b.constant(Y.zero_point, "uint8"),
    ])  # fmt: skip
    b.output(y, TensorProto.UINT8)
    acc = (oracle.quantize(next(iter(b.feeds.values())), X) - X.zero_point) @ w.astype(np.int64)
    m = oracle.multiplier(float(X.step) * float(np.float32(0.01)), Y.scale)
    assert np.array_equal(run(b.model(), b.feeds), oracle.requantize(acc, m, Y))
    assert fused(b.model()) == {"Quantize": 1, "QGemm": 1}


def test_quantize_nodes_of_com_microsoft_are_those_of_onnx() -> None:
    b = Builder()
    x, parameters = b.input((3, 20), 4.0), [b.constant(X.scale), b.constant(X.zero_point, "uint8")]
    q = b.node("QuantizeLinear", [x, *parameters], domain="com.microsoft")
    d = b.node("DequantizeLinear", [q, *parameters], domain="com.microsoft")
    w = b.rng.integers(-127, 128, (20, 7)).astype(np.int8)
    y = b.node("MatMul", [d, b.weights(w, 0.01)])
    b.output(b.fake(y, Y))
    model = b.model()
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, 1, [3, 7]))
    assert fused(model) == {"Quantize": 1, "QGemm": 1, "Dequantize": 1}
    assert run(model, b.feeds).shape == (3, 7)


def test_float_weights_behind_q_and_dq_are_quantized_at_load() -> None:
    """torch and NNCF may leave the float weights in the file, before a Q."""
    b = Builder()
    x = b.activation((1, 4, 6, 6), X)
    w = b.rng.standard_normal((5, 4, 3, 3)).astype(np.float32)
    scales = (np.abs(w).max(axis=(1, 2, 3)) / 127).astype(np.float32)
    parameters = [b.constant(scales), b.constant(np.zeros(5), np.int8)]
    q = b.node("QuantizeLinear", [b.constant(w), *parameters], axis=0)
    y = b.node("Conv", [x, b.node("DequantizeLinear", [q, *parameters], axis=0)], pads=[1, 1, 1, 1])
    b.output(b.quantize(y, Y), TensorProto.UINT8)
    levels = np.clip(np.rint(w / scales.reshape(-1, 1, 1, 1)), -128, 127).astype(np.int8)
    assert np.array_equal(run(b.model(), b.feeds), conv_levels(b, levels, scales, np.zeros(5, np.int64)))
    assert fused(b.model()) == {"Quantize": 1, "QConv": 1, "Transpose": 2}


@pytest.mark.parametrize("batch", [1, 3])
def test_an_open_batch_is_fused_the_same(batch: int) -> None:
    b = Builder()
    x = b.activation((batch, 4, 6, 6), X, dims=("N", 4, "H", "W"))
    w = b.rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8)
    c = b.fake(b.node("Conv", [x, b.weights(w, 0.01)], pads=[1, 1, 1, 1]), X)
    c = b.fake(b.node("Relu", [b.node("Add", [x, c])]), X)
    c = b.fake(b.node("GlobalAveragePool", [c]), X)
    b.output(b.quantize(b.node("Flatten", [c]), X), TensorProto.UINT8)
    model = b.model()
    assert run(model, b.feeds).shape == (batch, 4)
    plain = Session(model.SerializeToString(), optimize=False).run(None, b.feeds)[0]
    assert np.abs(run(model, b.feeds).astype(int) - plain).max() <= 1
    session = Session(model.SerializeToString())
    session.run(None, b.feeds)
    ops = Counter(n["op_type"] for n in session.describe()["nodes"] if n["kind"] != "folded")
    assert ops - Counter({"Reshape": 2, "Flatten": 1, "Identity": 1}) == {
        "Quantize": 1,
        "QConv": 1,
        "QMean": 1,
        "Transpose": 1,
    }


def test_a_shape_read_off_a_quantized_tensor_keeps_no_floats() -> None:
    """Dynamic exports compute their Reshape targets from Shape of activations."""
    b = Builder()
    x = b.activation((2, 4, 6), X, dims=("N", 4, 6))
    w = b.rng.integers(-127, 128, (6, 4)).astype(np.int8)
    y = b.node("MatMul", [x, b.weights(w, 0.01)])
    q = b.fake(y, Y)
    first = b.node("Gather", [b.node("Shape", [y]), b.constant(0, np.int64)])
    target = b.node(
        "Concat", [b.node("Unsqueeze", [first, b.constant([0], np.int64)]), b.constant([-1], np.int64)], axis=0
    )
    b.output(b.quantize(b.node("Reshape", [q, target]), Y), TensorProto.UINT8)
    model = b.model()
    acc = (oracle.quantize(next(iter(b.feeds.values())), X) - X.zero_point) @ w.astype(np.int64)
    m = oracle.multiplier(float(X.step) * float(np.float32(0.01)), Y.scale)
    assert np.array_equal(run(model, b.feeds), oracle.requantize(acc, m, Y).reshape(2, -1))
    session = Session(model.SerializeToString())
    assert "Dequantize" not in {n["op_type"] for n in session.describe()["nodes"]}


def test_a_weight_shared_by_two_products_serves_both() -> None:
    b = Builder()
    x = b.activation((3, 8), X)
    weights = b.weights(b.rng.integers(-127, 128, (8, 8)).astype(np.int8), 0.01)
    y = b.fake(b.node("MatMul", [x, weights]), X)
    b.output(b.quantize(b.node("MatMul", [y, weights]), X), TensorProto.UINT8)
    plain = Session(b.model().SerializeToString(), optimize=False).run(None, b.feeds)[0]
    assert np.abs(run(b.model(), b.feeds).astype(int) - plain).max() <= 1
    assert fused(b.model()) == {"Quantize": 1, "QGemm": 2}


def test_sixteen_bit_activations_stay_float() -> None:
    """Only 8-bit grids have integer operators; another type runs as it stands."""
    b = Builder(opset=21)
    zero_point = b.constant(0, np.int16)
    q = b.node("QuantizeLinear", [b.input((3, 8)), b.constant(0.001), zero_point])
    d = b.node("DequantizeLinear", [q, b.constant(0.001), zero_point])
    y = b.output(b.node("MatMul", [d, b.weights(b.rng.integers(-127, 128, (8, 4)).astype(np.int8), 0.01)]))
    model = b.model()
    assert y
    assert fused(model)["MatMul"] == 1
    plain = Session(model.SerializeToString(), optimize=False).run(None, b.feeds)[0]
    np.testing.assert_allclose(run(model, b.feeds), plain, rtol=1e-6, atol=1e-6)
