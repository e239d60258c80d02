# SPDX-License-Identifier: Apache-2.0
"""Training that begins with the ranges, weights and biases of post-training quantization, in both Kerases."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import wia_quant
from tests.keras.models import FRAMEWORKS, framework, predict, randomize, residual, train
from wia_quant.errors import CalibrationError, UsageError
from wia_quant.integers import integers_of
from wia_quant.keras import export, from_calibration, load, quantize_model, to_onnx
from wia_quant.keras.values import array
from wia_quant.quantizer import QuantizedModel

Make = Callable[[Any], Any]

#: Sums of float32 on the edge of two levels fall to either: a level of one tensor, of the outputs' span.
SPAN = 0.02


def pictures(n: int = 64) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, (n, 16, 16, 3)).astype(np.float32)


@cache
def quantized(name: str) -> tuple[Any, QuantizedModel]:
    """A float model and its post-training form; no test changes them."""
    model = randomize(residual(framework(name)))
    return model, wia_quant.quantize(model, data={"image": pictures()})


def activation_grids(model: onnx.ModelProto) -> list[tuple[float, int]]:
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
    return sorted({(float(constants[n.input[1]]), int(constants[n.input[2]])) for n in nodes})


def assert_same_integers(got: onnx.ModelProto, want: onnx.ModelProto) -> None:
    """Scales, biases and weights; but that a channel in which none is at level 127 has its largest put there."""
    assert activation_grids(got) == activation_grids(want)
    # By their scales: the order of branches is not that of names.
    sorts = [sorted(integers_of(m).values(), key=lambda i: (i.levels.shape, i.scale.tobytes())) for m in (got, want)]
    assert sorts[0]
    for ours, theirs in zip(*sorts, strict=True):
        np.testing.assert_array_equal(ours.scale, theirs.scale)
        np.testing.assert_array_equal(ours.bias, theirs.bias)
        axis = 1 if ours.node.op_type in ("ConvTranspose", "MatMul") else 0
        a, b = (np.moveaxis(i.levels, axis, 0).reshape(i.levels.shape[axis], -1) for i in (ours, theirs))
        short = np.abs(b).max(axis=1) < 127
        np.testing.assert_array_equal(a[~short], b[~short])
        assert ((a[short] != b[short]).sum(axis=1) == 1).all()
        assert (np.abs(a[a != b]) == 127).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_table_gives_every_grid_of_the_file_and_leaves_the_weights(name: str, tmp_path: Path) -> None:
    model, file = quantized(name)
    file.table.save(tmp_path / "net.calib.json")
    prepared = from_calibration(model, tmp_path / "net.calib.json")
    assert activation_grids(export(prepared).model) == activation_grids(file.model)
    for ours, theirs in zip(prepared.trainable_weights, quantize_model(model).trainable_weights, strict=True):
        np.testing.assert_array_equal(array(ours), array(theirs))


def conv_and_norm(keras: Any, **options: Any) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=options.pop("use_bias", False))(x)
    x = layers.ReLU()(layers.BatchNormalization(**options)(x))
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


def without_bias(keras: Any) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(8, 3, use_bias=False, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(5, use_bias=False)(layers.Flatten()(x)))


def joined(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((16, 16, 3), name="image")
    x = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, padding="same", activation="relu")(inputs))
    twins = [layers.Conv2D(4, 3, padding="same")(x) for _ in range(3)]
    x = layers.Conv2D(6, 1)(layers.Concatenate()([x, *twins]))
    return keras.Model(inputs, layers.Dense(5)(layers.Flatten()(x)))


def transposed(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((16, 16, 3), name="image")
    x = layers.ZeroPadding2D(((0, 1), (0, 1)))(inputs)
    x = layers.Conv2D(4, 3, strides=2, activation="relu")(x)
    x = layers.BatchNormalization()(layers.Conv2DTranspose(6, 3, strides=2, padding="same")(x))
    x = layers.DepthwiseConv2D(3, depth_multiplier=2)(layers.ReLU()(x))
    return keras.Model(inputs, layers.Conv2D(2, 3, dilation_rate=2)(x))


def sequence(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((16, 16, 3), name="image")
    x = layers.Reshape((16, 48))(inputs)
    x = layers.Conv1D(12, 3, padding="causal", activation="relu")(x)
    x = layers.Dense(12, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalMaxPooling1D()(x)))


def gated(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="swish")(inputs)
    gate = layers.Conv2D(4, 1, activation="relu")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.Multiply()([x, layers.Conv2D(8, 1, activation="sigmoid")(gate)])
    x = layers.LeakyReLU(0.1)(layers.BatchNormalization()(layers.Conv2D(8, 3, groups=2)(x)))
    return keras.Model(inputs, layers.Dense(5)(layers.Flatten()(layers.AveragePooling2D(2)(x))))


NETS: dict[str, Make] = {
    "BatchNorm": conv_and_norm,
    "BatchNorm and bias": lambda keras: conv_and_norm(keras, use_bias=True),
    "BatchNorm without beta": lambda keras: conv_and_norm(keras, center=False),
    "BatchNorm without beta, and bias": lambda keras: conv_and_norm(keras, center=False, use_bias=True),
    "BatchNorm without gamma": lambda keras: conv_and_norm(keras, scale=False),
    "no bias": without_bias,
    "Concatenate": joined,
    "transposed": transposed,
    "sequence": sequence,
}


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_training_begins_with_the_integers_of_the_file(name: str, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    keras = framework(name)
    keras.utils.set_random_seed(0)
    model = randomize(make(keras))
    before = [np.array(w) for w in model.get_weights()]
    x = pictures()
    file = wia_quant.quantize(model, data={"image": x})
    with caplog.at_level(logging.WARNING, logger="wia_quant"):
        prepared = from_calibration(model, file)
    assert caplog.text == ""
    assert_same_integers(export(prepared).model, file.model)
    (got,), (want,) = predict(prepared, [x]), file.session().run(None, {"image": x})
    assert np.abs(got - want).max() <= SPAN * np.abs(want).max()
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_layer_and_its_activation_give_have_grids_of_their_own() -> None:
    keras = framework("keras")
    inputs = keras.Input((4,), name="x")
    outputs = keras.layers.Dense(3)(keras.layers.Dense(4, activation="sigmoid", name="gate")(inputs))
    model = quantize_model(keras.Model(inputs, outputs))
    assert {"gate_linear_quantizer", "gate_quantizer"} <= {layer.name for layer in model.layers}


def test_an_attention_layer_is_walked_alike_every_time() -> None:
    keras = framework("keras")
    x = inputs = keras.Input((6, 16), name="x")
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8)(x, x))
    assert to_onnx(model) == to_onnx(model)


@pytest.mark.parametrize("make", [residual, gated], ids=["residual", "functions and a gate"])
def test_keras_3_takes_what_tf_keras_leaves_float(make: Make) -> None:
    # A bias of the depthwise half of a SeparableConv; a grid between a layer's product and its activation.
    model = randomize(make(framework("keras")))
    file = wia_quant.quantize(model, data={"image": pictures()})
    prepared = from_calibration(model, file)
    assert_same_integers(export(prepared).model, file.model)
    x = pictures()
    (got,), (want,) = predict(prepared, [x]), file.session().run(None, {"image": x})
    assert np.abs(got - want).max() <= SPAN * np.abs(want).max()


def test_the_depthwise_half_of_a_separable_convolution_has_no_bias_in_tf_keras_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, file = quantized("tf_keras")
    with caplog.at_level(logging.WARNING):
        prepared = from_calibration(model, file)
    assert ": the file has a bias, the layer none to take it" in caplog.text
    assert activation_grids(export(prepared).model) == activation_grids(file.model)


@pytest.mark.parametrize("named", [True, False])
def test_a_subclassed_model_is_the_one_that_was_quantized(named: bool) -> None:
    keras = framework("keras")

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.logits = keras.layers.Conv2D(8, 3, strides=2), keras.layers.Dense(5)

        def call(self, x: Any) -> Any:
            return self.logits(keras.ops.mean(keras.ops.relu(self.conv(x)), axis=(1, 2)))

    x, model = pictures(), Net()
    model(x[:1])
    assert to_onnx(model) == to_onnx(model)
    file = wia_quant.quantize(model, data={"input": x} if named else x)
    prepared = from_calibration(model, file)
    assert_same_integers(export(prepared).model, file.model)


def test_a_tensor_that_the_file_has_in_float_needs_no_range_to_be_exported() -> None:
    keras = framework("keras")
    inputs, x = keras.Input((16, 16, 3), name="image"), pictures()
    hidden = keras.layers.GroupNormalization(4)(keras.layers.Conv2D(8, 3, strides=2)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(hidden)))
    file = wia_quant.quantize(model, data=x)
    prepared = from_calibration(model, file)
    exported = export(prepared, verify=x)
    assert set(activation_grids(exported.model)) <= set(activation_grids(file.model))
    assert all(largest < 1e-4 for largest, _ in exported.differences.values())


def test_a_model_whose_input_has_no_name_is_the_one_that_was_quantized() -> None:
    keras = framework("keras")
    inputs = keras.Input((16, 16, 3))
    hidden = keras.ops.relu(keras.layers.Conv2D(4, 3, strides=2)(inputs))
    x, outputs = pictures(), keras.layers.Dense(5)(keras.layers.Flatten()(hidden))
    model = keras.Model(inputs, outputs)
    file = wia_quant.quantize(model, data=x)
    assert_same_integers(export(from_calibration(model, file)).model, file.model)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_layer_without_bias_gets_one_for_the_correction(name: str) -> None:
    model = randomize(without_bias(framework(name)))
    file = wia_quant.quantize(model, data={"image": pictures()})
    exported = export(from_calibration(model, file)).model
    biases = [i.bias for i in integers_of(exported).values()]
    assert all(b is not None and b.any() for b in biases)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_shared_layer_begins_with_the_weights_of_its_first_call(name: str, caplog: pytest.LogCaptureFixture) -> None:
    keras = framework(name)
    layers = keras.layers
    inputs = keras.Input((16, 16, 3), name="image")
    shared = layers.Conv2D(3, 3, padding="same", name="twice")
    both = layers.Add()([shared(inputs), shared(layers.AveragePooling2D(3, 1, padding="same")(inputs))])
    model = randomize(keras.Model(inputs, layers.Dense(5)(layers.Flatten()(both))))
    file = wia_quant.quantize(model, data={"image": pictures()})
    with caplog.at_level(logging.WARNING):
        prepared = from_calibration(model, file)
    assert "twice_2/Conv: a further call of a layer" in caplog.text
    ours = [i.levels for i in integers_of(export(prepared).model).values() if i.node.op_type == "Conv"]
    want = integers_of(file.model)["twice/Conv"].levels
    assert len(ours) == 2
    np.testing.assert_array_equal(ours[0], ours[1])
    assert (ours[0] != want).sum() <= 3  # one a channel may be put on level 127


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_excluded_layer_begins_float(name: str) -> None:
    model, _ = quantized(name)
    file = wia_quant.quantize(model, data={"image": pictures()}, exclude=["logits/Gemm"])
    prepared = from_calibration(model, file, exclude=["logits"])
    assert len(integers_of(export(prepared).model)) == len(integers_of(file.model)) == 6


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_layer_that_the_file_has_in_float_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, _ = quantized(name)
    file = wia_quant.quantize(model, data={"image": pictures()}, exclude=["logits/Gemm"])
    with caplog.at_level(logging.WARNING):
        from_calibration(model, file)
    assert "logits: float in the file" in caplog.text


@pytest.mark.parametrize(("name", "suffix"), [("keras", ".keras"), ("tf_keras", ".keras"), ("tf_keras", ".h5")])
def test_what_has_begun_so_is_saved_loaded_and_trained(name: str, suffix: str, tmp_path: Path) -> None:
    keras = framework(name)
    model = randomize(without_bias(keras))
    file = wia_quant.quantize(model, data={"image": pictures()})
    prepared = from_calibration(model, file)
    prepared.save(tmp_path / f"net{suffix}")
    again = load(tmp_path / f"net{suffix}")
    assert export(again).model.graph == export(prepared).model.graph
    train(keras, again, classes=5)
    assert export(again).model.graph != export(prepared).model.graph


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_range_moves_on_slowly_from_where_it_began(name: str) -> None:
    keras = framework(name)
    model, file = quantized(name)
    prepared = from_calibration(model, file)
    prepared.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    prepared.fit(3 * pictures(16), np.zeros(16), batch_size=16, verbose=0)
    before, after = (input_scale(m) for m in (file.model, export(prepared).model))
    assert after == pytest.approx(1.02 * before, rel=2e-3)  # a hundredth of the way to 3 times it


def input_scale(model: onnx.ModelProto) -> float:
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return float(next(constants[n.input[1]] for n in model.graph.node if n.op_type == "QuantizeLinear"))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_file_of_other_weights_is_refused(name: str) -> None:
    _, file = quantized(name)
    other = randomize(residual(framework(name)), seed=1)
    with pytest.raises(CalibrationError, match="made of another one, or this one's weights have changed"):
        from_calibration(other, file)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_table_of_another_model_is_refused(name: str) -> None:
    _, file = quantized(name)
    keras = framework(name)
    inputs = keras.Input((4,), name="numbers")
    with pytest.raises(CalibrationError, match="no tensor of this model"):
        from_calibration(keras.Model(inputs, keras.layers.Dense(2, name="other")(inputs)), file.table)


def test_a_file_of_another_scheme_is_refused() -> None:
    model, _ = quantized("keras")
    file = wia_quant.quantize(model, data={"image": pictures()}, scheme="w8a16")
    with pytest.raises(CalibrationError, match="scheme w8a16; training begins with w8a8"):
        from_calibration(model, file)


def test_what_is_no_calibration_is_refused() -> None:
    model, file = quantized("keras")
    with pytest.raises(UsageError, match="ModelProto is no calibration"):
        from_calibration(model, file.model)


def test_an_activation_inside_a_layer_of_tf_keras_is_said_on_the_log(caplog: pytest.LogCaptureFixture) -> None:
    k = framework("tf_keras").layers
    x = k.Input((6,), name="x")
    y = k.Dense(8, activation="relu", name="bounded")(k.Dense(8, activation="elu", name="inside")(x))
    y = k.Activation("elu")(k.Dense(8, name="apart")(y))
    model = randomize(framework("tf_keras").Model(x, k.Dense(4, name="last")(y)))
    data = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        from_calibration(model, wia_quant.quantize(model, data={"x": data}))
    assert [m.partition(",")[0] for m in caplog.messages if "inside the layer" in m] == [
        "inside: trains with no quantizer before the activation inside the layer"
    ]
