# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of both Kerases, and the files that come of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.keras.models import FRAMEWORKS, framework, in_onnxruntime, predict, randomize, residual, train
from wia_quant import Session
from wia_quant.affine import INT8, INT8_NARROW, Range, choose_qparams, choose_qparams_per_axis, fake_quantize
from wia_quant.errors import CalibrationError, ExportError, UsageError
from wia_quant.files import OutputError
from wia_quant.keras import export, freeze_batch_norm, load, observe, quantize_model, to_onnx
from wia_quant.rules import Severity, check_model

#: A value on the edge of two levels may fall to either by rounding of float sums; the outputs follow it by less than
#: this share of their span.
SPAN = 0.06


def faults(model: onnx.ModelProto) -> list[str]:
    return [str(finding) for finding in check_model(model) if finding.severity is not Severity.NOTE]


@cache
def trained(name: str) -> tuple[Any, np.ndarray]:
    """One model a framework for all tests; none of them changes it."""
    keras = framework(name)
    keras.utils.set_random_seed(0)
    model = quantize_model(residual(keras))
    return model, train(keras, model)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_was_trained_is_what_the_file_computes(name: str, tmp_path: Path) -> None:
    model, x = trained(name)
    (want,) = predict(model, [x])
    span = float(np.abs(want).max())
    path = tmp_path / "net.wia.onnx"
    exported = export(model, path, verify=x)
    assert faults(exported.model) == []
    assert set(exported.differences) == {"logits"}
    (got,) = Session(path).run(None, {"image": x})
    assert np.abs(got - want).max() <= SPAN * span
    (reference,) = in_onnxruntime(exported.model, [x])
    assert np.abs(reference - want).max() <= SPAN * span


def test_the_file_of_a_keras_3_model_has_no_output_that_differs() -> None:
    model, x = trained("keras")
    (want,) = predict(model, [x])
    (got,) = in_onnxruntime(export(model).model, [x])
    assert int((np.abs(got - want) > 1e-5 * np.abs(want).max()).sum()) == 0


def test_the_walk_of_a_tf_keras_model_computes_what_it_does() -> None:
    # In float, as it trains: a model of the same layers, which knows no file.
    model, x = trained("tf_keras")
    (want,) = predict(framework("tf_keras").Model(model.inputs, model.outputs), [x])
    (walked,) = in_onnxruntime(to_onnx(model), [x])
    assert (np.abs(walked - want) > 1e-4 * np.abs(want).max()).mean() <= 0.01


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_product_of_the_net_becomes_integers(name: str) -> None:
    model, _ = trained(name)
    plan = export(model).plan
    float_ones = [d.node for d in plan.decisions if not d.quantized and d.op_type in ("Conv", "Gemm")]
    assert float_ones == []


@pytest.mark.parametrize(
    ("name", "suffix"), [("keras", ".keras"), ("keras", ".h5"), ("tf_keras", ".keras"), ("tf_keras", ".h5"),
                         ("tf_keras", "")], ids=lambda v: v or "SavedModel",
)  # fmt: skip
def test_a_trained_model_is_saved_and_loaded(name: str, suffix: str, tmp_path: Path) -> None:
    model, x = trained(name)
    path = tmp_path / f"net{suffix}"
    model.save(path)
    again = load(path)
    np.testing.assert_array_equal(predict(again, [x])[0], predict(model, [x])[0])
    assert export(again).model.graph == export(model).model.graph


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_training_keeps_the_model_given_and_moves_the_copy(name: str) -> None:
    keras = framework(name)
    model = residual(keras)
    before = [np.array(w) for w in model.get_weights()]
    quantized = quantize_model(model)
    train(keras, quantized)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_before_training_the_quantized_model_is_near_the_float_one(name: str) -> None:
    model = randomize(residual(framework(name)))
    x = np.random.default_rng(0).uniform(0, 1, (8, 16, 16, 3)).astype(np.float32)
    (want,), (got,) = predict(model, [x]), predict(quantize_model(model), [x])
    assert np.abs(got - want).max() <= 0.1 * np.abs(want).max()  # its weights are rounded, its activations not yet


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_model_that_saw_no_data_is_an_error(name: str) -> None:
    with pytest.raises(CalibrationError, match="saw no data"):
        export(quantize_model(residual(framework(name))))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_float_model_is_no_trained_model(name: str) -> None:
    with pytest.raises(ExportError, match="quantize_model"):
        export(residual(framework(name)))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_model_is_quantized_once(name: str) -> None:
    with pytest.raises(UsageError, match="already"):
        quantize_model(quantize_model(residual(framework(name))))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_excluded_layer_stays_float(name: str) -> None:
    keras = framework(name)
    model = residual(keras)
    names = [layer.name for layer in model.layers if type(layer).__name__ == "DepthwiseConv2D"]
    quantized = quantize_model(model, exclude=names)
    train(keras, quantized)
    decisions = export(quantized).plan.decisions
    assert [d.quantized for d in decisions if d.node.partition("/")[0] == names[0]] == [False]
    with pytest.raises(UsageError, match="no such layer"):
        quantize_model(model, exclude=["missing"])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_file_is_not_overwritten_unasked(name: str, tmp_path: Path) -> None:
    model, _ = trained(name)
    path = tmp_path / "net.wia.onnx"
    export(model, path)
    with pytest.raises(OutputError, match=r"net\.wia\.onnx"):
        export(model, path)
    export(model, path, force=True)


def test_frozen_batch_norms_keep_their_statistics_and_the_file_follows() -> None:
    keras = framework("keras")
    keras.utils.set_random_seed(0)
    model = quantize_model(residual(keras))
    x = train(keras, model)
    freeze_batch_norm(model)
    before = [np.array(w) for w in model.non_trainable_weights if "moving" in w.path]
    train(keras, model)
    after = [np.array(w) for w in model.non_trainable_weights if "moving" in w.path]
    for a, b in zip(before, after, strict=False):
        np.testing.assert_array_equal(a, b)
    (want,) = predict(model, [x])
    assert int((np.abs(in_onnxruntime(export(model).model, [x])[0] - want) > 1e-5 * np.abs(want).max()).sum()) == 0


# -- the arithmetic ------------------------------------------------------------------------------------------------

RANGES = [(-1.0, 1.0), (0.0, 6.0), (-0.7, 3.1), (-2.5, 0.0), (0.0, 0.0), (-1e-38, 1e-38), (-3e8, 5e8)]


@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_the_keras_3_quantizer_is_the_equation(lo: float, hi: float) -> None:
    import keras

    from wia_quant.keras.keras3.fake_quantize import FakeQuantize, affine_grid

    lo, hi = float(np.float32(lo)), float(np.float32(hi))
    layer = FakeQuantize()
    layer.build((None, 1))
    layer.lo.assign([lo])
    layer.hi.assign([hi])
    layer.seen.assign([1.0])
    qp = choose_qparams(Range(lo, hi), INT8)
    scale, zero_point = (keras.ops.convert_to_numpy(v) for v in affine_grid(layer.lo.value[0], layer.hi.value[0]))
    assert scale == qp.scale
    assert zero_point == qp.zero_point
    steps = np.arange(-300, 300, dtype=np.float32)
    x = np.concatenate([steps * qp.scale, (steps + np.float32(0.5)) * qp.scale])  # levels and halves between them
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x)[0]), fake_quantize(x, qp))


@pytest.mark.parametrize(("lo", "hi"), RANGES[:4])
def test_the_tf_keras_quantizer_is_the_equation(lo: float, hi: float) -> None:
    tf = framework("tensorflow")
    from wia_quant.keras.tf_keras.quantizers import WiaActivationQuantizer

    lo, hi = float(np.float32(lo)), float(np.float32(hi))
    qp = choose_qparams(Range(lo, hi), INT8)
    steps = np.arange(-300, 300, dtype=np.float32)
    x = np.concatenate([steps * qp.scale, (steps + np.float32(0.5)) * qp.scale])
    ends = {"min_var": tf.Variable(lo), "max_var": tf.Variable(hi)}
    got = WiaActivationQuantizer()(tf.constant(x), False, ends).numpy()
    np.testing.assert_array_equal(got, fake_quantize(x, qp))


def test_a_weight_is_rounded_as_the_equation_says() -> None:
    tf = framework("tensorflow")
    from wia_quant.keras.tf_keras.quantizers import WiaWeightQuantizer

    w = np.random.default_rng(0).normal(size=(3, 3, 5, 7)).astype(np.float32)
    w[..., 2] = 0  # a dead channel
    qp = choose_qparams_per_axis(np.abs(w).max(axis=(0, 1, 2)), INT8_NARROW, 3)
    got = WiaWeightQuantizer((-1,))(tf.constant(w), False, {}).numpy()
    np.testing.assert_array_equal(got, fake_quantize(w, qp))


# -- ranges from samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_observed_ranges_are_the_mean_of_those_of_the_batches(name: str) -> None:
    keras = framework(name)
    inputs = keras.Input((4,), name="x")
    model = quantize_model(keras.Model(inputs, keras.layers.Dense(2)(inputs)))
    ends = [(-1.0, 2.0), (-3.0, 1.0), (-2.0, 6.0)]
    observe(model, [np.array([[lo, 0, hi, 0]], np.float32) for lo, hi in ends])
    exported = export(model).model
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in exported.graph.initializer}
    (scale,) = [scales[n.input[1]] for n in exported.graph.node if n.op_type == "QuantizeLinear"]
    assert float(scale) == pytest.approx((2 + 3) / 255, rel=1e-6)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_observing_changes_nothing_but_ranges(name: str) -> None:
    model = quantize_model(randomize(residual(framework(name))))
    before = {w.name if name == "tf_keras" else w.path: np.array(w) for w in model.weights}
    x = np.random.default_rng(0).uniform(0, 1, (8, 16, 16, 3)).astype(np.float32)
    observe(model, [x[:4], x[4:]])
    after = {w.name if name == "tf_keras" else w.path: np.array(w) for w in model.weights}
    moved = {key for key, w in after.items() if not np.array_equal(w, before[key])}
    assert moved
    assert all(key.rpartition("/")[2].split("_")[-1].removesuffix(":0") in ("lo", "hi", "seen", "min", "max")
               for key in moved)  # fmt: skip


def test_a_model_without_quantizers_or_data_has_no_ranges() -> None:
    model = residual(framework("keras"))
    with pytest.raises(UsageError, match="quantize_model"):
        observe(model, [])
    with pytest.raises(CalibrationError, match="no batches"):
        observe(quantize_model(model), [])


def test_what_a_concat_joins_is_trained_on_one_grid_that_spans_all_of_it() -> None:
    keras = framework("keras")
    a, b = keras.Input((64,), name="a"), keras.Input((64,), name="b")
    model = quantize_model(keras.Model([a, b], keras.layers.Dense(64)(keras.layers.Concatenate()([a, b]))))
    narrow, wide = np.full((3, 64), -0.5, np.float32), np.full((3, 64), 8.0, np.float32)
    observe(model, [[narrow, wide]] * 3)
    (quantizer,) = [layer for layer in model.layers if type(layer).__name__ == "FakeQuantize"]
    assert (float(np.min(quantizer.lo)), float(np.max(quantizer.hi))) == (-0.5, 8.0)
    want = predict(model, [narrow, wide])[0]
    np.testing.assert_allclose(in_onnxruntime(export(model).model, [narrow, wide])[0], want, atol=1e-5)


def test_a_nested_model_whose_name_has_a_dot_is_quantized() -> None:
    keras = framework("keras")
    inputs, inside = keras.Input((6, 6, 3), name="x"), keras.Input((6, 6, 3))
    inner = keras.Model(inside, keras.layers.Conv2D(64, 3)(inside), name="net_1.00_160")
    model = quantize_model(keras.Model(inputs, keras.layers.Flatten()(inner(inputs))))
    x = np.random.default_rng(0).normal(size=(4, 6, 6, 3)).astype(np.float32)
    observe(model, [x])
    np.testing.assert_allclose(in_onnxruntime(export(model).model, [x])[0], predict(model, [x])[0], atol=1e-4)
