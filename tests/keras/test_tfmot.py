# SPDX-License-Identifier: Apache-2.0
"""tensorflow-model-optimization: its own scheme exports, ours is used through its own functions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wia_quant.keras as wq
from tests.keras.models import framework, in_onnxruntime, predict, residual, train
from wia_quant.errors import ExportError
from wia_quant.keras import export, load, quantize_model, to_onnx


def tfmot() -> Any:
    """Imported by the tests, not while they are collected: it takes long and warns."""
    return framework("tensorflow_model_optimization").quantization.keras


@cache
def default_model() -> tuple[Any, np.ndarray]:
    tf_keras = framework("tf_keras")
    tf_keras.utils.set_random_seed(0)
    model = tfmot().quantize_model(residual(tf_keras))
    return model, train(tf_keras, model)


def test_a_model_of_the_default_scheme_exports_as_it_was_trained() -> None:
    model, x = default_model()
    (want,) = predict(model, [x])
    levels = np.unique(np.round(np.diff(np.unique(want)), 9))
    step = float(levels[levels > 0].min())  # its outputs are on a grid
    (walked,) = in_onnxruntime(to_onnx(model), [x])
    assert (np.abs(walked - want) > 0.5 * step).mean() <= 0.002
    (got,) = in_onnxruntime(export(model).model, [x])
    assert np.abs(got - want).max() <= 1.5 * step
    assert (np.abs(got - want) > 0.5 * step).mean() <= 0.05


@pytest.mark.parametrize("suffix", [".keras", ".h5", ""], ids=lambda v: v or "SavedModel")
def test_a_model_of_the_default_scheme_is_loaded(suffix: str, tmp_path: Path) -> None:
    model, x = default_model()
    path = tmp_path / f"net{suffix}"
    model.save(path)
    np.testing.assert_array_equal(predict(load(path), [x])[0], predict(model, [x])[0])


def test_annotated_layers_alone_are_quantized() -> None:
    tf_keras = framework("tf_keras")
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu", input_shape=(16, 16, 3), name="plain"),
            layers.Flatten(),
            wq.quantize_annotate_layer(layers.Dense(10, name="chosen")),
        ]
    )
    with wq.quantize_scope():
        quantized = tfmot().quantize_apply(model, wq.WiaQuantizeScheme())
    train(tf_keras, quantized)
    decisions = {d.node: d.quantized for d in export(quantized).plan.decisions if d.op_type in ("Conv", "Gemm")}
    assert [v for k, v in decisions.items() if "plain" in k] == [False]
    assert [v for k, v in decisions.items() if "chosen" in k] == [True]


def test_tflite_conversion_of_a_default_model_keeps_working() -> None:
    """The converter makes int8 of the model's own ranges, the same before and after our export."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    model, x = default_model()

    def converted() -> np.ndarray:
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        interpreter = Interpreter(model_content=converter.convert(), num_threads=1)
        (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(given["index"], x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], x)
        interpreter.invoke()
        y: np.ndarray = interpreter.get_tensor(made["index"])
        assert np.int8 in {d["dtype"] for d in interpreter.get_tensor_details()}
        return y

    before = converted()
    export(model)
    np.testing.assert_array_equal(converted(), before)
    step = np.diff(np.unique(before))
    assert np.mean(np.abs(before - predict(model, [x])[0]) > step[step > 1e-6].min() / 2) < 0.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k, x: k.layers.Conv2D(3, 1)(x) + 1.0, "Keras 3"),
        (lambda k, x: k.Sequential([k.layers.Conv2D(3, 1)], name="inner")(x), "layer 'inner' is a model"),
        (lambda k, x: k.layers.Lambda(lambda t: t * 2, name="twice")(x), "layer 'twice'"),
    ],
    ids=["a function", "a nested model", "an unknown layer"],
)
def test_what_tfmot_cannot_quantize_is_named(make: Any, message: str) -> None:
    tf_keras = framework("tf_keras")
    x = tf_keras.Input((4, 4, 3))
    model = tf_keras.Model(x, make(tf_keras, x))
    with pytest.raises(ExportError, match=message):
        quantize_model(model)
