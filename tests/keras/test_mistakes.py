# SPDX-License-Identifier: Apache-2.0
"""What went wrong once with models of either Keras, each by what went wrong."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.models import FRAMEWORKS, framework, in_onnxruntime, predict, randomize
from wia_quant.errors import ExportError
from wia_quant.keras import export, load, observe, quantize_model


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(8, *shape)).astype(np.float32)


def differing(model: Any, x: np.ndarray) -> int:
    """How many outputs of the file differ from the trained model's by more than float rounding."""
    (want,) = predict(model, [x])
    (got,) = in_onnxruntime(export(model).model, [x])
    return int((np.abs(got - want) > 1e-5 * np.abs(want).max()).sum())


def observed(model: Any, x: np.ndarray) -> Any:
    """Ready for training, with ranges."""
    quantized = quantize_model(randomize(model))
    observe(quantized, [x])
    return quantized


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_outputs_in_a_dict_are_compared_with_their_own(name: str, kind: Any) -> None:
    keras = framework(name)
    inputs = keras.Input((9, 9, 3), name="x")
    hidden = keras.layers.Conv2D(64, 3)(inputs)
    named = kind(b=keras.layers.Conv2D(64, 1)(hidden), a=keras.layers.Conv2D(64, 2)(hidden))
    model, x = keras.Model(inputs, named), noise(9, 9, 3)
    exported = export(observed(model, x), verify=x)
    assert all(largest < 0.02 for largest, _ in exported.differences.values())


def test_a_weight_of_a_layer_that_is_opened_is_rounded_in_training_as_in_the_file() -> None:
    keras = framework("keras")

    class Scaled(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(shape[-1],), name="w")

        def call(self, x: Any) -> Any:
            return x * self.w * 3.3

    inputs, x = keras.Input((9, 9, 3)), noise(9, 9, 3)
    hidden = Scaled()(keras.layers.Conv2D(64, 3)(inputs))
    assert differing(observed(keras.Model(inputs, keras.layers.Conv2D(64, 1)(hidden)), x), x) == 0


def test_a_subclass_that_calls_its_layer_is_trained() -> None:
    # Keras runs activations as operations of the names of layers, which have no weights.
    keras = framework("keras")

    class Negated(keras.layers.ReLU):
        def call(self, x: Any) -> Any:
            return -super().call(x)

    inputs, x = keras.Input((64,)), noise(64)
    hidden = Negated()(keras.layers.Dense(64)(inputs))
    assert differing(observed(keras.Model(inputs, keras.layers.Dense(64)(hidden)), x), x) == 0


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_concat_with_an_input_of_the_model_is_exported_as_it_was_trained(name: str) -> None:
    keras = framework(name)
    layers = keras.layers
    inputs, x = keras.Input((9, 9, 3)), 4 * noise(9, 9, 3)
    convolved = layers.ReLU()(layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs))
    joined = layers.Concatenate()([convolved, layers.MaxPooling2D(3, 1, padding="same")(convolved), inputs])
    model = keras.Model(inputs, layers.Conv2D(64, 3, use_bias=False)(joined))
    assert differing(observed(model, x), x) == 0


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_layer_that_computes_in_float16_is_refused_by_name(name: str) -> None:
    keras = framework(name)
    inputs = keras.Input((9, 9, 3))
    half = keras.layers.Conv2D(4, 3, dtype="mixed_float16", name="half")(inputs)
    with pytest.raises(ExportError, match="layer 'half' computes in float16"):
        quantize_model(keras.Model(inputs, keras.layers.Conv2D(4, 3, dtype="float32")(half)))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_small_products_between_float_layers_that_were_trained_are_exported(name: str) -> None:
    keras = framework(name)
    layers = keras.layers
    inputs, x = keras.Input((11, 11, 3)), noise(11, 11, 3)
    hidden = layers.Conv2D(4, 3, use_bias=False)(layers.BatchNormalization(scale=False, center=False)(inputs))
    hidden = layers.BatchNormalization(center=False)(layers.ReLU()(hidden))
    model = observed(keras.Model(inputs, layers.Conv2D(2, 1, use_bias=False)(hidden)), x)
    assert differing(model, x) == 0
    assert all(d.quantized for d in export(model).plan.decisions if d.node.endswith("/Conv"))


def test_a_convolution_and_a_batch_norm_that_are_shared_on_two_grids_compute_as_the_file_does() -> None:
    keras = framework("keras")
    inputs, x = keras.Input((9, 9, 3)), noise(9, 9, 3)
    convolve, normalize = keras.layers.Conv2D(3, 3, padding="same"), keras.layers.BatchNormalization()
    hidden = keras.layers.ReLU()(normalize(convolve(inputs)))
    assert differing(observed(keras.Model(inputs, normalize(convolve(hidden))), x), x) == 0


def test_the_factors_of_a_layer_scale_are_rounded_in_training_as_in_the_file() -> None:
    keras = framework("keras")
    from keras.src.applications.convnext import LayerScale

    inputs, x = keras.Input((9, 9, 3)), noise(9, 9, 3)
    hidden = LayerScale(1e-6, 64)(keras.layers.Conv2D(64, 3)(inputs))
    assert differing(observed(keras.Model(inputs, keras.layers.Conv2D(64, 1)(hidden)), x), x) == 0


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda k, x: k.layers.Dense(4)(k.layers.Masking(name="mine")(x)), "layer 'mine'"),
        (
            lambda k, x: k.layers.LSTM(4)(k.layers.Embedding(9, 8, mask_zero=True, name="mine")(x[..., 0])),
            "layer 'mine'",
        ),
    ],
)
def test_a_mask_is_refused_by_the_name_of_the_layer_that_makes_it(make: Any, named: str) -> None:
    keras = framework("keras")
    inputs = keras.Input((7, 4))
    with pytest.raises(ExportError, match=named):
        quantize_model(keras.Model(inputs, make(keras, inputs)))


def test_what_tfmot_cannot_rebuild_is_named() -> None:
    keras = framework("tf_keras")
    inputs = keras.Input((12, 3))
    with pytest.raises(ExportError, match=r"layer 'split' \(SeparableConv1D\)"):
        quantize_model(keras.Model(inputs, keras.layers.SeparableConv1D(4, 3, name="split")(inputs)))


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_the_weights_of_a_layer_that_is_opened_are_trained_saved_and_loaded(suffix: str, tmp_path: Path) -> None:
    keras = framework("keras")

    class Own(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.gain = self.add_weight(shape=(shape[-1],), name="gain")
            self.kernel = self.add_weight(shape=(shape[-1], 10), name="kernel")
            self.offset = self.add_weight(shape=(10,), name="offset")

        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x * self.gain, self.kernel) + self.offset

    inputs, x = keras.Input((8,)), noise(8)
    hidden = Own(name="own")(keras.layers.Dense(8, activation="relu")(inputs))
    model = observed(keras.Model(inputs, keras.layers.Dense(4)(hidden)), x)
    assert differing(model, x) == 0
    before = [np.array(w) for w in model.get_weights()]
    names = [w.path for w in model.trainable_weights]
    assert {"own_gain/weight", "own_kernel/weight", "own_offset/weight"} <= set(names)
    model.compile("adam", "mse")
    model.fit(x, np.zeros((8, 4)), verbose=0)
    assert differing(model, x) == 0
    after = {w.path: (b, np.array(a)) for w, b, a in zip(model.weights, before, model.get_weights(), strict=True)}
    assert all((after[name][0] != after[name][1]).any() for name in names)
    model.save_weights(tmp_path / f"net{suffix}") if "weights" in suffix else model.save(tmp_path / f"net{suffix}")
    if suffix == ".h5":
        return  # Keras 3 loads no .h5 with an operation in it
    if suffix == ".keras":
        again = load(tmp_path / f"net{suffix}")
    else:
        again = keras.models.clone_model(model)
        again.load_weights(tmp_path / f"net{suffix}")
    np.testing.assert_array_equal(predict(again, [x])[0], predict(model, [x])[0])
    assert export(again).model.graph == export(model).model.graph
