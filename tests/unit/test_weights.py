# SPDX-License-Identifier: Apache-2.0
"""Weights and biases as integers: axes, dead channels, overflow, sharing, no float copies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.quantizing import Array, conv, conv_constants, initializers, model, quantized, run
from wia_quant.affine import INT8_NARROW
from wia_quant.rules import check_model
from wia_quant.rules.base import Severity
from wia_quant.weights import MAX_BIAS_LEVEL, quantize_bias, quantize_weight, weight_scales

RNG = np.random.default_rng(2)


def feeds(*shape: int) -> list[dict[str, Array]]:
    return [{"x": RNG.uniform(-1, 1, shape).astype(np.float32)} for _ in range(2)]


def test_each_channel_spans_the_narrow_grid() -> None:
    w = RNG.standard_normal((5, 4, 3, 3)).astype(np.float32)
    q = quantize_weight(w, weight_scales(w, 0, INT8_NARROW), 0, INT8_NARROW)
    assert np.abs(q.levels.astype(int)).reshape(5, -1).max(axis=1).tolist() == [127] * 5
    assert not q.qparams.zero_point.any()


@pytest.mark.parametrize("dead", ["one", "all"])
def test_a_dead_channel_has_a_positive_scale_and_keeps_its_bias(dead: str) -> None:
    w = RNG.standard_normal((3, 4, 1, 1)).astype(np.float32)
    w[1 if dead == "one" else slice(None)] = 0
    scale = weight_scales(w, 0, INT8_NARROW)
    assert (scale > 0).all()
    levels, steps = quantize_bias(np.array([0.3, -0.7, 0.5], np.float32), np.float32(0.01), scale)
    np.testing.assert_allclose(levels * steps, [0.3, -0.7, 0.5], atol=float(steps.max()) / 2)


def test_a_bias_that_would_overflow_raises_the_weight_scale_and_is_reported() -> None:
    constants = conv_constants("c", (4, 3, 1, 1))
    constants["c.w"][2] *= 1e-9
    constants["c.b"][2] = 50.0
    constants |= conv_constants("d", (2, 4, 1, 1))
    proto = model([conv("c", "x", "a"), conv("d", "a", "y")], {"x": [1, 3, 4, 4]}, ["y"], constants)
    samples = feeds(1, 3, 4, 4)
    written = quantized(proto, samples)
    bias = initializers(written.model)["c/bias/quantized"]
    assert np.abs(bias.astype(np.int64)).max() <= MAX_BIAS_LEVEL + 1
    assert any("channels 2 raised" in note for note in written.notes)
    floats, integers = run(proto, samples[0])[0], run(written.model, samples[0])[0]
    # Half a step of "a", which spans the bias of 50, through the L1 norm of the last weights; as much for them.
    rounding = 0.5 * 51 / 255 * np.abs(constants["d.w"]).sum(axis=1).max()
    np.testing.assert_allclose(integers, floats, atol=2 * float(rounding))


def test_a_zero_bias_gives_no_nan() -> None:
    constants = conv_constants("c", (4, 3, 1, 1))
    constants["c.b"][:] = 0
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 4, 4]}, ["y"], constants)
    assert np.isfinite(run(quantized(proto, feeds(1, 3, 4, 4)).model, feeds(1, 3, 4, 4)[0])[0]).all()


def test_a_bias_has_the_scale_of_its_products() -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 4, 4]}, ["y"], conv_constants("c", (4, 3, 1, 1)))
    found = initializers(quantized(proto, feeds(1, 3, 4, 4)).model)
    wanted = (np.float64(found["x/scale"]) * found["c.w/scale"].astype(np.float64)).astype(np.float32)
    assert np.array_equal(found["c/bias/scale"], wanted)
    assert found["c/bias/quantized"].dtype == np.int32


def test_a_bias_shared_by_two_products_is_quantized_for_each() -> None:
    constants = conv_constants("c", (4, 3, 1, 1)) | conv_constants("d", (4, 3, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x", "c.w", "c.b"], ["a"], "c"),
        helper.make_node("Conv", ["x", "d.w", "c.b"], ["b"], "d"),
        helper.make_node("Add", ["a", "b"], ["y"], "add"),
    ]
    proto = model(nodes, {"x": [1, 3, 4, 4]}, ["y"], {k: v for k, v in constants.items() if k != "d.b"})
    samples = feeds(1, 3, 4, 4)
    written = quantized(proto, samples)
    assert {"c/bias/quantized", "d/bias/quantized"} <= set(initializers(written.model))
    np.testing.assert_allclose(run(written.model, samples[0])[0], run(proto, samples[0])[0], atol=0.05)


def test_a_weight_used_twice_is_stored_once() -> None:
    constants = conv_constants("c", (3, 3, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x", "c.w", "c.b"], ["a"], "one"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "c.w", "c.b"], ["y"], "two"),
    ]
    written = quantized(model(nodes, {"x": [1, 3, 4, 4]}, ["y"], constants), feeds(1, 3, 4, 4))
    found = initializers(written.model)
    assert [name for name, a in found.items() if a.dtype == np.int8 and a.ndim == 4] == ["c.w/quantized"]


def test_an_embedding_tied_to_the_output_layer_has_one_scale() -> None:
    table = RNG.standard_normal((200, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], "embed"),
        helper.make_node("Gemm", ["e", "table"], ["y"], "head", transB=1),
    ]
    proto = model(nodes, {"x": [5]}, ["y"], {"table": table}, types={"x": onnx.TensorProto.INT64})
    found = initializers(quantized(proto, [{"x": np.arange(5)}]).model)
    assert [name for name, a in found.items() if a.dtype == np.int8 and a.ndim == 2] == ["table/quantized"]


def test_uses_along_different_axes_are_stored_twice_and_said_so() -> None:
    w = RNG.standard_normal((8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], "one"),
        helper.make_node("Gemm", ["a", "w"], ["y"], "two", transB=1),
    ]
    written = quantized(model(nodes, {"x": [5, 8]}, ["y"], {"w": w}), feeds(5, 8))
    assert any("stored 2 times" in note for note in written.notes)


def test_no_float_copy_of_a_quantized_weight_remains_in_the_file() -> None:
    constants = conv_constants("c", (64, 32, 3, 3)) | conv_constants("d", (64, 64, 3, 3))
    nodes = [conv("c", "x", "a"), helper.make_node("Relu", ["a"], ["r"], "relu"), conv("d", "r", "y")]
    proto = model(nodes, {"x": [1, 32, 8, 8]}, ["y"], constants)
    written = quantized(proto, feeds(1, 32, 8, 8))
    assert all(a.size <= 64 for a in initializers(written.model).values() if a.dtype == np.float32)
    assert written.model.ByteSize() < 0.3 * proto.ByteSize()


def test_an_excluded_user_of_a_shared_weight_reads_the_integers_too_and_it_is_said() -> None:
    constants = conv_constants("c", (3, 3, 1, 1))
    nodes = [
        helper.make_node("Conv", ["x", "c.w", "c.b"], ["a"], "one"),
        helper.make_node("Conv", ["a", "c.w", "c.b"], ["y"], "two"),
    ]
    written = quantized(model(nodes, {"x": [1, 3, 4, 4]}, ["y"], constants), feeds(1, 3, 4, 4), exclude=["two"])
    assert any("'two' stays float but reads the weight" in note for note in written.notes)
    assert "c.w" not in initializers(written.model)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_transpose_scales_its_output_channels_with_groups(groups: int) -> None:
    w = RNG.standard_normal((4, 6, 2, 2)).astype(np.float32)
    w[:, 1] *= 20  # a column that would drown the others on a shared scale
    b = RNG.standard_normal(6 * groups).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "t", group=groups, strides=[2, 2])
    proto = model([node], {"x": [1, 4, 5, 5]}, ["y"], {"w": w, "b": b})
    samples = feeds(1, 4, 5, 5)
    written = quantized(proto, samples)
    assert initializers(written.model)["w/scale"].shape == (6,)
    assert not [f for f in check_model(written.model) if f.severity is Severity.ERROR]
    error = np.abs(run(written.model, samples[0])[0] - run(proto, samples[0])[0])
    quiet = [c for c in range(6 * groups) if c % 6 != 1]
    assert error[:, quiet].max() < 0.1
