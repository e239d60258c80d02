# SPDX-License-Identifier: Apache-2.0
"""Scheme fp16: what computes in float16, what does not and why, and that the file runs in both executors."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.quantizing import Array, conv, conv_constants, model, run
from wia_quant.errors import PolicyError
from wia_quant.policy import plan
from wia_quant.quantizer import QuantizedModel, quantize
from wia_quant.runtime import Session

RNG = np.random.default_rng(3)


def net() -> onnx.ModelProto:
    """Two convolutions, a Softmax between, and an inner value that is a graph output too."""
    constants = conv_constants("c", (4, 3, 3, 3)) | conv_constants("d", (4, 4, 1, 1))
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Softmax", ["r"], ["s"], "softmax", axis=1),
        conv("d", "s", "t"),
        helper.make_node("Add", ["t", "r"], ["y"], "add"),
    ]
    return model(nodes, {"x": [1, 3, 8, 8]}, ["y", "r"], constants)


def feeds(size: float = 1.0, n: int = 3) -> list[dict[str, Array]]:
    return [{"x": RNG.uniform(-size, size, (1, 3, 8, 8)).astype(np.float32)} for _ in range(n)]


def reasons(quantized: QuantizedModel) -> dict[str, str]:
    return {d.node: d.reason for d in quantized.plan.decisions if not d.quantized}


def types(proto: onnx.ModelProto) -> dict[str, int]:
    found = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    return {v.name: v.type.tensor_type.elem_type for v in [*found.graph.value_info, *found.graph.output]}


def test_the_file_computes_in_float16_between_float32_inputs_and_outputs() -> None:
    proto, samples = net(), feeds()
    made = quantize(proto, samples, scheme="fp16")
    assert [d.node for d in made.plan.decisions if d.quantized] == ["c", "relu", "d", "add"]
    assert "exponential" in reasons(made)["softmax"]
    written = made.model
    assert all(t.data_type == TensorProto.FLOAT16 for t in written.graph.initializer)
    assert {v.type.tensor_type.elem_type for v in [*written.graph.input, *written.graph.output]} == {TensorProto.FLOAT}
    made_by = {n.op_type: types(written)[n.output[0]] for n in written.graph.node if n.op_type != "Cast"}
    assert made_by.pop("Softmax") == TensorProto.FLOAT
    assert set(made_by.values()) == {TensorProto.FLOAT16}
    wanted = run(proto, samples[0])
    for got in (run(written, samples[0]), Session(written.SerializeToString()).run(None, samples[0])):
        for a, b in zip(wanted, got, strict=True):
            assert b.dtype == np.float32
            np.testing.assert_allclose(b, a, rtol=4e-3, atol=4e-3)


def test_the_scheme_and_the_reasons_are_recorded() -> None:
    made = quantize(net(), feeds(), scheme="fp16")
    recorded = {p.key: p.value for p in made.model.metadata_props}
    assert recorded["wia.format"] == "1"
    recipe = json.loads(recorded["wia.recipe"])
    assert recipe["scheme"] == "fp16"
    assert sum(recipe["float"].values()) == 1
    assert "float16" in made.plan.text()


def test_a_value_beyond_float16_keeps_what_makes_and_reads_it_in_float32_and_is_named() -> None:
    proto, samples = net(), feeds(size=1e6)
    made = quantize(proto, samples, scheme="fp16")
    why = reasons(made)
    for node in ("c", "relu", "add"):
        assert "beyond float16's largest, 65504" in why[node]
    assert "'x' reaches" in why["c"]
    assert "d" not in why
    for a, b in zip(run(proto, samples[0]), run(made.model, samples[0]), strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(b, a, rtol=4e-3, atol=4e-3)


def test_a_constant_beyond_float16_is_named_before_anything_runs() -> None:
    proto = net()
    weight = next(t for t in proto.graph.initializer if t.name == "d.w")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1e6), "d.w"))
    found = {d.node: d.reason for d in plan(proto, "fp16").decisions}
    assert found["d"].startswith("its constant 'd.w' reaches ")


def test_an_excluded_node_stays_float32_and_a_model_of_nothing_else_is_refused() -> None:
    made = quantize(net(), feeds(), scheme="fp16", exclude=["c"])
    assert reasons(made)["c"] == "excluded by 'c'"
    softmax = model([helper.make_node("Softmax", ["x"], ["y"], "s")], {"x": [1, 4]}, ["y"], {})
    with pytest.raises(PolicyError, match="nothing to make float16"):
        plan(softmax, "fp16")


def test_an_embedding_is_stored_in_float16() -> None:
    table = RNG.normal(size=(64, 32)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], "cast", to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "i"], ["y"], "gather"),
    ]
    proto = model(nodes, {"x": [1, 5]}, ["y"], {"table": table})
    samples = [{"x": np.array([[0, 5, 63, 7, 7]], np.float32)}]
    made = quantize(proto, samples, scheme="fp16")
    assert [t.data_type for t in made.model.graph.initializer if t.name.startswith("table")] == [TensorProto.FLOAT16]
    np.testing.assert_allclose(run(made.model, samples[0])[0], run(proto, samples[0])[0], rtol=1e-3)
