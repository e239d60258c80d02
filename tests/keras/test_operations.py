# SPDX-License-Identifier: Apache-2.0
"""Every function of the table of operations computes in ONNX, and in libwia, what it does in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wia_quant.keras as wq
from tests.keras.models import framework, in_onnxruntime, predict
from wia_quant.errors import ExportError
from wia_quant.keras import to_onnx
from wia_quant.keras.emit.operations import FUNCTIONS, OPERATIONS
from wia_quant.keras.placement import ROLES
from wia_quant.runtime import Session

PICTURE = (6, 8, 4)
Call = Callable[[Any, Any], Any]

#: One value in, one value out, wherever it is defined: of keras.ops, and of tf.math by the same name.
_OF_ONE_VALUE = {
    "Relu": "relu", "Relu6": "relu6", "Sigmoid": "sigmoid", "Tanh": "tanh", "Silu": "silu",
    "HardSigmoid": "hard_sigmoid", "HardSilu": "hard_silu", "Softplus": "softplus",
    "Softsign": "softsign", "Selu": "selu", "Elu": "elu", "Exp": "exp", "Log": "log", "Abs": "abs",
    "Absolute": "absolute", "Negative": "negative", "Sqrt": "sqrt", "Rsqrt": "rsqrt", "Square": "square",
    "Erf": "erf", "Sin": "sin", "Cos": "cos", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign",
    "Reciprocal": "reciprocal", "Expm1": "expm1", "Log1p": "log1p", "LogSigmoid": "log_sigmoid",
    "HardTanh": "hard_tanh", "TanhShrink": "tanh_shrink", "Squareplus": "squareplus", "LeakyRelu": "leaky_relu",
    "Softmax": "softmax", "LogSoftmax": "log_softmax", "Gelu": "gelu", 
    "StopGradient": "stop_gradient",
}  # fmt: skip
_POSITIVE = {"Log", "Sqrt", "Rsqrt", "Log1p", "Reciprocal"}
#: Names of keras.ops that are one class with another name there.
_OTHER_NAMES = {"Abs", "TrueDivide"}
#: Lines of the table that functions of TensorFlow have, and keras.ops has not.
#: What stays float of them in a trained file: the product with a matrix that is no layer's.
_FLOAT_IN_FILES = {"Matmul": {"MatMul"}}
ONLY_IN_TENSORFLOW = {"SquaredDifference", "Identity"}
_WEIGHT = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)

#: Class of an operation -> calls of it, in the spelling of keras.ops.
OPS: dict[str, list[Call]] = {
    **{cls: [lambda k, x, name=name: getattr(k.ops, name)(x)] for cls, name in _OF_ONE_VALUE.items()},  # type: ignore[misc]
    "Add": [lambda k, x: x + x[:, :1], lambda k, x: 1.5 + x],
    "Subtract": [lambda k, x: 1.0 - x, lambda k, x: x - x[:, :, :1]],
    "Multiply": [lambda k, x: x * 0.5, lambda k, x: x * np.arange(4, dtype=np.float32)],
    "Divide": [lambda k, x: k.ops.divide(1.0, x)],
    "TrueDivide": [lambda k, x: k.ops.true_divide(x, 3.0)],
    "Maximum": [lambda k, x: k.ops.maximum(x, 0.5)],
    "Minimum": [lambda k, x: k.ops.minimum(x, x * x)],
    "Clip": [lambda k, x: k.ops.clip(x, -0.5, 0.25)],
    "Power": [lambda k, x: x**2],
    "Greater": [lambda k, x: k.ops.where(x > 0.1, x, -x)],
    "GreaterEqual": [lambda k, x: k.ops.where(x >= 0.1, 1.0, x)],
    "Less": [lambda k, x: k.ops.where(k.ops.less(x, x * x), x, 0.0)],
    "LessEqual": [lambda k, x: k.ops.where(x <= 0.1, x, 0.1)],
    "Equal": [lambda k, x: k.ops.where(k.ops.equal(k.ops.round(x), 0.0), x, 7.0)],
    "Where": [lambda k, x: k.ops.where(x > 0, x, 0.0)],
    **{
        cls: [
            lambda k, x, name=name: getattr(k.ops, name)(x, axis=-1),  # type: ignore[misc]
            lambda k, x, name=name: getattr(k.ops, name)(x, axis=(1, 2), keepdims=True),  # type: ignore[misc]
        ]
        for cls, name in (
            ("Mean", "mean"),
            ("Max", "max"),
            ("Min", "min"),
            ("Sum", "sum"),
            ("Prod", "prod"),
            ("Var", "var"),
            ("Std", "std"),
            ("Logsumexp", "logsumexp"),
        )
    },
    "Argmax": [lambda k, x: k.ops.cast(k.ops.argmax(x, axis=-1), "float32")],
    "Argmin": [lambda k, x: k.ops.cast(k.ops.argmin(x, axis=1, keepdims=True), "float32")],
    "Cast": [lambda k, x: k.ops.cast(k.ops.cast(k.ops.argmax(x, axis=2), "float32"), "float32")],
    "Normalize": [lambda k, x: k.ops.normalize(x), lambda k, x: k.ops.normalize(x, axis=1, epsilon=1.0)],
    "MaxPool": [lambda k, x: k.ops.max_pool(x, 2, 2, "same"), lambda k, x: k.ops.max_pool(x, (3, 2))],
    "AveragePool": [lambda k, x: k.ops.average_pool(x, 3, 1)],
    "Reshape": [lambda k, x: k.ops.reshape(x, (-1, 12, 16))],
    "Transpose": [lambda k, x: k.ops.transpose(x, (0, 3, 1, 2)), lambda k, x: k.ops.transpose(x, (0, 2, 1, -1))],
    "Swapaxes": [lambda k, x: k.ops.swapaxes(x, 1, -1)],
    "Moveaxis": [lambda k, x: k.ops.moveaxis(x, -1, 1), lambda k, x: k.ops.moveaxis(x, (1, 2), (3, 1))],
    "Concatenate": [lambda k, x: k.ops.concatenate([x, x * 2], axis=-1)],
    "Stack": [lambda k, x: k.ops.stack([x, x * 2], axis=1), lambda k, x: k.ops.stack([x, -x], axis=-1)],
    "Split": [lambda k, x: k.ops.split(x, 2, axis=-1), lambda k, x: k.ops.split(x, [1, 4], axis=1)],
    "Unstack": [lambda k, x: k.ops.unstack(x, axis=1)],
    "Pad": [
        lambda k, x: k.ops.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]]),
        lambda k, x: k.ops.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]], constant_values=0.5),
        lambda k, x: k.ops.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]], mode="reflect"),
    ],
    "Flip": [lambda k, x: k.ops.flip(x, axis=2)],
    "Tile": [lambda k, x: k.ops.tile(x, (1, 2, 1, 3))],
    "Repeat": [lambda k, x: k.ops.repeat(x, 2, axis=1)],
    "Roll": [lambda k, x: k.ops.roll(x, 2, axis=1), lambda k, x: k.ops.roll(x, (1, -3), axis=(1, 2))],
    "Take": [lambda k, x: k.ops.take(x, np.array([2, 0, -1]), axis=-1)],
    "DepthToSpace": [lambda k, x: k.ops.nn.depth_to_space(x, 2)],
    "SpaceToDepth": [lambda k, x: k.ops.nn.space_to_depth(x, 2)],
    "Resize": [
        lambda k, x: k.ops.image.resize(x, (12, 4), data_format="channels_last"),
        lambda k, x: k.ops.image.resize(x, (12, 16), interpolation="nearest", data_format="channels_last"),
    ],
    "GetItem": [lambda k, x: x[:, 1:-1, ::2], lambda k, x: x[..., 1], lambda k, x: x[:, None, 2]],
    "Matmul": [lambda k, x: k.ops.matmul(x, _WEIGHT)],
    "Einsum": [lambda k, x: k.ops.einsum("bhwc,cd->bdhw", x, _WEIGHT)],
    "Squeeze": [lambda k, x: k.ops.squeeze(x[:, :1], axis=1)],
    "ExpandDims": [lambda k, x: k.ops.expand_dims(x, 2)],
}


def _tf() -> Any:
    import tensorflow as tf

    return tf


#: Name of a TensorFlow function in the table -> a call of it.
TF: dict[str, Callable[[Any, Any], Any]] = {
    "__operators__.add": lambda tf, x: x + x[:, :1],
    "math.add": lambda tf, x: tf.add(x, 1.5),
    "math.subtract": lambda tf, x: 1.0 - x,
    "math.multiply": lambda tf, x: x * x,
    "math.truediv": lambda tf, x: x / 3.0,
    "math.maximum": lambda tf, x: tf.maximum(x, 0.5),
    "math.minimum": lambda tf, x: tf.minimum(x, 0.5),
    "math.pow": lambda tf, x: tf.pow(x, 2.0),
    "math.squared_difference": lambda tf, x: tf.math.squared_difference(x, 0.3),
    "math.greater": lambda tf, x: tf.where(x > 0.1, x, -x),
    "math.greater_equal": lambda tf, x: tf.where(x >= 0.1, x, -x),
    "math.less": lambda tf, x: tf.where(x < 0.1, x, -x),
    "math.less_equal": lambda tf, x: tf.where(x <= 0.1, x, -x),
    "math.equal": lambda tf, x: tf.where(tf.equal(tf.round(x), 0.0), x, 7.0),
    "where": lambda tf, x: tf.where(x > 0, x, 0.0),
    "clip_by_value": lambda tf, x: tf.clip_by_value(x, -0.5, 0.25),
    "nn.leaky_relu": lambda tf, x: tf.nn.leaky_relu(x, alpha=0.1),
    "nn.gelu": lambda tf, x: tf.nn.gelu(x, approximate=True),
    "math.l2_normalize": lambda tf, x: tf.math.l2_normalize(x, -1),
    "math.argmax": lambda tf, x: tf.cast(tf.argmax(x, -1), tf.float32),
    "math.argmin": lambda tf, x: tf.cast(tf.argmin(x, axis=1), tf.float32),
    **{
        f"math.reduce_{name}": lambda tf, x, name=name: getattr(tf.math, f"reduce_{name}")(x, axis=[1, 2])  # type: ignore[misc]
        for name in ("mean", "max", "min", "sum", "prod", "variance", "std", "logsumexp")
    },
    "nn.max_pool2d": lambda tf, x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
    "nn.avg_pool2d": lambda tf, x: tf.nn.avg_pool2d(x, [3, 2], 1, "VALID"),
    "nn.avg_pool": lambda tf, x: tf.nn.avg_pool(x, 2, 1, "VALID"),
    "reshape": lambda tf, x: tf.reshape(x, (-1, 12, 16)),
    "compat.v1.transpose": lambda tf, x: tf.compat.v1.transpose(x, (0, 2, 1, 3)),
    "concat": lambda tf, x: tf.concat([x, x], axis=-1),
    "stack": lambda tf, x: tf.stack([x, -x], 1),
    "split": lambda tf, x: tf.split(x, 2, axis=-1),
    "unstack": lambda tf, x: tf.unstack(x, axis=-1),
    "compat.v1.pad": lambda tf, x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]], "REFLECT"),
    "reverse": lambda tf, x: tf.reverse(x, [1]),
    "tile": lambda tf, x: tf.tile(x, [1, 2, 1, 3]),
    "repeat": lambda tf, x: tf.repeat(x, 2, axis=1),
    "roll": lambda tf, x: tf.roll(x, [1, -3], [1, 2]),
    "compat.v1.gather": lambda tf, x: tf.gather(x, [2, 0], axis=-1),
    "nn.depth_to_space": lambda tf, x: tf.nn.depth_to_space(x, 2),
    "nn.space_to_depth": lambda tf, x: tf.nn.space_to_depth(x, 2),
    "image.resize": lambda tf, x: tf.image.resize(x, (12, 4)),
    "einsum": lambda tf, x: tf.einsum("bhwc,cd->bdhw", x, _WEIGHT),
    "__operators__.getitem": lambda tf, x: x[:, 1:-1, ::2],
    "linalg.matmul": lambda tf, x: tf.matmul(x, _WEIGHT),
    "compat.v1.squeeze": lambda tf, x: tf.compat.v1.squeeze(x[:, :1], axis=1),
    "expand_dims": lambda tf, x: tf.expand_dims(x, 2),
    "cast": lambda tf, x: tf.cast(tf.argmax(x, 2), tf.float32),
    "stop_gradient": lambda tf, x: tf.stop_gradient(x),
    "identity": lambda tf, x: tf.identity(x),
}
for _name in FUNCTIONS:  # those of one value
    TF.setdefault(_name, lambda tf, x, name=_name: _attribute(tf, name)(x))  # type: ignore[misc]


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _compared(model: Any, *, positive: bool) -> None:
    x = np.random.default_rng(1).normal(size=(3, *PICTURE)).astype(np.float32)
    x = np.abs(x) + 0.1 if positive else x
    proto = to_onnx(model)
    session = Session(proto.SerializeToString())
    in_libwia = session.run(None, {session.get_inputs()[0].name: x})
    for got, ours, want in zip(in_onnxruntime(proto, [x]), in_libwia, predict(model, [x]), strict=True):
        assert got.shape == ours.shape == want.shape
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)
        np.testing.assert_allclose(ours, want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("lies", ["as it came", "behind a convolution"])
@pytest.mark.parametrize("key", sorted(OPS))
def test_an_operation_of_keras_computes_the_same_in_onnx(key: str, lies: str) -> None:
    keras = framework("keras")
    for call in OPS[key]:
        x = inputs = keras.Input(PICTURE)
        if lies != "as it came":  # channels are first there
            x = keras.layers.DepthwiseConv2D(1, use_bias=False, depthwise_initializer="ones")(x)
        model = keras.Model(inputs, call(keras, x))
        made = {type(op).__name__ for op in model._operations}
        assert key in made or key in _OTHER_NAMES, made
        _compared(model, positive=key in _POSITIVE)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_of_tensorflow_computes_the_same_in_onnx(name: str) -> None:
    tf_keras = framework("tf_keras")
    inputs = tf_keras.Input(PICTURE)
    model = tf_keras.Model(inputs, TF[name](_tf(), inputs))
    assert name in {layer.symbol for layer in model.layers if hasattr(layer, "symbol")}
    _compared(model, positive=FUNCTIONS[name] in _POSITIVE | {"Prod"})


@pytest.mark.parametrize("key", sorted(key for key in OPS if f"ops.{key}" in ROLES))
def test_an_operation_between_two_convolutions_is_trained_on_the_grids_of_its_file(key: str) -> None:
    """In the file all of it is integers, but for the turning of what is returned."""
    keras = framework("keras")
    for call in OPS[key]:
        inputs = keras.Input(PICTURE)
        x = keras.layers.Conv2D(4, 1)(inputs)
        y = keras.tree.flatten(call(keras, x))[0]
        if len(y.shape) < 4:
            y = keras.layers.Reshape((*y.shape[1:], *[1] * (4 - len(y.shape))))(y)
        y = (keras.layers.Conv2D if len(y.shape) == 4 else keras.layers.Conv3D)(3, 1)(y)
        data = np.random.default_rng(0).normal(size=(4, *PICTURE)).astype(np.float32)
        model = wq.observe(wq.quantize_model(keras.Model(inputs, y)), [data])
        written = wq.export(model)
        floats = {d.op_type for d in written.plan.decisions if not d.quantized}
        assert floats <= {"Transpose", "Unsqueeze"} | _FLOAT_IN_FILES.get(key, set()), floats
        (got,) = Session(written.model.SerializeToString()).run(None, {written.model.graph.input[0].name: data})
        want = predict(model, [data])[0]
        assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()


def test_every_operation_of_the_table_has_a_case() -> None:
    assert set(OPS) == set(OPERATIONS) - ONLY_IN_TENSORFLOW
    assert set(TF) == set(FUNCTIONS)
    assert set(FUNCTIONS.values()) <= set(OPERATIONS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, x: k.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="symmetric"), "symmetric"),
        (lambda k, x: k.ops.power(x, x), "exponent"),
        (lambda k, x: k.ops.take(x, k.ops.argmax(x, axis=-1), axis=1), "places"),
        (lambda k, x: k.ops.image.resize(x, (4, 4), antialias=True), "antialias"),
        (lambda k, x: k.ops.normalize(x, order=1), "norm"),
        (lambda k, x: k.ops.tile(x, (2, 1, 1, 1, 1)), "axes"),
    ],
    ids=["padding", "exponent", "places", "antialias", "norm", "tile"],
)
def test_an_operation_without_an_onnx_form_is_named(call: Call, message: str) -> None:
    keras = framework("keras")
    inputs = keras.Input(PICTURE)
    with pytest.raises(ExportError, match=f"operation '.*{message}"):
        to_onnx(keras.Model(inputs, call(keras, inputs)))
