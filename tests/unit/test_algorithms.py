# SPDX-License-Identifier: Apache-2.0
"""Accuracy algorithms: each does what it says, on a case small enough to see it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.quantizing import Array, conv, conv_constants, measured, model, run
from wia_quant.affine import Range
from wia_quant.algorithms import ALGORITHMS, Draft
from wia_quant.algorithms.bias_correction import bias_correction
from wia_quant.algorithms.range_choice import range_choice
from wia_quant.algorithms.saturation import saturation
from wia_quant.policy import decide
from wia_quant.prepare import prepare
from wia_quant.quantizer import quantize

RNG = np.random.default_rng(8)


def feeds(n: int = 6) -> list[dict[str, Array]]:
    return [{"x": RNG.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(n)]


def draft(proto: onnx.ModelProto, samples: list[dict[str, Array]]) -> Draft:
    prepared = prepare(proto, opset=13)
    return Draft(prepared.model, decide(prepared.model), measured(proto, samples))


def activated(op: str) -> onnx.ModelProto:
    constants = conv_constants("c", (4, 3, 1, 1)) | conv_constants("d", (4, 4, 1, 1))
    constants["c.w"] *= 20
    nodes = [conv("c", "x", "a"), helper.make_node(op, ["a"], ["b"], "act"), conv("d", "b", "y")]
    return model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants, opset=20, ir_version=9)


@pytest.mark.parametrize(
    ("op", "lo", "hi"),
    [("HardSwish", -3.1, None), ("Elu", -6.0, None), ("HardSigmoid", -3.1, 3.1), ("Tanh", -5.0, 5.0)],
)
def test_the_input_of_a_table_ends_where_the_function_is_flat(op: str, lo: float | None, hi: float | None) -> None:
    made = draft(activated(op), feeds())
    before = made.ranges["a"]
    saturation(made, [], None)
    after = made.ranges["a"]
    assert before.lo <= after.lo <= 0 <= after.hi <= before.hi
    assert lo is None or after.lo >= lo
    assert after.hi <= hi if hi is not None else after.hi == before.hi


def test_a_range_that_others_read_too_is_not_cut_back() -> None:
    constants = (
        conv_constants("c", (4, 3, 1, 1)) | conv_constants("d", (4, 4, 1, 1)) | conv_constants("e", (4, 4, 1, 1))
    )
    constants["c.w"] *= 20
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("HardSwish", ["a"], ["b"], "act"),
        conv("d", "b", "u"),
        conv("e", "a", "v"),
        helper.make_node("Add", ["u", "v"], ["y"], "add"),
    ]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants)
    made = draft(proto, feeds())
    before = dict(made.ranges)
    saturation(made, [], None)
    assert made.ranges == before


def test_bias_correction_takes_back_the_shift_of_the_means() -> None:
    """Weights that all round upwards shift every channel; corrected, the means agree."""
    constants = conv_constants("c", (4, 3, 1, 1))
    constants["c.w"] = np.full((4, 3, 1, 1), 0.3, np.float32)
    constants["c.w"][:, 0] = 31.0  # step 0.244: 0.3 is stored as 0.244
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 8, 8]}, ["y"], constants)
    samples = [{"x": RNG.uniform(0, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]
    floats = np.mean([run(proto, s)[0].mean(axis=(0, 2, 3)) for s in samples], axis=0)
    made = draft(proto, samples)
    report = bias_correction(made, samples, None)
    assert report["products"] == 1
    corrected = quantize(proto, samples, calibrator="minmax").model
    integers = np.mean([run(corrected, s)[0].mean(axis=(0, 2, 3)) for s in samples], axis=0)
    np.testing.assert_allclose(integers, floats, atol=1e-3)


def test_bias_correction_gives_a_bias_to_a_conv_without_one() -> None:
    constants = {"c.w": conv_constants("c", (4, 3, 1, 1))["c.w"]}
    proto = model([helper.make_node("Conv", ["x", "c.w"], ["y"], "c")], {"x": [1, 3, 8, 8]}, ["y"], constants)
    written = quantize(proto, feeds()).model
    assert any(t.data_type == onnx.TensorProto.INT32 for t in written.graph.initializer)


def test_a_clipped_range_is_widened_where_the_products_need_it() -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 8, 8]}, ["y"], conv_constants("c", (4, 3, 1, 1)))
    samples = feeds()
    made = draft(proto, samples)
    made.extremes["x"] = made.ranges["x"]
    made.ranges["x"] = Range(-0.4, 0.4)
    assert range_choice(made, samples, None)["widened"] == 1
    assert made.ranges["x"] == made.extremes["x"]


def test_a_range_that_clips_a_worthless_outlier_stays() -> None:
    proto = model([conv("c", "x", "y")], {"x": [1, 3, 8, 8]}, ["y"], conv_constants("c", (4, 3, 1, 1)))
    samples = feeds()
    made = draft(proto, samples)
    made.extremes["x"] = Range(-500.0, 500.0)
    assert range_choice(made, samples, None)["widened"] == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_reports_what_the_recipe_can_hold_and_changes_no_float_model(name: str) -> None:
    proto, samples = activated("HardSwish"), feeds()
    before = proto.SerializeToString(deterministic=True)
    json.dumps(ALGORITHMS[name](draft(proto, samples), samples, None))
    assert proto.SerializeToString(deterministic=True) == before
