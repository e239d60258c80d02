# SPDX-License-Identifier: Apache-2.0
"""The ONNX form of a Keras model computes what the model does, layer by layer and for whole nets, in both Kerases."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.keras.models import FRAMEWORKS, framework, in_onnxruntime, predict, randomize, residual
from wia_quant.errors import ExportError
from wia_quant.keras import to_onnx
from wia_quant.keras.decompose import DECOMPOSE
from wia_quant.keras.emit.table import LAYERS

#: float32 sums in another order.
TOLERANCE = 2e-5

PICTURE, SEQUENCE, VOLUME, VECTOR = (7, 6, 4), (9, 4), (5, 4, 6, 2), (6,)
Make = Callable[[Any], Any]

#: Layer of the table -> instances with what they take; a list of shapes is a list of inputs.
CASES: dict[str, list[tuple[Make, Any]]] = {
    "Conv1D": [
        (lambda k: k.layers.Conv1D(5, 3, padding="causal", dilation_rate=2), SEQUENCE),
        (lambda k: k.layers.Conv1D(4, 3, strides=2, padding="same", activation="relu"), SEQUENCE),
    ],
    "Conv2D": [
        (lambda k: k.layers.Conv2D(5, 3, strides=2, padding="same"), PICTURE),
        (lambda k: k.layers.Conv2D(6, (3, 2), groups=2, use_bias=False, activation="sigmoid"), PICTURE),
        (lambda k: k.layers.Conv2D(3, 3, dilation_rate=2, padding="same"), PICTURE),
    ],
    "Conv3D": [(lambda k: k.layers.Conv3D(3, 2, padding="same"), VOLUME)],
    "DepthwiseConv1D": [(lambda k: k.layers.DepthwiseConv1D(3, depth_multiplier=2), SEQUENCE)],
    "DepthwiseConv2D": [
        (lambda k: k.layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="tanh"), PICTURE)
    ],
    "SeparableConv1D": [(lambda k: k.layers.SeparableConv1D(5, 3), SEQUENCE)],
    "SeparableConv2D": [(lambda k: k.layers.SeparableConv2D(5, 3, strides=2, depth_multiplier=2), PICTURE)],
    "Conv1DTranspose": [(lambda k: k.layers.Conv1DTranspose(3, 3, strides=2, padding="same"), SEQUENCE)],
    "Conv2DTranspose": [
        (lambda k: k.layers.Conv2DTranspose(3, 3, strides=2, padding="same"), PICTURE),
        (lambda k: k.layers.Conv2DTranspose(3, 4, strides=2), PICTURE),
        (lambda k: k.layers.Conv2DTranspose(3, 2, strides=3, padding="same"), PICTURE),
        (lambda k: k.layers.Conv2DTranspose(3, 3, strides=2, padding="same", output_padding=0), PICTURE),
        (lambda k: k.layers.Conv2DTranspose(3, (3, 2), strides=2, output_padding=1), PICTURE),
    ],
    "Conv3DTranspose": [(lambda k: k.layers.Conv3DTranspose(2, 2, strides=2), VOLUME)],
    "Dense": [
        (lambda k: k.layers.Dense(5, activation="softmax"), VECTOR),
        (lambda k: k.layers.Dense(5, activation="gelu"), SEQUENCE),
        (lambda k: k.layers.Dense(5, use_bias=False, activation="silu"), PICTURE),
    ],
    "Embedding": [(lambda k: k.layers.Embedding(9, 5), (7,))],
    "Activation": [
        (lambda k, name=name: k.layers.Activation(name), PICTURE)  # type: ignore[misc]
        for name in ("relu", "elu", "selu", "hard_sigmoid", "softplus", "softsign", "exponential", "swish", "mish")
    ],
    "ReLU": [
        (lambda k: k.layers.ReLU(), PICTURE),
        (lambda k: k.layers.ReLU(6.0), PICTURE),
        (lambda k: k.layers.ReLU(negative_slope=0.1), PICTURE),
    ],
    "LeakyReLU": [(lambda k: k.layers.LeakyReLU(0.2), PICTURE)],
    "PReLU": [(lambda k: k.layers.PReLU(shared_axes=[1, 2]), PICTURE)],
    "ELU": [(lambda k: k.layers.ELU(0.7), PICTURE)],
    "Softmax": [(lambda k: k.layers.Softmax(), PICTURE), (lambda k: k.layers.Softmax(axis=1), PICTURE)],
    "MaxPooling1D": [(lambda k: k.layers.MaxPooling1D(2), SEQUENCE)],
    "MaxPooling2D": [(lambda k: k.layers.MaxPooling2D(3, 2, padding="same"), PICTURE)],
    "MaxPooling3D": [(lambda k: k.layers.MaxPooling3D(2), VOLUME)],
    "AveragePooling1D": [(lambda k: k.layers.AveragePooling1D(2), SEQUENCE)],
    "AveragePooling2D": [(lambda k: k.layers.AveragePooling2D(3, 2), PICTURE)],
    "AveragePooling3D": [(lambda k: k.layers.AveragePooling3D(2), VOLUME)],
    **{
        f"Global{kind}Pooling{n}D": [
            (lambda k, name=f"Global{kind}Pooling{n}D": getattr(k.layers, name)(), shape),  # type: ignore[misc]
            (lambda k, name=f"Global{kind}Pooling{n}D": getattr(k.layers, name)(keepdims=True), shape),  # type: ignore[misc]
        ]
        for kind in ("Average", "Max")
        for n, shape in ((1, SEQUENCE), (2, PICTURE), (3, VOLUME))
    },
    **{
        name: [(lambda k, name=name: getattr(k.layers, name)(), [PICTURE, PICTURE])]  # type: ignore[misc]
        for name in ("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Average", "Concatenate")
    },
    "BatchNormalization": [
        (lambda k: k.layers.BatchNormalization(), PICTURE),
        (lambda k: k.layers.BatchNormalization(scale=False), VECTOR),
        (lambda k: k.layers.BatchNormalization(center=False), SEQUENCE),
    ],
    "LayerScale": [(lambda k: convnext(k).LayerScale(0.5, 4), PICTURE)],
    "LSTM": [
        (lambda k: k.layers.LSTM(5), SEQUENCE),
        (lambda k: k.layers.LSTM(5, return_sequences=True, activation="relu"), SEQUENCE),
        (lambda k: k.layers.LSTM(5, go_backwards=True, return_sequences=True), SEQUENCE),
    ],
    "GRU": [
        (lambda k: k.layers.GRU(5, return_sequences=True), SEQUENCE),
        (lambda k: k.layers.GRU(5, reset_after=False), SEQUENCE),
        (lambda k: k.layers.GRU(5, use_bias=False, go_backwards=True), SEQUENCE),
    ],
    "SimpleRNN": [
        (lambda k: k.layers.SimpleRNN(5), SEQUENCE),
        (lambda k: k.layers.SimpleRNN(5, return_sequences=True, use_bias=False), SEQUENCE),
    ],
    "Bidirectional": [
        (lambda k: k.layers.Bidirectional(k.layers.LSTM(5)), SEQUENCE),
        (lambda k: k.layers.Bidirectional(k.layers.GRU(5, return_sequences=True), merge_mode="ave"), SEQUENCE),
        (lambda k: k.layers.Bidirectional(k.layers.SimpleRNN(5, return_sequences=True)), SEQUENCE),
    ],
    "LayerNormalization": [(lambda k: k.layers.LayerNormalization(), SEQUENCE)],
    "GroupNormalization": [
        (lambda k: k.layers.GroupNormalization(2), PICTURE),
        (lambda k: k.layers.GroupNormalization(-1, scale=False), PICTURE),
        (lambda k: k.layers.GroupNormalization(1, center=False), SEQUENCE),
        (lambda k: k.layers.GroupNormalization(2), (None, 4)),
        (lambda k: k.layers.GroupNormalization(2, axis=1), (6, 5, 4)),
    ],
    "UnitNormalization": [
        (lambda k: k.layers.UnitNormalization(), PICTURE),
        (lambda k: k.layers.UnitNormalization(axis=(1, 2)), PICTURE),
    ],
    "RMSNormalization": [(lambda k: k.layers.RMSNormalization(), SEQUENCE)],
    "Rescaling": [(lambda k: k.layers.Rescaling(1 / 127.5, -1), PICTURE)],
    "Normalization": [(lambda k: k.layers.Normalization(mean=[0.1, 0.2, 0, 1], variance=[1, 2, 3, 4]), PICTURE)],
    "Flatten": [(lambda k: k.layers.Flatten(), PICTURE)],
    "Reshape": [(lambda k: k.layers.Reshape((6, -1)), PICTURE), (lambda k: k.layers.Reshape((1, 1, 6)), VECTOR)],
    "Permute": [(lambda k: k.layers.Permute((2, 1)), SEQUENCE)],
    "RepeatVector": [(lambda k: k.layers.RepeatVector(3), VECTOR)],
    "ZeroPadding1D": [(lambda k: k.layers.ZeroPadding1D((1, 2)), SEQUENCE)],
    "ZeroPadding2D": [(lambda k: k.layers.ZeroPadding2D(((1, 0), (2, 1))), PICTURE)],
    "ZeroPadding3D": [(lambda k: k.layers.ZeroPadding3D(1), VOLUME)],
    "Cropping1D": [(lambda k: k.layers.Cropping1D((1, 2)), SEQUENCE)],
    "Cropping2D": [(lambda k: k.layers.Cropping2D(((1, 0), (0, 2))), PICTURE)],
    "Cropping3D": [(lambda k: k.layers.Cropping3D(1), VOLUME)],
    "UpSampling1D": [(lambda k: k.layers.UpSampling1D(2), SEQUENCE)],
    "UpSampling2D": [
        (lambda k: k.layers.UpSampling2D((2, 3)), PICTURE),
        (lambda k: k.layers.UpSampling2D(2, interpolation="bilinear"), PICTURE),
    ],
    "UpSampling3D": [(lambda k: k.layers.UpSampling3D(2), VOLUME)],
    "Resizing": [(lambda k: k.layers.Resizing(14, 18), PICTURE)],
    "Dropout": [(lambda k: k.layers.Dropout(0.5), PICTURE)],
}

#: Layers that are opened: of keras.layers, with what they take.
OPENED: dict[str, list[tuple[Make, Any]]] = {
    "MultiHeadAttention": [
        (lambda k: lambda x: k.layers.MultiHeadAttention(2, 3)(x, x), SEQUENCE),
        (lambda k: lambda x: k.layers.MultiHeadAttention(2, 3, value_dim=4, use_bias=False)(x, x), SEQUENCE),
        (lambda k: lambda x: k.layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True), SEQUENCE),
        (lambda k: lambda x: k.layers.MultiHeadAttention(2, 3, output_shape=5)(x[0], x[1]), [SEQUENCE, (4, 6)]),
        (lambda k: lambda x: k.layers.MultiHeadAttention(2, 3)(x[0], x[1], key=x[2]), [SEQUENCE, (5, 4), (5, 6)]),
    ],
    "Attention": [
        (lambda k: lambda x: k.layers.Attention()(x), [SEQUENCE, (5, 4)]),
        (lambda k: lambda x: k.layers.Attention(use_scale=True)(x), [SEQUENCE, (5, 4), (5, 4)]),
    ],
    "TimeDistributed": [
        (lambda k: k.layers.TimeDistributed(k.layers.Dense(5, activation="relu")), SEQUENCE),
        (lambda k: k.layers.TimeDistributed(k.layers.Activation("tanh")), PICTURE),
    ],
    "EinsumDense": [
        (lambda k: k.layers.EinsumDense("abc,cd->abd", (None, 7), bias_axes="d", activation="relu"), SEQUENCE),
        (lambda k: k.layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), SEQUENCE),
        (lambda k: k.layers.EinsumDense("abcd,cde->abe", (None, 5)), PICTURE),
    ],
}

#: Layers that tf_keras does not have.
ONLY_IN_KERAS_3 = {"RMSNormalization"}

#: Lines of the table that do nothing in inference: Dropout stands for them. "activation" is part of other layers.
NOTHING = {name for name, emit in LAYERS.items() if emit is LAYERS["Dropout"]} | {"activation"}


def convnext(keras: Any) -> Any:
    return importlib.import_module(f"{keras.__name__}.src.applications.convnext")


def model_of(keras: Any, make: Make, shapes: Any) -> Any:
    several = isinstance(shapes, list)
    inputs = [keras.Input(s, name=f"in{i}") for i, s in enumerate(shapes if several else [shapes])]
    return randomize(keras.Model(inputs, make(keras)(inputs if several else inputs[0])))


def data_for(model: Any, key: str, batch: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = [(batch, *(d or 5 for d in tuple(t.shape)[1:])) for t in model.inputs]
    if key == "Embedding":
        return [rng.integers(0, 9, s).astype(np.float32) for s in shapes]
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(
    ("key", "make", "shapes"),
    [
        pytest.param(key, make, shapes, id=f"{key}-{i}")
        for key, cases in {**CASES, **OPENED}.items()
        for i, (make, shapes) in enumerate(cases)
    ],
)
def test_a_layer_computes_the_same_in_onnx(name: str, key: str, make: Make, shapes: Any) -> None:
    if key in ONLY_IN_KERAS_3 and name != "keras":
        assert not hasattr(framework(name).layers, key)
        return
    model = model_of(framework(name), make, shapes)
    data = data_for(model, key)
    (got,) = in_onnxruntime(to_onnx(model), data)
    (want,) = predict(model, data)
    np.testing.assert_allclose(got, want, atol=TOLERANCE * max(1.0, float(np.abs(want).max())))


def test_every_layer_of_the_table_has_a_case() -> None:
    assert set(LAYERS) - NOTHING - set(CASES) == set()
    assert set(DECOMPOSE) == set(OPENED)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_net_has_one_transpose_and_no_batch_norm_left(name: str) -> None:
    model = randomize(residual(framework(name)))
    proto = to_onnx(model)
    ops = Counter(node.op_type for node in proto.graph.node)
    assert ops["Transpose"] == 1
    assert ops["BatchNormalization"] == ops["Identity"] == 0
    data = data_for(model, "")
    np.testing.assert_allclose(in_onnxruntime(proto, data)[0], predict(model, data)[0], atol=1e-4)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_channels_first_inputs_need_no_transpose(name: str) -> None:
    model = randomize(residual(framework(name)))
    proto = to_onnx(model, channels_first_io=True)
    assert "Transpose" not in {node.op_type for node in proto.graph.node}
    (x,) = data_for(model, "")
    np.testing.assert_allclose(in_onnxruntime(proto, [x.transpose(0, 3, 1, 2)])[0], predict(model, [x])[0], atol=1e-4)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nested_models_shared_layers_and_functions_are_opened(name: str) -> None:
    keras = framework(name)
    layers = keras.layers
    inner_in = keras.Input((8, 8, 4))
    shared = layers.Conv2D(4, 3, padding="same", name="shared")
    inner = keras.Model(inner_in, shared(shared(inner_in)), name="inner")
    head = keras.Sequential([keras.Input((8, 8, 4)), layers.Flatten(), layers.Dense(3)], name="head")
    a, b = keras.Input((8, 8, 4), name="a"), keras.Input((8, 8, 4), name="b")
    y = inner(a) * 0.5 - inner(b)
    model = randomize(keras.Model([a, b], [head(y), y[:, 1:-1, ::2]]))
    data = data_for(model, "")
    for got, want in zip(in_onnxruntime(to_onnx(model), data), predict(model, data), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_subclassed_model_is_opened_by_its_call(name: str) -> None:
    keras = framework(name)

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = keras.layers.Conv2D(4, 3), keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.head(keras.layers.Flatten()(keras.activations.relu(self.conv(x) + 1.0)))

    model = Net()
    x = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
    want = np.asarray(model.predict(x, verbose=0))
    np.testing.assert_allclose(in_onnxruntime(to_onnx(model), [x])[0], want, atol=TOLERANCE)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_layer_that_is_not_known_is_named(name: str) -> None:
    keras = framework(name)
    inputs = keras.Input((5, 3))
    model = keras.Model(inputs, keras.layers.RNN(keras.layers.LSTMCell(4), name="memory")(inputs))
    with pytest.raises(ExportError, match=r"layer 'memory' \(RNN\)"):
        to_onnx(model)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k, x: k.layers.LSTM(4, return_state=True, name="it")(x)[0], "states"),
        (lambda k, x: k.layers.GRU(4, activation="gelu", name="it")(x), "'gelu'"),
        (lambda k, x: k.layers.MultiHeadAttention(2, 3, name="it")(x, x, return_attention_scores=True)[0], "scores"),
        (
            lambda k, x: k.layers.MultiHeadAttention(2, 3, name="it")(x, x, attention_mask=k.layers.Dense(5)(x)),
            "attention_mask",
        ),
        (lambda k, x: k.layers.EinsumDense("abc,bd->acd", (3, 7), name="it")(x), "abc,bd->acd"),
        (lambda k, x: k.layers.Embedding(9, 3, mask_zero=True, name="it")(x[:, :, 0]), "mask_zero"),
    ],
    ids=["states", "a function", "scores", "a mask", "an equation", "the mask of an Embedding"],
)
def test_what_has_no_onnx_form_of_a_known_layer_is_named(name: str, make: Any, message: str) -> None:
    keras = framework(name)
    inputs = keras.Input((5, 3))
    with pytest.raises(ExportError, match=f"layer 'it'.*{re.escape(message)}"):
        to_onnx(keras.Model(inputs, make(keras, inputs)))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_users_subclass_with_the_layers_own_call_is_that_layer(name: str) -> None:
    keras = framework(name)

    class MyConv(keras.layers.Conv2D):
        pass

    model = model_of(keras, lambda k: MyConv(3, 3), PICTURE)
    data = data_for(model, "")
    np.testing.assert_allclose(in_onnxruntime(to_onnx(model), data)[0], predict(model, data)[0], atol=TOLERANCE)
