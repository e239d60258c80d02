# SPDX-License-Identifier: Apache-2.0
"""A tf_keras model in evaluation computes what its file computes in libwia: no level differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wia_quant.keras as wq
from tests.keras.models import framework, predict, randomize, residual, train
from wia_quant import Session
from wia_quant.errors import CalibrationError

Make = Callable[[Any, Any], Any]


def in_libwia(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    session = Session(wq.export(model).model.SerializeToString())
    return session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)})


def pictures(n: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """In [-1, 1]: half of all values of a picture are halves between two levels."""
    values = np.random.default_rng(seed).integers(0, 256, (n, *shape)) / 127.5 - 1
    return values.astype(np.float32)


def observed(model: Any, inputs: Sequence[np.ndarray]) -> Any:
    """Quantized, with the ranges of the inputs."""
    batches = [[x[i : i + 4] for x in inputs] for i in range(0, len(inputs[0]), 4)]
    return wq.observe(wq.quantize_model(model), [b if len(b) > 1 else b[0] for b in batches])


def net(make: Make, shape: tuple[int, ...] = (12, 12, 8)) -> Any:
    """Something before it and a product behind it, so that both its ends are on grids."""
    keras = framework("tf_keras")
    keras.utils.set_random_seed(0)
    x = keras.Input(shape, name="x")
    y = make(keras.layers, x)
    y = keras.layers.Flatten()(y) if len(y.shape) > 2 else y
    return randomize(keras.Model(x, keras.layers.Dense(64, name="y")(y)))


def block(layer: Any, layers: Any, x: Any, activation: Any = None) -> Any:
    y = layers.BatchNormalization()(layer(x))
    return y if activation is None else activation(y)


def _residual(k: Any, x: Any) -> Any:
    y = block(k.Conv2D(8, 3, padding="same"), k, x, k.ReLU())
    return k.ReLU()(k.Add()([x, block(k.DepthwiseConv2D(3, padding="same", use_bias=False), k, y)]))


def _two(merge: str) -> Make:
    def make(k: Any, x: Any) -> Any:
        return getattr(k, merge)()([k.Conv2D(6, 3)(x), k.Conv2D(6, 3, activation="relu")(x)])

    return make


def _three(merge: str) -> Make:
    def make(k: Any, x: Any) -> Any:
        return getattr(k, merge)()([k.Conv2D(6, 3, activation=a)(x) for a in (None, "relu", None)])

    return make


def _and_a_function_of_it(k: Any, x: Any) -> Any:
    y = k.Conv2D(6, 3)(x)
    return k.Add()([y, k.LeakyReLU(0.3)(y)])


def _swish_of_parts(k: Any, x: Any) -> Any:
    y = k.Conv2D(6, 3)(x)
    return k.Multiply()([y, k.Activation("hard_sigmoid")(y)])


def _gate(k: Any, x: Any) -> Any:
    y = k.Conv2D(4, 1, activation="relu")(k.GlobalAveragePooling2D(keepdims=True)(x))
    return k.Multiply()([x, k.Conv2D(8, 1, activation="hard_sigmoid")(y)])


def _shared(k: Any, x: Any) -> Any:
    layer, norm = k.Conv2D(8, 3, padding="same"), k.BatchNormalization()
    return k.Add()([norm(layer(k.ReLU(6.0)(norm(layer(x))))), x])


NETS: dict[str, Make] = {
    "conv": lambda k, x: k.Conv2D(6, 3, activation="relu")(x),
    "conv, bias, BatchNorm, ReLU6": lambda k, x: block(k.Conv2D(6, 3), k, x, k.ReLU(6.0)),
    "conv, BatchNorm": lambda k, x: block(k.Conv2D(6, 3, strides=2, padding="same", use_bias=False), k, x),
    "BatchNorm without gamma and beta": lambda k, x: k.BatchNormalization(center=False, scale=False)(k.Conv2D(6, 3)(x)),
    "depthwise": lambda k, x: block(k.DepthwiseConv2D(3, depth_multiplier=2), k, x, k.ReLU()),
    "grouped": lambda k, x: k.Conv2D(8, 3, groups=4)(x),
    "dilated": lambda k, x: block(k.Conv2D(6, 3, dilation_rate=2), k, x, k.Activation("relu")),
    "separable": lambda k, x: k.SeparableConv2D(6, 3, activation="relu")(x),
    "transposed": lambda k, x: block(k.Conv2DTranspose(6, 3, strides=2, padding="same"), k, x, k.ReLU()),
    "one axis": lambda k, x: block(k.Conv1D(6, 3, padding="causal"), k, k.Reshape((36, 32))(x), k.ReLU()),
    "one axis, depthwise": lambda k, x: k.DepthwiseConv1D(3)(k.Reshape((36, 32))(x)),
    "one axis, transposed": lambda k, x: k.Conv1DTranspose(6, 3, strides=2)(k.Reshape((36, 32))(x)),
    "dense": lambda k, x: k.Dense(32, activation="relu")(k.Flatten()(x)),
    "dense, BatchNorm": lambda k, x: block(k.Dense(32, use_bias=False), k, k.Flatten()(x), k.ReLU()),
    "dense of rows": lambda k, x: k.Dense(16)(k.Reshape((36, 32))(x)),
    "residual": _residual,
    "add": _two("Add"),
    "subtract": _two("Subtract"),
    "multiply": _two("Multiply"),
    "average": _two("Average"),
    "maximum": _two("Maximum"),
    "concatenate": _two("Concatenate"),
    "add of three": _three("Add"),
    "average of three": _three("Average"),
    "multiply of three": _three("Multiply"),
    "add to itself": lambda k, x: k.Add()([x, x]),
    "add, ReLU": lambda k, x: k.ReLU()(_two("Add")(k, x)),
    "average pooling": lambda k, x: k.AveragePooling2D(3, 2, padding="same")(k.Conv2D(6, 3)(x)),
    "average pooling of one axis": lambda k, x: k.AveragePooling1D(3)(k.Reshape((36, 32))(x)),
    "global average pooling": lambda k, x: k.GlobalAveragePooling2D()(k.Conv2D(6, 3)(x)),
    "global average pooling, kept": lambda k, x: k.Conv2D(9, 1)(k.GlobalAveragePooling2D(keepdims=True)(x)),
    "max pooling": lambda k, x: k.MaxPooling2D(3, 2, padding="same")(block(k.Conv2D(6, 3), k, x)),
    "global max pooling": lambda k, x: k.GlobalMaxPooling2D()(k.Conv2D(6, 3)(x)),
    "padding and cropping": lambda k, x: k.Conv2D(6, 3)(k.Cropping2D(1)(k.ZeroPadding2D(2)(x))),
    "upsampling": lambda k, x: k.Conv2D(6, 3)(k.UpSampling2D(2)(x)),
    "leaky ReLU": lambda k, x: k.LeakyReLU()(k.Conv2D(6, 3)(x)),
    "ReLU with a slope": lambda k, x: k.ReLU(6.0, negative_slope=0.1)(k.Conv2D(6, 3)(x)),
    "rescaling": lambda k, x: k.Conv2D(6, 3)(k.Rescaling(0.3, 0.1)(x)),
    "BatchNorm first": lambda k, x: k.Conv2D(6, 3)(k.ReLU()(k.BatchNormalization()(x))),
    "BatchNorm of a vector": lambda k, x: k.BatchNormalization()(k.Maximum()([k.Flatten()(x), k.Flatten()(x)])),
    "sum of a tensor and a function of it": _and_a_function_of_it,
    "product of a tensor and a function of it": _swish_of_parts,
    "squeeze and excitation": _gate,
    "shared": _shared,
    "dropout": lambda k, x: k.Dropout(0.5)(k.Conv2D(6, 3)(x)),
}


@pytest.mark.parametrize("name", NETS)
def test_no_output_of_the_file_differs(name: str) -> None:
    model = observed(net(NETS[name]), [pictures(16, (12, 12, 8))])
    x = pictures(512, (12, 12, 8), seed=1)
    (want,) = predict(model, [x])
    (got,) = in_libwia(model, [x])
    np.testing.assert_array_equal(got, want)


def _deep(k: Any, x: Any) -> Any:
    """16 convolutions, 15 BatchNorms, 10 bounds and 5 sums."""
    for _ in range(5):
        y = block(k.Conv2D(16, 1, use_bias=False), k, x, k.ReLU(6.0))
        y = block(k.DepthwiseConv2D(3, padding="same", use_bias=False), k, y, k.ReLU(6.0))
        x = k.Add()([x, block(k.Conv2D(8, 1, use_bias=False), k, y)])
    return k.GlobalAveragePooling2D()(k.Conv2D(24, 3, strides=2)(x))


def test_no_output_of_a_deep_net_differs() -> None:
    x = pictures(32, (12, 12, 8))
    model = observed(net(_deep), [x])
    assert len(model.layers) >= 50
    np.testing.assert_array_equal(in_libwia(model, [x])[0], predict(model, [x])[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2"])
def test_no_output_of_an_application_differs(name: str) -> None:
    keras = framework("tf_keras")
    keras.utils.set_random_seed(0)
    options = {"weights": None, "classes": 100, "classifier_activation": None}
    model = randomize(getattr(keras.applications, name)(input_shape=(64, 64, 3), **options), seed=1)
    x = pictures(16, (64, 64, 3))
    model = observed(model, [x])
    (want,) = predict(model, [x])
    assert len(np.unique(want)) > 1000
    np.testing.assert_array_equal(in_libwia(model, [x])[0], want)


# -- the equations, of all levels --------------------------------------------------------------------------------------

F = np.float32
SEEDS = range(4)


def grids(seed: int, n: int) -> Any:
    """Grids with scales of any size between 2^-8 and 1."""
    from wia_quant.keras.tf_keras.arithmetic import Grid

    scales = np.exp2(np.random.default_rng(seed).uniform(-8, 0, n)).astype(np.float32)
    return [Grid(s, F(-128), F(127)) for s in scales]


def on_levels(equation: Callable[..., Any], *operands: Any) -> np.ndarray:
    """As a function of TensorFlow, whose graph is optimized."""
    tf = framework("tensorflow")
    found: np.ndarray = tf.function(equation)(*map(tf.constant, operands)).numpy()
    return found


@pytest.mark.parametrize("alike", [False, True], ids=["two grids", "one grid"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_is_equation_12(seed: int, alike: bool) -> None:
    from wia_quant.keras.tf_keras.arithmetic import added

    grid_a, grid_b, y = grids(seed, 3)
    grid_b = grid_a if alike else grid_b
    a, b = (v.astype(np.float32) for v in np.meshgrid(np.arange(-255, 256), np.arange(-255, 256)))
    got = on_levels(lambda p, q: added(p, q, grid_a, grid_b, y, 1), a * grid_a.scale, b * grid_b.scale)
    m_a, m_b = F(np.float64(grid_a.scale) / y.scale), F(np.float64(grid_b.scale) / y.scale)
    np.testing.assert_array_equal(got, np.rint(a * m_a + b * m_b) * y.scale)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_of_tensors_is_equation_13(seed: int) -> None:
    from wia_quant.keras.tf_keras.arithmetic import multiplied

    grid_a, grid_b, y = grids(seed, 3)
    a, b = (v.astype(np.float32) for v in np.meshgrid(np.arange(-255, 256), np.arange(-255, 256)))
    got = on_levels(lambda p, q: multiplied(p, q, grid_a, grid_b, y), a * grid_a.scale, b * grid_b.scale)
    m = F(np.float64(grid_a.scale * grid_b.scale) / y.scale)
    np.testing.assert_array_equal(got, np.rint(a * b * m) * y.scale)


@pytest.mark.parametrize("n", [4, 9, 49])
def test_an_average_is_equation_14(n: int) -> None:
    from wia_quant.keras.tf_keras.arithmetic import averaged

    grid, y = grids(n, 2)
    total = np.arange(-255 * n, 255 * n + 1, dtype=np.int32)
    real = (total * grid.scale / n).astype(np.float32)
    got = on_levels(lambda t, r: averaged(t, np.float64(n), r, grid, y), total, real)
    m = F(np.float64(grid.scale) / (n * np.float64(y.scale)))
    np.testing.assert_array_equal(got, np.rint(total.astype(np.float32) * m) * y.scale)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_result_of_a_product_is_equation_8(seed: int) -> None:
    from wia_quant.keras.tf_keras.arithmetic import Weights, product

    x, w, y = grids(seed, 3)
    sums = np.random.default_rng(seed).integers(-(2**20), 2**20, (40_000, 1)).astype(np.float32)
    one, levels = np.ones(1, np.float32), np.ones((1, 1), np.float32)
    weights = Weights(levels, one, one * w.scale, np.array([7], np.int32), one, one)
    tf = framework("tensorflow")

    def run(v: Any, output: Any) -> Any:
        return product(tf.matmul, v, tf.constant(levels), weights, x.scale, output, lambda s: s)

    unit = x.scale * w.scale
    total = sums + 7
    inputs = sums * x.scale
    np.testing.assert_array_equal(np.rint(inputs / x.scale), sums)
    want = np.rint(total * F(np.float64(unit) / y.scale)) * y.scale
    np.testing.assert_array_equal(on_levels(lambda v: run(v, y), inputs), want)
    np.testing.assert_array_equal(on_levels(lambda v: run(v, None), inputs), total * unit)


def test_models_of_several_inputs_and_outputs_and_of_open_sizes() -> None:
    keras = framework("tf_keras")
    k = keras.layers
    a, b = keras.Input((None, None, 3), name="a"), keras.Input((None, None, 4), name="b")
    x = k.Add()([k.Conv2D(8, 3, padding="same", activation="relu")(a), k.Conv2D(8, 3, padding="same")(b)])
    y = k.GlobalAveragePooling2D()(k.Conv2D(12, 3)(x))
    model = randomize(keras.Model([a, b], [k.Conv2D(5, 1)(x), k.Dense(7)(y)]))
    xs = [pictures(8, (10, 14, 3)), pictures(8, (10, 14, 4), seed=1)]
    model = observed(model, xs)
    for size in (8, 5):
        part = [x[:size, : size + 2] for x in xs]
        for got, want in zip(in_libwia(model, part), predict(model, part), strict=True):
            np.testing.assert_array_equal(got, want)


def test_biases_of_any_size() -> None:
    keras = framework("tf_keras")
    x = pictures(16, (32,))
    inputs = keras.Input((32,), name="x")
    model = randomize(keras.Model(inputs, keras.layers.Dense(64)(inputs)))
    kernel, bias = model.layers[-1].get_weights()
    kernel[:, :4] *= 1e-8  # the int32 bias would not fit: the file raises the scale of these
    kernel[:, 4:6] = 0
    bias[6:9] *= 1e4
    model.layers[-1].set_weights([kernel, bias])
    model = observed(model, [x])
    np.testing.assert_array_equal(in_libwia(model, [x])[0], predict(model, [x])[0])


def test_sums_beyond_the_integers_of_float32() -> None:
    keras = framework("tf_keras")
    x = np.random.default_rng(0).uniform(0.9, 1, (8, 4096)).astype(np.float32)
    inputs = keras.Input((4096,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(64, kernel_initializer="ones", use_bias=False)(inputs))
    kernel = np.random.default_rng(1).uniform(0.9, 1, (4096, 64)).astype(np.float32)
    model.layers[-1].set_weights([kernel])
    model = observed(model, [x])
    want = predict(model, [x])[0]
    np.testing.assert_array_equal(in_libwia(model, [x])[0], want)


def test_a_channel_that_its_batch_norm_drops() -> None:
    x = pictures(16, (12, 12, 8))
    model = net(lambda k, v: k.ReLU()(k.BatchNormalization(name="norm")(k.Conv2D(8, 3)(v))))
    model.get_layer("norm").gamma.assign(np.array([0, 1, -1, 0.5, 0, 2, 1e-30, 1], np.float32))
    model = observed(model, [x])
    np.testing.assert_array_equal(in_libwia(model, [x])[0], predict(model, [x])[0])


def test_channels_first() -> None:
    keras = framework("tf_keras")
    k = keras.layers
    x = inputs = keras.Input((3, 12, 12), name="x")
    first = {"data_format": "channels_first"}
    x = k.ReLU()(k.BatchNormalization(axis=1)(k.Conv2D(8, 3, **first)(x)))
    x = k.Add()([x, k.Conv2D(8, 1, **first)(x)])
    x = k.GlobalAveragePooling2D(**first)(k.Conv2D(8, 3, strides=2, **first)(x))
    model = randomize(keras.Model(inputs, k.Dense(10)(x)))
    x = pictures(16, (3, 12, 12))
    model = observed(model, [x])
    np.testing.assert_array_equal(in_libwia(model, [x])[0], predict(model, [x])[0])


# -- where evaluation is exact without a word --------------------------------------------------------------------------


def small() -> Any:
    keras = framework("tf_keras")
    keras.utils.set_random_seed(0)
    return randomize(residual(keras))


def test_the_metric_of_fit_is_that_of_the_file() -> None:
    """Also where the evaluation was traced before any quantizer saw data."""
    keras = framework("tf_keras")
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = pictures(64, (16, 16, 3)), rng.integers(0, 10, 64)
    model = wq.quantize_model(small())
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    history = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y), verbose=0).history
    (got,) = in_libwia(model, [x])
    assert history["val_accuracy"][-1] == pytest.approx(float((got.argmax(1) == y).mean()))
    losses = keras.losses.sparse_categorical_crossentropy(y, got, from_logits=True)
    assert history["val_loss"][-1] == pytest.approx(float(np.mean(losses)), rel=1e-6)
    assert before["loss"] != history["val_loss"][-1]


@pytest.mark.parametrize("suffix", [".keras", ".h5", ""], ids=lambda v: v or "SavedModel")
def test_a_loaded_model_evaluates_as_its_file(suffix: str, tmp_path: Path) -> None:
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    (want,) = in_libwia(model, [x])
    np.testing.assert_array_equal(predict(model, [x])[0], want)
    model.save(tmp_path / f"net{suffix}")
    np.testing.assert_array_equal(predict(wq.load(tmp_path / f"net{suffix}"), [x])[0], want)
    with wq.quantize_scope():
        again = framework("tf_keras").models.load_model(str(tmp_path / f"net{suffix}"), compile=False)
    np.testing.assert_array_equal(predict(again, [x])[0], want)


def test_a_model_that_was_saved_as_a_functional_one_evaluates_as_its_file(tmp_path: Path) -> None:
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    framework("tf_keras").Model(model.inputs, model.outputs).save(tmp_path / "net.keras")
    np.testing.assert_array_equal(predict(wq.load(tmp_path / "net.keras"), [x])[0], in_libwia(model, [x])[0])


def test_a_saved_model_without_our_classes_evaluates_as_its_file(tmp_path: Path) -> None:
    tf = framework("tensorflow")
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    model.export(str(tmp_path / "net"))
    alone = tf.saved_model.load(str(tmp_path / "net"))
    np.testing.assert_array_equal(alone.serve(x).numpy(), in_libwia(model, [x])[0])


def test_weights_are_loaded_into_a_model_that_evaluates_as_its_file(tmp_path: Path) -> None:
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    model.save_weights(str(tmp_path / "net.weights.h5"))
    again = wq.quantize_model(small())
    again.load_weights(str(tmp_path / "net.weights.h5"))
    np.testing.assert_array_equal(predict(again, [x])[0], in_libwia(model, [x])[0])


def test_a_model_around_it_evaluates_as_the_file() -> None:
    keras = framework("tf_keras")
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    around = keras.Sequential([keras.Input((16, 16, 3)), model, keras.layers.Rescaling(2.0)])
    np.testing.assert_array_equal(predict(around, [x])[0], 2 * in_libwia(model, [x])[0])
    functional = keras.Model(inputs := keras.Input((16, 16, 3)), model(inputs))
    np.testing.assert_array_equal(predict(functional, [x])[0], in_libwia(model, [x])[0])


def test_a_copy_evaluates_as_the_file() -> None:
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    with wq.quantize_scope():
        again = framework("tf_keras").models.clone_model(model)
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(predict(again, [x])[0], in_libwia(model, [x])[0])


def test_a_model_that_loses_its_ranges_does_not_evaluate_as_if_it_had_them() -> None:
    tf = framework("tensorflow")
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    predict(model, [x])
    fresh = wq.quantize_model(small())
    model.set_weights(fresh.get_weights())
    with pytest.raises(tf.errors.InvalidArgumentError, match="lost its range"):
        predict(model, [x])
    model.compile("sgd", "mse")
    np.testing.assert_array_equal(predict(model, [x])[0], predict(fresh, [x])[0])


def test_round_biases_of_a_model_that_saw_no_data_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="saw no data"):
        wq.round_biases(wq.quantize_model(small()))


# -- what tensorflow-model-optimization made ---------------------------------------------------------------------------


def applied(model: Any, scheme: bool = True) -> Any:
    tfmot = framework("tensorflow_model_optimization").quantization.keras
    with wq.quantize_scope():
        annotated = tfmot.quantize_annotate_model(model)
        return tfmot.quantize_apply(annotated, wq.WiaQuantizeScheme()) if scheme else tfmot.quantize_apply(annotated)


def test_quantize_apply_with_the_scheme_gives_a_model_that_evaluates_as_its_file() -> None:
    x = pictures(16, (16, 16, 3))
    model = wq.observe(applied(small()), [x])
    np.testing.assert_array_equal(in_libwia(model, [x])[0], predict(model, [x])[0])


def test_round_biases_makes_a_sequential_model_of_quantize_apply_exact() -> None:
    keras = framework("tf_keras")
    k = keras.layers
    layers = [keras.Input((16, 16, 3)), k.Conv2D(8, 3), k.BatchNormalization(), k.ReLU(), k.Flatten(), k.Dense(64)]
    x = pictures(64, (16, 16, 3))
    model = wq.observe(applied(randomize(keras.Sequential(layers))), [x])
    before = predict(model, [x])[0]
    (got,) = in_libwia(model, [x])
    assert (got != before).any()
    assert wq.round_biases(model) is model
    np.testing.assert_array_equal(predict(model, [x])[0], got)
    quantized = wq.observe(wq.quantize_model(randomize(keras.Sequential(layers))), [x])
    np.testing.assert_array_equal(predict(quantized, [x])[0], in_libwia(quantized, [x])[0])


def test_round_biases_makes_a_model_of_the_default_scheme_exact() -> None:
    keras = framework("tf_keras")
    model = applied(small(), scheme=False)
    x = train(keras, model)
    before = predict(model, [x])[0]
    (got,) = in_libwia(model, [x])
    assert (np.abs(got - before) > 1e-5).any()
    np.testing.assert_array_equal(predict(wq.round_biases(model), [x])[0], got)


def test_annotated_layers_with_configs_of_their_own() -> None:
    keras = framework("tf_keras")
    tfmot = framework("tensorflow_model_optimization").quantization.keras
    k = keras.layers
    from wia_quant.keras.tf_keras.config import WiaQuantizeConfig

    x = inputs = keras.Input((12, 12, 3), name="x")
    x = wq.quantize_annotate_layer(k.Rescaling(0.5), WiaQuantizeConfig())(x)
    x = wq.quantize_annotate_layer(k.Conv2D(8, 3), WiaQuantizeConfig({"kernel": (-1,)}, quantize_output=False))(x)
    x = wq.quantize_annotate_layer(k.MaxPooling2D(), WiaQuantizeConfig())(x)  # the file quantizes before it pools
    x = k.Flatten()(x)
    x = wq.quantize_annotate_layer(k.Dense(32, activation="relu"))(x)
    model = randomize(keras.Model(inputs, k.Dense(10, name="last")(x)))
    with wq.quantize_scope():
        model = tfmot.quantize_apply(model, wq.WiaQuantizeScheme())
    x = pictures(16, (12, 12, 3))
    wq.observe(model, [x])
    (want,), (got,) = predict(model, [x]), in_libwia(model, [x])
    assert (np.abs(got - want) > 1e-5 * np.abs(want).max()).sum() == 0  # two of its layers are float


def test_a_model_without_quantizers_of_activations_evaluates_as_it_trains() -> None:
    keras = framework("tf_keras")
    tfmot = framework("tensorflow_model_optimization").quantization.keras
    from wia_quant.keras.tf_keras.config import WiaQuantizeConfig

    config = WiaQuantizeConfig({"kernel": (-1,)}, quantize_output=False)
    layers = [keras.Input((8,)), wq.quantize_annotate_layer(keras.layers.Dense(9), config)]
    with wq.quantize_scope():
        model = tfmot.quantize_apply(keras.Model(layers[0], layers[1](layers[0])), wq.WiaQuantizeScheme())
    for layer in model.layers:
        layer.quantizer = None  # that of the input
    x = pictures(4, (8,))
    want = predict(keras.Model(model.inputs, model.outputs), [x])[0]
    np.testing.assert_array_equal(predict(model, [x])[0], want)


# -- and training is as before -----------------------------------------------------------------------------------------


def test_training_computes_what_the_layers_compute() -> None:
    """Each layer alone, as tensorflow-model-optimization made it, and the gradients."""
    tf = framework("tensorflow")
    x = pictures(16, (16, 16, 3))
    model = observed(small(), [x])
    again = framework("tf_keras").Model(model.inputs, model.outputs)  # a plain model of the same layers
    for training in (True, False):
        found = []
        for each in (model, again):
            kept = [w.numpy() for w in each.weights]
            with tf.GradientTape() as tape:
                tf.random.set_seed(0)
                y = each(x, training=training)
                loss = tf.reduce_sum(tf.square(y))
            found.append([y, *tape.gradient(loss, each.trainable_variables)])
            for w, value in zip(each.weights, kept, strict=True):
                w.assign(value)
        for a, b in zip(*found, strict=True):
            assert a is not None
            if training:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, atol=0.2 * np.abs(b).max())


def test_what_is_no_number_is_the_zero_point_as_in_the_file() -> None:
    x = pictures(4, (12, 12, 8))
    model = observed(net(lambda k, x: k.Conv2D(4, 3)(x)), [x])
    x[0, 0, 0, 0], x[1] = np.nan, np.inf
    (got,), (want,) = in_libwia(model, [x]), predict(model, [x])
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, want)
