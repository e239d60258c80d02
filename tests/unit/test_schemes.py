# SPDX-License-Identifier: Apache-2.0
"""The schemes beside w8a8: 16-bit activations, weights alone in 8 and 4 bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.quantizing import Array, conv, conv_constants, initializers, model, quantized, run
from wia_quant.affine import INT4_NARROW
from wia_quant.quantizer import quantize
from wia_quant.weights import block_scales, quantize_blocks

RNG = np.random.default_rng(4)


def mlp(k: int = 100) -> onnx.ModelProto:
    """Three matrix products of which no dimension is a multiple of 32."""
    constants = {
        "w": (RNG.standard_normal((k, 70)) / 10).astype(np.float32),
        "b": RNG.standard_normal(70).astype(np.float32),
        "v": (RNG.standard_normal((50, 70)) / 8).astype(np.float32),
        "u": (RNG.standard_normal((50, 5)) / 8).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "m"),
        helper.make_node("Add", ["m", "b"], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["r"], "r"),
        helper.make_node("Gemm", ["r", "v"], ["g"], "g", transB=1),
        helper.make_node("Relu", ["g"], ["h"], "h"),
        helper.make_node("MatMul", ["h", "u"], ["y"], "u"),
    ]
    return model(nodes, {"x": [3, k]}, ["y"], constants)


def feeds(k: int = 100) -> list[dict[str, Array]]:
    return [{"x": RNG.uniform(-1, 1, (3, k)).astype(np.float32)}]


def signal_to_noise(proto: onnx.ModelProto, other: onnx.ModelProto, sample: dict[str, Array]) -> float:
    a, b = run(proto, sample)[0], run(other, sample)[0]
    return float(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))


@pytest.mark.parametrize(("scheme", "least_db"), [("w8a8", 28), ("w8a16", 38), ("w8", 38), ("w4", 18)])
def test_each_scheme_is_as_close_to_float_as_its_bits(scheme: str, least_db: float) -> None:
    proto, samples = mlp(), feeds()
    assert signal_to_noise(proto, quantized(proto, samples, scheme=scheme).model, samples[0]) > least_db


@pytest.mark.parametrize("scheme", ["w8a16", "w8", "w4"])
def test_two_executors_agree(scheme: str) -> None:
    proto, samples = mlp(), feeds()
    written = quantized(proto, samples, scheme=scheme).model
    if written.opset_import[0].version < 19:  # onnx.reference has no DequantizeLinear before; it means the same
        written.opset_import[0].version = 19
    reference = ReferenceEvaluator(written).run(None, samples[0])[0]
    np.testing.assert_allclose(run(written, samples[0])[0], reference, rtol=1e-3, atol=1e-3)


def test_weights_alone_leave_the_activations_float_and_the_opset_low() -> None:
    written = quantized(mlp(), feeds(), scheme="w8").model
    assert not [n for n in written.graph.node if n.op_type == "QuantizeLinear"]
    assert written.opset_import[0].version == 17


@pytest.mark.parametrize("scheme", ["w8a16", "w4"])
def test_what_needs_opset_21_raises_to_it(scheme: str) -> None:
    written = quantized(mlp(), feeds(), scheme=scheme).model
    assert (written.opset_import[0].version, written.ir_version) == (21, 10)


def test_four_bit_weights_take_an_eighth_of_the_room() -> None:
    k = 2000
    proto = mlp(k)
    weights = {t.name: t for t in quantized(proto, feeds(k), scheme="w4").model.graph.initializer}
    assert weights["w/quantized"].data_type == TensorProto.INT4
    assert len(weights["w/quantized"].raw_data) == k * 70 // 2
    assert initializers(quantized(proto, feeds(k), scheme="w4").model)["w/scale"].shape == (63, 70)


def test_the_tail_block_is_exact() -> None:
    """100 weights in blocks of 32: the last 4 have a scale of their own and no part of their neighbours'."""
    w = np.zeros((100, 3), np.float32)
    w[:96], w[96:] = RNG.standard_normal((96, 3)) * 100, RNG.standard_normal((4, 3))
    scale = block_scales(w, 0, 32, INT4_NARROW)
    levels = quantize_blocks(w, scale, 0, 32, INT4_NARROW)
    assert scale.shape == (4, 3)
    assert np.abs(levels[96:] * scale[3] - w[96:]).max() <= 0.26 * np.abs(w[96:]).max()


@pytest.mark.parametrize("scheme", ["w8a8", "w8a16", "w8", "w4"])
def test_the_default_algorithms_do_not_hurt(scheme: str) -> None:
    proto, samples = mlp(), [feeds()[0] for _ in range(8)]
    plain = np.mean([signal_to_noise(proto, quantized(proto, samples, scheme=scheme).model, s) for s in samples])
    whole = quantize(proto, samples, scheme=scheme).model
    assert np.mean([signal_to_noise(proto, whole, s) for s in samples]) > plain - 0.5


def test_convolutions_stay_at_eight_bits_under_w4() -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 4, 4]}, ["y"], conv_constants("c", (4, 3, 3, 3)))
    written = quantized(proto, [{"x": np.ones((1, 3, 4, 4), np.float32)}], scheme="w4")
    assert initializers(written.model)["c.w/quantized"].dtype == np.int8
