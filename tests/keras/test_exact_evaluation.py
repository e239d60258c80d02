# SPDX-License-Identifier: Apache-2.0
"""What a Keras 3 model computes in evaluation is what its file computes in libwia, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import wia_quant
from tests.keras.models import predict, randomize
from wia_quant import Session
from wia_quant.affine import INT8_NARROW, choose_qparams_per_axis, fake_quantize, quantize
from wia_quant.keras import export, freeze_batch_norm, from_calibration, load, observe, quantize_model
from wia_quant.keras.keras3.product import QuantizedProduct

layers = keras.layers
Make = Callable[[Any], Any]


def noise(*shape: int, n: int = 16) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, *shape)).astype(np.float32)


def prepared(make: Make, x: np.ndarray) -> Any:
    """The net between an input and a product, observed."""
    inputs = keras.Input(x.shape[1:])
    model = quantize_model(randomize(keras.Model(inputs, layers.Dense(9)(make(inputs)))))
    return observe(model, [x[:8], x[8:]])


def in_libwia(model: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    session = Session(export(model).model.SerializeToString())
    return session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)})


def differing(model: Any, *inputs: np.ndarray) -> int:
    return sum(
        int((got != want).sum()) for got, want in zip(in_libwia(model, *inputs), predict(model, inputs), strict=True)
    )


def conv(filters: int, size: int = 3, **kwargs: Any) -> Any:
    return layers.Conv2D(filters, size, **kwargs)


def block(x: Any, layer: Any, activation: Any = None) -> Any:
    y = layers.BatchNormalization()(layer(x))
    return y if activation is None else activation(y)


def inverted(x: Any, filters: int, stride: int = 1) -> Any:
    """A block of MobileNetV2."""
    y = block(x, conv(2 * x.shape[-1], 1, use_bias=False), layers.ReLU(6.0))
    y = block(y, layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False), layers.ReLU(6.0))
    y = block(y, conv(filters, 1, use_bias=False))
    return layers.Add()([x, y]) if stride == 1 and filters == x.shape[-1] else y


def gated(x: Any) -> Any:
    """Squeeze and excitation."""
    y = layers.GlobalAveragePooling2D(keepdims=True)(x)
    y = conv(x.shape[-1], 1, activation="sigmoid")(conv(4, 1, activation="relu")(y))
    return layers.Multiply()([x, y])


NETS: dict[str, Make] = {
    "convolution": lambda x: conv(8)(x),
    "convolution, strided, padded": lambda x: conv(8, strides=2, padding="same", activation="relu")(x),
    "dilated": lambda x: conv(8, dilation_rate=2, padding="same", activation="relu6")(x),
    "grouped": lambda x: conv(8, groups=2)(conv(8, 1)(x)),
    "depthwise": lambda x: layers.DepthwiseConv2D(3, depth_multiplier=2)(x),
    "separable": lambda x: layers.SeparableConv2D(8, 3, padding="same", activation="relu")(x),
    "transposed": lambda x: layers.Conv2DTranspose(8, 3, strides=2, padding="same")(x),
    "batch norm": lambda x: block(x, conv(8, use_bias=False), layers.ReLU()),
    "batch norm and bias": lambda x: block(x, conv(8), layers.ReLU(6.0)),
    "batch norm behind depthwise": lambda x: block(x, layers.DepthwiseConv2D(3, depth_multiplier=2), layers.ReLU()),
    "batch norm behind transposed": lambda x: block(x, layers.Conv2DTranspose(8, 3), layers.ReLU()),
    "leaky": lambda x: conv(8, 1)(layers.LeakyReLU(0.1)(conv(8)(x))),
    "swish": lambda x: conv(8, 1, activation="swish")(conv(8, activation="silu")(x)),
    "two readers": lambda x: layers.Concatenate()([(y := conv(8)(x)), layers.ReLU()(y)]),
    "sum": lambda x: layers.Add()([(y := conv(8, padding="same")(x)), conv(8, 1)(y)]),
    "sum, bounded": lambda x: layers.ReLU()(layers.Add()([(y := conv(8)(x)), conv(8, 1)(y)])),
    "sum of three": lambda x: layers.Add()([(y := conv(8)(x)), conv(8, 1)(y), conv(8, 1)(y)]),
    "difference": lambda x: layers.Subtract()([(y := conv(8)(x)), conv(8, 1)(y)]),
    "product": lambda x: layers.Multiply()([(y := conv(8)(x)), conv(8, 1)(y)]),
    "average of three": lambda x: layers.Average()([(y := conv(8)(x)), conv(8, 1)(y), conv(8, 1)(y)]),
    "operations": lambda x: keras.ops.relu((y := conv(8)(x)) + conv(8, 1)(y) * y) - y,
    "sum of a tensor and a function of it": lambda x: layers.Add()([(y := conv(8)(x)), layers.ReLU()(y)]),
    "sum with numbers": lambda x: conv(8)(x) + np.linspace(-1, 1, 8, dtype=np.float32),
    "swish of a product": lambda x: layers.Multiply()([(y := conv(8)(x)), layers.Activation("sigmoid")(y)]),
    "gate": lambda x: gated(conv(8, activation="relu")(x)),
    "average pooling": lambda x: layers.AveragePooling2D(2)(conv(8)(x)),
    "average pooling, padded": lambda x: layers.AveragePooling2D(3, 2, padding="same")(conv(8)(x)),
    "max pooling": lambda x: layers.MaxPooling2D(2)(conv(8, activation="relu")(x)),
    "global average": lambda x: layers.GlobalAveragePooling2D()(conv(8)(x)),
    "mean": lambda x: keras.ops.mean(conv(8)(x), axis=(1, 2)),
    "concat": lambda x: layers.Concatenate()([conv(8)(x), conv(4, activation="relu")(x)]),
    "flatten": lambda x: layers.Flatten()(conv(8, activation="relu")(x)),
    "dense of rows": lambda x: layers.Dense(8, activation="relu")(layers.Reshape((-1, 3))(x)),
    "one dimension": lambda x: layers.Conv1D(8, 3, padding="causal")(layers.Reshape((-1, 3))(x)),
    "padding": lambda x: conv(8)(layers.ZeroPadding2D(1)(layers.UpSampling2D()(x))),
    "unseen by any channel": lambda x: conv(8, 1)(layers.ReLU(0.0)(conv(8)(x))),
}


@pytest.mark.parametrize("name", NETS)
def test_no_output_differs(name: str) -> None:
    x = noise(9, 10, 3)
    model = prepared(NETS[name], x)
    assert differing(model, x) == 0


def test_no_output_of_a_deep_net_differs() -> None:
    def net(x: Any) -> Any:
        x = block(x, conv(16, strides=2, padding="same", use_bias=False), layers.ReLU(6.0))
        for i in range(17):
            x = inverted(x, 16 + 4 * (i // 6), 2 if i in (5, 11) else 1)
        return layers.GlobalAveragePooling2D()(block(x, conv(64, 1, use_bias=False), layers.ReLU(6.0)))

    x = noise(32, 32, 3, n=32)
    model = prepared(net, x)
    assert sum(type(layer).__name__ == "QuantizedProduct" for layer in model.layers) >= 50
    assert differing(model, x) == 0


def test_no_output_of_an_attention_differs_by_more_than_its_softmax() -> None:
    def net(x: Any) -> Any:
        x = layers.Dense(16)(layers.Reshape((-1, 3))(x))
        return layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x)])

    x = noise(4, 5, 3)
    model = prepared(net, x)
    (got,), (want,) = in_libwia(model, x), predict(model, [x])
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e4, 1e8])
def test_biases_of_every_size_are_those_of_the_file(size: float) -> None:
    x = noise(6, 6, 3)
    inputs = keras.Input(x.shape[1:])
    hidden = conv(8, name="biased")(inputs)
    model = randomize(keras.Model(inputs, layers.Dense(9)(hidden)))
    kernel, bias = model.get_layer("biased").get_weights()
    kernel[..., 0] = 0  # a channel without weights
    kernel[..., 1] *= 1e-9  # and one whose bias does not fit its grid
    model.get_layer("biased").set_weights([kernel, bias * np.float32(size)])
    assert differing(observe(quantize_model(model), [x]), x) == 0


def test_a_channel_that_its_batch_norm_drops_is_that_of_the_file() -> None:
    x = noise(6, 6, 3)
    inputs = keras.Input(x.shape[1:])
    model = randomize(keras.Model(inputs, layers.Dense(9)(block(inputs, conv(8), layers.ReLU()))))
    norm = next(layer for layer in model.layers if isinstance(layer, layers.BatchNormalization))
    norm.gamma.assign(np.array([0, 1, -1, 0.5, 0, 2, 1e-30, 1], np.float32))
    assert differing(observe(quantize_model(model), [x]), x) == 0


def test_layers_that_are_called_twice_follow_each_call() -> None:
    x = noise(9, 9, 3)
    inputs = keras.Input(x.shape[1:])
    convolve, add = conv(3, padding="same"), layers.Add()
    first = convolve(inputs)
    second = convolve(layers.ReLU()(first))
    model = keras.Model(inputs, layers.Dense(9)(add([add([first, second]), first])))
    assert differing(observe(quantize_model(randomize(model)), [x]), x) == 0


def test_several_inputs_and_outputs_of_any_batch_and_size_do_not_differ() -> None:
    a, b = keras.Input((None, None, 3), name="a"), keras.Input((4,), name="b")
    hidden = layers.GlobalAveragePooling2D()(block(a, conv(8), layers.ReLU()))
    joined = layers.Concatenate()([hidden, layers.Dense(8, activation="relu")(b)])
    model = keras.Model([a, b], [layers.Dense(5)(joined), layers.Dense(3)(hidden)])
    x = [noise(9, 9, 3), noise(4)]
    quantized = observe(quantize_model(randomize(model)), [x])
    assert differing(quantized, *x) == 0
    assert differing(quantized, noise(7, 12, 3, n=3), noise(4, n=3)) == 0


def test_a_net_with_channels_first_does_not_differ() -> None:
    first: dict[str, Any] = {"data_format": "channels_first"}
    x = noise(3, 9, 9)
    inputs = keras.Input(x.shape[1:])
    hidden = layers.ReLU()(layers.BatchNormalization(axis=1)(conv(8, padding="same", **first)(inputs)))
    hidden = layers.Add()([hidden, layers.DepthwiseConv2D(3, padding="same", **first)(hidden)])
    hidden = layers.GlobalAveragePooling2D(**first)(layers.AveragePooling2D(2, **first)(hidden))
    model = keras.Model(inputs, layers.Dense(9)(hidden))
    assert differing(observe(quantize_model(randomize(model)), [x]), x) == 0


def test_a_trained_net_does_not_differ_with_batch_norms_that_train_or_not() -> None:
    keras.utils.set_random_seed(0)
    x = noise(16, 16, 3, n=64)
    inputs = keras.Input(x.shape[1:])
    hidden = inverted(block(inputs, conv(16, strides=2, use_bias=False), layers.ReLU(6.0)), 16)
    model = quantize_model(keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(hidden))))
    for frozen in (False, True):
        freeze_batch_norm(model, frozen)
        model.compile("adam", "mse")
        model.fit(x, noise(4, n=64), batch_size=16, verbose=0)
        assert differing(model, x) == 0


def test_a_saved_model_evaluates_as_before(tmp_path: Path) -> None:
    x = noise(9, 10, 3)
    model = prepared(lambda i: gated(keras.ops.relu(conv(8)(i)) + np.linspace(-1, 1, 8, dtype=np.float32)), x)
    model.save(tmp_path / "net.keras")
    again = load(tmp_path / "net.keras")
    np.testing.assert_array_equal(predict(again, [x])[0], predict(model, [x])[0])
    assert differing(again, x) == 0


def test_weights_that_were_saved_alone_evaluate_as_before(tmp_path: Path) -> None:
    x = noise(9, 10, 3)

    def net(i: Any) -> Any:
        return gated(inverted(conv(8)(i), 8))

    model, again = prepared(net, x), prepared(net, 2 * x)
    model.save_weights(tmp_path / "net.weights.h5")
    again.load_weights(tmp_path / "net.weights.h5")
    np.testing.assert_array_equal(predict(again, [x])[0], predict(model, [x])[0])


def test_a_training_that_begins_from_calibration_has_the_ranges_of_its_own_tensors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Fake quantizers that are asked for their scale only were taken for those of what they were asked with.
    x = noise(9, 10, 3)
    inputs = keras.Input(x.shape[1:], name="x")
    hidden = conv(8, activation="relu")(inputs)
    padded = layers.DepthwiseConv2D(3, 2)(layers.ZeroPadding2D(((0, 1), (0, 1)))(hidden))
    joined = layers.Concatenate()([layers.GlobalAveragePooling2D()(y) for y in (hidden, padded)])
    model = randomize(keras.Model(inputs, layers.Dense(9)(joined)))
    post = wia_quant.quantize(model, data={"x": x})
    begun = from_calibration(model, post)
    assert "no range" not in caplog.text
    (want,) = post.session().run(None, {"x": x})
    np.testing.assert_array_equal(predict(begun, [x])[0], want)


@pytest.mark.parametrize("ending", [0.1, 0.0, None])
@pytest.mark.parametrize("bias", [None, 0.3, 3e4])
def test_a_product_in_evaluation_is_the_equations(bias: float | None, ending: float | None) -> None:
    # Written down once more, in integers: (7), (18), then (8) or (9).
    rng = np.random.default_rng(0)
    dense = layers.Dense(7, use_bias=bias is not None)
    product, x_scale = QuantizedProduct(dense), np.float32(0.013)
    dense.build((None, 40))
    kernel = rng.normal(size=(40, 7)).astype(np.float32)
    offset = None if bias is None else (rng.normal(size=7) * bias).astype(np.float32)
    dense.set_weights([kernel] if offset is None else [kernel, offset])
    q_x = rng.integers(-128, 128, (500, 40))

    grid = choose_qparams_per_axis(np.abs(kernel).max(axis=0), INT8_NARROW, 1)
    unit = np.float64(x_scale) * grid.scale.astype(np.float64)
    acc = q_x @ quantize(kernel, grid).astype(np.int64)
    if offset is not None:
        acc = acc + np.rint(offset / unit.astype(np.float32).astype(np.float64)).astype(np.int64)
    if ending:
        y_scale = np.float32(ending)
        m = unit.astype(np.float32) / y_scale
        want = np.rint(acc.astype(np.float32) * m) * y_scale
    else:
        want = acc.astype(np.float32) * unit.astype(np.float32)
    scales = [keras.ops.convert_to_tensor(s, "float32") for s in (x_scale, ending) if s is not None]
    got = product(q_x.astype(np.float32) * x_scale, *scales, training=False)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(got), want)


def test_a_product_in_training_is_that_of_rounded_reals() -> None:
    rng = np.random.default_rng(0)
    dense = layers.Dense(7)
    product, x_scale = QuantizedProduct(dense), np.float32(0.013)
    dense.build((None, 40))
    kernel, bias = rng.normal(size=(40, 7)).astype(np.float32), rng.normal(size=7).astype(np.float32)
    dense.set_weights([kernel, bias])
    x = rng.integers(-128, 128, (50, 40)).astype(np.float32) * x_scale

    grid = choose_qparams_per_axis(np.abs(kernel).max(axis=0), INT8_NARROW, 1)
    unit = x_scale * grid.scale
    want = keras.ops.matmul(x, fake_quantize(kernel, grid)) + np.rint(bias / unit) * unit
    scales = [keras.ops.convert_to_tensor(s) for s in (x_scale, np.float32(0.1))]
    got = product(x, *scales, training=True)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(got), keras.ops.convert_to_numpy(want))


def test_gradients_of_evaluation_are_those_of_training() -> None:
    x = noise(9, 10, 3)
    model = freeze_batch_norm(prepared(lambda i: gated(inverted(block(i, conv(8, strides=2)), 8)), x))
    for layer in model.layers:
        layer.trainable = type(layer).__name__ != "FakeQuantize"  # training moves no ranges
    freeze_batch_norm(model)

    def gradients(training: bool) -> list[np.ndarray]:
        given = keras.ops.convert_to_tensor(x).requires_grad_()
        model.zero_grad()
        (model(given, training=training) ** 2).sum().backward()
        found = [given.grad, *(v.value.grad for v in model.trainable_variables)]
        return [g.numpy().copy() for g in found]

    for ours, theirs in zip(gradients(False), gradients(True), strict=True):
        assert np.linalg.norm(ours - theirs) <= 0.05 * np.linalg.norm(theirs)


def test_before_any_data_evaluation_is_near_the_float_model() -> None:
    x = noise(9, 10, 3)
    inputs = keras.Input(x.shape[1:])
    model = randomize(keras.Model(inputs, layers.Dense(9)(gated(block(inputs, conv(8), layers.ReLU())))))
    (want,), (got,) = predict(model, [x]), predict(quantize_model(model), [x])
    assert np.abs(got - want).max() <= 0.1 * np.abs(want).max()


def test_what_is_no_number_is_the_zero_point_as_in_the_file() -> None:
    x = noise(6, 6, 3)
    model = prepared(lambda x: layers.Flatten()(layers.ReLU()(conv(4)(x))), x)
    x[0, 0, 0, 0], x[1, 0, 0, 0], x[2] = np.nan, np.inf, -np.inf
    assert np.isfinite(in_libwia(model, x)[0]).all()
    assert differing(model, x) == 0


def test_a_tensor_added_to_itself_is_one_table_with_the_relu_behind() -> None:
    x = noise(6, 6, 3)
    model = prepared(lambda x: layers.ReLU()(layers.Add()([y := conv(4)(x), y])), x)
    assert differing(model, x) == 0
