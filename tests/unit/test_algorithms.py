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
from wia_quant.algorithms.products import products
from wia_quant.algorithms.range_choice import range_choice
from wia_quant.algorithms.saturation import saturation
from wia_quant.algorithms.weight_rounding import weight_rounding
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


def test_branches_of_other_ranges_that_leave_a_concat_float_do_not_end_quantize_with_a_key_error() -> None:
    """The plan is made again with the concat float, and observes less than what was measured."""
    constants = conv_constants("c", (4, 3, 1, 1)) | conv_constants("d", (4, 3, 1, 1)) | {"big": np.float32(1000)}
    nodes = [
        conv("c", "x", "a"),
        conv("d", "x", "b"),
        helper.make_node("Mul", ["b", "big"], ["m"], "mul"),
        helper.make_node("Sigmoid", ["a"], ["s"], "sigmoid"),
        helper.make_node("Concat", ["s", "m", "x"], ["cat"], "cat", axis=1),
        conv("e", "cat", "y"),
    ]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants | conv_constants("e", (2, 11, 1, 1)))
    samples = feeds()
    written = quantize(proto, samples)
    reasons = {d.node: d.reason for d in written.plan.decisions if not d.quantized}
    assert "ranges differ" in reasons["cat"]
    wanted, got = run(proto, samples[0])[0], run(written.model, samples[0])[0]
    np.testing.assert_allclose(got, wanted, atol=0.02 * float(np.abs(wanted).max()))


def test_what_no_product_reads_is_clipped_half_as_much() -> None:
    """A sum's input cut to the mean of the batches lost the only line of text of a picture (PP-OCRv4 detection)."""
    nodes = [
        conv("c", "x", "a"),
        conv("e", "x", "b"),
        helper.make_node("Add", ["a", "b"], ["s"], "add"),
        conv("d", "s", "y"),
    ]
    constants = (
        conv_constants("c", (4, 3, 1, 1)) | conv_constants("e", (4, 3, 1, 1)) | conv_constants("d", (4, 4, 1, 1))
    )
    samples = feeds()
    made = draft(model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants), samples)
    made.extremes.update(made.ranges)
    made.extremes["a"], calibrated = Range(-50.0, 60.0), made.ranges["a"]
    report = range_choice(made, samples, None)
    assert made.ranges["a"] == Range((calibrated.lo - 50.0) / 2, (calibrated.hi + 60.0) / 2)
    assert (report["widened"], report["unread"]) == (0, 1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_reports_what_the_recipe_can_hold_and_changes_no_float_model(name: str) -> None:
    proto, samples = activated("HardSwish"), feeds()
    before = proto.SerializeToString(deterministic=True)
    json.dumps(ALGORITHMS[name](draft(proto, samples), samples, None))
    assert proto.SerializeToString(deterministic=True) == before


def product_model(op: str, shape: list[int], w: tuple[int, ...], attributes: dict[str, object]) -> onnx.ModelProto:
    constants = {"w": RNG.normal(size=w).astype(np.float32)}
    node = helper.make_node(op, ["x", "w"], ["y"], "p", **attributes)
    return model([node], {"x": shape}, ["y"], constants)


@pytest.mark.parametrize(
    ("op", "shape", "w", "attributes"),
    [
        ("Conv", [2, 4, 9, 7], (6, 4, 3, 3), {"strides": [2, 1], "pads": [1, 0, 1, 2]}),
        ("Conv", [1, 4, 9, 7], (8, 1, 3, 2), {"group": 4, "dilations": [2, 1]}),
        ("Conv", [1, 4, 9, 7], (6, 2, 3, 3), {"group": 2, "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("Conv", [1, 4, 10, 7], (6, 4, 2, 2), {"strides": [3, 1], "auto_pad": "SAME_LOWER"}),
        ("Conv", [3, 4, 20], (6, 4, 5), {"auto_pad": "VALID"}),
        ("Gemm", [5, 8], (3, 8), {"transB": 1}),
        ("Gemm", [5, 8], (8, 3), {}),
        ("MatMul", [2, 5, 8], (8, 3), {}),
    ],
)
def test_rows_times_the_matrix_are_what_the_operator_computes(
    op: str, shape: list[int], w: tuple[int, ...], attributes: dict[str, object]
) -> None:
    proto = product_model(op, shape, w, attributes)
    x = RNG.normal(size=shape).astype(np.float32)
    (product,) = products(draft(proto, [{"x": x}]))
    stored = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    matrices = product.matrices(stored)
    np.testing.assert_array_equal(product.stored(matrices), stored)
    y = np.matmul(product.rows(x, 10**6, seed=0), matrices.transpose(0, 2, 1))  # [groups, places, outputs]
    expected = run(proto, {"x": x})[0]
    if op == "Conv":
        expected = np.moveaxis(expected, 1, -1)
    np.testing.assert_allclose(np.concatenate(list(y), axis=-1), expected.reshape(-1, expected.shape[-1]), atol=1e-5)


@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_without_overlap_is_a_product_for_each_tap(group: int) -> None:
    proto = product_model("ConvTranspose", [2, 4, 3, 5], (4, 3, 2, 2), {"strides": [2, 2], "group": group})
    x = RNG.normal(size=(2, 4, 3, 5)).astype(np.float32)
    (product,) = products(draft(proto, [{"x": x}]))
    stored = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    matrices = product.matrices(stored)
    np.testing.assert_array_equal(product.stored(matrices), stored)
    y = np.matmul(product.rows(x, 10**6, seed=0), matrices.transpose(0, 2, 1)).transpose(1, 0, 2)
    y = y.reshape(2, 3, 5, 3 * group, 2, 2).transpose(0, 3, 1, 4, 2, 5).reshape(2, 3 * group, 6, 10)
    np.testing.assert_allclose(y, run(proto, {"x": x})[0], atol=1e-5)


def test_no_more_rows_are_drawn_than_asked_for() -> None:
    proto = product_model("Conv", [1, 4, 9, 7], (6, 4, 3, 3), {})
    x = RNG.normal(size=(1, 4, 9, 7)).astype(np.float32)
    (product,) = products(draft(proto, [{"x": x}]))
    assert product.rows(x, 12, seed=3).shape == (1, 12, 36)
    np.testing.assert_array_equal(product.rows(x, 12, seed=3), product.rows(x, 12, seed=3))


def correlated(n: int, width: int) -> list[dict[str, Array]]:
    """Rows whose values share a few causes."""
    causes = RNG.normal(size=(width // 8, width))
    return [{"x": (RNG.normal(size=(64, width // 8)) @ causes).astype(np.float32)} for _ in range(n)]


def error_of_result(made: Draft, samples: list[dict[str, Array]]) -> float:
    grids = made.grids()
    (product,) = products(made)
    w = made.model.floats(product.use.tensor)
    x = np.concatenate([s["x"] for s in samples])
    error = x @ (w - grids.rounded_weight(w, product.use))
    return float(((error - error.mean(0)) ** 2).mean())


@pytest.mark.parametrize("scheme", ["w8a8", "w4"])
def test_rounding_one_after_the_other_halves_the_error_on_correlated_inputs_not_seen_before(scheme: str) -> None:
    proto = product_model("MatMul", [64, 64], (64, 16), {})
    samples = correlated(24, 64)
    prepared = prepare(proto, opset=21)
    made = Draft(prepared.model, decide(prepared.model, scheme), measured(proto, samples))
    nearest = error_of_result(made, samples[16:])
    assert weight_rounding(made, samples[:16], None) == {"products": 1, "too_wide": 0}
    assert error_of_result(made, samples[16:]) < nearest / 2


def test_a_handful_of_rows_leaves_weights_at_their_nearest_levels() -> None:
    proto = product_model("MatMul", [1, 256], (256, 8), {})
    samples = [{"x": RNG.normal(size=(1, 256)).astype(np.float32)} for _ in range(2)]
    made = draft(proto, samples)
    (product,) = products(made)
    w = made.model.floats(product.use.tensor)
    nearest = made.grids().levels(w, product.use)
    weight_rounding(made, samples, None)
    assert np.mean(made.grids().levels(w, product.use) != nearest) < 0.05


def test_levels_chosen_for_another_scale_are_not_used() -> None:
    proto = product_model("MatMul", [64, 64], (64, 16), {})
    samples = correlated(4, 64)
    made = draft(proto, samples)
    weight_rounding(made, samples, None)
    (key,) = made.rounded
    assert key in made.grids().rounded
    made.weights[key] = made.rounded[key].scale * np.float32(1.5)
    assert key not in made.grids().rounded


def test_inputs_that_never_change_do_not_stop_the_rounding() -> None:
    proto = product_model("Conv", [1, 3, 8, 8], (4, 3, 3, 3), {})
    samples = [{"x": np.zeros((1, 3, 8, 8), np.float32)}]
    made = draft(proto, feeds(2))
    assert weight_rounding(made, samples, None)["products"] == 1
    assert all(np.isfinite(r.levels).all() for r in made.rounded.values())
